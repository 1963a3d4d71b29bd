"""DescribeLogDirs (35), versions 1-5, and AlterReplicaLogDirs (34), versions 1-2.

A broker has one log directory. Logs never move between directories, so the offset lag is 0 and
`is_future_key` is False. AlterReplicaLogDirs succeeds only for the directory where the log is.
"""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Pace, Steps, in_order
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from trimtab.kafka.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def describe_log_dirs(
    replicas: Replicas, header: RequestHeader, request: DescribeLogDirsRequest
) -> Steps[DescribeLogDirsResponse]:
    """The log directory, the requested logs in it with their sizes, and the size of its volume
    (KIP-827); KAFKA_STORAGE_ERROR if the disk fails."""
    try:
        space = replicas.logs.space()
    except StorageError as error:
        replicas.disk_failed(error)
        failed = DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=_directory(replicas)
        )
        return DescribeLogDirsResponse(results=[failed])
    logs = replicas.logs.logs
    pace = Pace()
    wanted: Iterable[TopicPartition]
    if request.topics is None:
        wanted = yield from in_order(list(logs))
    else:
        known: dict[TopicPartition, None] = {}
        for request_topic in request.topics:
            if pace.spend():
                yield
            for index in request_topic.partitions:
                key = TopicPartition(request_topic.topic, index)
                if key in logs:
                    known[key] = None
                if pace.spend():
                    yield
        wanted = known
    topics: dict[str, DescribeLogDirsTopic] = {}
    for key in wanted:
        if pace.spend():
            yield
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
    return DescribeLogDirsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        results=[
            DescribeLogDirsResult(
                log_dir=_directory(replicas),
                topics=list(topics.values()),
                total_bytes=space.total_bytes,
                usable_bytes=space.usable_bytes,
            )
        ],
    )


def alter_replica_log_dirs(
    replicas: Replicas, header: RequestHeader, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    """NONE for each log that is in the given directory already; otherwise an error."""
    pace = Pace()
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        if pace.spend():
            yield
        for topic in directory.topics:
            if pace.spend():
                yield
            result = topics.setdefault(
                topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
            )
            for index in topic.partitions:
                code = ErrorCode.NONE
                if directory.path != _directory(replicas):
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif TopicPartition(topic.name, index) not in replicas.logs.logs:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
                if pace.spend():
                    yield
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=list(topics.values()))


def _directory(replicas: Replicas) -> str:
    directories = replicas.view.config.words("log.dirs") or ("",)
    return directories[0]
