"""The transaction coordinator's decisions (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.coordinator.transaction_scene import (
    BAD_STATE,
    CONCURRENT,
    FENCED,
    MAPPING,
    MAX,
    NAME,
    NONE,
    T0,
    T1,
    TIMEOUT_MS,
    Scene,
)
from trimtab.cluster.coordinator.effects import Ending
from trimtab.cluster.coordinator.transaction import NOBODY, ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def old() -> Scene:
    """A cluster, or a client, with version 1 of transactions."""
    return Scene(version=1)


# InitProducerId


def test_a_new_id_begins_with_epoch_0(scene: Scene) -> None:
    assert scene.producer() == ProducerIdAndEpoch(100, 0)
    assert scene.status == "EMPTY"
    assert scene.known.timeout_ms == TIMEOUT_MS


def test_each_initialization_raises_the_epoch(scene: Scene) -> None:
    assert [scene.producer().epoch for _ in range(3)] == [0, 1, 2]
    scene.move()
    assert scene.producer() == ProducerIdAndEpoch(100, 3)


@pytest.mark.kip(360)
def test_a_producer_goes_on_with_its_own_epoch(scene: Scene) -> None:
    first = scene.producer()
    second = scene.producer(first)
    assert second == first._replace(epoch=1)
    assert scene.producer(first) == second  # the response was lost
    scene.producer()
    assert scene.init(second).error_code == FENCED


@pytest.mark.kip(360)
def test_who_was_replaced_is_fenced(scene: Scene) -> None:
    first = scene.producer()
    scene.producer()
    assert scene.init(first).error_code == FENCED
    assert scene.init(ProducerIdAndEpoch(55, 0)).error_code == FENCED


@pytest.mark.kip(360)
@pytest.mark.parametrize("keep", [False, True])
def test_who_was_replaced_does_not_abort_what_is_open(scene: Scene, keep: bool) -> None:
    """Apache Kafka looks at the epoch after it has aborted the newer producer's transaction."""
    first = scene.producer()
    second = scene.producer(first)
    scene.add(second)
    assert scene.init(first, keep=keep).error_code == FENCED
    assert scene.status == "ONGOING"
    assert scene.end(second).error_code == NONE


@pytest.mark.kip(939)
def test_who_prepared_it_does_not_abort_what_was_taken_over(scene: Scene) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first)
    second = scene.producer(two_phase=True, keep=True)
    assert scene.init(first, two_phase=True).error_code == FENCED
    assert scene.status == "ONGOING"
    assert scene.end(second).error_code == NONE


@pytest.mark.kip(360)
@pytest.mark.parametrize("knows", [False, True])
def test_an_exhausted_epoch_leads_to_another_id(scene: Scene, knows: bool) -> None:
    last = scene.at_epoch(MAX - 1)
    after = scene.producer(last if knows else NOBODY)
    assert after == ProducerIdAndEpoch(101, 0)
    if knows:
        assert scene.producer(last) == after
    else:
        assert scene.init(last).error_code == FENCED


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_000}, NONE),
        ({"transaction_timeout_ms": 0, "enable2_pc": True}, NONE),
    ],
)
def test_what_is_refused(scene: Scene, changed: dict[str, Any], code: ErrorCode) -> None:
    response = scene.init(**changed)
    assert response.error_code == code
    assert (response.producer_id == -1) == (code is not NONE)


def test_without_a_producer_id_it_is_to_be_tried_again(scene: Scene) -> None:
    scene.ids = iter(())
    assert scene.init().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert scene.shard.transactions == {}
    assert scene.log == []


@pytest.mark.parametrize("version", [1, 2])
def test_an_open_transaction_is_aborted_first(version: int) -> None:
    scene = Scene(version)
    first = scene.producer()
    scene.add(first, T0, T1)
    assert scene.init().error_code == CONCURRENT
    (ending,) = scene.endings
    assert ending == Ending(NAME, 100, 1, False, frozenset({T0, T1}), 0 if version == 1 else 2)
    assert scene.init().error_code == CONCURRENT
    assert scene.add(first) == CONCURRENT
    scene.write_markers()
    assert scene.add(first) == FENCED
    assert scene.status == "COMPLETE_ABORT"
    assert scene.producer().epoch == 2
    assert scene.end(first).error_code == FENCED


@pytest.mark.kip(890)
@pytest.mark.parametrize("epoch", [MAX - 1, MAX])
def test_a_producer_with_the_last_epoch_is_fenced_too(scene: Scene, epoch: int) -> None:
    last = scene.at_epoch(epoch)
    scene.add(last)
    assert scene.init().error_code == CONCURRENT
    assert scene.endings[0].producer_epoch == MAX
    scene.write_markers()
    assert scene.known.producer == ProducerIdAndEpoch(101, 0)
    assert scene.producer() == ProducerIdAndEpoch(101, 1)


# Partitions


def test_partitions_are_added_once(scene: Scene) -> None:
    producer = scene.producer()
    assert scene.add(producer, T0) is NONE
    records = len(scene.log)
    assert scene.add(producer, T0) is NONE
    assert len(scene.log) == records
    scene.now_ms += 5
    assert scene.add(producer, T1) is NONE
    assert (scene.known.partitions, scene.known.started_ms) == (frozenset({T0, T1}), 1_000_000)
    scene.ended(producer)
    assert scene.known.partitions == set()


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (ProducerIdAndEpoch(100, 0), FENCED),
        (ProducerIdAndEpoch(100, 2), FENCED),
        (ProducerIdAndEpoch(99, 1), MAPPING),
        (ProducerIdAndEpoch(100, 1), NONE),
    ],
)
def test_who_may_add_partitions(
    scene: Scene, producer: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    scene.producer()
    scene.producer()
    assert scene.add(producer) is code
    assert scene.add(producer, name="other") is MAPPING
    assert scene.add(producer, name="") is ErrorCode.INVALID_REQUEST
    assert scene.shard.verify(NAME, producer, [T0])[T0] is code


@pytest.mark.kip(890)
def test_which_partitions_are_in_the_transaction(scene: Scene) -> None:
    producer = scene.producer()
    aside = ErrorCode.TRANSACTION_ABORTABLE
    assert scene.shard.verify(NAME, producer, [T0]) == {T0: aside}
    scene.add(producer, T0)
    assert scene.shard.verify(NAME, producer, [T0, T1]) == {T0: NONE, T1: aside}
    scene.end(producer)
    raised = producer._replace(epoch=1)
    assert scene.shard.verify(NAME, raised, [T0]) == {T0: CONCURRENT}
    assert scene.shard.verify(NAME, producer, [T0]) == {T0: FENCED}
    scene.write_markers()
    assert scene.shard.verify(NAME, raised, [T0]) == {T0: aside}


def test_a_transaction_that_no_record_holds_is_refused(scene: Scene) -> None:
    producer = scene.producer()
    scene.max_batch = 400
    many = [TopicPartition("t" * 200, index) for index in range(50)]
    assert scene.add(producer, *many) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "Use fewer partitions in the transaction" in scene.warnings[0]
    assert scene.status == "EMPTY"
    assert scene.add(producer, T0) is NONE


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("epoch", [5, MAX - 1])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_transaction_that_just_fits_can_be_ended(client: int, epoch: int, keeps: bool) -> None:
    """The record that ends it has more fields than the one that began it."""
    for ends in ("commit", "abort", "init", "time"):
        scene = Scene(client, two_phase=True)
        producer = scene.at_epoch(epoch)
        scene.max_batch = 100
        while scene.add(producer, T0) is not NONE:
            scene.max_batch += 1
        scene.version = 2
        if keeps:
            taken = scene.init(keep=True)
            assert taken.error_code == NONE
            producer = ProducerIdAndEpoch(taken.producer_id, taken.producer_epoch)
        if ends == "time":
            scene.pass_time(TIMEOUT_MS)
        elif ends == "init":
            assert scene.init().error_code == CONCURRENT
        else:
            assert scene.end(producer, ends == "commit").error_code == NONE
        assert scene.known.is_ending
        scene.write_markers()
        assert scene.status.startswith("COMPLETE")


def test_a_transaction_that_cannot_be_aborted_is_reported_and_tried_again(scene: Scene) -> None:
    producer = scene.producer()
    scene.add(producer)
    scene.max_batch = 100
    scene.pass_time(TIMEOUT_MS)
    assert scene.status == "ONGOING"
    (warning,) = scene.warnings
    assert f"The transaction of '{NAME}' is too large" in warning
    scene.pass_time(59_000)
    assert len(scene.warnings) == 1
    scene.max_batch = 1 << 20
    scene.pass_time(1_000)
    assert scene.status == "PREPARE_ABORT"


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_is_too_large_is_reported(scene: Scene, commit: bool) -> None:
    producer = scene.producer()
    scene.add(producer)
    scene.max_batch = 100
    assert scene.end(producer, commit).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert scene.init().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(scene.warnings) == 2


# EndTxn


@pytest.mark.kip(890)
def test_every_end_raises_the_epoch(scene: Scene) -> None:
    producer = scene.producer()
    for epoch in range(1, 4):
        scene.add(producer)
        response = scene.end(producer, commit=epoch % 2 == 1)
        assert scene.endings[0].producer_epoch == epoch
        scene.write_markers()
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        assert producer == scene.known.producer == ProducerIdAndEpoch(100, epoch)


def test_version_1_keeps_the_epoch(old: Scene) -> None:
    producer = old.producer()
    old.add(producer)
    response = old.end(producer)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert old.endings == [Ending(NAME, 100, 0, True, frozenset({T0}), 0)]
    assert old.end(producer).error_code == CONCURRENT
    assert old.add(producer) is CONCURRENT
    old.write_markers()
    assert old.end(producer).error_code == NONE
    assert old.end(producer, commit=False).error_code == BAD_STATE
    assert old.add(producer) is NONE


def test_version_1_ends_nothing_that_has_not_begun(old: Scene) -> None:
    producer = old.producer()
    assert old.end(producer).error_code == BAD_STATE
    assert old.end(producer, commit=False).error_code == BAD_STATE
    assert old.end(producer._replace(epoch=1)).error_code == FENCED
    assert old.end(producer._replace(producer_id=1)).error_code == MAPPING


@pytest.mark.kip(890)
@pytest.mark.parametrize("moves", [False, True])
def test_the_last_epoch_leads_to_another_id(scene: Scene, moves: bool) -> None:
    last = scene.at_epoch(MAX - 1)
    scene.add(last)
    response = scene.end(last)
    after = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    assert after == ProducerIdAndEpoch(101, 0)
    assert (scene.endings[0].producer_id, scene.endings[0].producer_epoch) == (100, MAX)
    if moves:
        scene.move()
    assert scene.end(last).error_code == CONCURRENT
    assert scene.end(after).error_code == CONCURRENT
    assert scene.add(after) is CONCURRENT
    scene.write_markers()
    again = scene.end(last)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *after)
    assert scene.add(after) is NONE
    assert scene.end(last).error_code == MAPPING


def test_the_outcome_survives_a_move(scene: Scene) -> None:
    producer = scene.producer()
    scene.add(producer, T0, T1)
    scene.end(producer)
    before = list(scene.endings)
    scene.move()
    assert scene.endings == before
    scene.write_markers()
    scene.move()
    assert scene.endings == []
    assert scene.status == "COMPLETE_COMMIT"


def test_a_transaction_is_completed_once(scene: Scene) -> None:
    producer = scene.producer()
    scene.add(producer)
    scene.end(producer)
    endings = scene.endings * 2
    scene.endings = endings
    scene.write_markers()
    records = len(scene.log)
    after = scene.known.producer
    scene.add(after)
    scene.shard.complete(scene.now, endings[0])
    scene.take()
    assert len(scene.log) == records + 1
    assert scene.status == "ONGOING"


# Time


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("moves", [False, True])
def test_a_transaction_is_aborted_when_its_time_is_over(version: int, moves: bool) -> None:
    scene = Scene(version)
    producer = scene.producer()
    scene.add(producer)
    scene.pass_time(TIMEOUT_MS - 1)
    scene.add(producer, T1)
    if moves:
        scene.move()
    assert scene.status == "ONGOING"
    scene.pass_time(1)
    assert scene.status == "PREPARE_ABORT"
    scene.write_markers()
    assert scene.add(producer) is FENCED
    assert scene.end(producer).error_code == (FENCED if version == 1 else BAD_STATE)


@pytest.mark.kip(939)
def test_a_transaction_in_two_phases_has_no_timeout(scene: Scene) -> None:
    producer = scene.producer(two_phase=True)
    scene.add(producer)
    scene.pass_time(10**10)
    assert scene.status == "ONGOING"
    assert scene.shard.next_due is None


def test_a_timeout_without_a_producer_id_is_tried_again(scene: Scene) -> None:
    last = scene.at_epoch(MAX - 1)
    scene.add(last)
    scene.ids = iter(())
    scene.pass_time(TIMEOUT_MS)
    assert scene.status == "ONGOING"
    scene.ids = iter((7,))
    scene.pass_time(1000)
    assert scene.status == "PREPARE_ABORT"


def test_ids_that_nobody_uses_are_deleted() -> None:
    scene = Scene(expiration_ms=1000)
    producer = scene.producer()

    def expire() -> None:
        for _ in scene.shard.expire(lambda: scene.now):
            pass
        scene.take()

    scene.now_ms += 999
    expire()
    assert scene.known
    scene.add(producer)
    scene.now_ms += 1000
    expire()
    assert scene.status == "ONGOING"
    scene.ended(producer)
    scene.now_ms += 1000
    expire()
    assert scene.shard.transactions == {}
    assert scene.log[-1] == (b"\0\0\0\2id", None)
    scene.move()
    assert scene.producer() == ProducerIdAndEpoch(101, 0)


# Prepared transactions


@pytest.mark.kip(939)
def test_a_cluster_may_refuse_two_phases() -> None:
    scene = Scene(two_phase=False)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert scene.init(two_phase=True).error_code == refused
    assert scene.init(keep=True).error_code == refused


@pytest.mark.kip(939)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [False, True])
def test_another_producer_ends_a_prepared_transaction(
    scene: Scene, commit: bool, moves: bool
) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first, T0, T1)
    taken = scene.init(two_phase=True, keep=True)
    second = ProducerIdAndEpoch(taken.producer_id, taken.producer_epoch)
    assert second == first._replace(epoch=1)
    ongoing = ProducerIdAndEpoch(taken.ongoing_txn_producer_id, taken.ongoing_txn_producer_epoch)
    assert ongoing == first
    if moves:
        scene.move()
    assert scene.status == "ONGOING"
    assert scene.add(first) is FENCED
    assert scene.end(first).error_code == FENCED
    assert scene.shard.verify(NAME, first, [T0]) == {T0: FENCED}
    assert scene.add(second) is BAD_STATE
    response = scene.end(second, commit)
    (ending,) = scene.endings
    assert ending == Ending(NAME, 100, 1, commit, frozenset({T0, T1}), 2)
    after = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    assert after == second._replace(epoch=2)
    assert scene.end(second, commit).error_code == CONCURRENT
    if moves:
        scene.move()
    scene.write_markers()
    assert scene.known.producer == after
    assert scene.end(first, commit).error_code == FENCED
    assert scene.end(second, commit).error_code == NONE
    assert scene.add(after) is NONE


@pytest.mark.kip(939)
def test_a_prepared_transaction_is_taken_over_again_and_again(scene: Scene) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first)
    taken = [scene.init(two_phase=True, keep=True) for _ in range(3)]
    assert [each.producer_epoch for each in taken] == [1, 2, 3]
    assert {each.ongoing_txn_producer_epoch for each in taken} == {0}
    assert scene.end(ProducerIdAndEpoch(100, 2)).error_code == FENCED
    assert scene.end(ProducerIdAndEpoch(100, 3)).producer_epoch == 4
    assert scene.endings[0].producer_epoch == 1


@pytest.mark.kip(939)
def test_who_does_not_keep_a_prepared_transaction_aborts_it(scene: Scene) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first)
    scene.init(two_phase=True, keep=True)
    assert scene.init(two_phase=True).error_code == CONCURRENT
    assert scene.endings[0].is_commit is False
    scene.write_markers()
    assert scene.producer(two_phase=True) == ProducerIdAndEpoch(100, 3)


@pytest.mark.kip(939)
def test_there_may_be_nothing_to_keep(scene: Scene) -> None:
    response = scene.init(two_phase=True, keep=True)
    assert (response.error_code, response.producer_epoch) == (NONE, 0)
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (-1, -1)


@pytest.mark.kip(939)
@pytest.mark.parametrize("moves", [False, True])
def test_a_prepared_transaction_outlives_its_producer_s_epochs(scene: Scene, moves: bool) -> None:
    last = scene.at_epoch(MAX - 1)
    scene.add(last)
    taken = scene.init(two_phase=True, keep=True)
    second = ProducerIdAndEpoch(taken.producer_id, taken.producer_epoch)
    assert second == ProducerIdAndEpoch(101, 0)
    if moves:
        scene.move()
    response = scene.end(second)
    assert (response.producer_id, response.producer_epoch) == (101, 1)
    assert scene.endings[0].producer_epoch == MAX
    scene.write_markers()
    assert scene.known.producer == ProducerIdAndEpoch(101, 1)
