"""One pass over the slots of a session (`trimtab.cluster.broker.fetch_slot`), without a request
around it: which slots answer, and what the pass spends."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.steps import finish
from tests.unit.cluster.broker.test_fetch_session import (
    FOLLOWER,
    SIZE,
    FakeBroker,
    request,
    virtual,
)
from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.cluster.broker.fetch_session import FetchSession
from trimtab.cluster.broker.fetch_slot import MAX_READ_BYTES, FetchPass
from trimtab.cluster.server.turns import Pace
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.fetch_limits import FetchBudget


def open_session(fake: FakeBroker, named: dict[str, int], **options: Any) -> FetchSession:
    asked = request(named, **options)
    session = FetchSession(FetchReader(cast(Any, fake), 12, asked))
    finish(session.update(asked.topics, Pace()))
    return session


def read(session: FetchSession, budget: FetchBudget, is_full: bool = True) -> FetchPass:
    return finish(session.read(budget, is_full, Pace()))


def sizes(reading: FetchPass) -> dict[Any, int]:
    return {slot.topic: len(data.records or b"") for slot, data in reading.answers}


@pytest.mark.kip(74)
@virtual
async def test_slots_spend_one_budget_in_the_order_of_the_request() -> None:
    fake = FakeBroker()
    fake.add("a", "b", "c", "d", batches=3)
    session = open_session(fake, {"c": 0, "a": 0, "d": 0, "b": 0}, limit=2 * SIZE)
    budget = FetchBudget(3 * SIZE + SIZE // 2)
    assert sizes(read(session, budget)) == {"c": 2 * SIZE, "a": SIZE, "d": 0, "b": 0}
    assert budget.left == SIZE // 2


@pytest.mark.kip(74)
@virtual
async def test_a_slot_without_records_leaves_the_exemption_to_the_next() -> None:
    fake = FakeBroker()
    fake.add("empty")
    fake.add("b", "c", batches=2)
    session = open_session(fake, {"empty": 0, "b": 0, "c": 0}, limit=0)
    assert sizes(read(session, FetchBudget(1000))) == {"empty": 0, "b": SIZE, "c": 0}


@virtual
async def test_the_memory_that_is_left_goes_from_slot_to_slot() -> None:
    fake = FakeBroker()
    fake.add("a", "b", batches=2)
    reading = read(open_session(fake, {"a": 0, "b": 0}), FetchBudget(3 * SIZE))
    assert reading.memory == MAX_READ_BYTES - 3 * SIZE


@virtual
async def test_each_pass_has_a_budget_of_its_own() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    session = open_session(fake, {"a": 0})
    assert sizes(read(session, FetchBudget(SIZE))) == sizes(read(session, FetchBudget(SIZE)))


@virtual
async def test_unknown_partitions_are_kept_apart_and_do_not_end_the_wait() -> None:
    fake = FakeBroker()
    fake.add("a")
    reading = read(open_session(fake, {"unknown": 0, "a": 0}), FetchBudget(SIZE))
    assert sizes(reading) == {"a": 0}
    ((slot, data),) = reading.unknown
    assert (slot.topic, data.error_code) == ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not reading.ends_wait


@virtual
async def test_an_error_and_a_preferred_replica_end_the_wait() -> None:
    fake = FakeBroker()
    fake.add("a")
    assert read(open_session(fake, {"a": 9}), FetchBudget(SIZE)).ends_wait
    fake.partitions["a"].preferred = 2
    asked = request({"a": 0}, rack="r", version=11)
    session = FetchSession(FetchReader(cast(Any, fake), 11, asked))
    finish(session.update(asked.topics, Pace()))
    assert read(session, FetchBudget(SIZE)).ends_wait


@virtual
async def test_only_slots_that_can_be_read_count_as_available() -> None:
    fake = FakeBroker()
    fake.add("a", "b", batches=2)
    fake.add("empty", "slow")
    fake.partitions["slow"].append(commits=False)
    fake.partitions["slow"].is_slow = True
    fake.exceeded = lambda: True
    named = dict.fromkeys(("a", "b", "empty", "slow"), 0)
    session = open_session(fake, named, replica=FOLLOWER)
    reading = read(session, FetchBudget(SIZE))
    assert reading.budget.spent == SIZE
    available = {cast(Any, slot).topic: size for slot, size in session.available().items()}
    assert available == {"a": 2 * SIZE, "b": 2 * SIZE, "empty": 0, "slow": 0}


@virtual
async def test_unchanged_slots_answer_a_full_fetch_only() -> None:
    fake = FakeBroker()
    fake.add("a")
    session = open_session(fake, {"a": 0})
    for slot, data in read(session, FetchBudget(SIZE)).answers:
        data.high_watermark = 0
        session.answered(slot, data)
    session.ready.update(session.slots.values())
    assert sizes(read(session, FetchBudget(SIZE), is_full=False)) == {}
    assert sizes(read(session, FetchBudget(SIZE))) == {"a": 0}
