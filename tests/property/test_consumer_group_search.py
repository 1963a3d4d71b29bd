"""Every order of events in a small consumer group: no two owners, no way back, no dead end.

Three clients join, send heartbeats whose response may be lost, let go of partitions, leave and die;
a topic grows, is deleted and created again; time passes up to the next deadline; another
coordinator takes over. The search goes through all states that differ, breadth first, up to
`GROUP_STATES` (environment; default 1,500) of them. From each it also checks that the group settles
once nothing disturbs it any more.

Planted bugs test the search: it must find each. Claims that are false must be refuted, so that it
is known to come to where they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.property.exploring import Settling, Violation, explore
from tests.unit.cluster.coordinator.scene import GROUP, Scene, topic_id
from trimtab.cluster.coordinator.consumer_group import ConsumerGroup
from trimtab.cluster.coordinator.consumer_member import ConsumerMember, MemberState
from trimtab.cluster.coordinator.effects import Now
from trimtab.cluster.coordinator.recorded_group import GroupState
from trimtab.kafka.errors import ErrorCode

pytestmark = pytest.mark.kip(848)

STATES = int(os.environ.get("GROUP_STATES", "1500"))
CLIENTS = 3
TOPIC = "t"
FEW, MANY = 2, 3
"""Partitions of the topic before and after it has grown."""
TIMEOUT_S = 10.0
STEPS = 40
"""Heartbeats of every client within which an undisturbed group must settle."""


class Client:
    """A consumer that keeps to its protocol.

    Attributes:
        owned: what it reads.
        wanted: the last assignment that it was given.
        reports: whether its next heartbeat says what it owns.
    """

    def __init__(self, member: str) -> None:
        self.member = member
        self.begin()

    def begin(self) -> None:
        self.lives = False
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self.wanted: frozenset[int] = frozenset()
        self.reports = True

    @property
    def key(self) -> tuple[Any, ...]:
        return self.lives, self.epoch, self.owned, self.wanted, self.reports


class World:
    """A scene with clients. Each action is one of theirs, of time, or of the cluster."""

    def __init__(self, assignment_ms: int = 0) -> None:
        self.scene = Scene()
        self.scene.consumer_rules = self.scene.consumer_rules._replace(assignment_ms=assignment_ms)
        self.scene.topics.create(TOPIC, FEW)
        self.clients = [Client(f"m{number}") for number in range(CLIENTS)]
        self.epochs: dict[str, int] = {}

    def actions(self) -> Iterator[tuple[str, int]]:
        for number, client in enumerate(self.clients):
            yield "beat", number
            if client.lives:
                yield "lose", number
                yield "leave", number
                yield "die", number
                if client.owned != client.wanted:
                    yield "apply", number
        if self.scene.shard.next_due is not None:
            yield "time", 0
        found = self.scene.topics.find(TOPIC)
        if found is None:
            yield "create", 0
        else:
            yield "delete", 0
            if found.partitions == FEW:
                yield "grow", 0
        yield "move", 0

    def act(self, what: str, number: int) -> None:
        client = self.clients[number]
        if what == "beat":
            self.take(client, self.beat(client))
        elif what == "lose":
            if self.beat(client).error_code == ErrorCode.NONE:
                client.reports = True
        elif what == "leave":
            self.scene.beat(client.member, -1)
            client.begin()
        elif what == "die":
            client.begin()
        elif what == "apply":
            self.apply(client)
        elif what == "time":
            due = self.scene.shard.next_due
            assert due is not None
            self.scene.pass_time(max(0.0, due - self.scene.now_s))
        elif what == "grow":
            self.scene.topics.create(TOPIC, MANY)
        elif what == "create":
            self.scene.topics.create(TOPIC, FEW)
        elif what == "delete":
            self.scene.topics.delete(TOPIC)
        else:
            self.scene.restart()
        self.check()

    def beat(self, client: Client) -> Any:
        owned = [(TOPIC, index) for index in client.owned] if client.reports else None
        is_full = client.reports and client.epoch > 0
        return self.scene.beat(
            client.member,
            client.epoch,
            owned,
            topics=(TOPIC,) if is_full else None,
            rebalance_s=TIMEOUT_S / 2 if is_full or client.epoch == 0 else -0.001,
        )

    def take(self, client: Client, answer: Any) -> None:
        if answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            client.begin()
            client.lives = True
            return
        if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            client.begin()
            return
        if answer.error_code:
            raise Violation(f"a client is refused: {answer.error_message}")
        if answer.member_epoch < client.epoch:
            raise Violation(f"member epoch {answer.member_epoch} after {client.epoch}")
        client.lives = True
        client.epoch = answer.member_epoch
        client.reports = False
        if answer.assignment is not None:
            client.wanted = frozenset(
                index for each in answer.assignment.topic_partitions for index in each.partitions
            )
            # It stops to read what it must let go of, and says so with its next heartbeat.
            # What it may read more, it reads from now on.
            client.owned |= client.wanted
            client.reports = True

    def apply(self, client: Client) -> None:
        client.owned = client.wanted
        client.reports = True

    @property
    def group(self) -> ConsumerGroup | None:
        return self.scene.shard._consumer_groups.get(GROUP)

    def check(self) -> None:
        group = self.group
        members: Mapping[str, ConsumerMember] = {} if group is None else group.members
        readers = [
            each
            for each in self.clients
            if each.member in members and each.epoch > 0 and self.is_current(each, members)
        ]
        if sum(len(each.owned) for each in readers) > len(
            frozenset().union(*(each.owned for each in readers))
        ):
            raise Violation("a partition has two owners")
        if group is None:
            self.epochs = {}
            return
        now = {
            "group": group.epoch,
            "target": group.assignment_epoch,
            **{each.id: each.epoch for each in members.values()},
        }
        for name, epoch in now.items():
            if epoch < self.epochs.get(name, 0):
                raise Violation(f"epoch {epoch} of {name} after {self.epochs[name]}")
        self.epochs = now
        if group.assignment_epoch > group.epoch:
            raise Violation("the target is ahead of the group")
        held = [key for each in members.values() for key in (*each.assigned, *each.revoking)]
        if len(held) != len(set(held)) or set(held) != set(group.owners):
            raise Violation("the coordinator has given a partition twice, or forgotten its owner")

    @staticmethod
    def is_current(client: Client, members: Mapping[str, ConsumerMember]) -> bool:
        """Whether the coordinator knows this client, not an earlier one with its id."""
        member = members[client.member]
        return client.epoch in (member.epoch, member.previous_epoch)

    def proceed(self) -> None:
        """Let every client that lives go on, and heartbeats be sent in time."""
        for number, client in enumerate(self.clients):
            if client.lives:
                self.act("beat", number)
                self.act("apply", number)
        self.scene.pass_time(TIMEOUT_S / 5)
        self.check()

    def is_settled(self) -> bool:
        living = {each.member for each in self.clients if each.lives}
        group = self.group
        if not living:
            return group is None or not group.members
        found = self.scene.topics.find(TOPIC)
        partitions = 0 if found is None else found.partitions
        return (
            group is not None
            and group.state is GroupState.STABLE
            and set(group.members) == living
            and frozenset().union(*(each.owned for each in self.clients))
            == frozenset(range(partitions))
            and sum(len(each.owned) for each in self.clients) == partitions
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for worlds that differ in the past only."""
        group = self.group
        found = self.scene.topics.find(TOPIC)
        base = 0 if group is None else group.epoch
        clients = tuple(
            (
                each.lives,
                each.epoch - base if each.epoch else None,
                each.owned,
                each.wanted,
                each.reports,
            )
            for each in self.clients
        )
        if group is None:
            return clients, found
        now_s = self.scene.now_s
        return (
            clients,
            found,
            group.assignment_epoch - base,
            group.next_epoch(self.scene.now, self.scene.consumer_rules) - base,
            group._seen_topics == self.scene.topics.version,
            tuple(
                (
                    each.id,
                    each.epoch - base if each.epoch > 0 else each.epoch,
                    each.previous_epoch - base if each.previous_epoch > 0 else each.previous_epoch,
                    each.state,
                    tuple(sorted(each.assigned)),
                    tuple(sorted(each.revoking)),
                    tuple(sorted(group.targets.get(each.id, ()))),
                    round(each.deadline - now_s, 3),
                    round(min(each.act_by - now_s, 1e6), 3),
                )
                for each in group.members.values()
            ),
        )


def search(
    states: int, claim: Callable[[World], bool] = lambda world: True, assignment_ms: int = 0
) -> int:
    """Go through the states that differ, from an empty group and from one at work; returns how many
    there are, `states` at most.

    Args:
        claim: what is said to be true of every state.
        assignment_ms: least time between two assignments.
    """
    settling = Settling(STEPS)
    empty, working = World(assignment_ms), World(assignment_ms)
    for number in range(CLIENTS):
        working.act("beat", number)
    Settling(STEPS).check(working)
    return explore([empty, working], states, settling, claim)


@pytest.mark.parametrize("assignment_ms", [0, 1000])
def test_no_order_of_events_breaks_a_rule(assignment_ms: int) -> None:
    assert search(STATES, assignment_ms=assignment_ms) >= min(STATES, 1500)


def _all_at_once(
    group: ConsumerGroup,
    now: Now,
    member: ConsumerMember,
    received: int,
    owned: frozenset[tuple[bytes, int]] | None,
) -> None:
    """The whole target is handed out before the old owner let go."""
    if not group._is_reconciled(member):
        target = dict.fromkeys(group.targets.get(member.id, ()), group.assignment_epoch)
        group._write_assignment(
            member, group.assignment_epoch, received, MemberState.STABLE, target, {}
        )


def _forget_revoking(group: ConsumerGroup, member_id: str, value: Any) -> None:
    """A partition is free as soon as its owner is asked to let go of it."""
    _replay_assignment(group, member_id, value)
    for key in () if value is None else group.members[member_id].revoking:
        group.owners.pop(key, None)


def _wait_for_ever(
    group: ConsumerGroup,
    now: Now,
    member: ConsumerMember,
    received: int,
    owned: frozenset[tuple[bytes, int]] | None,
) -> None:
    """Partitions that are free later are not handed out any more."""
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        _reconcile(group, now, member, received, owned)


_replay_assignment = ConsumerGroup._replay_assignment
_reconcile = ConsumerGroup._reconcile

PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "the whole target is handed out at once": ("_reconcile", _all_at_once),
    "a partition is free before its owner let go": ("_replay_assignment", _forget_revoking),
    "what is free later stays without owner": ("_reconcile", _wait_for_ever),
    "a session is never over": ("look", lambda *_: None),
    "who has left keeps its partitions": ("_release", lambda *_: None),
    "a larger topic is not noticed": ("_hash_topics", lambda *_: 0),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, instead = PLANTED[bug]
    monkeypatch.setattr(ConsumerGroup, name, instead)
    with pytest.raises((Violation, AssertionError, KeyError)):
        search(STATES)


def _members(world: World) -> list[ConsumerMember]:
    return [] if world.group is None else list(world.group.members.values())


REACHED: dict[str, Callable[[World], bool]] = {
    "a member lets go of partitions": lambda world: any(
        each.state is MemberState.UNREVOKED_PARTITIONS for each in _members(world)
    ),
    "a member waits for partitions": lambda world: any(
        each.state is MemberState.UNRELEASED_PARTITIONS for each in _members(world)
    ),
    "a member has none": lambda world: any(
        each.epoch > 0 and not each.assigned for each in _members(world)
    ),
    "the topic has grown": lambda world: (
        (topic_id(TOPIC), MANY - 1) in (world.group.owners if world.group is not None else {})
    ),
}


@pytest.mark.parametrize("state", REACHED)
def test_the_search_comes_to(state: str) -> None:
    with pytest.raises(Violation, match="claim"):
        search(STATES, lambda world: not REACHED[state](world))
