"""What consumer groups need to know of the cluster's topics."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from trimtab.kafka.records import TopicPartition

PartitionKey: TypeAlias = tuple[bytes, int]
"""A partition: the id of its topic, and its number."""

T = TypeVar("T", str, bytes)


class Topic(NamedTuple):
    """A topic with its number of partitions."""

    name: str
    id: bytes
    partitions: int


class Load(Protocol):
    """Where partitions are, and how much is written to them, as far as this node knows."""

    def racks_of(self, partition: TopicPartition) -> Collection[str]:
        """The racks of its replicas; none if they are unknown."""

    @property
    def rates_version(self) -> object:
        """Equals its earlier value if no rate has been measured since then."""

    def rates(self, topics: Iterable[str]) -> Mapping[TopicPartition, float]:
        """Bytes/s of their partitions, without those that are unknown. Topics that are asked for
        are measured from then on."""


class Topics(Load, Protocol):
    """The topics of the cluster, as this node knows them now."""

    @property
    def version(self) -> object:
        """Equals its earlier value if no topic has come, gone or grown since then."""

    def find(self, name: str) -> Topic | None:
        """The topic of this name; None if there is none."""

    def find_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id; None if there is none."""

    def names(self) -> Iterable[str]:
        """The names of all topics."""


def by_topic(keys: Iterable[tuple[T, int]]) -> ItemsView[T, list[int]]:
    """Partitions by the name or the id of their topic, both in order."""
    found: dict[T, list[int]] = {}
    for topic, index in sorted(keys):
        found.setdefault(topic, []).append(index)
    return found.items()
