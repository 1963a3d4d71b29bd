"""Every order of events in a small classic group: no two owners, no way back, no dead end.

Three clients join, synchronize, send heartbeats, leave and die; time passes up to the next
deadline; another coordinator takes over. The search goes through all states that differ, breadth
first, up to `GROUP_STATES` (environment; default 1,500) of them. From each it also checks that the
group settles once nothing disturbs it any more.

Planted bugs test the search: it must find each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.property.exploring import Settling, Violation, explore
from tests.unit.cluster.coordinator.scene import GROUP, Scene
from trimtab.cluster.coordinator.classic_group import ClassicGroup, Phase
from trimtab.cluster.coordinator.effects import Now
from trimtab.kafka.errors import ErrorCode

STATES = int(os.environ.get("GROUP_STATES", "1500"))
CLIENTS = 3
PARTITIONS = frozenset(range(CLIENTS))
TIMEOUT_S = 10.0
STEPS = 60
"""Steps of every client within which an undisturbed group must settle."""


class Client:
    """A consumer: what it does next depends on what it was answered."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.state = "out"
        self.member = ""
        self.generation = -1
        self.ticket = -1
        self.given: dict[str, bytes] = {}
        self.owned: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[Any, ...]:
        return self.state, self.member, self.generation, self.owned, tuple(self.given.items())


class World:
    """A scene with clients. Each action is one of theirs, of time, or of the cluster."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.clients = [Client() for _ in range(CLIENTS)]
        self.latest = 0
        self.assigned: dict[str, bytes] = {}

    def actions(self) -> Iterator[tuple[str, int]]:
        for number, client in enumerate(self.clients):
            if client.state not in ("joining", "syncing") or self.scene.is_answered(client.ticket):
                yield "go on", number
            if client.state == "working":
                yield "leave", number
            if client.state != "out":
                yield "die", number
        if self.scene.shard.next_due is not None:
            yield "time", 0
        yield "move", 0

    def act(self, what: str, number: int) -> None:
        client = self.clients[number]
        if what == "go on":
            self.go_on(client)
        elif what == "leave":
            self.scene.leave((client.member, None))
            if self.group is not None and client.member in self.group.members:
                raise Violation("a member has left and is there")
            client.begin()
        elif what == "die":
            client.begin()
        elif what == "time":
            due = self.scene.shard.next_due
            assert due is not None
            self.scene.pass_time(max(0.0, due - self.scene.now_s))
        else:
            self.move()
        self.check()

    def go_on(self, client: Client) -> None:
        if client.state in ("out", "named"):
            client.ticket = self.scene.join(
                client.member, session_s=TIMEOUT_S, rebalance_s=TIMEOUT_S
            )
            client.state = "joining"
        elif client.state == "joining":
            self.take_join(client, self.scene.answer(client.ticket))
        elif client.state == "joined":
            client.ticket = self.scene.sync(client.member, client.generation, client.given)
            client.state = "syncing"
        elif client.state == "syncing":
            self.take_sync(client, self.scene.answer(client.ticket))
        else:
            self.obey(client, self.scene.heartbeat(client.member, client.generation))

    def take_join(self, client: Client, answer: Any) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.state, client.member = "named", answer.member_id
        elif answer.error_code:
            self.obey(client, answer.error_code)
        else:
            client.state, client.generation = "joined", answer.generation_id
            members = [each.member_id for each in answer.members]
            client.given = {
                member: bytes(sorted(PARTITIONS)[place :: len(members)])
                for place, member in enumerate(members)
            }

    def take_sync(self, client: Client, answer: Any) -> None:
        client.given = {}
        if answer.error_code:
            self.obey(client, answer.error_code)
        else:
            client.state, client.owned = "working", frozenset(answer.assignment)

    def obey(self, client: Client, code: int) -> None:
        if code == ErrorCode.NONE:
            if self.group is None or client.generation != self.group.generation:
                raise Violation("a member of another generation is told to go on")
            return
        client.owned = frozenset()
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.begin()
        elif code in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.NOT_COORDINATOR,
        ):
            client.state = "named"
        else:
            raise Violation(f"a client is told {ErrorCode(code).name}")

    def move(self) -> None:
        """Another coordinator takes over: who waits is told so."""
        self.scene.restart()
        for client in self.clients:
            is_waiting = client.state in ("joining", "syncing")
            if is_waiting and not self.scene.is_answered(client.ticket):
                client.state = "named"
                client.given = {}

    @property
    def group(self) -> ClassicGroup | None:
        return self.scene.shard._groups.get(GROUP)

    def check(self) -> None:
        group = self.group
        if group is None:
            self.latest = 0
            return
        if group.phase is Phase.STABLE and group.generation < self.latest:
            raise Violation(f"generation {group.generation} after {self.latest}")
        if group.phase is Phase.STABLE:
            assigned = {each.id: each.assignment for each in group.members.values()}
            if group.generation == self.latest and assigned != self.assigned:
                raise Violation("a generation has two assignments")
            self.latest, self.assigned = group.generation, assigned
        owners = [
            client
            for client in self.clients
            if client.state == "working"
            and client.generation == group.generation
            and client.member in group.members
        ]
        if sum(len(each.owned) for each in owners) > len(
            frozenset().union(*(each.owned for each in owners))
        ):
            raise Violation("a partition has two owners")

    def proceed(self) -> None:
        """Let every client that lives go on, and heartbeats be sent in time."""
        for what, number in list(self.actions()):
            if what == "go on" and self.clients[number].state != "out":
                self.act(what, number)
        for client in self.clients:
            if client.state == "working":
                self.obey(client, self.scene.heartbeat(client.member, client.generation))
        self.scene.pass_time(TIMEOUT_S / 2)
        self.check()

    def is_settled(self) -> bool:
        living = [each for each in self.clients if each.state != "out"]
        if not living:
            return self.group is None or not self.group.members
        working = all(each.state == "working" for each in living)
        group = self.group
        return (
            working
            and group is not None
            and group.phase is Phase.STABLE
            and set(group.members) == {each.member for each in living}
            and frozenset().union(*(each.owned for each in living)) == PARTITIONS
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for worlds that differ in names and in the past only."""
        group = self.group
        members = {} if group is None else group.members
        expected = {} if group is None else group._expected
        known = [each.member for each in self.clients if each.member]
        names = {
            name: place for place, name in enumerate(dict.fromkeys([*known, *members, *expected]))
        }
        base = 0 if group is None else group.generation
        now_s = self.scene.now_s
        clients = tuple(
            (
                client.state,
                names.get(client.member),
                client.generation - base if client.generation >= 0 else None,
                client.owned,
                tuple((names.get(name), share) for name, share in client.given.items()),
                client.state in ("joining", "syncing") and self.scene.is_answered(client.ticket),
            )
            for client in self.clients
        )
        if group is None:
            return (clients,)
        return (
            clients,
            group.phase,
            group.generation > 0,
            None if group.leader is None else names[group.leader],
            tuple(
                (
                    names[each.id],
                    round(each.deadline - now_s, 3),
                    each.joining is not None,
                    each.syncing is not None,
                    each.is_new,
                    each.assignment,
                )
                for each in members.values()
            ),
            tuple((names[name], round(due - now_s, 3)) for name, due in expected.items()),
            tuple(sorted(names[each] for each in group._unsynced)),
            round(min(group._due - now_s, 1e6), 3),
        )


def search(states: int) -> int:
    """Go through the states that differ, from an empty group and from one at work; returns how many
    there are, `states` at most."""
    empty, working = World(), World()
    for number in range(CLIENTS):
        working.act("go on", number)
    Settling(STEPS).check(working)
    return explore([empty, working], states, Settling(STEPS))


def test_no_order_of_events_breaks_a_rule() -> None:
    assert search(STATES) >= min(STATES, 1500)


def _be_stable_at_once(group: ClassicGroup, now: Now) -> None:
    """Members get the assignment of the generation before, without waiting for the leader."""
    _begin_generation(group, now)
    if group.members:
        group.phase = Phase.STABLE


_begin_generation = ClassicGroup._begin_generation

PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "a session is never over": ("look", lambda *_: None),
    "a rebalance leaves those waiting who synchronize": ("_refuse_sync", lambda *_: None),
    "the old assignment goes on": ("_begin_generation", _be_stable_at_once),
    "who has left stays": (
        "leave",
        lambda group, now, identities: [ErrorCode.NONE for _ in identities],
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, instead = PLANTED[bug]
    monkeypatch.setattr(ClassicGroup, name, instead)
    with pytest.raises((Violation, AssertionError, KeyError)):
        search(STATES)
