"""Reassignments as tables: the request, and the partition afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.steps import finish
from tests.unit.cluster.controller.conftest import Scene
from trimtab.cluster.controller.reassignments import (
    begin_reassignment,
    cancel,
    decide_alter_reassignments,
    list_reassignments,
)
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

Lists = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Topic `a`, whose one partition has replicas 1 and 2, is led by 1 and in sync; brokers 1-5."""
    scene.put_broker(4)
    scene.put_broker(5)
    scene.put_topic("a", PartitionRegistration(0, 1, 5, 7, (1, 2), (1, 2)))
    return scene


def partition(scene: Scene) -> PartitionRegistration:
    return scene.image.topics["a"].partitions[0]


def alter(
    scene: Scene,
    *replicas: Sequence[int] | None,
    topic: str = "a",
    index: int = 0,
    allow: bool = True,
) -> list[tuple[int, str | None]]:
    """Request these replicas, one after the other in one request; returns codes and messages."""
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        allow_replication_factor_change=allow,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=index, replicas=None if each is None else list(each)
                    )
                    for each in replicas
                ],
            )
        ],
    )
    decision = decide_alter_reassignments(scene.image, scene.rules, scene.allowance(), request)
    response = decision.response
    assert (response.error_code, response.error_message) == (0, None)
    assert response.allow_replication_factor_change == allow
    assert [each.name for each in response.responses] == [topic]
    scene.apply(decision)
    return [
        (each.error_code, each.error_message) for each in decision.response.responses[0].partitions
    ]


def ask(scene: Scene, **wanted: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """The reassignments of these partitions, or all."""
    response = finish(
        list_reassignments(
            scene.image,
            ListPartitionReassignmentsRequest(
                topics=[
                    ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                    for name, indexes in wanted.items()
                ]
                if wanted
                else None
            ),
        )
    )
    assert (response.error_code, response.error_message) == (0, None)
    return {
        topic.name: [
            (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for each in topic.partitions
        ]
        for topic in response.topics
    }


@pytest.mark.kip(455)
@pytest.mark.parametrize(
    ("steps", "lists"),
    [
        ([(1, 2, 3)], ((1, 2, 3), (3,), ())),
        ([(3, 2)], ((3, 2, 1), (3,), (1,))),
        ([(4, 3)], ((4, 3, 1, 2), (3, 4), (1, 2))),
        ([(2, 1)], ((2, 1), (), ())),
        ([(1,)], ((1, 2), (), (2,))),
        # Changed while under way.
        ([(3, 4), (5, 3)], ((5, 3, 1, 2, 4), (3, 5), (1, 2, 4))),
        ([(3, 4), (4, 5, 3)], ((4, 5, 3, 1, 2), (3, 4, 5), (1, 2))),
        ([(2, 3), (1, 2, 3)], ((1, 2, 3), (3,), ())),
        ([(2, 3), (1, 2)], ((1, 2, 3), (), (3,))),
    ],
)
def test_begin_lists_added_and_removed_replicas(steps: list[list[int]], lists: Lists) -> None:
    moving = PartitionRegistration(0, 1, 5, 7, (1, 2), (1, 2))
    for target in steps:
        moving = begin_reassignment(moving, list(target))
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == lists


@pytest.mark.kip(455)
@pytest.mark.parametrize(("isr", "left"), [((1, 2), (1, 2)), ((3, 1), (1,)), ((3,), ()), ((), ())])
def test_cancel_restores_the_original_replicas(isr: tuple[int, ...], left: tuple[int, ...]) -> None:
    moving = PartitionRegistration(0, 1, 5, 7, (4, 3, 1, 2), isr, (3, 4), (1, 2))
    assert cancel(moving) == PartitionRegistration(0, 1, 5, 7, (1, 2), left)


def test_a_reassignment_waits_for_added_replicas_and_then_removes_the_others(scene: Scene) -> None:
    assert alter(scene, (3, 2)) == [(0, None)]
    assert ask(scene) == {"a": [(0, [3, 2, 1], [3], [1])]}
    assert partition(scene) == PartitionRegistration(0, 1, 5, 8, (3, 2, 1), (1, 2), (3,), (1,))


def test_a_reassignment_to_in_sync_replicas_completes_at_once(scene: Scene) -> None:
    alter(scene, (2,))
    assert partition(scene) == PartitionRegistration(0, 2, 6, 8, (2,), (2,))
    assert ask(scene) == {}


def test_another_order_elects_nobody(scene: Scene) -> None:
    alter(scene, (2, 1))
    assert partition(scene) == PartitionRegistration(0, 1, 5, 8, (2, 1), (1, 2))


def test_a_reassignment_to_the_same_replicas_writes_nothing(scene: Scene) -> None:
    assert alter(scene, (1, 2)) == [(0, None)]
    assert partition(scene).partition_epoch == 7


def test_a_reassignment_is_cancelled(scene: Scene) -> None:
    alter(scene, (3, 2))
    assert alter(scene, None) == [(0, None)]
    assert partition(scene) == PartitionRegistration(0, 1, 6, 9, (2, 1), (1, 2))
    assert ask(scene) == {}


@pytest.mark.parametrize(
    ("replicas", "topic", "index", "code", "message"),
    [
        ((1,), "x", 0, 3, "Unable to find a topic named x."),
        ((1,), "a", 9, 3, "Unable to find partition a:9."),
        ((1,), "a", -1, 3, "Unable to find partition a:-1."),
        (None, "a", 0, 85, "No partition reassignment is in progress."),
        ((), "a", 0, 39, "empty replica list"),
        ((1, 1), "a", 0, 39, "more than once"),
        ((7,), "a", 0, 39, "includes broker 7, but no such broker is registered."),
        ((-2,), "a", 0, 39, "includes broker -2, but no such broker is registered."),
    ],
)
def test_an_impossible_reassignment_is_refused(
    scene: Scene,
    replicas: Sequence[int] | None,
    topic: str,
    index: int,
    code: int,
    message: str,
) -> None:
    ((refused, reason),) = alter(scene, replicas, topic=topic, index=index)
    assert refused == code
    assert message in str(reason)
    assert partition(scene).partition_epoch == 7


@pytest.mark.kip(860)
@pytest.mark.parametrize(
    ("before", "replicas", "change"),
    [
        (None, (3, 4), None),
        (None, (3, 4, 5), "from 2 to 3"),
        (None, (3,), "from 2 to 1"),
        ((3, 4, 5), (3, 4), "from 3 to 2"),
        ((3, 4, 5), (1, 2, 3), None),
    ],
)
def test_another_number_of_replicas_can_be_forbidden(
    scene: Scene, before: Sequence[int] | None, replicas: Sequence[int], change: str | None
) -> None:
    if before is not None:
        alter(scene, before)
    expected: tuple[int, str | None] = (0, None)
    if change is not None:
        expected = (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed {change}",
        )
    assert alter(scene, replicas, allow=False) == [expected]


def test_cancelling_must_not_lose_records_unless_the_topic_allows_it(scene: Scene) -> None:
    scene.put_topic("b", PartitionRegistration(0, 3, 5, 7, (3, 1), (3,), (3,), (1,)))
    assert alter(scene, None, topic="b") == [
        (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unable to revert partition assignment for b:0 because it would require an unclean "
            "leader election.",
        )
    ]
    scene.configure("b", "unclean.leader.election.enable", "true")
    assert alter(scene, None, topic="b") == [(0, None)]
    after = scene.image.topics["b"].partitions[0]
    assert (after.replicas, after.isr, after.leader) == ((1,), (1,), 1)
    assert not after.is_reassigning


def test_later_parts_of_a_request_build_on_earlier_ones(scene: Scene) -> None:
    assert alter(scene, (3, 2), (3, 4), None, None) == [
        (0, None),
        (0, None),
        (0, None),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
    ]
    after = partition(scene)
    assert set(after.replicas) == {1, 2}
    assert after.leader == 1


def test_reassignments_are_listed_by_topic_and_partition(scene: Scene) -> None:
    scene.put_topic(
        "b",
        *(PartitionRegistration(index, 1, 5, 7, (3, 1), (1,), (3,), (1,)) for index in range(3)),
    )
    alter(scene, (3, 2))
    move = ([3, 1], [3], [1])
    assert ask(scene) == {
        "a": [(0, [3, 2, 1], [3], [1])],
        "b": [(0, *move), (1, *move), (2, *move)],
    }
    assert ask(scene, b=[2, 0, 2, 9, -1], x=[0]) == {"b": [(2, *move), (0, *move)]}
    scene.put_topic("c", scene.partition(0, 1, (1, 2, 3)))
    assert ask(scene, c=[0]) == {}
