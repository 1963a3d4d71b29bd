"""Sequences of idempotent producers, checked as by Kafka's `ProducerAppendInfo`."""

import pytest

from trimtab.cluster.storage.producer_state import ACCEPTED, ProducerState, StoredBatch, Verdict
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import BatchHeader

DAY_MS = 86_400_000
MAX_SEQUENCE = 2**31 - 1


def header(
    sequence: int,
    records: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        size=100,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )


def state_after(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    offset = 100
    for each in headers:
        assert state.check_batch(each) is ACCEPTED
        state.note_stored(each, offset, now_ms=0)
        offset += each.record_count
    return state


def error_of(verdict: Verdict) -> ErrorCode:
    assert verdict.duplicate is None
    return verdict.error


class TestSequences:
    def test_a_batch_without_a_producer_id_is_accepted(self) -> None:
        assert state_after(header(0)).check_batch(header(-1, producer=-1, epoch=-1)) is ACCEPTED

    @pytest.mark.parametrize("first", [0, 1, 4711, MAX_SEQUENCE])
    def test_an_unknown_producer_may_begin_anywhere(self, first: int) -> None:
        assert ProducerState().check_batch(header(first)) is ACCEPTED

    def test_sequences_follow_one_another(self) -> None:
        state = state_after(header(0, 10), header(10, 5))
        assert state.check_batch(header(15)) is ACCEPTED
        for sequence in (5, 11, 14, 16, 100):
            assert error_of(state.check_batch(header(sequence))) == (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )

    def test_the_refusal_says_what_was_expected(self) -> None:
        verdict = state_after(header(0, 10)).check_batch(header(12))
        assert verdict.detail == "producer 7 sent sequence 12, but the last one stored is 9"

    def test_producers_are_independent(self) -> None:
        state = state_after(header(0, 10), header(0, 3, producer=8))
        assert state.check_batch(header(10)) is ACCEPTED
        assert state.check_batch(header(3, producer=8)) is ACCEPTED

    def test_sequences_wrap_to_zero(self) -> None:
        state = state_after(header(MAX_SEQUENCE - 1, 2))
        assert state.check_batch(header(0)) is ACCEPTED

    def test_a_batch_may_span_the_wrap(self) -> None:
        state = state_after(header(MAX_SEQUENCE, 3))
        assert state.check_batch(header(2)) is ACCEPTED
        assert state.check_batch(header(MAX_SEQUENCE, 3)).duplicate == StoredBatch(
            MAX_SEQUENCE, 1, 100, 102, 1000
        )


class TestDuplicates:
    def test_the_last_five_are_recognised_with_their_offsets(self) -> None:
        state = state_after(*(header(10 * i, 10, timestamp=i) for i in range(7)))
        for i in range(2, 7):
            duplicate = state.check_batch(header(10 * i, 10)).duplicate
            assert duplicate == StoredBatch(
                10 * i, 10 * i + 9, 100 + 10 * i, 100 + 10 * i + 9, timestamp=i
            )
        assert error_of(state.check_batch(header(10, 10))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_only_the_same_range_is_a_duplicate(self) -> None:
        state = state_after(header(0, 10))
        assert error_of(state.check_batch(header(0, 9))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_check_records_nothing(self) -> None:
        state = state_after(header(0))
        assert state.check_batch(header(1)) is ACCEPTED
        assert state.check_batch(header(1)) is ACCEPTED


class TestEpochs:
    def test_an_older_epoch_is_fenced(self) -> None:
        state = state_after(header(0, epoch=3))
        verdict = state.check_batch(header(1, epoch=2))
        assert error_of(verdict) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert verdict.detail == "producer 7 has epoch 2, but epoch 3 has written here"

    def test_a_new_epoch_begins_at_zero(self) -> None:
        state = state_after(header(0, 10))
        assert (
            error_of(state.check_batch(header(10, epoch=1)))
            == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert state.check_batch(header(0, epoch=1)) is ACCEPTED

    def test_a_new_epoch_forgets_the_batches_of_the_old(self) -> None:
        state = state_after(header(0, 10), header(0, 2, epoch=1))
        assert error_of(state.check_batch(header(0, 10, epoch=1))) == (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert state.check_batch(header(2, epoch=1)) is ACCEPTED

    def test_a_transaction_marker_bears_an_epoch_and_no_sequence(self) -> None:
        state = state_after(header(0, 10))
        state.note_stored(header(-1, epoch=1, attributes=0x30), 110, now_ms=0)
        assert error_of(state.check_batch(header(10))) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (
            error_of(state.check_batch(header(5, epoch=1)))
            == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert state.check_batch(header(0, epoch=1)) is ACCEPTED


class TestExpiry:
    def test_a_silent_producer_is_forgotten(self) -> None:
        state = ProducerState(expiration_ms=DAY_MS)
        state.note_stored(header(0), 0, now_ms=0)
        state.note_stored(header(0, producer=8), 1, now_ms=1)
        state.expire(DAY_MS)
        assert len(state) == 1
        assert state.check_batch(header(55)) is ACCEPTED
        assert state.check_batch(header(55, producer=8)) is not ACCEPTED

    def test_old_records_do_not_make_an_old_producer(self) -> None:
        state = ProducerState(expiration_ms=DAY_MS)
        state.note_stored(header(0, timestamp=1), 0, now_ms=10 * DAY_MS)
        state.expire(10 * DAY_MS + 1)
        assert len(state) == 1


class TestSnapshot:
    def test_survives_whole(self) -> None:
        state = state_after(
            *(header(10 * i, 10) for i in range(7)), header(MAX_SEQUENCE, 3, producer=8, epoch=2)
        )
        state.note_stored(header(-1, producer=9, epoch=4, attributes=0x30), 0, now_ms=0)
        read = ProducerState.decode(state.encode(), DAY_MS, now_ms=5)
        assert read.encode() == state.encode()
        assert len(read) == 3
        for i in range(2, 7):
            assert read.check_batch(header(10 * i, 10)) == state.check_batch(header(10 * i, 10))
        assert read.check_batch(header(MAX_SEQUENCE, 3, producer=8, epoch=2)).duplicate is not None
        assert error_of(read.check_batch(header(0, producer=9, epoch=3))) == (
            ErrorCode.INVALID_PRODUCER_EPOCH
        )

    def test_empty(self) -> None:
        assert ProducerState().encode().hex() == "0001" + "48674bc7" + "00000000"
        assert len(ProducerState.decode(ProducerState().encode(), DAY_MS, 0)) == 0

    def test_a_damaged_snapshot_is_refused(self) -> None:
        whole = state_after(header(0, 10)).encode()
        for size in range(len(whole)):
            with pytest.raises(CorruptData):
                ProducerState.decode(whole[:size], DAY_MS, 0)
        for position in range(len(whole)):
            torn = bytearray(whole)
            torn[position] ^= 0x10
            with pytest.raises(CorruptData):
                ProducerState.decode(torn, DAY_MS, 0)
