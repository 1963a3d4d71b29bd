"""How many bytes a second are written to the partitions that a consumer reads, as its fetches show.

A partition's high watermark tells how many records a second are written, however far behind the
consumer is; the fetched batches tell how large they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.client.fetcher.plan import Batches
from trimtab.kafka.records import TopicPartition

WINDOW: Final = 300.0
"""Seconds over which a rate is measured; twice as much at most."""
SHORTEST: Final = 1.0
"""Seconds after which there is a first rate."""


@dataclass(slots=True)
class _Sample:
    begin: float
    first: int
    """The high watermark at `begin`."""
    last: int
    at: float
    size: int = 0
    offsets: int = 0
    earlier: float | None = None
    """The rate of the window before."""

    def rate(self) -> float | None:
        """Bytes/s in this window; None while it is too short."""
        if self.at - self.begin < SHORTEST or not self.offsets:
            return None
        return (self.last - self.first) / (self.at - self.begin) * self.size / self.offsets


class WriteRates:
    """The rates of the partitions that were fetched in the last two windows."""

    def __init__(self) -> None:
        self._samples: dict[TopicPartition, _Sample] = {}

    def note(self, batches: Batches, now: float) -> None:
        """A fetch at the loop's time `now` returned these batches; none after a truncation."""
        if batches.next_offset == batches.start:
            return
        mark = batches.high_watermark
        sample = self._samples.get(batches.partition)
        if sample is None or mark < sample.last:  # the partition is another one, or was cut
            sample = self._samples[batches.partition] = _Sample(now, mark, mark, now)
        elif now - sample.begin > WINDOW:
            begun = _Sample(sample.at, sample.last, sample.last, sample.at, earlier=sample.rate())
            sample = self._samples[batches.partition] = begun
        sample.last, sample.at = mark, now
        sample.size += len(batches.data)
        sample.offsets += batches.next_offset - batches.start

    def rates(self, now: float) -> dict[TopicPartition, float]:
        """Bytes/s by partition; one whose rate is not known yet is missing."""
        rates: dict[TopicPartition, float] = {}
        for partition, sample in list(self._samples.items()):
            if now - sample.at > 2 * WINDOW:
                del self._samples[partition]
                continue
            rate = sample.rate()
            if rate is None:
                rate = sample.earlier
            if rate is not None:
                rates[partition] = rate
        return rates
