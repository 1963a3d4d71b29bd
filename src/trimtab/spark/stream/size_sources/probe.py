"""Sizes, estimated from a few record batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import Final

from trimtab.client.blocking.admin import Admin
from trimtab.client.options import ADMIN
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchHeader, read_headers
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import (
    CLIENT_ID,
    POLL_MS,
    FoundSizes,
    SizeRequest,
    SizeSource,
    skip_deleted,
)

logger = logging.getLogger(__name__)

_PLACES: Final = 16
_PARTS: Final = 64
"""The offsets between two probed batches are divided into at most this many pieces."""
_PROBED_AHEAD: Final = 2
_AVERAGE_SECONDS: Final = 30.0
"""How long the average size of a record is used."""


class LogSizes:
    """The sizes of partitions' logs, as their brokers know them (DescribeLogDirs).

    Args:
        client: the consumer's options.
        clock: seconds, monotonic.
    """

    def __init__(
        self, client: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        given = {name: value for name, value in client.items() if name in ADMIN}
        self._admin = Admin({"client.id": CLIENT_ID, **given})
        self._clock = clock
        self._sizes: dict[TopicPartition, int] = {}
        self._asked_at = -inf

    def size(self, partition: TopicPartition) -> int:
        """Bytes of the partition's largest replica; 0 if no broker tells."""
        if self._clock() - self._asked_at >= _AVERAGE_SECONDS:
            self._asked_at = self._clock()
            try:
                self._sizes = self._look()
            except BrokerError as error:
                logger.warning(
                    "sizeSource=probe: the brokers do not tell the sizes of logs, so a micro-batch"
                    " may be many times as large as its limit: %s",
                    error,
                )
                self._asked_at = inf  # not again
        return self._sizes.get(partition, 0)

    def close(self) -> None:
        self._admin.close()

    def _look(self) -> dict[TopicPartition, int]:
        sizes: dict[TopicPartition, int] = {}
        for directories in self._admin.describe_log_dirs().values():
            for directory in directories:
                for partition, log in directory.logs.items():
                    sizes[partition] = max(log.size, sizes.get(partition, 0))
        return sizes


class Probe(SizeSource):
    """Reads a record batch at a few offsets, and assumes that the batches between are alike.

    Only these record batches are read twice. Between two of them, an offset takes as many bytes as
    in the larger of the two, or as in the partition's whole log on average, if that is more: a few
    probes may all miss the large batches. The difference gives the possible error.
    """

    name = "probe"

    def __init__(self, client: Mapping[str, str]) -> None:
        # A single record batch, whatever its size, is the least that a broker sends (KIP-74).
        super().__init__(client, {"max.partition.fetch.bytes": "1", "fetch.max.bytes": "1"})
        self._logs = LogSizes(client)
        self._density: dict[TopicPartition, float] = {}
        self._turns: dict[TopicPartition, None] = {}
        self._random = Random(1)

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
        average = self._average(partition)
        if density := max(self._density.get(partition, 0.0), average):
            end = min(end, start + _PROBED_AHEAD * (int(size / density) + 1))
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
        known = [header for found in headers for header in found or ()]
        found = list(_between(known, start, average))
        if not headers[-1]:
            found.append(Piece(end, 0))
        density = sum(each.size for each in found) / max(found[-1].next_offset - start, 1)
        self._density[partition] = max(density, 1e-9)
        return [FoundSizes(partition, start, found)]

    def close(self) -> None:
        super().close()
        self._logs.close()

    def _average(self, partition: TopicPartition) -> float:
        """Bytes of the partition's log per offset; 0 if the cluster does not tell its size."""
        size = self._logs.size(partition)
        if not size:
            return 0.0
        first = self._consumer.beginning_offsets([partition])[partition]
        end = self._consumer.end_offsets([partition])[partition]
        return size / max(end - first, 1)

    def _draw_places(self, first: int, last: int) -> Iterator[int]:
        """A random offset in each part of the range: evenly spaced ones might all be markers."""
        for part in range(_PLACES - 1):
            begin, end = (first + (last - first) * n // (_PLACES - 1) for n in (part, part + 1))
            yield self._random.randint(begin, end)

    def _probe(self, partition: TopicPartition, offset: int) -> list[BatchHeader] | None:
        """The header of the record batch that contains an offset, or of the next batch.

        Empty if the log has neither, although it counts the offset; None without an answer.
        """
        consumer = self._consumer
        consumer.assign([partition])
        consumer.seek(partition, offset, offset + 1)
        batches = consumer.fetch_batches(4 * POLL_MS)
        if batches is None:
            return None
        self.bytes_read += len(batches.data)
        return read_headers(batches.data)[:1]


def _between(headers: Sequence[BatchHeader], start: int, average: float) -> Iterator[Piece]:
    """Pieces from `start` on, estimated from the headers of a few record batches.

    Args:
        average: the least bytes of an offset that was not probed.
    """
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
            average,
            *(
                batch.size / max(batch.next_offset - batch.base_offset, 1)
                for batch in (header, following)
            ),
        ]
        parts = min(_PARTS, offsets)
        size = max(densities) * offsets / parts
        error = size - min(densities[1:]) * offsets / parts
        first = at
        for part in range(1, parts + 1):
            at = first + offsets * part // parts
            yield Piece(at, round(size), header.max_timestamp, round(error))
