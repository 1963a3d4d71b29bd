"""The most frequent keys, in bounded memory.

Source: the Space-Saving algorithm (Metwally, Agrawal, El Abbadi, 2005), in the form that adds many
counts at once and can be merged (Agarwal et al., "Mergeable Summaries", 2012).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from heapq import nlargest
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Hitter(NamedTuple):
    """The counts of one key.

    Attributes:
        records, bytes: the counted ones; the actual numbers are not lower.
        partition: the highest partition of its records.
        missed: maximum number of records that were not counted.
    """

    records: int
    bytes: int
    partition: int
    missed: int


class HeavyHitters(Generic[K]):
    """Counts keys; forgets the rarest if there are too many.

    Args:
        capacity: number of keys to keep. A key with more than total / capacity records is kept.

    Attributes:
        floor: maximum number of records of any key that is not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.floor = 0
        self._capacity = capacity
        self._kept: dict[K, Hitter] = {}

    def count_keys(self, counts: Iterable[tuple[K, int, int, int]]) -> None:
        """Count some records.

        Args:
            counts: key, records, bytes, partition; a key may occur several times.
        """
        kept = self._kept
        for key, records, octets, partition in counts:
            known = kept.get(key)
            if known is None:
                kept[key] = Hitter(records, octets, partition, self.floor)
            else:
                kept[key] = Hitter(
                    known.records + records,
                    known.bytes + octets,
                    max(known.partition, partition),
                    known.missed,
                )
            if len(kept) >= 2 * self._capacity:  # seldom, so that keeping order costs little
                self._forget()

    def __iter__(self) -> Iterator[tuple[K, Hitter]]:
        """The keys kept, at most `capacity`."""
        self._forget()
        return iter(self._kept.items())

    def _forget(self) -> None:
        if len(self._kept) <= self._capacity:
            return

        def most(item: tuple[K, Hitter]) -> int:
            return item[1].records + item[1].missed

        ranked = nlargest(self._capacity + 1, self._kept.items(), key=most)
        self.floor = max(self.floor, most(ranked.pop()))
        self._kept = dict(ranked)
