"""What is to be done next on the way from the replicas of partitions to those wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from trimtab.balance.throttles import ThrottledLists
from trimtab.kafka.records import TopicPartition


class CancelMoves(NamedTuple):
    """Cancel reassignments: these partitions return to their former replicas."""

    partitions: tuple[TopicPartition, ...]


class SubtractPairs(NamedTuple):
    """Remove entries from topics' lists of throttled replicas."""

    pairs: Mapping[str, ThrottledLists]


class SetRates(NamedTuple):
    """Limit the bytes/s that each broker sends, and that it receives, for moves."""

    rates: Mapping[int, int]


class AppendPairs(NamedTuple):
    """Add entries to topics' lists of throttled replicas."""

    pairs: Mapping[str, ThrottledLists]


class StartMoves(NamedTuple):
    """Give partitions these replicas, or the same in another order."""

    targets: Mapping[TopicPartition, tuple[int, ...]]


class ElectLeaders(NamedTuple):
    """Elect the preferred leaders."""

    partitions: tuple[TopicPartition, ...]


class DeleteRates(NamedTuple):
    """Remove brokers' throttles."""

    brokers: tuple[int, ...]


class GiveUp(NamedTuple):
    """Report that a partition stays as it is, and why."""

    partition: TopicPartition
    reason: str


class Wait(NamedTuple):
    """Do no more now; the reasons are for people."""

    reasons: tuple[str, ...]


Action: TypeAlias = (
    CancelMoves
    | SubtractPairs
    | SetRates
    | AppendPairs
    | StartMoves
    | ElectLeaders
    | DeleteRates
    | GiveUp
    | Wait
)
