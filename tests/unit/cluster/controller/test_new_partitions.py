"""CreatePartitions as a table; messages and codes are those of Kafka 4.3."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.cluster.controller.conftest import Scene
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision
from trimtab.cluster.controller.new_partitions import decide_create_partitions
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.metadata_records import PartitionRecord


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Topic `a` with two partitions of two replicas, topic `b` with one of one."""
    scene.put_topic(
        "a",
        *(PartitionRegistration(index, 1, 0, 0, (1, 2), (1, 2)) for index in range(2)),
    )
    scene.put_topic("b", PartitionRegistration(0, 3, 0, 0, (3,), (3,)))
    return scene


def want(
    name: str, count: int, *assignment: list[int], by_hand: bool = False
) -> CreatePartitionsTopic:
    """Without assignment the controller chooses, unless it is the empty one by hand."""
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignment]
        if assignment or by_hand
        else None,
    )


def create(
    scene: Scene, *topics: CreatePartitionsTopic, validate_only: bool = False, seed: int = 1
) -> Decision:
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=1000, validate_only=validate_only
    )
    decision = decide_create_partitions(scene.image, request, scene.allowance(), Random(seed))
    scene.apply(decision)
    return decision


@pytest.mark.kip(195)
@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (want("x", 3), 3, "does not host"),
        (want("a", 2), 37, "Topic already has 2 partition(s)."),
        (want("a", 1), 37, "topic a currently has 2 partition(s); 1 would not be an increase."),
        (want("a", -1), 37, "topic a currently has 2 partition(s); -1 would not be an increase."),
        (want("a", 3, by_hand=True), 39, "add 1 additional partition(s), but only 0 assignment(s)"),
        (want("a", 3, [1, 2], [2, 1]), 39, "but only 2 assignment(s) were specified."),
        (want("a", 3, []), 39, "empty replica list"),
        (want("a", 3, [1, 1]), 39, "more than once"),
        (want("a", 3, [1, 9]), 39, "includes broker 9, but no such broker is registered."),
        (want("a", 3, [1]), 39, "with 1 replica(s), but this is not consistent"),
        (want("b", MAX_RECORDS + 2), 44, "more than 10000 records"),
        (want("b", 2**31 - 1), 44, "more than 10000 records"),
    ],
)
def test_each_topic_is_refused_on_its_own(
    scene: Scene, wanted: CreatePartitionsTopic, code: int, message: str
) -> None:
    good = want("b" if wanted.name != "b" else "a", 5)
    refused, accepted = create(scene, wanted, good).response.results
    assert (refused.name, refused.error_code) == (wanted.name, code)
    assert message in refused.error_message
    assert (accepted.name, accepted.error_code, accepted.error_message) == (good.name, 0, None)
    assert len(scene.image.topics[good.name].partitions) == 5


def test_new_partitions_have_as_many_replicas_as_the_first(scene: Scene) -> None:
    create(scene, want("a", 5))
    new = scene.image.topics["a"].partitions[2:]
    assert [partition.id for partition in new] == [2, 3, 4]
    for partition in new:
        assert len(set(partition.replicas)) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert {partition.leader for partition in new} == {1, 2, 3}


def test_a_reassignment_counts_as_complete(scene: Scene) -> None:
    scene.put_topic("c", PartitionRegistration(0, 1, 0, 0, (2, 3, 1), (1,), (2, 3), (1,)))
    create(scene, want("c", 2))
    assert len(scene.image.topics["c"].partitions[1].replicas) == 2


def test_a_manual_assignment_is_kept_and_led_by_a_live_broker(scene: Scene) -> None:
    scene.put_broker(3, fenced=True)
    decision = create(scene, want("a", 4, [3, 1], [2, 1]))
    assert [each.error_code for each in decision.response.results] == [0]
    third, fourth = scene.image.topics["a"].partitions[2:]
    assert (third.replicas, third.isr, third.leader) == ((3, 1), (1,), 1)
    assert (fourth.replicas, fourth.isr, fourth.leader) == ((2, 1), (2, 1), 2)


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (want("b", 2, [3]), 39, "for partition 1 are fenced or in controlled shutdown."),
        (want("b", 2), 38, "All brokers are currently fenced or in controlled shutdown."),
    ],
)
def test_a_live_broker_must_be_assigned(
    scene: Scene, wanted: CreatePartitionsTopic, code: int, message: str
) -> None:
    for number in (1, 2, 3):
        scene.put_broker(number, fenced=True)
    (result,) = create(scene, wanted).response.results
    assert result.error_code == code
    assert message in result.error_message


def test_a_duplicate_topic_is_refused_once(scene: Scene) -> None:
    decision = create(scene, want("a", 3), want("b", 2), want("a", 4))
    assert [(each.name, each.error_code) for each in decision.response.results] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", 0),
    ]


def test_validate_only_writes_nothing(scene: Scene) -> None:
    decision = create(scene, want("a", 3), want("x", 3), validate_only=True)
    assert [each.error_code for each in decision.response.results] == [0, 3]
    assert not decision.records


def test_one_request_has_a_limit(scene: Scene) -> None:
    decision = create(scene, want("a", 6002), want("b", 6001))
    assert [each.error_code for each in decision.response.results] == [
        0,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert all(isinstance(record, PartitionRecord) for record in decision.records)
    assert len(decision.records) == 6000
