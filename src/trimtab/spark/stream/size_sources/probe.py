"""Sizes from any cluster, estimated from a few record batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from trimtab.blocking.consumer import Consumer
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import (
    CLIENT_ID,
    FIXED,
    POLL_MS,
    FoundSizes,
    SizeRequest,
    skip_deleted,
)
from trimtab.wire.batch_cy import BatchHeader, read_headers

_PLACES: Final = 4
_PARTS: Final = 64
"""The offsets between two probed batches are divided into at most this many pieces."""
_PROBED_AHEAD: Final = 2


class Probe:
    """Reads a record batch at a few offsets, and assumes that the batches between are alike.

    Only these record batches are read twice. Between two of them, bytes are spread evenly over the
    offsets; the difference between the two gives the possible error.

    Args:
        client: the consumer's options.
    """

    name = "probe"
    tails = False

    def __init__(self, client: Mapping[str, str]) -> None:
        # A single record batch, whatever its size, is the least that a broker sends (KIP-74).
        limits = {"max.partition.fetch.bytes": "1", "fetch.max.bytes": "1"}
        self._consumer = Consumer({"client.id": CLIENT_ID, **client, **limits, **FIXED})
        self._density: dict[TopicPartition, float] = {}
        self._turns: dict[TopicPartition, None] = {}
        self._random = Random(1)
        self.bytes_read = 0

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        # One partition at a time, in turns, because each offset takes a request.
        self._turns.update(dict.fromkeys(each for each in changed if each in wanted))
        partition = next(iter(self._turns))
        del self._turns[partition]
        if partition not in wanted:
            return []
        self._turns[partition] = None
        start, end, size = wanted[partition]
        if partition in self._density:
            enough = int(size / self._density[partition]) + 1
            end = min(end, start + _PROBED_AHEAD * enough)
        places = sorted({start, end - 1, *self._draw_places(start, end - 1)})
        try:
            headers = [self._probe(partition, place) for place in places]
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            earliest = self._consumer.beginning_offsets([partition])[partition]
            return skip_deleted(partition, start, earliest, error)
        if None in headers:
            return []
        found = list(_between([each for each in headers if each is not None], start, end))
        density = sum(each.size for each in found) / max(found[-1].next_offset - start, 1)
        self._density[partition] = max(density, 1e-9)
        return [FoundSizes(partition, start, found)]

    def close(self) -> None:
        self._consumer.close()

    def _draw_places(self, first: int, last: int) -> Iterator[int]:
        """A random offset in each part of the range: evenly spaced ones might all be markers."""
        for part in range(_PLACES - 1):
            begin, end = (first + (last - first) * n // (_PLACES - 1) for n in (part, part + 1))
            yield self._random.randint(begin, end)

    def _probe(self, partition: TopicPartition, offset: int) -> BatchHeader | None:
        """The header of the record batch that contains an offset, or of the next batch."""
        consumer = self._consumer
        consumer.assign([partition])
        consumer.seek(partition, offset, offset + 1)
        batches = consumer.fetch_batches(4 * POLL_MS)
        if batches is None:
            return None
        self.bytes_read += len(batches.data)
        return read_headers(batches.data)[0]


def _between(headers: Sequence[BatchHeader], start: int, end: int) -> Iterator[Piece]:
    """Pieces from `start` to `end`, estimated from the headers of a few record batches."""
    at = start
    for index, header in enumerate(headers):
        if header.next_offset > at:
            at = header.next_offset
            yield Piece(at, header.size, header.max_timestamp)
        if index + 1 == len(headers):
            break
        following = headers[index + 1]
        offsets = following.base_offset - at
        if offsets <= 0:
            continue
        densities = [
            each.size / max(each.next_offset - each.base_offset, 1) for each in (header, following)
        ]
        parts = min(_PARTS, offsets)
        size = sum(densities) / 2 * offsets / parts
        error = abs(densities[0] - densities[1]) / 2 * offsets / parts
        first = at
        for part in range(1, parts + 1):
            at = first + offsets * part // parts
            yield Piece(at, round(size), header.max_timestamp, round(error))
