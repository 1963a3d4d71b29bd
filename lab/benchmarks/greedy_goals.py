"""A plan by one goal after another, each greedy, as Cruise Control's documents describe it.

Hard goals (racks, limits of replicas) hold for every step. Then come disk, bytes in, bytes out: a
broker above its threshold gives leaders away if the goal is bytes out, then replicas, the largest
first, each to the broker that has least and takes it without leaving its own threshold or that of
an earlier goal. What an earlier goal has reached no later one undoes.

Source: Cruise Control's wiki, "Overview" and "Configurations": `balance.threshold` 1.10 of which it
plans to nine tenths of the margin, goals in order of priority.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.balance.cluster_load import DISK, IN, OUT, ClusterLoad, PartitionLoad
from trimtab.kafka.records import TopicPartition

GOALS = (DISK, IN, OUT)


class GreedyGoals:
    """The replicas and leaders of a cluster while goals are optimised.

    Args:
        above: of the mean, what a broker may have.

    Attributes:
        replicas, leaders: by partition.
    """

    def __init__(self, load: ClusterLoad, above: float) -> None:
        self._load = load
        self._partitions = {each.partition: each for each in load.partitions}
        self.replicas = {each.partition: list(each.replicas) for each in load.partitions}
        self.leaders = {each.partition: each.leader for each in load.partitions}
        self._alive = [each.id for each in load.brokers.values() if each.is_alive]
        self._free = {each.id: max(0, each.free) for each in load.brokers.values()}
        self._loads = {goal: dict.fromkeys(load.brokers, 0.0) for goal in GOALS}
        self._held: dict[int, set[TopicPartition]] = {each: set() for each in load.brokers}
        for each in load.partitions:
            for broker in each.replicas:
                self._held[broker].add(each.partition)
                self._loads[DISK][broker] += each.size
                self._loads[IN][broker] += each.bytes_in
            self._loads[OUT][each.leader] += each.leader_out
        self._limits = {
            goal: above * sum(self._loads[goal].values()) / max(1, len(self._alive))
            for goal in GOALS
        }
        self._done: list[str] = []

    def run(self) -> None:
        for goal in GOALS:
            for broker in sorted(self._alive, key=lambda each: -self._loads[goal][each]):
                if self._loads[goal][broker] > self._limits[goal]:
                    if goal == OUT:
                        self._give_leaders(broker)
                    self._give_replicas(broker, goal)
            self._done.append(goal)

    def copied(self) -> int:
        """Bytes."""
        return sum(
            each.size * len({*self.replicas[each.partition]} - {*each.replicas})
            for each in self._load.partitions
        )

    def result(self) -> ClusterLoad:
        """The cluster after the plan."""
        return self._load._replace(
            partitions=[
                each._replace(
                    replicas=tuple(self.replicas[each.partition]),
                    leader=self.leaders[each.partition],
                    in_sync=frozenset(self.replicas[each.partition]),
                )
                for each in self._load.partitions
            ]
        )

    def _amounts(self, each: PartitionLoad, is_led: bool) -> Mapping[str, float]:
        return {DISK: each.size, IN: each.bytes_in, OUT: each.leader_out if is_led else 0.0}

    def _takes(self, broker: int, amounts: Mapping[str, float], goal: str) -> bool:
        """Whether a broker stays below the thresholds of this goal and the earlier ones."""
        return all(
            self._loads[each][broker] + amounts[each] <= self._limits[each]
            for each in (*self._done, goal)
            if amounts[each]
        )

    def _order(self, broker: int, goal: str) -> list[PartitionLoad]:
        held = [self._partitions[each] for each in self._held[broker]]
        return sorted(
            (each for each in held if each.partition not in self._load.moving),
            key=lambda each: (-self._amounts(each, True)[goal], each.partition),
        )

    def _give_leaders(self, broker: int) -> None:
        for each in self._order(broker, OUT):
            if self._loads[OUT][broker] <= self._limits[OUT]:
                return
            if self.leaders[each.partition] != broker:
                continue
            amounts = {OUT: each.leader_out, IN: 0.0, DISK: 0.0}
            others = [other for other in self.replicas[each.partition] if other != broker]
            others.sort(key=lambda other: self._loads[OUT][other])
            for other in others:
                if other in each.in_sync and self._takes(other, amounts, OUT):
                    self._lead(each, other)
                    break

    def _lead(self, each: PartitionLoad, broker: int) -> None:
        self._loads[OUT][self.leaders[each.partition]] -= each.leader_out
        self._loads[OUT][broker] += each.leader_out
        self.leaders[each.partition] = broker

    def _give_replicas(self, broker: int, goal: str) -> None:
        for each in self._order(broker, goal):
            if self._loads[goal][broker] <= self._limits[goal]:
                return
            is_led = self.leaders[each.partition] == broker
            amounts = self._amounts(each, is_led)
            if not amounts[goal]:
                continue
            target = self._find_target(each, broker, amounts, goal)
            if target is None:
                continue
            replicas = self.replicas[each.partition]
            replicas[replicas.index(broker)] = target
            if is_led:
                self.leaders[each.partition] = target
            for kind in GOALS:
                self._loads[kind][broker] -= amounts[kind]
                self._loads[kind][target] += amounts[kind]
            self._held[broker].remove(each.partition)
            self._held[target].add(each.partition)
            self._free[broker] += 1
            self._free[target] -= 1

    def _find_target(
        self, each: PartitionLoad, broker: int, amounts: Mapping[str, float], goal: str
    ) -> int | None:
        replicas = self.replicas[each.partition]
        brokers = self._load.brokers
        racks = {brokers[other].rack for other in replicas if other != broker}
        is_spread = len(racks) == len(replicas) - 1 and brokers[broker].rack not in racks
        fits = (
            other
            for other in self._alive
            if other not in replicas
            and brokers[other].takes_replicas
            and self._free[other] > 0
            and not (is_spread and brokers[other].rack in racks)
            and self._takes(other, amounts, goal)
        )
        return min(fits, key=lambda other: (self._loads[goal][other], other), default=None)
