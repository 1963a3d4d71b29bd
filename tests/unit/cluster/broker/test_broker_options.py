"""Changed options apply without a restart (KIP-226)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    alter,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    replica,
    send,
    start,
    until,
    values,
)
from trimtab.cluster.metadata.image import CONFIG_BROKER
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)


async def topic_in_sync(lab: Lab, **config: str) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    await lab.create_topic("t", config=options, replicas=3)
    await in_sync(lab)


@pytest.mark.run(brokers=3, config={"log.retention.check.interval.ms": 1000})
async def test_retention_of_a_topic_deletes_on_every_replica(lab: Lab) -> None:
    await topic_in_sync(lab, segment_ms="1000")
    for number in range(5):
        await send(lab, b"%d" % number)
        await asyncio.sleep(2)
    await alter(lab, {"retention.ms": "5000"})
    await asyncio.sleep(10)
    for broker in range(3):
        assert values(replica(lab, broker)) == [], broker
        assert replica(lab, broker).log.log_end_offset == 5
    answer = await send(lab, b"5")
    assert (answer.base_offset, answer.log_start_offset) == (5, 5)


@pytest.mark.run(brokers=3)
async def test_a_changed_min_insync_replicas_applies_to_the_next_request(lab: Lab) -> None:
    await topic_in_sync(lab)
    kill(lab, followers_of(lab)[0])
    await until(lambda: len(leading(lab).registration.isr) == 2)
    await alter(lab, {"min.insync.replicas": "3"})
    assert (await send(lab, b"a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await send(lab, b"b", acks=1)).error_code == 0
    await asyncio.sleep(1)
    assert leading(lab).high_watermark == 0
    await alter(lab, {"min.insync.replicas": None})
    assert leading(lab).high_watermark == 1
    assert (await send(lab, b"c")).error_code == 0


@pytest.mark.run(brokers=3)
async def test_the_largest_batch_of_a_topic_and_of_all_brokers(lab: Lab) -> None:
    await topic_in_sync(lab)

    async def takes(size: int) -> bool:
        answer = await send(lab, b"v" * size)
        assert answer.error_code in (0, ErrorCode.MESSAGE_TOO_LARGE)
        return bool(answer.error_code == 0)

    leader = str(leader_of(lab))
    assert await takes(2000)
    await alter(lab, {"message.max.bytes": "1000"}, topic=None)
    assert not await takes(2000)
    await alter(lab, {"message.max.bytes": "3000"}, topic=None, broker=leader)
    assert await takes(2000)  # the value for one broker wins
    await alter(lab, {"max.message.bytes": "500"})
    assert not await takes(600)  # and the topic's value wins over all
    for topic, broker in (("t", ""), (None, leader), (None, "")):
        name = "message.max.bytes" if topic is None else "max.message.bytes"
        await alter(lab, {name: None}, topic=topic, broker=broker)
    assert await takes(2000)


@pytest.mark.run(brokers=3)
async def test_retention_of_all_brokers_is_inherited(lab: Lab) -> None:
    await topic_in_sync(lab)
    await alter(lab, {"log.retention.ms": "4711"}, topic=None)
    assert [replica(lab, each).log.config.retention_ms for each in range(3)] == [4711] * 3
    await alter(lab, {"log.retention.ms": "815"}, topic=None, broker="1")
    assert replica(lab, 1).log.config.retention_ms == 815
    assert replica(lab, 2).log.config.retention_ms == 4711
    await lab.create_topic("new", 3)
    kept = {
        broker.id: partition.log.config.retention_ms
        for broker in lab.brokers
        for partition in broker.partitions.values()
        if partition.topic == "new"
    }
    assert kept == {0: 4711, 1: 815, 2: 4711}


@pytest.mark.run(brokers=3)
async def test_changed_options_survive_a_restart(lab: Lab) -> None:
    await topic_in_sync(lab)
    await alter(lab, {"segment.bytes": "2000000"})
    await alter(lab, {"log.retention.ms": "4711", "message.max.bytes": "800"}, topic=None)
    one = leader_of(lab)
    await lab.brokers[one].close()
    broker = await start(lab, one)
    await in_sync(lab)
    config = replica(lab, one).log.config
    assert (config.segment_bytes, config.retention_ms) == (2_000_000, 4711)
    assert broker.view.config["message.max.bytes"] == 800


async def test_a_changed_connection_limit_applies_at_once(lab: Lab) -> None:
    first = lab.connect()
    await alter(lab, {"max.connections": "2"}, topic=None)
    assert lab.connect().transport.closed  # the change came over the second
    assert not first.transport.closed


@pytest.mark.run(brokers=3)
async def test_a_restarted_broker_gets_the_changed_options(lab: Lab) -> None:
    await topic_in_sync(lab)
    one = followers_of(lab)[0]
    kill(lab, one)
    await until(lambda: one not in decided(lab).isr)
    await alter(lab, {"retention.ms": "4711"})
    await start(lab, one)
    await in_sync(lab)
    assert replica(lab, one).log.config.retention_ms == 4711


@pytest.mark.parametrize("compacts", [True, False])
@pytest.mark.run(brokers=3)
async def test_a_topic_becomes_compacted_at_once(lab: Lab, compacts: bool) -> None:
    await topic_in_sync(lab, cleanup_policy="delete" if compacts else "compact")
    await alter(lab, {"cleanup.policy": "compact" if compacts else "delete"})
    request: Any = lab.produce("t", lab.batch(b"v", key=None))
    response = await lab.connect(leader_of(lab)).ask(request, 9)
    code = response.responses[0].partition_responses[0].error_code
    assert code == (ErrorCode.INVALID_RECORD if compacts else ErrorCode.NONE)


@pytest.mark.parametrize("name", ["0", ""])
async def test_an_option_of_kerberos_is_taken_for_one_broker_and_has_no_effect(
    lab: Lab, name: str
) -> None:
    """As by Apache Kafka without Kerberos: librdkafka's tests change it."""
    option = "sasl.kerberos.min.time.before.relogin"
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=CONFIG_BROKER,
                resource_name=name,
                configs=[AlterableConfig(name=option, config_operation=0, value="58000")],
            )
        ]
    )
    (result,) = (await lab.connect().ask(request, 1)).responses
    assert result.error_code == (ErrorCode.NONE if name else ErrorCode.INVALID_REQUEST)
    assert lab.brokers[0].view.config[option] == (58_000 if name else 60_000)
