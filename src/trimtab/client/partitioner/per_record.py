"""Per-record partitioners: round robin, and users' own functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

PartitionFunction: TypeAlias = Callable[
    [str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int
]
"""`(topic, key, value, partitions, available) -> partition`."""


class RoundRobinPartitioner:
    """Each record to the next partition that has a leader; keys are ignored.

    Source: `org.apache.kafka.clients.producer.RoundRobinPartitioner`. That one skips every other
    partition when batches are closed (KAFKA-9965); here the counter moves once per record.
    """

    def __init__(self) -> None:
        self._count = 0

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        candidates = view.available or range(view.partition_count)
        chosen = candidates[self._count % len(candidates)]
        self._count += 1
        return chosen


class CallablePartitioner:
    """A user's function `(topic, key, value, partitions, available) -> partition`, checked.

    A result that is not in `partitions` raises UsageError at once. Java's producer refuses a
    negative result; with one that is too large its record fails after `delivery.timeout.ms`.
    """

    def __init__(self, function: PartitionFunction) -> None:
        self._function = function

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        chosen = self._function(view.name, key, value, range(view.partition_count), view.available)
        try:
            index = operator.index(chosen)
        except TypeError:
            index = -1
        if not 0 <= index < view.partition_count:
            raise UsageError(
                f"the partitioner returned {chosen!r} for topic {view.name}, which has partitions"
                f" 0 to {view.partition_count - 1}; return one of these"
            )
        return index


class CallableNewBatchPartitioner(CallablePartitioner):
    """A user's function, and `on_new_batch(topic, partitions, previous)`, for new batches."""

    def __init__(
        self, function: PartitionFunction, on_new_batch: Callable[[str, Sequence[int], int], object]
    ) -> None:
        super().__init__(function)
        self._on_new_batch = on_new_batch

    def on_new_batch(self, view: TopicView, previous: int) -> None:
        self._on_new_batch(view.name, range(view.partition_count), previous)
