"""What is left of fetched batches without those of aborted transactions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.client.scripted_broker import batch
from trimtab.client.fetcher.aborted import without_aborted
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.batch_header import read_headers
from trimtab.kafka.wire.messages.fetch import AbortedTransaction


def visible(stored: Sequence[bytes], aborted: Sequence[tuple[int, int]]) -> list[bytes | None]:
    records = memoryview(bytearray(b"".join(stored)))
    kept = without_aborted(
        records,
        read_headers(records),
        [AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
    )
    return [record.value for record in read_records("t", 0, kept, 0)]


def transaction(offset: int, producer_id: int, *values: bytes, is_control: bool = False) -> bytes:
    return batch(
        offset,
        *values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        is_control=is_control,
    )


@pytest.mark.kip(98)
def test_records_of_aborted_transactions_are_not_seen() -> None:
    stored = [
        transaction(0, 7, b"aborted"),
        transaction(1, 8, b"other"),
        batch(2, b"plain"),
        transaction(3, 7, b"aborted too"),
        transaction(4, 7, b"marker", is_control=True),
        transaction(5, 7, b"committed later"),
    ]
    assert visible(stored, [(7, 0)]) == [b"other", b"plain", b"committed later"]


@pytest.mark.kip(98)
def test_all_records_between_aborted_ones_are_seen() -> None:
    """Also those that move less far than they are long."""
    stored: list[bytes] = []
    aborted: list[tuple[int, int]] = []
    for producer in range(1, 20):
        aborted.append((producer, len(stored)))
        stored.append(transaction(len(stored), producer, b"aborted"))
        stored.append(transaction(len(stored), producer, b"marker", is_control=True))
        for _ in range(producer % 3):
            stored.append(batch(len(stored), b"%d" % len(stored) * producer * 10))
    plain = [each for each in read_records("t", 0, memoryview(b"".join(stored)), 0)]
    assert visible(stored, aborted) == [
        record.value for record in plain if record.value != b"aborted"
    ]


@pytest.mark.kip(98)
def test_a_transaction_that_began_after_the_fetched_batches_hides_nothing() -> None:
    assert visible([transaction(0, 7, b"committed")], [(7, 10)]) == [b"committed"]
