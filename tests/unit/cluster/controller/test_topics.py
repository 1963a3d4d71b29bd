"""Decisions about topics, as tables: request and cluster in, response and records out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from trimtab.balance.limits import Allowance, PartitionLimits
from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision
from trimtab.cluster.controller.topics import decide_create, decide_delete, is_excessive
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    register_broker_record,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import LONG_MAX, read
from trimtab.kafka.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.metadata_records import ConfigRecord, PartitionRecord, TopicRecord


def unlimited(image: ClusterImage) -> Allowance:
    return Allowance(image.counts, PartitionLimits(LONG_MAX, LONG_MAX), Counter())


@pytest.fixture
def image() -> ClusterImage:
    """Brokers 0, 1 and 2, and the topics `there` and `a.b`."""
    image = ClusterImage()
    for number in range(3):
        broker = BrokerRegistration(number, number, bytes(16), "127.0.0.1", 9092 + number, None)
        image.replay(register_broker_record(broker))
    apply(image, create(image, topic("there"), topic("a.b")))
    return image


def topic(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | Sequence[tuple[int, Sequence[int]]] = (),
    **configs: str | None,
) -> CreatableTopic:
    pairs = assignment.items() if isinstance(assignment, Mapping) else assignment
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in pairs
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create(image: ClusterImage, *topics: CreatableTopic, validate_only: bool = False) -> Decision:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    seed = " ".join(each.name for each in topics)
    return decide_create(image, request, {"num.partitions": 4}, unlimited(image), Random(seed))


def apply(image: ClusterImage, decision: Decision) -> None:
    for record in decision.records:
        image.replay(record)


REFUSED: list[tuple[CreatableTopic, ErrorCode, str]] = [
    (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
    (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with existing topic: a.b"),
    (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
    (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..'"),
    (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'a b'"),
    (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "250 characters"),
    (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "prohibited"),
    (topic("t", 0), ErrorCode.INVALID_PARTITIONS, "partitions 0"),
    (topic("t", -2), ErrorCode.INVALID_PARTITIONS, "partitions -2"),
    (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "factor 0"),
    (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "factor -2"),
    (topic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, "only 3 broker(s)"),
    (topic("t", MAX_RECORDS), ErrorCode.POLICY_VIOLATION, "10000 partitions"),
    (topic("t", 2**31 - 1), ErrorCode.POLICY_VIOLATION, "2147483647 partitions"),
    (topic("t", 1, -1, {0: [0]}), ErrorCode.INVALID_REQUEST, "numPartitions"),
    (topic("t", -1, 1, {0: [0]}), ErrorCode.INVALID_REQUEST, "replication factor"),
    (topic("t", assignment={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty"),
    (topic("t", assignment={0: [3]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 3"),
    (topic("t", assignment={0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
    (topic("t", assignment={1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consecutive"),
    (
        topic("t", assignment=[(0, [0]), (0, [1])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "multiple manual",
    ),
    (
        topic("t", assignment={0: [0], 1: [1, 2]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "different numbers",
    ),
    (topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG, "retention.ms='soon'"),
    (topic("t", retention_ms=None), ErrorCode.INVALID_CONFIG, "retention.ms"),
    (topic("t", retention_msec="1"), ErrorCode.INVALID_CONFIG, "retention.msec"),
]


@pytest.mark.parametrize(("wanted", "code", "reason"), REFUSED, ids=[r[2] for r in REFUSED])
def test_each_topic_is_refused_on_its_own(
    image: ClusterImage, wanted: CreatableTopic, code: ErrorCode, reason: str
) -> None:
    decision = create(image, wanted, topic("good"))
    refused, good = decision.response.topics
    assert (refused.name, refused.error_code) == (wanted.name, code)
    assert reason in refused.error_message
    assert (good.name, good.error_code) == ("good", 0)
    assert [r.name for r in decision.records if isinstance(r, TopicRecord)] == ["good"]


def test_a_topic_is_created_with_the_defaults(image: ClusterImage) -> None:
    decision = create(image, topic("t", retention_ms="1000"))
    apply(image, decision)
    (result,) = decision.response.topics
    assert (result.num_partitions, result.replication_factor) == (4, 1)
    assert image.topics["t"].id == result.topic_id
    assert image.configs(CONFIG_TOPIC, "t") == {"retention.ms": "1000"}
    for number, partition in enumerate(image.topics["t"].partitions):
        assert partition.id == number
        assert partition.replicas == partition.isr == (partition.leader,)
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    shown = {each.name: (each.value, each.config_source) for each in result.configs}
    assert shown["retention.ms"] == ("1000", 1)
    assert shown["segment.ms"] == ("604800000", 5)


def test_the_source_of_an_option_is_the_one_that_wins(image: ClusterImage) -> None:
    given = {"log.segment.bytes": 1 << 30, "log.retention.hours": 168, "num.partitions": 1}
    image.replay(
        ConfigRecord(
            resource_type=CONFIG_BROKER,
            resource_name="",
            name="log.cleaner.delete.retention.ms",
            value="86400000",
        )
    )
    request = CreateTopicsRequest(topics=[topic("t", retention_bytes="-1")])
    decision = decide_create(image, request, given, unlimited(image), Random(1))
    (result,) = decision.response.topics
    shown = {each.name: each.config_source for each in result.configs}
    assert shown["retention.bytes"] == 1
    assert shown["segment.bytes"] == 4  # although it is the default's value
    assert shown["retention.ms"] == 4
    assert shown["delete.retention.ms"] == 3
    assert shown["segment.ms"] == 5


def test_three_partitions_go_to_three_brokers(image: ClusterImage) -> None:
    for seed in range(20):
        request = CreateTopicsRequest(topics=[topic("t", 3)])
        decision = decide_create(image, request, {}, unlimited(image), Random(seed))
        leaders = [r.leader for r in decision.records if isinstance(r, PartitionRecord)]
        assert sorted(leaders) == [0, 1, 2]


def test_a_manual_assignment_is_kept(image: ClusterImage) -> None:
    apply(image, create(image, topic("t", assignment={1: [0], 0: [2]})))
    assert [partition.leader for partition in image.topics["t"].partitions] == [2, 0]


def fence(image: ClusterImage, *numbers: int) -> None:
    for number in numbers:
        broker = image.brokers[number]._replace(fenced=True)
        image.replay(register_broker_record(broker))


def test_a_new_partition_has_all_replicas_in_sync_and_the_first_leads(image: ClusterImage) -> None:
    apply(image, create(image, topic("t", 6, 3)))
    for partition in image.topics["t"].partitions:
        assert sorted(partition.replicas) == [0, 1, 2]
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
    led = [partition.leader for partition in image.topics["t"].partitions]
    assert sorted(led) == [0, 0, 1, 1, 2, 2]


def test_the_default_replication_factor_is_the_clusters(image: ClusterImage) -> None:
    request = CreateTopicsRequest(topics=[topic("t")])
    config = read(BROKER, {"default.replication.factor": 2})
    decision = decide_create(image, request, config, unlimited(image), Random(1))
    assert decision.response.topics[0].replication_factor == 2


def test_fenced_brokers_get_replicas_but_are_not_in_sync(image: ClusterImage) -> None:
    fence(image, 1)
    apply(image, create(image, topic("t", 4, 3), topic("u", assignment={0: [1, 2]})))
    for partition in image.topics["t"].partitions:
        assert sorted(partition.replicas) == [0, 1, 2]
        assert sorted(partition.isr) == [0, 2]
        assert partition.leader != 1
    (partition,) = image.topics["u"].partitions
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)


def test_a_live_broker_is_required(image: ClusterImage) -> None:
    fence(image, 1)
    (refused,) = create(image, topic("t", assignment={0: [1]})).response.topics
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "partition 0 are fenced or in controlled shutdown" in refused.error_message
    fence(image, 0, 2)
    (refused,) = create(image, topic("t", 1, 1)).response.topics
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "All brokers are currently fenced" in refused.error_message


def test_duplicates_and_collisions_inside_one_request(image: ClusterImage) -> None:
    decision = create(image, topic("twice"), topic("x.y"), topic("twice"), topic("x_y"))
    assert [(each.name, each.error_code) for each in decision.response.topics] == [
        ("twice", ErrorCode.INVALID_REQUEST),
        ("x.y", 0),
        ("x_y", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_validate_only_writes_nothing(image: ClusterImage) -> None:
    decision = create(image, topic("t"), topic("there"), validate_only=True)
    assert [each.error_code for each in decision.response.topics] == [0, 36]
    assert decision.records == []


def test_one_request_has_a_limit(image: ClusterImage) -> None:
    decision = create(image, *(topic(f"t{number}", 4000) for number in range(4)))
    assert [each.error_code for each in decision.response.topics] == [0, 0, 44, 44]


def delete(
    image: ClusterImage, *topics: tuple[str | None, bytes], names: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics],
        topic_names=list(names),
        timeout_ms=1000,
    )
    decision = decide_delete(image, request, enabled=True)
    apply(image, decision)
    return [(each.name, each.error_code) for each in decision.response.responses]


def test_topics_are_deleted_by_name_and_by_id(image: ClusterImage) -> None:
    topic_id = image.topics["a.b"].id
    assert delete(image, ("there", bytes(16)), (None, topic_id)) == [("there", 0), ("a.b", 0)]
    assert not image.topics
    assert delete(image, (None, topic_id), names=["there"]) == [
        ("there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_a_topic_given_by_name_and_id_is_deleted_once(image: ClusterImage) -> None:
    topic_id = image.topics["a.b"].id
    assert delete(image, ("a.b", bytes(16)), (None, topic_id)) == [("a.b", 0), ("a.b", 0)]
    assert list(image.topics) == ["there"]


@pytest.mark.parametrize(
    "topics",
    [
        [(None, bytes(16))],
        [("there", b"\1" * 16)],
        [("there", bytes(16)), ("there", bytes(16))],
        [(None, b"\1" * 16), (None, b"\1" * 16)],
    ],
    ids=["nothing", "both", "a name twice", "an id twice"],
)
def test_invalid_deletions(image: ClusterImage, topics: list[tuple[str | None, bytes]]) -> None:
    assert {code for _, code in delete(image, *topics)} == {ErrorCode.INVALID_REQUEST}
    assert len(image.topics) == 2


def test_deletion_can_be_switched_off(image: ClusterImage) -> None:
    request = DeleteTopicsRequest(topics=[], topic_names=["there"], timeout_ms=1000)
    decision = decide_delete(image, request, enabled=False)
    assert decision.response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert not decision.records


@pytest.mark.parametrize(
    ("topics", "excessive"),
    [
        ([(5000, 0), (5000, 0)], False),
        ([(5000, 0), (5000, 0), (1, 0)], True),
        ([(-1, 0)] * 3334, True),
        ([(-1, 0)] * 3333, False),
        ([(-1, 5000), (1, 5000)], False),
        ([(0, 0)] * 10_001, True),
    ],
)
def test_a_request_for_too_many_partitions_in_all_is_excessive(
    topics: list[tuple[int, int]], excessive: bool
) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[0])
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=str(number),
                num_partitions=partitions,
                replication_factor=1,
                assignments=[assignment] * assigned,
            )
            for number, (partitions, assigned) in enumerate(topics)
        ]
    )
    assert is_excessive(request, 3) is excessive
