"""ListOffsets, and DescribeConfigs (`trimtab.cluster.broker.handlers.configs`)."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.cluster.config import BROKER, TOPIC
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.sentinels import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)


def offsets(
    topic: str, *timestamps: int, partition: int = 0, epoch: int = -1, isolation_level: int = 0
) -> Any:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=epoch,
                        timestamp=timestamp,
                    )
                    for timestamp in timestamps
                ],
            )
        ],
    )


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_by_time_and_by_the_ends(lab: Any, version: int) -> None:
    await lab.create_topic("t")
    now = lab.world.now_ms()
    client = lab.connect()
    for values, timestamp in (((b"a", b"b"), now - 300), ((b"c",), now), ((b"d",), now - 100)):
        batch = lab.batch(*values, timestamp=timestamp)
        await client.ask(lab.produce("t", batch), 9)
    unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    for timestamp, since, expected in (
        (LATEST, 1, (0, -1, 4)),
        (EARLIEST, 1, (0, -1, 0)),
        (MAX_TIMESTAMP, 7, (0, now, 2)),
        (EARLIEST_LOCAL, 8, (0, -1, 0)),
        (LATEST_TIERED, 9, (0, -1, -1)),
        (EARLIEST_PENDING_UPLOAD, 11, (0, -1, -1)),
        (-7, 99, unsupported),
        (0, 1, (0, now - 300, 0)),
        (now - 299, 1, (0, now, 2)),
        (now, 1, (0, now, 2)),
        (now + 1, 1, (0, -1, -1)),
    ):
        response = await client.ask(offsets("t", timestamp), version)
        found = response.topics[0].partitions[0]
        answer = (found.error_code, found.timestamp, found.offset)
        assert answer == (expected if version >= since else unsupported), timestamp
        if version >= 4:
            assert found.leader_epoch == (0 if found.offset >= 0 else -1)


async def test_list_offsets_errors(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    for request, code in (
        (offsets("other", LATEST), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (offsets("t", LATEST, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (offsets("t", LATEST, epoch=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (offsets("t", LATEST, EARLIEST), ErrorCode.INVALID_REQUEST),
        (offsets("t", LATEST, isolation_level=2), ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        response = await client.ask(request, 9)
        assert {each.error_code for each in response.topics[0].partitions} == {code}


def describe(kind: int, name: str, keys: list[str] | None = None) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=True,
        include_documentation=True,
    )


@pytest.mark.run(config={"log.retention.hours": 2, "log.segment.bytes": 1 << 20})
async def test_configs_of_a_topic_say_where_they_come_from(lab: Any) -> None:
    await lab.create_topic("t", config={"retention.ms": "5000"})
    client = lab.connect()
    (result,) = (await client.ask(describe(2, "t"), 4)).results
    configs = {each.name: each for each in result.configs}
    assert configs.keys() == {option.name for option in TOPIC}
    assert all(each.documentation for each in configs.values())

    def sources(name: str) -> list[tuple[str, str | None, int]]:
        return [(each.name, each.value, each.source) for each in configs[name].synonyms]

    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
    assert sources("retention.ms") == [
        ("retention.ms", "5000", 1),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (
        "1048576",
        4,
    )
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_type) == (
        "delete",
        7,
    )
    assert sources("cleanup.policy") == [("log.cleanup.policy", "delete", 5)]
    await lab.create_topic("u")
    (result,) = (await client.ask(describe(2, "u", ["retention.ms", "nonsense"]), 4)).results
    assert [(each.name, each.value) for each in result.configs] == [("retention.ms", "7200000")]


@pytest.mark.run(config={"num.partitions": 7})
async def test_configs_of_the_broker(lab: Any) -> None:
    client = lab.connect()
    for version in (1, 2, 3, 4):
        request = describe(4, "0")
        request.include_documentation = version >= 3
        (result,) = (await client.ask(request, version)).results
        configs = {each.name: each for each in result.configs}
        assert configs.keys() == {option.name for option in BROKER}
        assert configs["num.partitions"].value == "7"
        assert configs["num.partitions"].config_source == 4
        assert configs["auto.create.topics.enable"].value == "true"
        assert configs["log.retention.ms"].value is None


async def test_describe_configs_errors(lab: Any) -> None:
    client = lab.connect()
    for kind, name, code in (
        (2, "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "t t", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "1", ErrorCode.INVALID_REQUEST),
        (8, "0", ErrorCode.INVALID_REQUEST),
        (4, "", ErrorCode.NONE),
    ):
        (result,) = (await client.ask(describe(kind, name), 4)).results
        assert (result.error_code, result.configs) == (code, [])
