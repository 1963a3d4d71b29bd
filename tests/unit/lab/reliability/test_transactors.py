"""What the checker of transactions refuses (`lab.reliability.transactors`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.reliability.checkers import Violation
from lab.reliability.transactors import (
    ATOMIC,
    Ledger,
    Outcome,
    RecordName,
    Transactor,
    check_atomic,
    read_name,
)
from trimtab.kafka.records import Record, TimestampType, TopicPartition

FIRST, SECOND = TopicPartition(ATOMIC, 0), TopicPartition(ATOMIC, 1)


def transactor(*transactions: tuple[int, Outcome, bool]) -> Transactor:
    """One with these transactions: records, outcome, whether it committed the group's offset."""
    ledger = Ledger()
    for records, outcome, has_offset in transactions:
        number = ledger.begin()
        ledger.records[number] = records
        ledger.outcomes[number] = outcome
        if outcome is not Outcome.ABORTED:
            ledger.committing.add(number)
        if has_offset:
            ledger.offsets.add(number)
    return cast(Transactor, SimpleNamespace(host="transactor-0", group="g", ledger=ledger))


def check(made: Transactor, *found: tuple[TopicPartition, int, int], offset: int = -1) -> None:
    """Check records, each given by partition, transaction and place in it."""
    stored: dict[TopicPartition, dict[int, RecordName]] = {FIRST: {}, SECOND: {}}
    for partition, transaction, place in found:
        of = stored[partition]
        of[len(of)] = RecordName(0, transaction, place)
    check_atomic([made], stored, {"g": offset})


def test_whole_transactions_pass() -> None:
    made = transactor(
        (2, Outcome.COMMITTED, True),
        (1, Outcome.ABORTED, True),
        (2, Outcome.UNKNOWN, False),
        (1, Outcome.UNKNOWN, True),
        (0, Outcome.UNKNOWN, True),
    )
    both = ((FIRST, 0, 0), (SECOND, 0, 1))
    check(made, *both, offset=0)
    check(made, *both, offset=4)
    check(made, *both, (FIRST, 2, 0), (FIRST, 2, 1), (SECOND, 3, 0), offset=3)


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Outcome.COMMITTED, []),
        (Outcome.COMMITTED, [(FIRST, 0, 0)]),
        (Outcome.COMMITTED, [(FIRST, 0, 0), (FIRST, 0, 0), (FIRST, 0, 1)]),
        (Outcome.COMMITTED, [(FIRST, 0, 1), (FIRST, 0, 0)]),
        (Outcome.UNKNOWN, [(SECOND, 0, 1)]),
        (Outcome.ABORTED, [(FIRST, 0, 0), (SECOND, 0, 1)]),
    ],
)
def test_parts_doubles_and_aborted_ones_are_refused(outcome: Outcome, found: Any) -> None:
    with pytest.raises(Violation, match="transactor-0"):
        check(transactor((2, outcome, False)), *found)


def test_one_that_nobody_has_committed_is_refused() -> None:
    made = transactor((1, Outcome.UNKNOWN, False))
    check(made, (FIRST, 0, 0))
    made.ledger.committing.clear()
    with pytest.raises(Violation, match="UNKNOWN"):
        check(made, (FIRST, 0, 0))


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_offset_goes_with_its_transaction(offset: int) -> None:
    made = transactor((1, Outcome.COMMITTED, True), (0, Outcome.ABORTED, True))
    check(made, (FIRST, 0, 0), offset=0)
    with pytest.raises(Violation, match=rf"offset of g is {offset}, not \[0\]"):
        check(made, (FIRST, 0, 0), offset=offset)


def test_a_record_tells_what_it_is() -> None:
    def record(value: bytes) -> Record:
        return Record(ATOMIC, 0, 0, 0, TimestampType.CREATE_TIME, None, value, ())

    assert read_name(record(b"1 22 3 \0\0")) == RecordName(1, 22, 3)
    with pytest.raises(Violation, match="nobody has sent"):
        read_name(record(b"1 22 3 x"))
