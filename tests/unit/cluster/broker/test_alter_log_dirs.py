"""AlterReplicaLogDirs with a single directory (`trimtab.cluster.broker.handlers.log_dirs`)."""

from __future__ import annotations

import pytest

from tests.unit.cluster.broker.conftest import Lab
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)

HERE = "/data/broker-0"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.kip(113)
@pytest.mark.run(config={"log.dirs": HERE})
async def test_a_log_can_only_be_assigned_to_its_current_directory(lab: Lab, version: int) -> None:
    await lab.create_topic("t", 2)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name="t", partitions=indexes),
                    AlterReplicaLogDirTopic(name="u", partitions=[0]),
                ],
            )
            for path, indexes in ((HERE, [0, 2]), ("/elsewhere", [1]))
        ]
    )
    response = await lab.connect().ask(request, version)
    results = {
        topic.topic_name: [(each.partition_index, each.error_code) for each in topic.partitions]
        for topic in response.results
    }
    unknown, not_found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LOG_DIR_NOT_FOUND
    assert results == {
        "t": [(0, ErrorCode.NONE), (2, unknown), (1, not_found)],
        "u": [(0, unknown), (0, not_found)],
    }
