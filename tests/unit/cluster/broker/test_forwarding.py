"""Requests that a broker forwards to the controller
(`trimtab.cluster.broker.handlers.forwarding`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import alter, reassign
from trimtab.cluster.broker.handlers.forwarding import FORWARDED
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from trimtab.kafka.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from trimtab.kafka.wire.types import ZERO_UUID
from trimtab.sim.network import NetworkLink

TOPIC = 2


def create(name: str, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


REQUESTS: list[tuple[Any, int]] = [
    (create("new"), 7),
    (DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=[], timeout_ms=9000), 6),
    (
        AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[AlterableConfig(name="retention.ms", value="1")],
                )
            ]
        ),
        2,
    ),
    (
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=9000
        ),
        3,
    ),
    (
        ElectLeadersRequest(
            election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])]
        ),
        2,
    ),
    (
        IncrementalAlterConfigsRequest(
            resources=[IncrementalResource(resource_type=TOPIC, resource_name="t", configs=[])]
        ),
        1,
    ),
    (
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[0])]
                )
            ]
        ),
        1,
    ),
    (ListPartitionReassignmentsRequest(topics=None), 0),
    (
        DescribeQuorumRequest(
            topics=[
                TopicData(
                    topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)]
                )
            ]
        ),
        2,
    ),
    (UnregisterBrokerRequest(broker_id=7), 0),
    (
        UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="transaction.version", max_version_level=2)],
            timeout_ms=1000,
        ),
        2,
    ),
]


def codes(response: Any) -> list[int]:
    """Of the whole, or of each thing that was asked for."""
    if getattr(response, "error_code", 0):
        return [response.error_code]
    for name in ("topics", "responses", "results"):
        if hasattr(response, name):
            return [each.error_code for each in getattr(response, name)]
    return []


@pytest.mark.run(brokers=3)
async def test_every_broker_has_a_topic_when_its_creation_is_answered(lab: Lab) -> None:
    response = await lab.connect(1).ask(create("t"), 7)
    assert codes(response) == [ErrorCode.NONE]
    for broker in lab.brokers:
        assert "t" in broker.image.topics
    assert sum(len(broker.partitions) for broker in lab.brokers) == 2


async def test_the_controllers_refusal_is_forwarded(lab: Lab) -> None:
    client = lab.connect()
    await client.ask(create("t"), 7)
    (topic,) = (await client.ask(create("t"), 7)).topics
    assert topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "t" in (topic.error_message or "")
    response = await client.ask(UnregisterBrokerRequest(broker_id=7), 0)
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_request_is_forwarded_in_its_own_version(lab: Lab, version: int) -> None:
    response = await lab.connect().ask(create("t"), version)
    assert codes(response) == [ErrorCode.NONE]
    assert (response.topics[0].num_partitions == 2) == (version >= 5)


def test_every_forwarded_request_is_tested_here() -> None:
    assert {type(request) for request, _ in REQUESTS} == set(FORWARDED)


@pytest.mark.parametrize(
    ("request_", "version"), REQUESTS, ids=[type(each).__name__ for each, _ in REQUESTS]
)
async def test_without_a_controller_every_part_of_a_request_times_out(
    lab: Lab, request_: Any, version: int
) -> None:
    await lab.create_topic("t")
    lab.world.network.cut("controller")
    client = lab.connect()
    client.send(request_, version)
    await asyncio.sleep(60.01)
    assert codes(client.read(request_, version)) == [ErrorCode.REQUEST_TIMED_OUT]
    lab.world.network.heal()


@pytest.mark.parametrize(
    ("request_", "version", "subject"),
    [
        (create("new"), 7, {"name": "new", "topic_id": ZERO_UUID, "configs": []}),
        (DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), 5, {"name": "t"}),
        (
            DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=b"i" * 16)], timeout_ms=1),
            6,
            {"name": None, "topic_id": b"i" * 16},
        ),
        (*REQUESTS[2], {"resource_type": TOPIC, "resource_name": "t"}),
        (*REQUESTS[3], {"name": "t"}),
        (*REQUESTS[5], {"resource_type": TOPIC, "resource_name": "t"}),
    ],
)
async def test_a_result_that_timed_out_names_its_topic_or_resource(
    lab: Lab, request_: Any, version: int, subject: dict[str, object]
) -> None:
    lab.world.network.cut("controller")
    client = lab.connect()
    client.send(request_, version)
    await asyncio.sleep(60.01)
    response = client.read(request_, version)
    (array,) = (name for name in ("topics", "responses", "results") if hasattr(response, name))
    (result,) = getattr(response, array)
    assert {name: getattr(result, name) for name in subject} == subject
    assert "not known" in (result.error_message or "")
    lab.world.network.heal()


async def test_a_controller_that_comes_back_in_time_is_asked(lab: Lab) -> None:
    lab.world.network.cut("controller")
    client = lab.connect()
    client.send(create("t"), 7)
    await asyncio.sleep(5)
    assert not client.responses
    lab.world.network.heal()
    await asyncio.sleep(2)
    assert codes(client.read(create("t"), 7)) == [ErrorCode.NONE]


async def test_a_time_out_of_zero_leaves_the_controller_time_to_answer(lab: Lab) -> None:
    """librdkafka's default: do not wait until all brokers have replayed the change."""
    lab.world.network.set_link("controller", "*", NetworkLink(20, 20))
    response = await lab.connect().ask(create("t", timeout_ms=0), 7)
    assert codes(response) == [ErrorCode.NONE]


async def test_a_request_that_times_out_does_not_affect_others(lab: Lab) -> None:
    impatient, patient = lab.connect(), lab.connect()
    await impatient.ask(create("first"), 7)
    lab.world.network.set_link("controller", "*", NetworkLink(20, 20))
    patient.send(create("t"), 7)
    impatient.send(create("u", timeout_ms=1), 7)
    await asyncio.sleep(5)
    assert codes(patient.read(create("t"), 7)) == [ErrorCode.NONE]


async def test_a_client_that_disconnects_while_waiting_does_not_affect_the_next(lab: Lab) -> None:
    gone = lab.connect()
    lab.world.network.cut("controller")
    gone.send(create("t"), 7)
    await asyncio.sleep(1)
    gone.transport.close()
    await asyncio.sleep(1)
    lab.world.network.heal()
    await lab.connect().ask(create("u"), 7)
    assert list(lab.controller.controller.image.topics)[-1] == "u"


@pytest.mark.kip(455)
@pytest.mark.run(brokers=2)
async def test_reassignments_are_listed_through_any_broker(lab: Lab) -> None:
    await lab.create_topic("t")
    wanted = ListPartitionReassignmentsRequest(topics=None)
    assert (await lab.connect().ask(wanted, 0)).topics == []
    (leader,) = lab.controller.controller.image.topics["t"].partitions[0].replicas
    target = 1 - leader
    lab.world.network.cut(f"127.0.0.1:{9092 + leader}")
    await reassign(lab, [target], broker=target)
    (topic,) = (await lab.connect(target).ask(wanted, 0)).topics
    (partition,) = topic.partitions
    assert (partition.adding_replicas, partition.removing_replicas) == ([target], [leader])
    await reassign(lab, None, broker=leader)
    assert (await lab.connect().ask(wanted, 0)).topics == []
    lab.world.network.heal()


@pytest.mark.run(brokers=3)
async def test_every_broker_applies_an_option_when_its_change_is_answered(lab: Lab) -> None:
    await lab.create_topic("t", 3)
    await alter(lab, {"retention.ms": "4711"})
    logs = [each.log for broker in lab.brokers for each in broker.partitions.values()]
    assert [log.config.retention_ms for log in logs] == [4711] * 3
