"""A topic as the cluster last described it: a frozen value, with which partitioners decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class PartitionView(NamedTuple):
    """One partition as the cluster last described it. `leader` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as the cluster last described it.

    Attributes:
        leaders: the leader's node id for each partition, -1 where there is none.
        racks: the leader's rack for each partition, None where unknown.
        available: the partitions that have a leader, increasing.
    """

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionView, ...]
    leaders: tuple[int, ...]
    racks: tuple[str | None, ...]
    available: tuple[int, ...]

    @property
    def partition_count(self) -> int:
        return len(self.partitions)
