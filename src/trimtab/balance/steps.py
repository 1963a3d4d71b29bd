"""The next actions on the way from what a cluster shows to the replicas that are wanted.

    observe ─▶ decide_steps ─▶ actions, in this order:
               cancel, shorten lists, set rates, lengthen lists, start, elect, delete rates, give up

All state is the cluster's, except what `Remembered` has: a killed process that is started again
with the same wanted replicas goes on. Leaders come first, since they copy nothing. A move is
never replaced by another (Kafka would forget which replicas the first has added): it ends, or is
cancelled.

Throttles of others stay and are named; `throttle_steps` says which are ours.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Final, NamedTuple

from trimtab.balance.actions import (
    Action,
    AppendPairs,
    CancelMoves,
    DeleteRates,
    ElectLeaders,
    GiveUp,
    SetRates,
    StartMoves,
    SubtractPairs,
    Wait,
)
from trimtab.balance.moves import MOVE_COST
from trimtab.balance.next_replicas import Blocked, next_replicas
from trimtab.balance.observed import Observed, ShownPartition
from trimtab.balance.pace import (
    ADJUST_S,
    adjust_windows,
    first_window,
    is_strained,
    rate_within,
)
from trimtab.balance.throttle_steps import ThrottleSteps, name_some
from trimtab.balance.throttles import CopyEnds, ThrottledLists, find_ends
from trimtab.kafka.records import TopicPartition

_LEADERS_REST_S: Final = 2.0
_VERIFY_S: Final = 3.0
"""A broker may answer with the lists of a moment ago."""
_BLIND_S: Final = 3600.0
_LEVELS: Final = 20
"""So finely the use of windows is compared."""


class MoveRules(NamedTuple):
    """What the moves keep to.

    Attributes:
        rate: bytes/s that each broker may send, and receive, for moves; None for no limit.
        leaders: that may change at a time.
        share: of a topic's partitions whose leaders may change at a time; one always may.
        stall_s: seconds without a copied byte after which a move is cancelled.
        death_s: seconds after which a broker that is not alive is not waited for.
        patience_s: seconds for whatever else a partition waits.
    """

    rate: int | None = None
    leaders: int = 50
    share: float = 0.1
    stall_s: float = 120.0
    death_s: float = 60.0
    patience_s: float = 900.0


class Stopping(Enum):
    """How far the moves are to be stopped."""

    NOT = "go on"
    FINISHES = "start none, let those in progress end"
    CANCELS = "cancel those in progress"
    LEAVES = "leave those in progress to the cluster, without a throttle"


class GivenUp(NamedTuple):
    """Why a partition is left as it is.

    Attributes:
        cancels: whether its move, while the cluster shows one, is to be cancelled.
    """

    reason: str
    cancels: bool = False


class Remembered(NamedTuple):
    """What the cluster cannot tell; pass it from one decision to the next.

    Attributes:
        since: by partition and kind of waiting a mark, and when it was first seen.
        given_up: by partition.
        windows: bytes that may be copied at a time, by broker.
        adjusted_s, elected_s: when the windows were last changed, and leaders elected.
        listed_s: when the throttled replicas of a partition were listed.
        reverted: topics whose lists someone else has shortened since.
        rated: brokers whose rates are ours.
        inherited: those whose rates an earlier run has left.
        rateless: brokers that take no rate.
    """

    since: Mapping[tuple[TopicPartition, str], tuple[object, float]] = {}
    given_up: Mapping[TopicPartition, GivenUp] = {}
    windows: Mapping[int, int] = {}
    adjusted_s: float = -inf
    elected_s: float = -inf
    listed_s: Mapping[TopicPartition, float] = {}
    reverted: frozenset[str] = frozenset()
    rated: frozenset[int] = frozenset()
    inherited: frozenset[int] = frozenset()
    rateless: frozenset[int] = frozenset()


class Decided(NamedTuple):
    """Actions in the order in which to carry them out; if one before a start fails, the start must
    be left out.

    Attributes:
        notes: for people: what of others was found.
        unfinished: number of partitions that are neither as wanted nor given up.
        is_done: nothing is left to do, nor to remove.
    """

    actions: tuple[Action, ...]
    memory: Remembered
    notes: tuple[str, ...]
    unfinished: int
    is_done: bool


def decide_steps(
    wanted: Mapping[TopicPartition, tuple[int, ...]],
    observed: Observed,
    rules: MoveRules,
    memory: Remembered,
    stopping: Stopping = Stopping.NOT,
) -> Decided:
    """What to do now.

    Args:
        wanted: replicas by partition, the preferred leader first; the same replicas in another
            order change the leader only.
        memory: of the last decision; `Remembered()` at first.
    """
    return _Round(wanted, observed, rules, memory, stopping).decide()


class _Round:
    """One decision."""

    def __init__(
        self,
        wanted: Mapping[TopicPartition, tuple[int, ...]],
        observed: Observed,
        rules: MoveRules,
        memory: Remembered,
        stopping: Stopping,
    ) -> None:
        self.wanted = wanted
        self.seen = observed
        self.rules = rules
        self.memory = memory
        self.stopping = stopping
        self.since: dict[tuple[TopicPartition, str], tuple[object, float]] = {}
        self.given_up = dict(memory.given_up)
        self.unfinished = 0
        self.cancelled: list[TopicPartition] = []
        self.copies: dict[TopicPartition, CopyEnds] = {}
        self.in_flight: Counter[int] = Counter()
        self.arriving: Counter[int] = Counter()
        self.foreign: set[TopicPartition] = set()
        self.busy: set[int] = set()
        self.starts: dict[TopicPartition, tuple[int, ...]] = {}
        self.elected: list[TopicPartition] = []
        self.waits: dict[str, None] = {}
        self.notes: list[str] = []
        self._under_min_isr = f"below min.insync.replicas: {name_some(observed.under_min_isr)}"

    def decide(self) -> Decided:
        self._look_at_moves()
        leaders: list[TopicPartition] = []
        others: list[TopicPartition] = []
        for partition, replicas in self.wanted.items():
            shown = self.seen.partitions.get(partition)
            if partition in self.given_up:
                self._cancel_again(partition, shown)
            elif shown is None:
                self._give_up(partition, "there is no such partition")
            elif shown.is_moving or shown.replicas != replicas or shown.leader != replicas[0]:
                self.unfinished += 1
                if partition in self.copies:
                    self._watch(partition, shown)
                elif self.stopping is not Stopping.NOT:
                    self._give_up(partition, "stopped before it was done")
                elif shown.is_moving:
                    self._wait(partition, "foreign", "it is in a reassignment that is not ours")
                elif set(shown.replicas) == set(replicas):
                    leaders.append(partition)
                else:
                    others.append(partition)
        is_moving = bool(self.copies)
        windows, adjusted_s = self._adjust_windows()
        if not self._lead(leaders) or is_moving:
            self._move(others, windows)
        return self._conclude(windows, adjusted_s)

    # What is in progress

    def _look_at_moves(self) -> None:
        """Tell our moves, whose bytes count, from those that are not watched: of others, and those
        that were given up. Their brokers get no further moves meanwhile."""
        for partition, shown in self.seen.partitions.items():
            if not shown.is_moving:
                continue
            wanted = frozenset(self.wanted.get(partition, ()))
            is_ours = (
                bool(wanted)
                and wanted.issuperset(shown.adding)
                and wanted.isdisjoint(shown.removing)
            )
            if not is_ours:
                self.foreign.add(partition)
            if is_ours and partition not in self.given_up:
                self.copies[partition] = find_ends(shown.replicas, shown.target, shown.adding)
                self._count(partition, shown, shown.adding)
            else:
                self.busy.update(shown.adding, [shown.leader])
        if self.foreign:
            self.notes.append(f"reassignments that are not ours: {name_some(self.foreign)}")

    def _count(
        self, partition: TopicPartition, shown: ShownPartition, added: Iterable[int]
    ) -> None:
        for broker in added:
            left = shown.size - self.seen.copied.get((partition, broker), 0)
            self.arriving[broker] += max(left, 0)
            for end in (broker, shown.leader):
                self.in_flight[end] += max(left, MOVE_COST)

    def _slowness(self, brokers: Iterable[int]) -> int:
        """How many times slower than allowed these brokers copy, since they answer late."""
        rate = self.rules.rate
        if rate is None:
            return 1
        first = first_window(rate)
        windows = [self.memory.windows.get(each, first) for each in brokers]
        return max(rate // rate_within(rate, window) for window in windows)

    def _watch(self, partition: TopicPartition, shown: ShownPartition) -> None:
        """Cancel a move of ours that cannot end."""
        rules = self.rules
        if self.stopping is Stopping.CANCELS:
            self._abandon(partition, shown, "stopped")
            return
        if self.stopping is Stopping.LEAVES:
            self._give_up(partition, "stopped; its reassignment goes on without a throttle")
            return
        dead = next((each for each in shown.target if each not in self.seen.alive), None)
        if dead is not None:
            role = "to which it moves" if dead in shown.adding else "which is to keep its replica"
            if self._lasts(partition, "dead", dead, rules.death_s):
                self._abandon(partition, shown, f"broker {dead}, {role}, is not alive")
            return
        added = [(partition, broker) for broker in shown.adding]
        copied = tuple(self.seen.copied.get(each) for each in added)
        lag = tuple((self.seen.lag or {}).get(each) for each in added)
        is_blind = not any(each is not None for each in copied + lag)
        late = [str(each) for each in shown.target if each not in shown.in_sync]
        state = f"not in the ISR: {', '.join(late) or 'none'}"
        limit_s = rules.stall_s * self._slowness((*shown.adding, shown.leader))
        if is_blind:
            limit_s = _BLIND_S
        if self._lasts(partition, "stall", (copied, lag), limit_s):
            self._abandon(partition, shown, f"no byte was copied for {limit_s:g} s; {state}")
        elif not is_blind and self._lasts(
            partition, "behind", self._least_behind(partition, shown), rules.patience_s
        ):
            self._abandon(
                partition,
                shown,
                f"it did not catch up for {rules.patience_s:g} s: allow a higher rate; {state}",
            )

    def _least_behind(self, partition: TopicPartition, shown: ShownPartition) -> int:
        """The fewest bytes, or records, that its added replicas ever lacked."""
        now = 0
        for broker in shown.adding:
            replica = (partition, broker)
            if replica in self.seen.copied:
                now += max(0, shown.size - self.seen.copied[replica])
            else:
                now += (self.seen.lag or {}).get(replica, 0)
        before = self.memory.since.get((partition, "behind"))
        return min(now, before[0]) if before and isinstance(before[0], int) else now

    def _cancel_again(self, partition: TopicPartition, shown: ShownPartition | None) -> None:
        given_up = self.given_up[partition]
        if shown is None or not shown.is_moving:
            # A reassignment that is seen later is somebody else's.
            self.given_up[partition] = given_up._replace(cancels=False)
            return
        if not given_up.cancels or partition in self.foreign:
            return
        if self._lasts(partition, "cancel", None, self.rules.death_s):
            reason = f"{given_up.reason}; its reassignment could not be cancelled"
            self._give_up(partition, reason)
        else:
            self.unfinished += 1
            self.cancelled.append(partition)

    def _abandon(self, partition: TopicPartition, shown: ShownPartition, reason: str) -> None:
        """Cancel a move, if a replica is left that can lead."""
        if any(each in shown.in_sync and each in self.seen.alive for each in shown.former):
            self._give_up(partition, reason, cancels=True)
            self.cancelled.append(partition)
        else:
            self._give_up(
                partition,
                f"{reason}; not cancelled, since of its former replicas "
                f"{', '.join(map(str, shown.former))} none is alive and in the ISR",
            )

    def _give_up(self, partition: TopicPartition, reason: str, cancels: bool = False) -> None:
        self.given_up[partition] = GivenUp(reason, cancels)
        self.copies.pop(partition, None)

    def _lasts(self, partition: TopicPartition, kind: str, mark: object, limit_s: float) -> bool:
        """Whether this has been so, with the same mark, for longer than the limit."""
        known, since_s = self.memory.since.get((partition, kind), (None, self.seen.now_s))
        if known != mark:
            since_s = self.seen.now_s
        self.since[partition, kind] = mark, since_s
        return self.seen.now_s - since_s >= limit_s

    def _wait(
        self, partition: TopicPartition, kind: str, why: str, limit_s: float | None = None
    ) -> None:
        """Leave a partition for now; give it up if that lasts."""
        self.waits[why] = None
        if self._lasts(partition, kind, None, limit_s or self.rules.patience_s):
            self._give_up(partition, why)

    # Leaders

    def _lead(self, partitions: Iterable[TopicPartition]) -> bool:
        """Choose the leaders to be elected now; returns whether more could be."""
        rests = self.seen.now_s - self.memory.elected_s < _LEADERS_REST_S
        left = 0 if rests else self.rules.leaders
        of_topic: Counter[str] = Counter()
        ready = []
        is_more = False
        for partition in partitions:
            shown, replicas = self.seen.partitions[partition], self.wanted[partition]
            if shown.leader == replicas[0]:
                self.starts[partition] = replicas
            elif not self._is_well(partition, shown, replicas[0]):
                continue
            elif self.seen.lag is not None and (partition, replicas[0]) not in self.seen.lag:
                is_more = True
            else:
                ready.append(partition)
        # Kafka itself elects preferred leaders from time to time: those that are so already first.
        ready.sort(key=lambda each: self.seen.partitions[each].replicas != self.wanted[each])
        for partition in ready:
            topic = partition.topic
            most = max(1, int(self.seen.counts.get(topic, 1) * self.rules.share))
            has_begun = (partition, "elect") in self.memory.since
            if not left or of_topic[topic] >= most:
                is_more = True
            else:
                left -= 1
                of_topic[topic] += 1
                has_begun = True
                if self.seen.partitions[partition].replicas != self.wanted[partition]:
                    self.starts[partition] = self.wanted[partition]
                self.elected.append(partition)
            if has_begun and self._lasts(partition, "elect", None, self.rules.patience_s):
                self._give_up(partition, "its leader was elected again and again, without effect")
        return is_more

    def _is_well(self, partition: TopicPartition, shown: ShownPartition, leader: int) -> bool:
        """Whether nothing speaks against the wanted leader: it lacks no record, and answers."""
        seen = self.seen
        why = None
        if leader not in seen.alive:
            why = f"broker {leader}, its wanted leader, is not alive"
            self._wait(partition, "dead", why, self.rules.death_s)
            return False
        if leader not in shown.in_sync:
            why = f"broker {leader}, its wanted leader, is not in the ISR"
        elif leader in seen.unwell:
            why = f"broker {leader}, its wanted leader, {seen.unwell[leader]}"
        elif is_strained(seen.p99.get(leader)):
            why = f"broker {leader}, its wanted leader, answers late"
        elif seen.lag is not None and seen.lag.get((partition, leader)):
            why = f"broker {leader}, its wanted leader, lacks records"
        if why is not None:
            self._wait(partition, "leader", why)
        return why is None

    # Moves

    def _adjust_windows(self) -> tuple[Mapping[int, int], float]:
        memory, seen = self.memory, self.seen
        if seen.now_s - memory.adjusted_s < ADJUST_S:
            return memory.windows, memory.adjusted_s
        first = first_window(self.rules.rate)
        return adjust_windows(memory.windows, first, self.in_flight, seen.p99), seen.now_s

    def _move(self, partitions: Iterable[TopicPartition], windows: Mapping[int, int]) -> None:
        """Begin moves, those of the least busy brokers first, while their windows have room."""
        first = first_window(self.rules.rate)
        queues: dict[tuple[int, int], deque[TopicPartition]] = {}
        for partition in partitions:
            shown = self.seen.partitions[partition]
            present = shown.replicas
            comes = next((each for each in self.wanted[partition] if each not in present), None)
            pair = shown.leader, shown.leader if comes is None else comes
            queues.setdefault(pair, deque()).append(partition)

        def used(pair: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
            """How much of their windows is in use, most so by the busier broker."""
            most = first if queues[pair][0].topic in self.memory.reverted else inf
            shares = [self.in_flight[each] / min(windows.get(each, first), most) for each in pair]
            return int(max(shares) * _LEVELS), int(sum(shares) * _LEVELS), pair

        heap = [used(pair) for pair in queues]
        heapify(heap)
        while heap:
            before = heap[0]
            pair = before[2]
            now = used(pair)
            if now[0] >= _LEVELS:
                self.waits["moves are in progress"] = None
                heappop(heap)
            elif now > before:
                heapreplace(heap, now)
            else:
                self._begin(queues[pair].popleft())
                if queues[pair]:
                    heapreplace(heap, used(pair))
                else:
                    heappop(heap)
        # Partitions that this round did not reach have waited since the same time as before.
        if self.memory.since:
            left = {each for queue in queues.values() for each in queue}
            for key, since in self.memory.since.items():
                if key[0] in left:
                    self.since[key] = since

    def _begin(self, partition: TopicPartition) -> None:
        """Begin a partition's next step, unless it must wait."""
        seen, shown = self.seen, self.seen.partitions[partition]
        try:
            target = next_replicas(shown, self.wanted[partition])
        except Blocked as blocked:
            self._wait(partition, "blocked", str(blocked))
            return
        ends = find_ends(shown.replicas, target)
        dead = ends.targets - seen.alive
        heals = not shown.in_sync.issuperset(shown.replicas)
        busy = {*ends.targets, shown.leader} & self.busy if ends.targets else set()
        full = {each for each in ends.targets if not self._has_room(each, shown.size)}
        if dead:
            why = f"broker {min(dead)}, to which it moves, is not alive"
            self._wait(partition, "dead", why, self.rules.death_s)
        elif seen.under_min_isr and not heals:
            self._wait(partition, "blocked", self._under_min_isr)
        elif busy:
            why = f"broker {min(busy)} takes part in a reassignment that is not watched"
            self._wait(partition, "blocked", why)
        elif full:
            why = (
                f"the disks of broker {min(full)} have no room for a replica of {shown.size} bytes"
            )
            self._wait(partition, "full", why)
        else:
            self.starts[partition] = target
            self.copies[partition] = ends
            self._count(partition, shown, ends.targets)

    def _has_room(self, broker: int, size: int) -> bool:
        """Whether its disks have room for a replica, beside those that arrive."""
        room = self.seen.room.get(broker)
        return room is None or self.arriving[broker] + size <= room

    # Throttles

    def _conclude(self, windows: Mapping[int, int], adjusted_s: float) -> Decided:
        memory, seen, rate = self.memory, self.seen, self.rules.rate
        listed_s = {
            each: since_s
            for each, since_s in memory.listed_s.items()
            if each in self.copies and each not in self.starts
        }
        throttles = ThrottleSteps(
            self.wanted.keys(), seen, self.copies, self.foreign, memory.rated, memory.inherited
        )
        removals = throttles.find_stale()
        rates: dict[int, int] = {}
        additions: dict[str, ThrottledLists] = {}
        reverted = memory.reverted
        if rate is not None:
            first = first_window(rate)
            busy = {each for ends in self.copies.values() for side in ends for each in side}
            limits = {
                each: rate_within(rate, windows.get(each, first)) for each in busy - memory.rateless
            }
            rates = throttles.change_rates(limits)
            reverted |= throttles.find_reverted(
                each for each, since_s in listed_s.items() if seen.now_s - since_s >= _VERIFY_S
            )
            additions = throttles.find_missing(reverted)
        for partition in self.copies:
            if partition.topic in additions:
                listed_s.setdefault(partition, seen.now_s)
        is_over = not self.unfinished
        deleted = throttles.find_needless() if is_over else ()
        new = [
            each
            for each, given_up in self.given_up.items()
            if each not in memory.given_up or memory.given_up[each].reason != given_up.reason
        ]
        groups: list[Iterable[Action]] = [
            [CancelMoves(tuple(self.cancelled))] if self.cancelled else [],
            [SubtractPairs(removals)] if removals else [],
            [SetRates(rates)] if rates else [],
            [AppendPairs(additions)] if additions else [],
            [StartMoves(self.starts)] if self.starts else [],
            [ElectLeaders(tuple(self.elected))] if self.elected else [],
            [DeleteRates(deleted)] if deleted else [],
            (GiveUp(each, self.given_up[each].reason) for each in new),
            [Wait(tuple(self.waits))] if self.waits else [],
        ]
        return Decided(
            tuple(action for group in groups for action in group),
            Remembered(
                self.since,
                self.given_up,
                windows,
                adjusted_s,
                seen.now_s if self.elected else memory.elected_s,
                listed_s,
                reverted,
                throttles.rated | rates.keys(),
                throttles.inherited,
                memory.rateless,
            ),
            (*self.notes, *throttles.notes),
            self.unfinished,
            is_over and not removals and not deleted,
        )
