"""KIP-480's partitioner: one partition for each batch."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from trimtab.client.partitioner.protocol import TopicLoad, Weight
from trimtab.client.topic_view import TopicView


class StickyPartitioner:
    """One partition until a new batch is needed, then another (KIP-480).

    Never the same partition twice in a row while others have a leader. The turn also ends when a
    record with a key or a given partition opens a batch in this partition.
    Source: `org.apache.kafka.clients.producer.internals.StickyPartitionCache` (2.4 to 3.2).
    """

    turns_by_batch = True
    follows_load = False

    def __init__(self, random: Random) -> None:
        self._random = random

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        available = view.available
        if not available:
            return self._random.randrange(view.partition_count), 0
        if len(available) == 1:
            return available[0], 0
        while True:
            chosen = available[self._random.randrange(len(available))]
            if chosen != previous:
                return chosen, 0

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        return True

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        if not view.available:
            return {p: Weight(1 / view.partition_count) for p in range(view.partition_count)}
        chance = Weight(1 / len(view.available))
        return {
            partition: chance if leader >= 0 else Weight(0.0, "it has no leader")
            for partition, leader in enumerate(view.leaders)
        }
