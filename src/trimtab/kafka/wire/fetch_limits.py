"""The byte limits of a fetch, and the budget that they leave while it is answered (KIP-74).

    consumer, follower ──FetchLimits──▶ Fetch ──▶ broker: FetchBudget ◀──spend── each partition read

Both count the bytes of record batches only, not the headers of the response.
"""

from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    """The limits that a consumer or a follower sets for its fetches, in bytes.

    Attributes:
        max_bytes: limits a response (`fetch.max.bytes`; `replica.fetch.response.max.bytes`).
        partition_max_bytes: limits each partition in it (`max.partition.fetch.bytes`;
            `replica.fetch.max.bytes`).
        min_bytes: the broker waits until it has this many (`fetch.min.bytes`;
            `replica.fetch.min.bytes`).
    """

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int


class FetchBudget:
    """The bytes that one response may still carry, while partition after partition is read.

    The limit is soft: the first partition that has records gives at least one batch, however large,
    because a consumer could otherwise never get past a batch larger than its limits. A partition
    without records leaves that exemption to the next one. Bytes that no batch of one partition fits
    into are left for smaller batches of the partitions after it.

    Args:
        max_bytes: the limit of the response. 0 allows one batch; a negative limit allows nothing.

    Attributes:
        left: bytes of the limit that are not spent; 0 after a first batch that exceeds the limit.
        must_give_one: whether no partition has given records yet, so that the next one that has
            some gives at least one batch.

    Source: Kafka's `ReplicaManager.readFromLog` (`limitBytes`, `minOneMessage`).
    """

    __slots__ = ("_max_bytes", "left", "must_give_one")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self.left = max_bytes
        self.must_give_one = True

    @property
    def spent(self) -> int:
        """Bytes of the limit that are spent: never more than the limit."""
        return self._max_bytes - self.left

    def room(self, partition_max_bytes: int) -> int:
        """The bytes that the next partition may give, within its own limit too. Negative if one of
        the limits is negative, which makes the request invalid.

        While `must_give_one`, its first batch may be larger than that.
        """
        return min(self.left, partition_max_bytes)

    def spend(self, size: int) -> None:
        """Count the bytes of the batches that a partition gave: at least one batch."""
        self.left = max(0, self.left - size)
        self.must_give_one = False
