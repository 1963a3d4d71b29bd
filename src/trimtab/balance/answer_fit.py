"""How long a broker's slowest answers take at another load, fitted from what probes have measured.

A broker is taken for a queue: a probe waits for the work that came before it. If `r` is the part of
the time that the broker is busy, a wait longer than `t` has the chance `r exp(-t (1 - r) / s)` (as
of M/M/1, with `s` the time that one piece of work takes). So of a hundred probes one takes longer
than

    p99 = median + s ln(100 r) / (1 - r),    r = bytes/s : capacity

`s` and the capacity are the same for all brokers; each has a median and a factor of its own. Where
brokers and windows hardly differ in load, many capacities fit about as well (to two in the log of
the likelihood), and the interval reaches over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.balance.what_if import Floats

_BUSIEST: Final = 0.95
"""Nothing is said of a broker that would be busy for a larger part of the time."""
_FARTHEST: Final = 2.0
"""Nor of more than so many times the bytes/s that any broker was measured with."""
_CAPACITIES: Final = (1.1, 50.0, 40)
"""The least and the largest that are tried, as multiples of the largest load, and how many."""
_LEAST: Final = 8


class Answered(NamedTuple):
    """What was measured of a broker in a window.

    Attributes:
        bytes_s: written to it, and sent by its leaders.
    """

    broker: int
    bytes_s: float
    median_s: float
    p99_s: float


class AnswerFit:
    """The fit of some measurements.

    Raises:
        UsageError: there are less than eight.
    """

    def __init__(self, answered: Sequence[Answered]) -> None:
        if len(answered) < _LEAST:
            raise UsageError(f"{len(answered)} answers of probes are too few: measure for longer")
        brokers = numpy.array([each.broker for each in answered])
        loads = numpy.array([each.bytes_s for each in answered])
        p99s = numpy.array([each.p99_s for each in answered])
        medians = numpy.array([min(each.median_s, each.p99_s) for each in answered])
        self._most = max(loads.max(), 1.0)
        self._median = {
            int(id): float(numpy.median(medians[brokers == id])) for id in numpy.unique(brokers)
        }
        base = numpy.array([self._median[int(id)] for id in brokers])
        fits = []
        for capacity in self._most * numpy.geomspace(*_CAPACITIES):
            shapes = _shape(loads / capacity)
            extra = numpy.maximum(p99s - base, 1e-6)
            work = float(numpy.exp(numpy.median(numpy.log(extra / shapes))))
            error = float(abs(numpy.log(p99s / (base + work * shapes))).mean())
            fits.append((max(error, 1e-3), float(capacity), work))
        best, self._capacity, self._work = min(fits)
        most = best * exp(2 / len(p99s))
        self._fits = [(capacity, work) for error, capacity, work in fits if error <= most]
        ratios = p99s / (base + self._work * _shape(loads / self._capacity))
        self._factor: dict[int, float] = {}
        self._spread: dict[int, tuple[float, float]] = {}
        """Of each broker the 5th and the 95th percentile of measured : fitted."""
        for id in self._median:
            own = ratios[brokers == id]
            self._factor[id] = factor = float(own.mean())
            low, high = numpy.quantile(own, (0.05, 0.95)) / factor
            self._spread[id] = float(low), float(high)

    def predict(self, broker: int, bytes_s: Floats) -> tuple[float, float, float]:
        """The 99th percentile in seconds at these loads: the least, the mean and the most.

        Raises:
            UsageError: the broker was not probed, or such a load is too far from what was measured.
        """
        if broker not in self._median:
            raise UsageError(f"broker {broker} was not probed")
        most = float(bytes_s.max())
        found = [
            self._factor[broker] * (self._median[broker] + work * _shape(bytes_s / capacity))
            for capacity, work in [(self._capacity, self._work), *self._fits]
            if most <= _BUSIEST * capacity
        ]
        if most > _FARTHEST * self._most or len(found) <= len(self._fits):
            raise UsageError(
                f"broker {broker} would have {most / self._most:.1f} times the bytes/s that any "
                "broker was measured with: what was measured does not tell how long answers take "
                "then"
            )
        low, high = self._spread[broker]
        every = numpy.concatenate(found)
        return low * float(every.min()), float(found[0].mean()), high * float(every.max())


def _shape(busy: Floats) -> Floats:
    """How the slowest wait grows with the part of the time that a broker is busy."""
    found: Floats = numpy.maximum(numpy.log(100 * busy + 1e-12), log(2)) / (1 - busy)
    return found
