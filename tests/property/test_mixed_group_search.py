"""Every order of events in a small group of both protocols: it changes its kind, and no partition
has two owners, no epoch goes back, no order is a dead end.

One client uses the consumer protocol, two the classic one. These let go of everything before they
join again, or they keep what they have until they are told (KIP-429). So the group is upgraded when
the first comes, and downgraded when it goes. The topic is created, and grows: the coordinator
notices it while the first client is in the group, otherwise the leader does. The search is that of
`test_consumer_group_search`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.property.exploring import Settling, Violation, explore
from tests.property.test_consumer_group_search import Client
from tests.unit.cluster.coordinator.scene import GROUP, Scene, topic_id
from tests.unit.cluster.coordinator.test_mixed_group import assignment, read, subscription
from trimtab.cluster.coordinator import group_shard, mixed_group
from trimtab.cluster.coordinator.classic_group import ClassicGroup, Phase
from trimtab.cluster.coordinator.consumer_group import ConsumerGroup
from trimtab.cluster.coordinator.effects import Now
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.cluster.coordinator.mixed_group import MixedGroup
from trimtab.cluster.coordinator.recorded_group import GroupState
from trimtab.cluster.coordinator.topics import PartitionKey, Topics
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_embedded,
)
from trimtab.kafka.wire.messages.group_records import GroupMetadataValue
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

pytestmark = pytest.mark.kip(848)

STATES = int(os.environ.get("GROUP_STATES", "600"))
TOPIC = "t"
FEW, MANY = 2, 3
"""Partitions of the topic before and after it has grown."""
TIMEOUT_S = 10.0
STEPS = 60


class ClassicClient:
    """A consumer that uses the classic protocol."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.state = "out"
        self.member = ""
        self.generation = -1
        self.ticket = -1
        self.given: dict[str, bytes] = {}
        self.divided: int | None = None
        """As the leader of a classic group: the partitions that it has assigned."""
        self.owned: frozenset[int] = frozenset()

    @property
    def lives(self) -> bool:
        return self.state != "out"


class World:
    """A scene with clients: the first uses the consumer protocol.

    Args:
        keeps: whether the others keep their partitions when they join again.
    """

    def __init__(self, assignment_ms: int = 0, keeps: bool = False) -> None:
        self.keeps = keeps
        self.scene = Scene()
        self.scene.consumer_rules = self.scene.consumer_rules._replace(assignment_ms=assignment_ms)
        self.modern = Client("m")
        self.classics = [ClassicClient(), ClassicClient()]
        self.epoch = 0

    @property
    def partitions(self) -> int:
        found = self.scene.topics.find(TOPIC)
        return 0 if found is None else found.partitions

    @property
    def consumers(self) -> ConsumerGroup | None:
        return self.scene.shard._consumer_groups.get(GROUP)

    @property
    def classic(self) -> ClassicGroup | None:
        return self.scene.shard._groups.get(GROUP)

    def actions(self) -> Iterator[tuple[str, int]]:
        yield "beat", 0
        if self.modern.lives:
            yield "leave modern", 0
            yield "die modern", 0
            if self.modern.owned != self.modern.wanted:
                yield "apply", 0
        for number, client in enumerate(self.classics):
            if client.state not in ("joining", "syncing") or self.scene.is_answered(client.ticket):
                yield "go on", number
            if client.state == "working":
                yield "leave", number
            if client.lives:
                yield "die", number
        if self.scene.shard.next_due is not None:
            yield "time", 0
        if self.partitions < MANY:
            yield "grow", 0
        yield "move", 0

    def act(self, what: str, number: int) -> None:
        client = self.classics[number]
        if what == "beat":
            self.beat()
        elif what == "leave modern":
            self.scene.beat(self.modern.member, -1)
            self.modern.begin()
        elif what == "die modern":
            self.modern.begin()
        elif what == "apply":
            self.modern.owned = self.modern.wanted
            self.modern.reports = True
        elif what == "go on":
            self.go_on(client)
        elif what == "leave":
            self.scene.leave((client.member, None))
            client.begin()
        elif what == "die":
            client.begin()
        elif what == "time":
            due = self.scene.shard.next_due
            assert due is not None
            self.scene.pass_time(max(0.0, due - self.scene.now_s))
        elif what == "grow":
            self.scene.topics.create(TOPIC, MANY if self.partitions else FEW)
        else:
            self.scene.restart()
            for each in self.classics:
                waits = each.state in ("joining", "syncing")
                if waits and not self.scene.is_answered(each.ticket):
                    each.state, each.given = "named", {}
        self.check()

    def beat(self) -> None:
        modern = self.modern
        owned = [(TOPIC, index) for index in modern.owned] if modern.reports else None
        answer = self.scene.beat(
            modern.member,
            modern.epoch,
            owned,
            topics=(TOPIC,) if modern.reports and modern.epoch else None,
            rebalance_s=TIMEOUT_S if modern.reports else -0.001,
        )
        if answer.error_code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            modern.begin()
            modern.lives = True
            return
        if answer.error_code:
            raise Violation(f"the client is refused: {answer.error_message}")
        if answer.member_epoch < modern.epoch or answer.member_epoch == 0:
            raise Violation(f"member epoch {answer.member_epoch} after {modern.epoch}")
        modern.lives, modern.epoch, modern.reports = True, answer.member_epoch, False
        if answer.assignment is not None:
            modern.wanted = frozenset(
                index for each in answer.assignment.topic_partitions for index in each.partitions
            )
            modern.owned |= modern.wanted
            modern.reports = True

    def go_on(self, client: ClassicClient) -> None:
        if client.state in ("out", "named") or self.is_outgrown(client):
            if not self.keeps:
                client.owned = frozenset()
            client.ticket = self.scene.join(
                client.member,
                protocols=subscription(client.owned),
                session_s=TIMEOUT_S,
                rebalance_s=TIMEOUT_S,
            )
            client.state = "joining"
        elif client.state == "joining":
            self.take_join(client, self.scene.answer(client.ticket))
        elif client.state == "joined":
            client.ticket = self.scene.sync(client.member, client.generation, client.given)
            client.state = "syncing"
        elif client.state == "syncing":
            answer = self.scene.answer(client.ticket)
            client.given = {}
            if answer.error_code:
                self.obey(client, answer.error_code)
            else:
                before, client.owned = client.owned, frozenset(read(answer.assignment))
                client.state = "working" if before <= client.owned else "named"
        else:
            self.obey(client, self.scene.heartbeat(client.member, client.generation))

    def is_outgrown(self, client: ClassicClient) -> bool:
        """Whether it has assigned fewer partitions than there are: it joins again."""
        has_divided = client.state == "working" and client.divided is not None
        return has_divided and client.divided != self.partitions

    def take_join(self, client: ClassicClient, answer: Any) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.state, client.member = "named", answer.member_id
        elif answer.error_code:
            self.obey(client, answer.error_code)
        else:
            client.state, client.generation = "joined", answer.generation_id
            members = [each.member_id for each in answer.members]
            client.divided = self.partitions if members else None
            owners = {
                index: each.member_id for each in answer.members for index in kept(each.metadata)
            }
            client.given = {
                member: assignment(
                    index
                    for index in range(self.partitions)[place :: len(members)]
                    if owners.get(index, member) == member
                )
                for place, member in enumerate(members)
            }

    def obey(self, client: ClassicClient, code: int) -> None:
        if code == ErrorCode.NONE:
            return
        if not self.keeps or code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            client.owned = frozenset()
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.begin()
            client.state = "named"
        elif code in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.NOT_COORDINATOR,
        ):
            client.state = "named"
        else:
            raise Violation(f"a client is told {ErrorCode(code).name}")

    def check(self) -> None:
        consumers, classic = self.consumers, self.classic
        if consumers is not None and classic is not None:
            raise Violation("a group is of both kinds")
        owned = [client.owned for client in self.classics if self.is_current(client)]
        if consumers is not None and self.modern.member in consumers.members:
            member = consumers.members[self.modern.member]
            if self.modern.epoch and self.modern.epoch in (member.epoch, member.previous_epoch):
                owned.append(self.modern.owned)
        if sum(map(len, owned)) > len(frozenset().union(*owned)):
            raise Violation("a partition has two owners")
        if consumers is not None:
            if consumers.is_classic:
                raise Violation("a consumer group has no member of that protocol")
            held = [
                key
                for each in consumers.members.values()
                for key in (*each.assigned, *each.revoking)
            ]
            if len(held) != len(set(held)) or set(held) != set(consumers.owners):
                raise Violation("the coordinator has given a partition twice")
            epoch = consumers.epoch
        elif classic is not None and classic.phase in (Phase.STABLE, Phase.EMPTY):
            epoch = classic.generation
        else:
            epoch = self.epoch if classic is not None else 0
        if epoch < self.epoch and epoch:
            raise Violation(f"epoch {epoch} after {self.epoch}")
        self.epoch = epoch

    def is_current(self, client: ClassicClient) -> bool:
        """Whether the group knows it as the owner of what it has."""
        if self.keeps:
            group = self.consumers if self.consumers is not None else self.classic
            return client.lives and group is not None and client.member in group.members
        if client.state != "working":
            return False
        if self.consumers is not None:
            member = self.consumers.members.get(client.member)
            return member is not None and client.generation == member.epoch
        classic = self.classic
        return (
            classic is not None
            and client.member in classic.members
            and client.generation == classic.generation
        )

    def proceed(self) -> None:
        """Let every client that lives go on, and heartbeats be sent in time."""
        for what, number in list(self.actions()):
            if what == "go on" and self.classics[number].lives:
                self.act(what, number)
        if self.modern.lives:
            self.act("beat", 0)
            self.act("apply", 0)
        self.scene.pass_time(TIMEOUT_S / 5)
        self.check()

    def is_settled(self) -> bool:
        classics = {each.member for each in self.classics if each.lives}
        working = all(each.state == "working" for each in self.classics if each.lives)
        owned = [each.owned for each in self.classics if each.lives]
        if self.modern.lives:
            owned.append(self.modern.owned)
        everything = frozenset(range(self.partitions))
        is_whole = sum(map(len, owned)) == len(everything) == len(frozenset().union(*owned))
        consumers, classic = self.consumers, self.classic
        if self.modern.lives:
            members = {*classics, self.modern.member}
            return (
                consumers is not None
                and consumers.state is GroupState.STABLE
                and set(consumers.members) == members
                and working
                and is_whole
            )
        if not classics:
            return not (consumers and consumers.members) and not (classic and classic.members)
        return (
            classic is not None
            and classic.phase is Phase.STABLE
            and set(classic.members) == classics
            and working
            and is_whole
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for worlds that differ in names and in the past only."""
        consumers, classic, now_s = self.consumers, self.classic, self.scene.now_s
        base = self.epoch
        known = [each.member for each in self.classics if each.member]
        there = [*consumers.members] if consumers else [*classic.members] if classic else []
        expected = classic._expected if classic is not None else {}
        names = {
            name: place for place, name in enumerate(dict.fromkeys([*known, *there, *expected]))
        }
        clients = tuple(
            (
                each.state,
                names.get(each.member),
                each.generation - base if each.generation >= 0 else None,
                each.owned,
                tuple((names.get(name), share) for name, share in each.given.items()),
                each.state in ("joining", "syncing") and self.scene.is_answered(each.ticket),
                None if each.divided is None else each.divided == self.partitions,
            )
            for each in self.classics
        )
        modern = (
            self.modern.lives,
            self.modern.epoch - base if self.modern.epoch else None,
            self.modern.owned,
            self.modern.wanted,
            self.modern.reports,
            self.partitions,
        )
        if consumers is not None:
            return (
                clients,
                modern,
                consumers.assignment_epoch - base,
                consumers.next_epoch(self.scene.now, self.scene.consumer_rules) - base,
                consumers._seen_topics == self.scene.topics.version,
                consumers.metadata_hash == consumers._hash_topics(),
                tuple(
                    (
                        names[each.id],
                        each.is_classic,
                        each.epoch - base,
                        each.previous_epoch - base if each.previous_epoch else None,
                        each.state,
                        tuple(sorted(each.assigned)),
                        tuple(sorted(each.revoking)),
                        tuple(sorted(consumers.targets.get(each.id, ()))),
                        round(each.deadline - now_s, 3),
                        round(min(each.act_by - now_s, 1e6), 3),
                    )
                    for each in consumers.members.values()
                ),
            )
        if classic is None:
            return clients, modern
        return (
            clients,
            modern,
            classic.phase,
            classic.generation - base,
            None if classic.leader is None else names[classic.leader],
            tuple(
                (
                    names[each.id],
                    round(each.deadline - now_s, 3),
                    each.joining is not None,
                    each.syncing is not None,
                    each.is_new,
                    each.assignment,
                    *each.protocols.values(),
                )
                for each in classic.members.values()
            ),
            tuple((names[name], round(due - now_s, 3)) for name, due in expected.items()),
            tuple(sorted(names[each] for each in classic._unsynced)),
            round(min(classic._due - now_s, 1e6), 3),
        )


def kept(metadata: bytes) -> list[int]:
    """The partitions that a member has said it has."""
    found, _ = decode_embedded(ConsumerProtocolSubscription, metadata)
    return [index for each in found.owned_partitions for index in each.partitions]


def search(
    states: int,
    claim: Callable[[World], bool] = lambda world: True,
    assignment_ms: int = 0,
    keeps: bool = False,
    start: Sequence[tuple[str, int]] = (),
) -> int:
    """Go through the states that differ, from an empty group without a topic, from one of one
    classic client at work, of both, and of all three; returns how many there are, `states` at most.

    Args:
        claim: what is said to be true of every state.
        assignment_ms: least time between two assignments.
        keeps: whether classic clients keep their partitions when they join again.
        start: actions after one classic client is at work; then only what follows is searched.
    """
    empty, alone, classic, working = (World(assignment_ms, keeps) for _ in range(4))
    for world in (alone, classic, working):
        world.act("grow", 0)
        for number in range(1 if world is alone else 2):
            world.act("go on", number)
        Settling(STEPS).check(world)
    working.act("beat", 0)
    Settling(STEPS).check(working)
    for what, number in start:
        alone.act(what, number)
    roots = [alone] if start else [empty, alone, classic, working]
    return explore(roots, states, Settling(STEPS), claim)


@pytest.mark.parametrize("keeps", [False, True], ids=["eager", "cooperative"])
@pytest.mark.parametrize("assignment_ms", [0, 1000])
def test_no_order_of_events_breaks_a_rule(assignment_ms: int, keeps: bool) -> None:
    assert search(STATES, assignment_ms=assignment_ms, keeps=keeps) >= min(STATES, 600)


def _do_nothing(*_: Any) -> None:
    """In place of a step."""


def _go_on(group: MixedGroup, now: Now, request: HeartbeatRequest) -> HeartbeatResponse:
    member = group._group.members.get(request.member_id)
    code = group._check(member, request.group_instance_id, request.generation_id)
    return HeartbeatResponse(error_code=code)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "a member is not asked to join again": (MixedGroup, "heartbeat", _go_on),
    "who waits for a classic group waits for ever": (
        ClassicGroup,
        "refuse_all_waiting",
        _do_nothing,
    ),
    "a group is not downgraded": (GroupShard, "_downgrade", _do_nothing),
    "free partitions are not given to members of the classic protocol": (
        ConsumerGroup,
        "may_have_more",
        lambda *_: False,
    ),
    "a member of the classic protocol is given all partitions": (
        mixed_group,
        "_write_assignment",
        lambda *_: assignment(range(FEW)),
    ),
    "a larger topic is not noticed": (ConsumerGroup, "_hash_topics", lambda *_: 0),
    "nor by the leader of a classic group": (World, "is_outgrown", lambda *_: False),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, instead = PLANTED[bug]
    monkeypatch.setattr(kind, name, instead)
    with pytest.raises((Violation, AssertionError, KeyError)):
        search(STATES)


_find_or_add = MixedGroup._find_or_add
_describe_downgraded = mixed_group.describe_downgraded


def _find_assigned(
    classic: ClassicGroup, subscriptions: Any, topics: Topics
) -> dict[PartitionKey, str]:
    return {
        key: member.id
        for member in classic.members.values()
        for key in mixed_group._to_keys(mixed_group._read_assignment(member.assignment), topics)
    }


def _take_back(group: MixedGroup, caller: Any, request: Any, member_id: str, owns: bool) -> Any:
    return _find_or_add(group, caller, request, member_id, owns=False)


def _tell_of_the_target(group: ConsumerGroup, topics: Topics, now: Now) -> GroupMetadataValue:
    value = _describe_downgraded(group, topics, now)
    for each in value.members:
        target = group.targets.get(each.member_id, ())
        member = group.members[each.member_id]
        each.assignment = mixed_group._write_assignment(member, target, topics)
    return value


COOPERATIVE: dict[str, tuple[list[tuple[str, int]], Any, str, Any]] = {
    "members have nothing while a group rebalances": (
        [("grow", 0), ("go on", 0), ("go on", 1), ("go on", 1)],
        mixed_group,
        "_find_holders",
        _find_assigned,
    ),
    "a removed member comes back with its partitions": (
        [("beat", 0)],
        MixedGroup,
        "_find_or_add",
        _take_back,
    ),
    "a downgraded group has the target": (
        [("beat", 0)],
        group_shard,
        "describe_downgraded",
        _tell_of_the_target,
    ),
}
"""Bugs that matter to members which keep their partitions; each with how the search starts."""


@pytest.mark.parametrize("bug", COOPERATIVE)
def test_a_planted_bug_is_found_with_members_that_keep_their_partitions(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, kind, name, instead = COOPERATIVE[bug]
    monkeypatch.setattr(kind, name, instead)
    with pytest.raises(Violation, match="two owners"):
        search(3 * STATES, keeps=True, start=start)


def _is_upgraded(world: World) -> bool:
    return world.consumers is not None and any(
        each.is_classic for each in world.consumers.members.values()
    )


def _is_downgraded(world: World) -> bool:
    return (
        world.classic is not None
        and world.classic.phase is Phase.PREPARING
        and len(world.classic.members) == 2
        and world.consumers is None
        and world.epoch > 2
    )


def _has_grown(world: World) -> bool:
    """Also for members of the classic protocol."""
    grown = world.consumers is not None and (topic_id(TOPIC), MANY - 1) in world.consumers.owners
    return grown and _is_upgraded(world)


@pytest.mark.parametrize("state", [_is_upgraded, _is_downgraded, _has_grown])
def test_the_search_comes_to(state: Callable[[World], bool]) -> None:
    with pytest.raises(Violation, match="claim"):
        search(max(STATES, 2000), lambda world: not state(world))
