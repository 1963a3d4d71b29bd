"""Exact sizes from trimtab's brokers: the leaders list them, without data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trimtab.blocking.consumer import Consumer
from trimtab.client.fetcher.batch_sizes import Ahead as SizesWanted
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import (
    CLIENT_ID,
    FIXED,
    FoundSizes,
    SizeRequest,
    skip_deleted,
)


class Listing:
    """Asks the leaders, which must be trimtab's brokers.

    Args:
        client: the consumer's options.

    Raises:
        UsageError: an invalid option of the client.
    """

    name = "broker"
    tails = False
    bytes_read = 0

    def __init__(self, client: Mapping[str, str]) -> None:
        self._consumer = Consumer({"client.id": CLIENT_ID, **client, **FIXED})

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        asked = {partition: SizesWanted(*each) for partition, each in wanted.items()}
        found = []
        error: BrokerError | None = None
        for partition, batches in self._consumer.list_batch_sizes(asked).items():
            start = wanted[partition].start
            if batches.error is None:
                pieces = [Piece(*each) for each in zip(*batches[:3], strict=True)]
                if not pieces and batches.high_watermark < wanted[partition].end:
                    # A new leader does not know its predecessor's high watermark yet.
                    code = ErrorCode.OFFSET_NOT_AVAILABLE
                    error = BrokerError(code, "while listing the sizes of batches", str(partition))
                    continue
                if not pieces and not batches.total_bytes:
                    # Compaction has removed all records of this range.
                    pieces = [Piece(wanted[partition].end, 0)]
                rest = max(batches.total_bytes - sum(batches.sizes), 0)
                found.append(FoundSizes(partition, start, pieces, rest))
            elif batches.error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                found += skip_deleted(partition, start, batches.log_start_offset, batches.error)
            else:
                error = batches.error
        if error is not None and not found:
            raise error
        return found

    def close(self) -> None:
        self._consumer.close()
