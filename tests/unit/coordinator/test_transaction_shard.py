"""The transaction coordinator's decisions (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from trimtab.coordinator.effects import Caller, Ending, Now
from trimtab.coordinator.transaction import NOBODY, Identity, Transaction
from trimtab.coordinator.transaction_shard import TransactionRules, TransactionShard
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.messages.end_txn import EndTxnRequest
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.wire.messages.transaction_records import TransactionStatus, decode_transaction

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NAME = "id"
MAX = 32767
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
BAD_STATE = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
TIMEOUT_MS = 60_000


class Scene:
    """One shard, its log, and the endings that wait for their markers."""

    def __init__(self, version: int = 2, **rules: Any) -> None:
        self.version = version
        self.rules = TransactionRules(
            **{"max_timeout_ms": 900_000, "two_phase": True, "expiration_ms": 10**9, **rules}
        )
        self.max_batch = 1 << 20
        self.now_ms = 1_000_000
        self.ids: Any = count(100)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.endings: list[Ending] = []
        self.warnings: list[str] = []
        self.begin()

    def begin(self) -> None:
        self.shard = TransactionShard(
            self.rules, lambda: self.version, lambda: next(self.ids, None), lambda: self.max_batch
        )

    def move(self) -> None:
        """Another broker coordinates from now on."""
        self.begin()
        self.endings = []
        for key, value in self.log:
            decoded = decode_transaction(key, value)
            assert decoded is not None
            self.shard.replay(*decoded)
        self.shard.resume(self.now)
        self.take()

    @property
    def now(self) -> Now:
        return Now(self.now_ms / 1000, self.now_ms)

    def take(self) -> list[Any]:
        effects = self.shard.effects.take()
        self.log += [(each.encoded_key, each.encoded_value) for each in effects.records]
        self.endings += effects.endings
        self.warnings += effects.warnings
        return [response for _, response in effects.responses]

    def init(
        self, expected: Identity = NOBODY, two_phase: bool = False, keep: bool = False, **more: Any
    ) -> Any:
        request = {
            "transactional_id": NAME,
            "transaction_timeout_ms": TIMEOUT_MS,
            "producer_id": expected.producer_id,
            "producer_epoch": expected.epoch,
            "enable2_pc": two_phase,
            "keep_prepared_txn": keep,
        }
        self.shard.init(
            self.now, Caller(None, 6, "c", "/h"), InitProducerIdRequest(**{**request, **more})
        )
        (response,) = self.take()
        return response

    def producer(self, expected: Identity = NOBODY, **more: Any) -> Identity:
        response = self.init(expected, **more)
        assert response.error_code == NONE
        return Identity(response.producer_id, response.producer_epoch)

    def add(self, producer: Identity, *partitions: TopicPartition, name: str = NAME) -> ErrorCode:
        code = self.shard.add_partitions(
            self.now, name, producer, partitions or (T0,), self.version
        )
        self.take()
        return code

    def end(self, producer: Identity, commit: bool = True, version: int = 0) -> Any:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        caller = Caller(None, version or (5 if self.version == 2 else 4), "c", "/h")
        self.shard.end(self.now, caller, request)
        (response,) = self.take()
        return response

    def ended(self, producer: Identity, commit: bool = True) -> Identity:
        """Whom the producer is after its transaction."""
        response = self.end(producer, commit)
        assert response.error_code == NONE
        self.write_markers()
        if self.version < 2:
            return producer
        return Identity(response.producer_id, response.producer_epoch)

    def write_markers(self) -> None:
        endings, self.endings = self.endings, []
        for each in endings:
            self.shard.complete(self.now, each)
        self.take()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        due = self.shard.next_due
        if due is not None and due <= self.now.s:
            self.shard.look(self.now)
            self.take()

    @property
    def known(self) -> Transaction:
        return self.shard.transactions[NAME]

    @property
    def status(self) -> str:
        return self.known.status.name

    def at_epoch(self, epoch: int) -> Identity:
        """A producer that has come to this epoch."""
        producer = self.producer()
        self.known.producer = producer._replace(epoch=epoch)
        value = self.known.write(self.now_ms, TransactionStatus.EMPTY)
        self.shard._write(NAME, value)
        self.take()
        return self.known.producer


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def old() -> Scene:
    """A cluster, or a client, with version 1 of transactions."""
    return Scene(version=1)


# InitProducerId


def test_a_new_id_begins_with_epoch_0(scene: Scene) -> None:
    assert scene.producer() == Identity(100, 0)
    assert scene.status == "EMPTY"
    assert scene.known.timeout_ms == TIMEOUT_MS


def test_each_initialization_raises_the_epoch(scene: Scene) -> None:
    assert [scene.producer().epoch for _ in range(3)] == [0, 1, 2]
    scene.move()
    assert scene.producer() == Identity(100, 3)


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
    assert scene.init(Identity(55, 0)).error_code == FENCED


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
    assert after == Identity(101, 0)
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
    assert scene.add(first) == FENCED
    scene.write_markers()
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
    assert scene.known.producer == Identity(101, 0)
    assert scene.producer() == Identity(101, 1)


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
        (Identity(100, 0), FENCED),
        (Identity(100, 2), FENCED),
        (Identity(99, 1), MAPPING),
        (Identity(100, 1), NONE),
    ],
)
def test_who_may_add_partitions(scene: Scene, producer: Identity, code: ErrorCode) -> None:
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


# EndTxn


@pytest.mark.kip(890)
def test_every_end_raises_the_epoch(scene: Scene) -> None:
    producer = scene.producer()
    for epoch in range(1, 4):
        scene.add(producer)
        response = scene.end(producer, commit=epoch % 2 == 1)
        assert scene.endings[0].producer_epoch == epoch
        scene.write_markers()
        producer = Identity(response.producer_id, response.producer_epoch)
        assert producer == scene.known.producer == Identity(100, epoch)


def test_version_1_keeps_the_epoch(old: Scene) -> None:
    producer = old.producer()
    old.add(producer)
    response = old.end(producer)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert old.endings == [Ending(NAME, 100, 0, True, frozenset({T0}), 0)]
    assert old.end(producer).error_code == CONCURRENT
    assert old.end(producer, commit=False).error_code == BAD_STATE
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


def _empty(scene: Scene) -> Identity:
    return scene.producer()


def _aborted(scene: Scene) -> Identity:
    producer = scene.producer()
    scene.add(producer)
    return scene.ended(producer, commit=False)


def _committed(scene: Scene) -> Identity:
    producer = scene.producer()
    scene.add(producer)
    return scene.ended(producer)


@pytest.mark.kip(890)
@pytest.mark.parametrize(
    ("state", "retry_abort", "abort", "retry_commit", "commit"),
    [
        (_empty, FENCED, "bump", FENCED, BAD_STATE),
        (_aborted, NONE, "bump", BAD_STATE, BAD_STATE),
        (_committed, BAD_STATE, "bump", NONE, BAD_STATE),
    ],
)
@pytest.mark.parametrize("moves", [False, True])
def test_the_table_of_version_2(
    state: Any, retry_abort: Any, abort: Any, retry_commit: Any, commit: Any, moves: bool
) -> None:
    for is_commit, retried, expected in (
        (False, True, retry_abort),
        (False, False, abort),
        (True, True, retry_commit),
        (True, False, commit),
    ):
        scene = Scene()
        producer = state(scene)
        if moves:
            scene.move()
        asking = producer._replace(epoch=producer.epoch - 1) if retried else producer
        response = scene.end(asking, is_commit)
        bumped = producer._replace(epoch=producer.epoch + 1)
        if expected == "bump":
            assert response.error_code == NONE
            assert (response.producer_id, response.producer_epoch) == bumped
            (ending,) = scene.endings
            assert (ending.partitions, ending.is_commit) == (frozenset(), False)
            scene.write_markers()
            assert scene.known.producer == bumped
        else:
            assert response.error_code == expected
            if expected is NONE:
                assert (response.producer_id, response.producer_epoch) == producer


@pytest.mark.kip(890)
def test_an_end_that_is_asked_for_again_meanwhile(scene: Scene) -> None:
    producer = scene.producer()
    scene.add(producer)
    scene.end(producer)
    assert scene.end(producer).error_code == CONCURRENT
    assert scene.end(producer, commit=False).error_code == BAD_STATE
    assert scene.end(producer._replace(epoch=1)).error_code == FENCED


@pytest.mark.kip(890)
@pytest.mark.parametrize("moves", [False, True])
def test_the_last_epoch_leads_to_another_id(scene: Scene, moves: bool) -> None:
    last = scene.at_epoch(MAX - 1)
    scene.add(last)
    response = scene.end(last)
    after = Identity(response.producer_id, response.producer_epoch)
    assert after == Identity(101, 0)
    assert (scene.endings[0].producer_id, scene.endings[0].producer_epoch) == (100, MAX)
    if moves:
        scene.move()
    assert scene.end(last).error_code == CONCURRENT
    assert scene.add(after) is MAPPING
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
    assert scene.producer() == Identity(101, 0)


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
    second = Identity(taken.producer_id, taken.producer_epoch)
    assert second == first._replace(epoch=1)
    ongoing = Identity(taken.ongoing_txn_producer_id, taken.ongoing_txn_producer_epoch)
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
    after = Identity(response.producer_id, response.producer_epoch)
    assert after == second._replace(epoch=2)
    assert scene.end(second, commit).error_code == CONCURRENT
    assert scene.end(first, commit).error_code == FENCED
    if moves:
        scene.move()
    scene.write_markers()
    assert scene.known.producer == after
    assert scene.end(second, commit).error_code == NONE
    assert scene.add(after) is NONE


@pytest.mark.kip(939)
def test_a_prepared_transaction_is_taken_over_again_and_again(scene: Scene) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first)
    taken = [scene.init(two_phase=True, keep=True) for _ in range(3)]
    assert [each.producer_epoch for each in taken] == [1, 2, 3]
    assert {each.ongoing_txn_producer_epoch for each in taken} == {0}
    assert scene.end(Identity(100, 2)).error_code == FENCED
    assert scene.end(Identity(100, 3)).producer_epoch == 4
    assert scene.endings[0].producer_epoch == 1


@pytest.mark.kip(939)
def test_who_does_not_keep_a_prepared_transaction_aborts_it(scene: Scene) -> None:
    first = scene.producer(two_phase=True)
    scene.add(first)
    scene.init(two_phase=True, keep=True)
    assert scene.init(two_phase=True).error_code == CONCURRENT
    assert scene.endings[0].is_commit is False
    scene.write_markers()
    assert scene.producer(two_phase=True) == Identity(100, 3)


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
    second = Identity(taken.producer_id, taken.producer_epoch)
    assert second == Identity(101, 0)
    if moves:
        scene.move()
    response = scene.end(second)
    assert (response.producer_id, response.producer_epoch) == (101, 1)
    assert scene.endings[0].producer_epoch == MAX
    scene.write_markers()
    assert scene.known.producer == Identity(101, 1)
