"""Who a transaction's producer is (KIP-939)."""

from __future__ import annotations

import pytest

from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch, make_transaction
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus

BEFORE, NEXT = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 0)


@pytest.mark.parametrize("status", TransactionStatus)
def test_the_next_producer_may_ask_only_while_a_transaction_is_open(
    status: TransactionStatus,
) -> None:
    known = make_transaction("x", 7, 1000, 0)
    known.producer, known.next, known.status = BEFORE, NEXT, status
    is_open = status is TransactionStatus.ONGOING
    assert known.is_taken_over == is_open
    assert known.caller == (NEXT if is_open else BEFORE)
