"""Which records of a partition belong to transactions that have not ended: the last stable offset.

    begin                    marker at offset m        high watermark beyond m
      └─ open ──────────────────┴─ undecided ─────────────┴─ forgotten

A consumer with `isolation.level=read_committed` reads up to the first record of an open or
undecided transaction (KIP-98). An ended transaction is undecided until its marker is committed,
as another leader may not have the marker.

Source: Kafka's `ProducerStateManager`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple


class EndedTransaction(NamedTuple):
    """A transaction that has ended here. Offsets are inclusive.

    Attributes:
        last_offset: the marker's.
        last_stable_offset: the first offset of the oldest transaction still open; the offset after
            the marker if there is none.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OpenTransactions:
    """The transactions of one partition that are open or undecided.

    Attributes:
        first_offsets: the offset of the first record of each open transaction, by producer id, in
            rising order.
    """

    __slots__ = ("_undecided", "first_offsets")

    def __init__(self) -> None:
        self.first_offsets: dict[int, int] = {}
        self._undecided: list[tuple[int, int]] = []
        """A heap of first offsets, each with its marker's."""

    def open_transaction(self, producer_id: int, first_offset: int) -> None:
        """The producer's first record is stored, unless its transaction is open already."""
        self.first_offsets.setdefault(producer_id, first_offset)

    def note_marker(self, producer_id: int, marker_offset: int) -> EndedTransaction | None:
        """The producer's marker is stored; None if no transaction of it is open here."""
        first_offset = self.first_offsets.pop(producer_id, None)
        if first_offset is None:
            return None
        heappush(self._undecided, (first_offset, marker_offset))
        oldest = next(iter(self.first_offsets.values()), marker_offset + 1)
        return EndedTransaction(producer_id, first_offset, marker_offset, oldest)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of all transactions that are open or undecided; None if there are none.
        Forgets those whose markers are below the high watermark, which must not fall."""
        undecided = self._undecided
        while undecided and undecided[0][1] < high_watermark:
            heappop(undecided)
        first = next(iter(self.first_offsets.values()), None)
        if undecided and (first is None or undecided[0][0] < first):
            return undecided[0][0]
        return first
