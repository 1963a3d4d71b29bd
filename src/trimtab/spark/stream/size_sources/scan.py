"""Exact sizes: the driver also reads everything that the stream will read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import (
    POLL_MS,
    FoundSizes,
    SizeRequest,
    SizeSource,
    skip_deleted,
)

_QUIET_POLLS: Final = 12


class Scan(SizeSource):
    """Reads the unread record batches, and keeps only their sizes.

    Bytes are those in the log, including aborted transactions, which tasks read as well.
    """

    name = "scan"
    tails = True

    def __init__(self, client: Mapping[str, str]) -> None:
        limits = {
            "max.partition.fetch.bytes": str(1024 * 1024),
            "fetch.max.bytes": str(8 * 1024 * 1024),
        }
        super().__init__(client, limits)
        self._positions: dict[TopicPartition, int] = {}
        self._resting: set[TopicPartition] = set()
        self._quiet = 0

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        self._go_to(wanted, changed)
        try:
            batches = self._consumer.fetch_batches(POLL_MS)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return self._skip_deleted(error)
        if batches is None:
            self._quiet += 1
            return self._end_quiet(wanted) if self._quiet >= _QUIET_POLLS else []
        self._quiet = 0
        self.bytes_read += len(batches.data)
        pieces = [
            Piece(header.next_offset, header.size, header.max_timestamp)
            for header in read_headers(batches.data)
        ]
        self._positions[batches.partition] = batches.next_offset
        return [FoundSizes(batches.partition, batches.start, pieces)]

    def _end_quiet(self, wanted: Mapping[TopicPartition, SizeRequest]) -> list[FoundSizes]:
        """No bytes, for offsets that a broker counts and has not sent for long (Redpanda)."""
        self._quiet = 0
        lags = self._consumer.lag(wanted)
        return [
            FoundSizes(partition, start, [Piece(end, 0)])
            for partition, (start, end, _) in wanted.items()
            if start < end <= start + (lags[partition] or 0)
        ]

    def _go_to(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> None:
        consumer = self._consumer
        if any(partition in wanted and partition not in self._positions for partition in changed):
            new = [partition for partition in wanted if partition not in self._positions]
            consumer.assign([*self._positions, *new])
        for partition in changed:
            if partition not in wanted:
                if partition in self._positions and partition not in self._resting:
                    consumer.pause(partition)
                    self._resting.add(partition)
                continue
            start = wanted[partition].start
            if self._positions.get(partition) != start:
                consumer.seek(partition, start)
                self._positions[partition] = start
            if partition in self._resting:
                consumer.resume(partition)
                self._resting.discard(partition)

    def _skip_deleted(self, error: BrokerError) -> list[FoundSizes]:
        for partition, position in self._positions.items():
            if str(partition) == error.subject:
                earliest = self._consumer.beginning_offsets([partition])[partition]
                return skip_deleted(partition, position, earliest, error)
        raise error
