"""WriteTxnMarkers (API 27): a transaction coordinator ends transactions in partitions."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, int64, string


@struct()
class WritableTxnMarkerTopic:
    name: string
    partition_indexes: list[int32]


@struct()
class WritableTxnMarker:
    """The end of one transaction, and the partitions in which to write it."""

    producer_id: int64
    producer_epoch: int16
    # True commits, false aborts.
    transaction_result: bool
    topics: list[WritableTxnMarkerTopic]
    # Of the coordinator: an older one is refused.
    coordinator_epoch: int32
    # Of the transaction: from 2 on, the marker's epoch is above that of the records.
    transaction_version: int8 = field(versions="2+", default=0, ignorable=True)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Ask the leaders of partitions to write markers. v2 tells the transaction's version."""

    markers: list[WritableTxnMarker]


@struct()
class WritableTxnMarkerPartitionResult:
    partition_index: int32
    error_code: int16 = 0


@struct()
class WritableTxnMarkerTopicResult:
    name: string
    partitions: list[WritableTxnMarkerPartitionResult]


@struct()
class WritableTxnMarkerResult:
    producer_id: int64
    topics: list[WritableTxnMarkerTopicResult]


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """The outcome of each marker in each partition."""

    markers: list[WritableTxnMarkerResult]
