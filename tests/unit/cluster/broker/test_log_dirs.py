"""DescribeLogDirs."""

from __future__ import annotations

from errno import EIO
from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import finish
from trimtab.cluster.broker.handlers.log_dirs import describe_log_dirs
from trimtab.cluster.storage.storage import Space, StorageError
from trimtab.kafka.options import Config
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)

REPLICAS: Any = SimpleNamespace(
    view=SimpleNamespace(config=Config({"log.dirs": ("/data/broker-0",)})),
    logs=SimpleNamespace(
        logs={
            TopicPartition(topic, index): SimpleNamespace(size=size)
            for topic, index, size in (("b", 1, 30), ("a", 10, 20), ("a", 2, 10))
        },
        space=lambda: Space(1000, 940),
    ),
)
A2, A10, B1 = ("a", 2, 10), ("a", 10, 20), ("b", 1, 30)


@pytest.mark.kip(113)
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, [A2, A10, B1]),
        ([], []),
        ([("a", [10, 77]), ("x", [0])], [A10]),
        ([("b", [1]), ("a", [2]), ("b", [1])], [B1, A2]),
        ([("x", [0])], []),
    ],
)
def test_the_requested_logs_and_their_sizes(
    wanted: list[tuple[str, list[int]]] | None, found: list[tuple[str, int, int]]
) -> None:
    request = DescribeLogDirsRequest(
        topics=None
        if wanted is None
        else [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in wanted]
    )
    response = finish(describe_log_dirs(REPLICAS, None, request))  # type: ignore[arg-type]
    assert response.error_code == 0
    (directory,) = response.results
    assert (directory.error_code, directory.log_dir) == (0, "/data/broker-0")
    assert (directory.total_bytes, directory.usable_bytes) == (1000, 940)
    logs = [
        (topic.name, each.partition_index, each.partition_size)
        for topic in directory.topics
        for each in topic.partitions
    ]
    assert logs == found
    assert all(
        (each.offset_lag, each.is_future_key) == (0, False)
        for topic in directory.topics
        for each in topic.partitions
    )


def test_an_unnamed_directory_is_described_too() -> None:
    replicas: Any = SimpleNamespace(
        view=SimpleNamespace(config=Config({"log.dirs": None})), logs=REPLICAS.logs
    )
    response = finish(describe_log_dirs(replicas, None, DescribeLogDirsRequest(topics=None)))  # type: ignore[arg-type]
    assert [each.log_dir for each in response.results] == [""]


@pytest.mark.kip(827)
def test_an_unreachable_directory_is_a_storage_error() -> None:
    def space() -> Space:
        raise StorageError("", "look up the size of the volume", EIO)

    logs = SimpleNamespace(logs=REPLICAS.logs.logs, space=space)
    failures: list[StorageError] = []
    replicas: Any = SimpleNamespace(view=REPLICAS.view, logs=logs, disk_failed=failures.append)
    response = finish(describe_log_dirs(replicas, None, DescribeLogDirsRequest(topics=None)))  # type: ignore[arg-type]
    (directory,) = response.results
    assert (directory.error_code, directory.log_dir, directory.topics) == (56, "/data/broker-0", [])
    assert [failure.errno for failure in failures] == [EIO]
