"""DescribeLogDirs (API 35): the logs in a broker's log directories (KIP-113)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class DescribableLogDirTopic:
    topic: string
    partitions: list[int32]


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Ask for directories and the logs in them. v2 is flexible."""

    # Null for all that the broker has.
    topics: list[DescribableLogDirTopic] | None = field(nullable_versions="0+")


@struct()
class DescribeLogDirsPartition:
    partition_index: int32
    # In bytes.
    partition_size: int64
    # From the log's end to the high watermark; of a future log, to the end of the present one.
    offset_lag: int64
    # It is being copied into this directory, and will replace the log in another one.
    is_future_key: bool


@struct()
class DescribeLogDirsTopic:
    name: string
    partitions: list[DescribeLogDirsPartition]


@struct()
class DescribeLogDirsResult:
    error_code: int16 = 0
    # The absolute path.
    log_dir: string
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    # Of the volume; -1 if unknown.
    total_bytes: int64 = field(versions="4+", default=-1, ignorable=True)
    usable_bytes: int64 = field(versions="4+", default=-1, ignorable=True)
    # No new logs are placed in it.
    is_cordoned: bool = field(versions="5+", default=False, ignorable=True)


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """One result per directory.

    v3 adds the top-level error; v4 the volume's sizes (KIP-827); v5 cordoned directories
    (KIP-1066).
    """

    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = field(default_factory=list)
