# mypy: allow-untyped-decorators, no-warn-return-any
"""Which keys of a topic are heavy while a producer sends: a sample, in bounded memory.

One in 32 of the records whose key decides the partition is counted, more if hot keys are treated,
at irregular distances, so that no pattern of the keys coincides with them.
"""

from collections.abc import Callable
from typing import Any

import cython

from trimtab.balance.heavy_hitters_cy import HeavyHitters

if cython.compiled:
    from cython.cimports.trimtab.balance.heavy_hitters_cy import (  # type: ignore[no-redef]
        HeavyHitters,
    )

# One with more than 1/256 of the bytes is always found.
_KEPT = cython.declare(cython.int, 256)
_EVERY = cython.declare(cython.uint, 32)
_SAMPLES_A_LOOK = cython.declare(cython.int, 64)
# Larger keys are remembered by their hash only, so that memory stays bounded.
_LARGEST_SHOWN = cython.declare(cython.Py_ssize_t, 1024)
_HALF_LIFE_S = cython.declare(cython.double, 300.0)


@cython.final
@cython.cclass
class KeyWatch:
    """Counts the bytes of a topic's keys.

    Args:
        shows_keys: whether keys are kept, and not only their hashes.
        now: the loop's time, seconds: what is older counts half after five minutes.

    Attributes:
        total: bytes that were counted, of all keys.
        samples: records that were counted; halved with the bytes.
        counted: records that were ever counted.
    """

    def __init__(self, shows_keys: cython.bint, now: Callable[[], float]) -> None:
        self.shows_keys = shows_keys
        self.total = 0
        self.samples = 0
        self.counted = 0
        self._hitters = HeavyHitters(_KEPT)
        self._distances = 2 * _EVERY - 1
        self._left = 1
        self._state = 0x2545F491
        self._now = now
        self._faded = now()

    def look_closer(self, kept: int) -> None:
        """Forget what was counted; from now on find each key with more than 1 / `kept` of the
        bytes."""
        self._hitters = HeavyHitters(kept)
        self.total = self.samples = self.counted = 0

    def sample(self, every: int) -> None:
        """Count one record in `every` from now on."""
        self._distances = 2 * every - 1

    def fade(self) -> None:
        """Halve what was counted, so that it counts less than what is to come."""
        self._faded = self._now()
        self._hitters.fade()
        self.total //= 2
        self.samples //= 2

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_due(self) -> cython.bint:
        """Whether this record is one of those that are counted."""
        self._left -= 1
        return self._left <= 0

    @cython.locals(state=cython.uint)
    def count_key(
        self, key_hash: cython.longlong, key: Any, size: cython.longlong, partition: cython.int
    ) -> None:
        """Count a record: its key's hash, its key as bytes if keys are shown, its bytes, and its
        partition. Under the lock, since another thread may run."""
        if not self.shows_keys or len(key) > _LARGEST_SHOWN:
            key = key_hash
        state = self._state * 1664525 + 1013904223 & 0xFFFFFFFF
        self._state = state
        self._left = 1 + (state >> 16) % self._distances
        self._hitters.count_key(key, size, 0, partition)
        self.total += size
        self.samples += 1
        self.counted += 1
        if self.counted % _SAMPLES_A_LOOK == 0 and self._now() >= self._faded + _HALF_LIFE_S:
            self.fade()

    def heaviest(
        self, count: int | None = None, least: float = 0.0
    ) -> list[tuple[Any, float, int]]:
        """Key or hash, share of the counted bytes, and partition: the heaviest first.

        Args:
            count: how many at most; all that are known if None.
            least: the smallest share.
        """
        if not self.total:
            return []
        bar = least * self.total
        kept = [
            (key, hitter.amount, hitter.partition)
            for key, hitter in self._hitters
            if hitter.amount >= bar
        ]
        kept.sort(key=_heaviest_first)
        return [(key, amount / self.total, partition) for key, amount, partition in kept[:count]]


def _heaviest_first(item: tuple[Any, int, int]) -> tuple[int, bool, Any]:
    return -item[1], isinstance(item[0], bytes), item[0]
