"""The bytes of records of `__transaction_state`, which Kafka's tools read."""

from __future__ import annotations

import pytest

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogValue,
    TransactionStatus,
    decode_transaction,
    encode_transaction,
)

VALUE = TransactionLogValue(
    producer_id=7,
    previous_producer_id=6,
    next_producer_id=9,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=TransactionStatus.PREPARE_COMMIT,
    transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0, 2])],
    transaction_last_update_timestamp_ms=11,
    transaction_start_timestamp_ms=10,
    client_transaction_version=2,
)


def test_bytes_are_kafkas() -> None:
    key, value = encode_transaction("id", VALUE)
    assert key == b"\0\0\0\2id"
    assert value == (
        b"\0\1"
        + (7).to_bytes(8, "big")
        + (3).to_bytes(2, "big")
        + (60_000).to_bytes(4, "big")
        + b"\2"
        + b"\2\2t\3\0\0\0\0\0\0\0\2\0"
        + (11).to_bytes(8, "big")
        + (10).to_bytes(8, "big")
        + b"\3"
        + b"\0\10"
        + (6).to_bytes(8, "big")
        + b"\1\10"
        + (9).to_bytes(8, "big")
        + b"\2\2\0\2"
    )


def test_a_record_is_read_as_it_was_written() -> None:
    key, value = encode_transaction("id", VALUE)
    assert decode_transaction(key, value) == ("id", VALUE)
    assert decode_transaction(key, None) == ("id", None)
    assert decode_transaction(b"\0\1" + key[2:], value) is None


def test_version_0_has_no_ids_of_other_transactions() -> None:
    old = (
        b"\0\0"
        + (7).to_bytes(8, "big")
        + (3).to_bytes(2, "big")
        + (60_000).to_bytes(4, "big")
        + b"\0\xff\xff\xff\xff"
        + (11).to_bytes(8, "big")
        + (10).to_bytes(8, "big")
    )
    found = decode_transaction(encode_transaction("id", None)[0], old)
    assert found is not None
    value = found[1]
    assert value is not None
    assert (value.producer_id, value.previous_producer_id, value.next_producer_id) == (7, -1, -1)
    assert (value.transaction_partitions, value.client_transaction_version) == (None, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0", None), (b"\0\0\0\5id", None), (b"\0\0\0\2id", b"\0"), (b"\0\0\0\2id", b"\0\2")],
)
def test_malformed_records(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptData):
        decode_transaction(key, value)
