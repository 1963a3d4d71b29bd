# mypy: allow-untyped-decorators, no-warn-return-any
"""The heaviest keys, in bounded memory: for a producer, `trimtab skew` and Spark's load tables.

Source: the Space-Saving algorithm (Metwally, Agrawal, El Abbadi, 2005), in the form that adds many
counts at once and can be merged (Agarwal et al., "Mergeable Summaries", 2012).
"""

from collections.abc import Hashable, Iterator
from typing import Any

import cython


@cython.final
@cython.cclass
class Hitter:
    """The counts of one key.

    Attributes:
        amount: what was counted of it, in records or bytes; the actual amount is not lower.
        bytes: of the counted records.
        missed: the largest amount that may not have been counted.
        partition: the highest partition of its records.
    """

    def __init__(
        self,
        amount: cython.longlong,
        octets: cython.longlong,
        missed: cython.longlong,
        partition: cython.int,
    ) -> None:
        self.amount = amount
        self.bytes = octets
        self.missed = missed
        self.partition = partition

    def __repr__(self) -> str:
        return f"Hitter({self.amount}, {self.bytes}, {self.missed}, {self.partition})"


@cython.final
@cython.cclass
class HeavyHitters:
    """Counts keys; forgets the lightest if there are too many.

    Args:
        capacity: number of keys to keep. A key with more than total / capacity is kept.

    Attributes:
        floor: the largest amount that any key may have which is not kept.
    """

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.floor = 0
        self._capacity = capacity
        self._kept: dict[Hashable, Hitter] = {}

    @cython.locals(hitter=Hitter)
    def count_key(
        self,
        key: Any,
        amount: cython.longlong,
        octets: cython.longlong,
        partition: cython.int,
    ) -> None:
        """Count records of one key: their number or bytes, their bytes, and their partition."""
        found = self._kept.get(key)
        if found is not None:
            hitter = found
            hitter.amount += amount
            hitter.bytes += octets
            hitter.partition = max(hitter.partition, partition)
            return
        self._kept[key] = Hitter(amount, octets, self.floor, partition)
        if len(self._kept) >= 2 * self._capacity:  # seldom, so that forgetting costs little
            self._forget()

    def fade(self) -> None:
        """Halve all amounts, so that what came long ago counts less."""
        kept: dict[Hashable, Hitter] = {}
        for key, hitter in self._kept.items():
            if hitter.amount > 1:
                kept[key] = Hitter(
                    hitter.amount // 2,
                    hitter.bytes // 2,
                    (hitter.missed + 1) // 2,
                    hitter.partition,
                )
        self._kept = kept
        self.floor = (self.floor + 1) // 2

    def __iter__(self) -> Iterator[tuple[Any, Hitter]]:
        """The keys kept, at most `capacity`."""
        self._forget()
        return iter(self._kept.items())

    def _forget(self) -> None:
        """Keep the heaviest `capacity` keys; of those that weigh the same, the earlier ones."""
        if len(self._kept) <= self._capacity:
            return
        most = [hitter.amount + hitter.missed for hitter in self._kept.values()]
        bar = sorted(most, reverse=True)[self._capacity]
        self.floor = max(self.floor, bar)
        room = self._capacity - sum(each > bar for each in most)
        kept = {}
        for each, (key, hitter) in zip(most, self._kept.items(), strict=True):
            if each == bar:
                room -= 1
            if each > bar or (each == bar and room >= 0):
                kept[key] = hitter
        self._kept = kept
