"""AlterPartition as a table: proposed ISRs of a partition led by 1, with ISR 1 and 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trimtab.cluster.controller.isr_changes import decide_isr_changes
from trimtab.cluster.metadata.image import RECOVERED, RECOVERING
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)

LEADER_EPOCH, PARTITION_EPOCH = 5, 7


def data(
    isr: Iterable[int] = (1, 2, 3),
    index: int = 0,
    leader_epoch: int = LEADER_EPOCH,
    partition_epoch: int = PARTITION_EPOCH,
    state: int = RECOVERED,
    epochs: Iterable[int] = (101, 102, 103),
) -> PartitionData:
    known = dict(zip((1, 2, 3), epochs, strict=True))
    return PartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        leader_recovery_state=state,
        new_isr_with_epochs=[
            BrokerState(broker_id=each, broker_epoch=known.get(each, -1)) for each in isr
        ],
    )


def ask(
    scene: Any, *wanted: PartitionData, broker: int = 1, epoch: int = 101, topic: str = "t"
) -> AlterPartitionResponse:
    request = AlterPartitionRequest(
        broker_id=broker,
        broker_epoch=epoch,
        topics=[TopicData(topic_id=scene.id(topic), partitions=list(wanted))],
    )
    response = scene.apply(decide_isr_changes(scene.image, scene.rules, request))
    assert isinstance(response, AlterPartitionResponse)
    return response


def result(response: AlterPartitionResponse) -> PartitionDataResponse:
    (answered,) = response.topics[0].partitions
    return answered


def test_an_isr_grows_and_shrinks(scene: Any) -> None:
    partitions = scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    answer = result(ask(scene, data((1, 2, 3))))
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2, 3], 8)
    assert (answer.leader_id, answer.leader_epoch) == (1, LEADER_EPOCH)
    answer = result(ask(scene, data((1,), partition_epoch=8)))
    assert (answer.isr, answer.partition_epoch) == ([1], 9)
    assert (partitions[0].isr, partitions[0].leader_epoch, partitions[0].elr) == ((1,), 5, ())


def test_an_unchanged_isr_writes_nothing(scene: Any) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    answer = result(ask(scene, data((1, 2))))
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2], 7)


REFUSED: list[tuple[str, dict[str, Any], PartitionData, ErrorCode]] = [
    ("no such partition", {}, data(index=4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("a negative one", {}, data(index=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("no such topic", {"topic": "x"}, data(), ErrorCode.UNKNOWN_TOPIC_ID),
    ("a leader epoch to come", {}, data(leader_epoch=6), ErrorCode.NOT_CONTROLLER),
    ("a partition epoch to come", {}, data(partition_epoch=8), ErrorCode.NOT_CONTROLLER),
    ("an old leader epoch", {}, data(leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
    (
        "both old",
        {},
        data(leader_epoch=4, partition_epoch=6),
        ErrorCode.FENCED_LEADER_EPOCH,
    ),
    ("not the leader", {"broker": 2, "epoch": 102}, data(), ErrorCode.INVALID_REQUEST),
    ("an old partition epoch", {}, data(partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION),
    ("no replica", {}, data((1, 2, 9)), ErrorCode.INVALID_REQUEST),
    ("twice the same", {}, data((1, 2, 2)), ErrorCode.INVALID_REQUEST),
    ("without the leader", {}, data((2, 3)), ErrorCode.INVALID_REQUEST),
    ("empty", {}, data(()), ErrorCode.INVALID_REQUEST),
    ("recovering again", {}, data((1,), state=RECOVERING), ErrorCode.INVALID_REQUEST),
    ("an unknown state", {}, data((1,), state=5), ErrorCode.INVALID_REQUEST),
    ("an old broker epoch", {}, data(epochs=(101, 102, 99)), ErrorCode.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(
    ("who", "wanted", "code"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_is_refused(
    scene: Any, who: dict[str, Any], wanted: PartitionData, code: ErrorCode
) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    response = ask(scene, wanted, **who)
    assert (response.error_code, result(response).error_code) == (0, code)
    assert scene.brief("t") == {0: (1, (1, 2), ())}


@pytest.mark.kip(841)
@pytest.mark.parametrize(
    "changed",
    [{"fenced": True}, {"in_controlled_shutdown": True}, {"epoch": 999}],
    ids=["fenced", "about to end", "another incarnation"],
)
def test_a_broker_that_is_not_active_cannot_join(scene: Any, changed: dict[str, Any]) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    scene.put_broker(3, **changed)
    assert result(ask(scene, data((1, 2, 3)))).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert result(ask(scene, data((1, 2)))).error_code == 0


@pytest.mark.kip(903)
def test_an_epoch_that_is_not_given_is_not_checked(scene: Any) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    assert result(ask(scene, data(epochs=(-1, -1, -1)))).isr == [1, 2, 3]


def test_version_2_has_no_epochs(scene: Any) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    wanted = data(())
    wanted.new_isr = [1, 3]
    assert result(ask(scene, wanted)).isr == [1, 3]


@pytest.mark.parametrize(("broker", "epoch"), [(1, 100), (1, -1), (9, 101)])
def test_a_stale_broker_epoch_refuses_the_whole_request(
    scene: Any, broker: int, epoch: int
) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)))
    response = ask(scene, data(), broker=broker, epoch=epoch)
    assert (response.error_code, response.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])


def test_partitions_are_answered_each_on_its_own(scene: Any) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)), scene.partition(1, 2, (2,)))
    response = ask(scene, data((1,)), data((1, 2), index=1))
    answers = response.topics[0].partitions
    assert [(each.partition_index, each.error_code) for each in answers] == [
        (0, 0),
        (1, ErrorCode.INVALID_REQUEST),
    ]
    assert scene.brief("t") == {0: (1, (1,), ()), 1: (2, (2,), ())}


@pytest.mark.kip(966)
def test_a_replica_that_leaves_a_too_small_isr_joins_the_elr(scene: Any) -> None:
    scene.put_topic("t", scene.partition(0, 1, (1, 2)), min_insync_replicas="2")
    assert result(ask(scene, data((1,)))).isr == [1]
    assert scene.brief("t") == {0: (1, (1,), (2,))}
    ask(scene, data((1, 3), partition_epoch=8))
    assert scene.brief("t") == {0: (1, (1, 3), ())}


def test_a_leader_recovers_alone_and_says_when_it_has(scene: Any) -> None:
    partitions = scene.put_topic("t", scene.partition(0, 1, (1,), leader_recovery_state=RECOVERING))
    code = result(ask(scene, data((1, 2), state=RECOVERING))).error_code
    assert code == ErrorCode.INVALID_REQUEST
    assert result(ask(scene, data((1,), state=RECOVERING))).partition_epoch == 7
    answer = result(ask(scene, data((1,))))
    assert (answer.leader_recovery_state, answer.partition_epoch) == (RECOVERED, 8)
    assert partitions[0].leader_recovery_state == RECOVERED


def test_an_isr_that_completes_a_reassignment_may_remove_the_leader(scene: Any) -> None:
    scene.put_topic(
        "t",
        scene.partition(
            0, 1, (1, 2), replicas=(3, 2, 1), adding_replicas=(3,), removing_replicas=(1,)
        ),
        scene.partition(
            1, 2, (1, 2), replicas=(3, 2, 1), adding_replicas=(3,), removing_replicas=(1,)
        ),
    )
    assert result(ask(scene, data((1, 2, 3)))).error_code == ErrorCode.NEW_LEADER_ELECTED
    answer = result(ask(scene, data((1, 2, 3), index=1), broker=2, epoch=102))
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 2, 6)
    assert answer.isr == [2, 3]
    for partition, leader in zip(scene.image.topics["t"].partitions, (3, 2), strict=True):
        assert (partition.leader, partition.replicas, partition.isr) == (leader, (3, 2), (2, 3))
        assert not partition.is_reassigning
