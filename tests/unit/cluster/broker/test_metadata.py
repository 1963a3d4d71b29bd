"""Metadata, DescribeCluster, CreateTopics and DeleteTopics, as a client sees them.

Also `trimtab.cluster.broker.authorized_operations`, the authorized operations in their responses.
"""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from trimtab.kafka.wire.sentinels import UNKNOWN_AUTHORIZED_OPERATIONS


def named(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )


@pytest.mark.parametrize("version", range(14))
@pytest.mark.run(brokers=3)
async def test_every_version_names_brokers_topics_and_leaders(lab: Any, version: int) -> None:
    topic_id = await lab.create_topic("t", partitions=4)
    everything = MetadataRequest(topics=[] if version == 0 else None)
    response = await lab.connect(1).ask(everything, version)
    assert [(each.node_id, each.host, each.port) for each in response.brokers] == [
        (number, "127.0.0.1", 9092 + number) for number in range(3)
    ]
    (topic,) = response.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "t", 4)
    assert {part.leader_id for part in topic.partitions} == {0, 1, 2}
    if version >= 1:
        assert response.controller_id == 1
        assert [each.rack for each in response.brokers] == ["a", "b", "c"]
    if version >= 2:
        assert response.cluster_id == "lab"
    if version >= 7:
        assert {part.leader_epoch for part in topic.partitions} == {0}
    if version >= 10:
        assert topic.topic_id == topic_id


async def test_an_empty_list_asks_for_no_topics(lab: Any) -> None:
    await lab.create_topic("t")
    assert (await lab.connect().ask(MetadataRequest(topics=[]), 9)).topics == []


@pytest.mark.run(brokers=2, config={"num.partitions": 3})
async def test_missing_topics_are_created_if_request_and_broker_allow_it(lab: Any) -> None:
    client = lab.connect()
    refused = await client.ask(named("new"), 9)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await client.ask(named("new", create=True), 9)
    created = await client.ask(named("new", "bad name", "new", create=True), 9)
    assert [(topic.name, topic.error_code) for topic in created.topics] == [
        ("new", 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert len(created.topics[0].partitions) == 3
    # A client that has the topic's metadata can produce to it at once.
    for partition in range(3):
        await lab.append("new", b"v", partition=partition)
    collides = await client.ask(named("a.b", "a_b", create=True), 9)
    assert [topic.error_code for topic in collides.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


@pytest.mark.run(config={"auto.create.topics.enable": False})
async def test_auto_creation_can_be_switched_off(lab: Any) -> None:
    response = await lab.connect().ask(named("new", create=True), 9)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topics_are_found_by_id_from_version_12(lab: Any) -> None:
    topic_id = await lab.create_topic("t")
    by_id = MetadataRequest(
        topics=[
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(topic_id=b"\1" * 16, name=None),
        ]
    )
    known, unknown = (await lab.connect().ask(by_id, 12)).topics
    assert (known.error_code, known.name) == (0, "t")
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    early = (await lab.connect().ask(by_id, 10)).topics
    assert {topic.error_code for topic in early} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.run(brokers=2)
async def test_describe_cluster(lab: Any, version: int) -> None:
    client = lab.connect(1)
    response = await client.ask(DescribeClusterRequest(), version)
    assert (response.cluster_id, response.controller_id) == ("lab", 1)
    assert [(each.broker_id, each.rack) for each in response.brokers] == [(0, "a"), (1, "b")]
    if version:
        controllers = DescribeClusterRequest(endpoint_type=2)
        refused = await client.ask(controllers, version)
        assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


@pytest.mark.run(brokers=2)
async def test_topics_come_and_go(lab: Any) -> None:
    client = lab.connect()
    create = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]
            )
        ]
    )
    for version in (2, 5, 7):
        created = (await client.ask(create, version)).topics[0]
        assert created.error_code == 0
        again = (await client.ask(create, version)).topics[0]
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        await lab.append("t", b"v")
        if version == 7:
            deletion = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=None, topic_id=created.topic_id)],
                topic_names=[],
                timeout_ms=1000,
            )
            (deleted,) = (await client.ask(deletion, 6)).responses
            assert (deleted.error_code, deleted.name) == (0, "t")
        else:
            deletion = DeleteTopicsRequest(topics=[], topic_names=["t"], timeout_ms=1000)
            (deleted,) = (await client.ask(deletion, 5)).responses
            assert deleted.error_code == 0
        (gone,) = (await client.ask(deletion, 6 if version == 7 else 5)).responses
        assert gone.error_code == (
            ErrorCode.UNKNOWN_TOPIC_ID if version == 7 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        for number in (0, 1):
            assert not lab.brokers[number].partitions
            names = lab.world.disk(f"broker-{number}").list("")
            assert all(name.endswith("-delete") for name in names if name.startswith("t-"))


@pytest.mark.kip(430)
@pytest.mark.parametrize("version", [8, 10, 11, 13])
async def test_authorized_operations_are_given_if_they_are_asked_for(
    lab: Any, version: int
) -> None:
    """The numbers are those of Apache Kafka 4.3 without an authorizer."""
    await lab.create_topic("t")
    client = lab.connect()
    plain = await client.ask(MetadataRequest(topics=None), version)
    asked = MetadataRequest(topics=None, include_topic_authorized_operations=True)
    if version <= 10:
        asked.include_cluster_authorized_operations = True
    response = await client.ask(asked, version)
    assert plain.topics[0].topic_authorized_operations == UNKNOWN_AUTHORIZED_OPERATIONS
    assert response.topics[0].topic_authorized_operations == 3576
    if version <= 10:
        assert plain.cluster_authorized_operations == UNKNOWN_AUTHORIZED_OPERATIONS
        assert response.cluster_authorized_operations == 8096
    described = await client.ask(DescribeClusterRequest(), 2)
    assert described.cluster_authorized_operations == UNKNOWN_AUTHORIZED_OPERATIONS
    every = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await client.ask(every, 2)).cluster_authorized_operations == 8096
