"""A small cluster that carries out actions as Apache Kafka does, and copies bytes as time passes.

Kafka's rules: a reassignment adds its targets at once, completes when all of the target are in the
ISR (KAFKA-15665), and a cancel takes the added ones away. A throttle needs a rate and a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

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
from trimtab.balance.observed import Observed, ShownPartition
from trimtab.balance.steps import Decided, MoveRules, Remembered, Stopping, decide_steps
from trimtab.balance.throttles import ThrottledLists, mark_rate
from trimtab.kafka.records import TopicPartition

MB = 1_000_000
NO_LEADER = -1


@dataclass
class Partition:
    replicas: list[int]
    leader: int
    in_sync: set[int]
    size: int
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    copied: dict[int, float] = field(default_factory=dict)
    joins_s: dict[int, float] = field(default_factory=dict)

    @property
    def target(self) -> list[int]:
        return [each for each in self.replicas if each not in self.removing]

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


class Refused(Exception):
    """The cluster refuses an action."""


class ModelCluster:
    """A cluster in virtual time.

    Args:
        speed: bytes/s that each broker sends, and receives, at most.
        join_s: the longest time from a replica's last byte until it is in the ISR.

    Attributes:
        frozen: partitions of which no byte is copied.
        copied: by broker, bytes received so far.
        most: the largest number of replicas that each partition ever had.
    """

    def __init__(
        self,
        brokers: Iterable[int],
        placed: Mapping[TopicPartition, tuple[int, ...]],
        size: int = 10 * MB,
        speed: float = 100 * MB,
        join_s: float = 0.5,
        min_isr: int = 1,
        random: Random | None = None,
    ) -> None:
        self.brokers = [*brokers]
        self.alive = {*self.brokers}
        self.partitions = {
            partition: Partition([*replicas], replicas[0], {*replicas}, size)
            for partition, replicas in placed.items()
        }
        self.speed = speed
        self.join_s = join_s
        self.min_isr = min_isr
        self.random = random or Random(0)
        self.now_s = 0.0
        self.rates: dict[int, tuple[int | None, int | None]] = {}
        self.lists: dict[str, tuple[set[str], set[str]]] = {}
        self.lag: dict[tuple[TopicPartition, int], int] | None = None
        self.p99: dict[int, tuple[float, float]] = {}
        self.unwell: dict[int, str] = {}
        self.room: dict[int, int] = {}
        self.frozen: set[TopicPartition] = set()
        self.died_s: dict[int, float] = {}
        self.copied: Counter[int] = Counter()
        self.most = {each: len(placed[each]) for each in placed}

    # What the cluster does by itself

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for partition in self.partitions.values():
            for broker in self.died_s:
                if self.now_s - self.died_s[broker] > 30 and len(partition.in_sync) > 1:
                    partition.in_sync.discard(broker)
            if partition.leader not in self.alive:
                self._elect(partition)
        self._copy(seconds)
        for partition in self.partitions.values():
            for broker, at_s in [*partition.joins_s.items()]:
                if broker not in self.alive or broker not in partition.replicas:
                    del partition.joins_s[broker]
                elif self.now_s >= at_s and partition.leader >= 0:
                    partition.in_sync.add(broker)
                    del partition.joins_s[broker]
            self._complete(partition)

    def _copy(self, seconds: float) -> None:
        copies = [
            (each, partition, broker)
            for each, partition in self.partitions.items()
            for broker in partition.adding
            if broker in self.alive
            and partition.leader in self.alive
            and each not in self.frozen
            and broker not in partition.in_sync
        ]
        senders = Counter(partition.leader for _, partition, _ in copies)
        receivers = Counter(broker for _, _, broker in copies)
        for each, partition, broker in copies:
            speeds = [self.speed / senders[partition.leader], self.speed / receivers[broker]]
            leaders, followers = self.lists.get(each.topic, (set(), set()))
            limits = self.rates.get(partition.leader, (None, None))
            if limits[0] is not None and {f"{each.partition}:{partition.leader}", "*"} & leaders:
                speeds.append(limits[0] / senders[partition.leader])
            limits = self.rates.get(broker, (None, None))
            if limits[1] is not None and {f"{each.partition}:{broker}", "*"} & followers:
                speeds.append(limits[1] / receivers[broker])
            before = partition.copied.get(broker, 0.0)
            after = min(partition.size, before + min(speeds) * seconds)
            partition.copied[broker] = after
            self.copied[broker] += int(after - before)
            if after >= partition.size and broker not in partition.joins_s:
                partition.joins_s[broker] = self.now_s + self.random.random() * self.join_s

    def _complete(self, partition: Partition) -> None:
        if partition.is_moving and partition.in_sync.issuperset(partition.target):
            partition.replicas = partition.target
            partition.in_sync &= {*partition.replicas}
            partition.adding, partition.removing, partition.copied = [], [], {}
            if partition.leader not in partition.replicas:
                self._elect(partition)

    def _elect(self, partition: Partition) -> None:
        partition.leader = next(
            (each for each in partition.replicas if each in partition.in_sync & self.alive),
            NO_LEADER,
        )

    def kill(self, broker: int) -> None:
        self.alive.discard(broker)
        self.died_s[broker] = self.now_s

    def restart(self, broker: int, catches_up_s: float = 1.0) -> None:
        self.alive.add(broker)
        self.died_s.pop(broker, None)
        for partition in self.partitions.values():
            if broker in partition.replicas and broker not in partition.adding:
                partition.joins_s[broker] = self.now_s + catches_up_s

    # What others do to it

    def move(self, partition: TopicPartition, replicas: tuple[int, ...]) -> None:
        """Begin a reassignment."""
        moved = self.partitions[partition]
        if moved.is_moving:
            raise AssertionError(f"{partition} is moving: a second target would replace the first")
        removing = [each for each in moved.replicas if each not in replicas]
        moved.adding = [each for each in replicas if each not in moved.replicas]
        moved.removing = removing
        moved.replicas = [*replicas, *removing]
        self.most[partition] = max(self.most[partition], len(moved.replicas))
        self._complete(moved)

    def list_replicas(self, topic: str, leaders: Iterable[str], followers: Iterable[str]) -> None:
        lists = self.lists.setdefault(topic, (set(), set()))
        lists[0].update(leaders)
        lists[1].update(followers)

    def apply(self, action: Action) -> None:
        match action:
            case StartMoves(targets):
                for partition, replicas in targets.items():
                    if not self.alive.issuperset({*replicas} - {*self._of(partition).replicas}):
                        raise Refused(f"{partition}: a target is not alive")
                    self.move(partition, replicas)
            case CancelMoves(partitions):
                for each in partitions:
                    self._cancel(self._of(each))
            case ElectLeaders(partitions):
                for each in partitions:
                    self._prefer(self._of(each))
            case SetRates(rates):
                for broker, rate in rates.items():
                    self._alter(broker)
                    self.rates[broker] = mark_rate(rate)
            case DeleteRates(brokers):
                for broker in brokers:
                    self._alter(broker)
                    self.rates.pop(broker, None)
            case AppendPairs(pairs):
                for topic, sides in pairs.items():
                    self.list_replicas(topic, *sides)
            case SubtractPairs(pairs):
                for topic, sides in pairs.items():
                    for listed, entries in zip(self.lists[topic], sides, strict=True):
                        listed.difference_update(entries)
            case GiveUp() | Wait():
                pass

    def _prefer(self, partition: Partition) -> None:
        if partition.replicas[0] in partition.in_sync & self.alive:
            partition.leader = partition.replicas[0]

    def _of(self, partition: TopicPartition) -> Partition:
        return self.partitions[partition]

    def _alter(self, broker: int) -> None:
        if broker not in self.alive:
            raise Refused(f"broker {broker} is not alive")

    def _cancel(self, partition: Partition) -> None:
        if partition.is_moving:
            left = partition.in_sync - {*partition.adding}
            assert left & self.alive, "a cancel would leave no replica that can lead"
            partition.in_sync = left
            partition.replicas = [
                each for each in partition.replicas if each not in partition.adding
            ]
            partition.adding, partition.removing, partition.copied = [], [], {}
            if partition.leader not in partition.replicas:
                self._elect(partition)

    # What it shows

    def observe(self) -> Observed:
        shown = {
            each: ShownPartition(
                tuple(partition.replicas),
                partition.leader,
                frozenset(partition.in_sync),
                tuple(sorted(partition.adding)),
                tuple(sorted(partition.removing)),
                partition.size,
            )
            for each, partition in self.partitions.items()
        }
        return Observed(
            now_s=self.now_s,
            partitions=shown,
            counts=Counter(each.topic for each in self.partitions),
            alive=frozenset(self.alive),
            rates={each: rate for each, rate in self.rates.items() if each in self.alive},
            lists={
                topic: ThrottledLists(*(tuple(sorted(side)) for side in sides))
                for topic, sides in self.lists.items()
            },
            copied={
                (each, broker): int(partition.copied.get(broker, 0))
                for each, partition in self.partitions.items()
                for broker in partition.adding
            },
            room=self.room,
            lag=self.lag,
            p99=self.p99,
            unwell=self.unwell,
            under_min_isr=frozenset(
                each
                for each, partition in self.partitions.items()
                if len(partition.in_sync) < self.min_isr
            ),
        )

    def leftovers(self) -> list[object]:
        """What throttles and moves there are."""
        return [
            *((topic, sides) for topic, sides in self.lists.items() if any(sides)),
            *self.rates.items(),
            *(each for each, partition in self.partitions.items() if partition.is_moving),
        ]


class Executor:
    """Observes, decides and acts once a second.

    Attributes:
        done: all actions so far, each with its time.
        notes: all notes so far.
    """

    def __init__(
        self,
        cluster: ModelCluster,
        wanted: Mapping[TopicPartition, tuple[int, ...]],
        rules: MoveRules | None = None,
    ) -> None:
        self.cluster = cluster
        self.wanted = wanted
        self.rules = rules or MoveRules(50 * MB)
        self.memory = Remembered()
        self.stopping = Stopping.NOT
        self.done: list[tuple[float, Action]] = []
        self.notes: dict[str, None] = {}

    def turn(self, seconds: float = 1.0, fails: float = 0.0) -> Decided:
        """One decision, and so many seconds of the cluster's time.

        Args:
            fails: how likely each action is to fail, as those after it then do.
        """
        cluster = self.cluster
        decided = decide_steps(
            self.wanted, cluster.observe(), self.rules, self.memory, self.stopping
        )
        self.memory = decided.memory
        self.notes |= dict.fromkeys(decided.notes)
        for action in decided.actions:
            if fails and cluster.random.random() < fails:
                break
            cluster.apply(action)
            self.done.append((cluster.now_s, action))
        cluster.advance(seconds)
        return decided

    def finish(self, within_s: float, fails: float = 0.0) -> float:
        """Run until nothing is left to do; returns the seconds that it takes."""
        begin_s = self.cluster.now_s
        while not self.turn(fails=fails).is_done:
            assert self.cluster.now_s - begin_s <= within_s, self.state()
        return self.cluster.now_s - begin_s

    def wait(self, seconds: float) -> None:
        end_s = self.cluster.now_s + seconds
        while self.cluster.now_s < end_s:
            self.turn()

    def reasons(self) -> dict[TopicPartition, str]:
        return {each: given_up.reason for each, given_up in self.memory.given_up.items()}

    def arrived(self) -> set[TopicPartition]:
        """The wanted partitions that are as wanted."""
        partitions = self.cluster.partitions
        return {
            each
            for each, replicas in self.wanted.items()
            if tuple(partitions[each].replicas) == replicas
            and partitions[each].leader == replicas[0]
        }

    def state(self) -> object:
        return self.cluster.partitions, self.cluster.leftovers(), self.memory
