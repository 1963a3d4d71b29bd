"""DescribeLogDirs (35), versions 1-5: the logs on this broker and how large they are.

There is one directory. How large its volume is, is not known here (-1). A log is never behind
itself and never on its way to another directory, so the lag is 0 and none is a future one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker


def describe_log_dirs(
    broker: Broker, header: RequestHeader, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """The directory, with the logs that are asked for and lie there."""
    logs = broker.logs.logs
    wanted: Iterable[TopicPartition]
    if request.topics is None:
        wanted = sorted(logs)
    else:
        wanted = dict.fromkeys(
            TopicPartition(each.topic, index)
            for each in request.topics
            for index in each.partitions
        )
    topics: dict[str, DescribeLogDirsTopic] = {}
    for key in wanted:
        log = logs.get(key)
        if log is None:
            continue
        topic = topics.setdefault(key.topic, DescribeLogDirsTopic(name=key.topic, partitions=[]))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=log.size,
                offset_lag=0,
                is_future_key=False,
            )
        )
    directories = cast("tuple[str, ...] | None", broker.config["log.dirs"]) or ("",)
    return DescribeLogDirsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        results=[DescribeLogDirsResult(log_dir=directories[0], topics=list(topics.values()))],
    )
