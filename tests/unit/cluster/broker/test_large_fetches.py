"""Fetches of very many partitions (`trimtab.cluster.broker.handlers.fetch`): partitions change
between the steps of a pass; and the size limit of sessions
(`trimtab.cluster.broker.fetch_session_cache`)."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from tests.steps import finish
from tests.unit.cluster.broker.test_fetch_session import FakeBroker, request, virtual
from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.cluster.broker.fetch_session import PARTITIONS_PER_STEP, FetchSession
from trimtab.cluster.broker.fetch_session_cache import EVICTABLE_AFTER_S, FetchSessionCache
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.fetch import FetchRequest

PARTITIONS = [f"t{n:04}" for n in range(5 * PARTITIONS_PER_STEP)]
FIRST, LAST = PARTITIONS[0], PARTITIONS[-1]


def begin(fake: FakeBroker, epoch: int, partitions: list[str] = PARTITIONS) -> Steps[Any]:
    """A fetch of all partitions that would wait for an hour."""
    wanted = request(dict.fromkeys(partitions, 0), session_epoch=epoch)
    wanted.max_wait_ms = 3_600_000
    wanted.min_bytes = 1
    return fake.fetch(RequestHeader(FetchRequest.api_key, 12, 0, "t", 0), wanted)


def pass_over_first(fake: FakeBroker, steps: Steps[Any]) -> None:
    while not fake.partitions[FIRST].looks:
        next(steps)
    assert not fake.partitions[LAST].looks, "the pass is not over"


@pytest.mark.parametrize("epoch", [-1, 0])
@virtual
async def test_records_appended_behind_a_pass_end_the_wait(epoch: int) -> None:
    fake = FakeBroker()
    fake.add(*PARTITIONS)
    steps = begin(fake, epoch)
    pass_over_first(fake, steps)
    fake.partitions[FIRST].append()
    response = finish(steps)
    assert not response.error_code, "it is answered, not left to wait"


@pytest.mark.parametrize("epoch", [-1, 0])
@virtual
async def test_records_appended_behind_a_short_pass_end_the_wait(epoch: int) -> None:
    # Too few partitions for two steps, but naming them has used up most of the first one.
    fake = FakeBroker()
    few = PARTITIONS[: PARTITIONS_PER_STEP * 2 // 3]
    fake.add(*few)
    steps = begin(fake, epoch, few)
    while not fake.partitions[FIRST].looks:
        next(steps)
    assert not fake.partitions[few[-1]].looks, "the pass is not over"
    fake.partitions[FIRST].append()
    response = finish(steps)
    assert not response.error_code, "it is answered, not left to wait"


@virtual
async def test_records_appended_behind_a_pass_are_in_the_sessions_next_response() -> None:
    fake = FakeBroker()
    fake.add(*PARTITIONS)
    steps = begin(fake, 0)
    pass_over_first(fake, steps)
    fake.partitions[FIRST].append()
    fake.session_id, fake.epoch = finish(steps).session_id, 1
    (topic,) = fake.ask().responses
    assert topic.topic == FIRST
    assert topic.partitions[0].records


@pytest.mark.parametrize("epoch", [-1, 0])
@virtual
async def test_a_fetch_whose_connection_is_lost_during_a_pass_watches_nothing(epoch: int) -> None:
    fake = FakeBroker()
    fake.add(*PARTITIONS)
    steps = begin(fake, epoch)
    pass_over_first(fake, steps)
    steps.close()
    assert not any(each.watchers for each in fake.partitions.values())
    assert len(fake.fetch_sessions) == 0


def session_of(partitions: int) -> FetchSession:
    asked = request({f"t{n}": 0 for n in range(partitions)})
    session = FetchSession(FetchReader(cast(Any, FakeBroker()), 12, asked))
    finish(session.update(asked.topics, Pace()))
    return session


def test_sessions_have_a_common_limit_on_partitions() -> None:
    cache = FetchSessionCache(1000, Random(1), partitions=10)
    first = session_of(6)
    assert cache.keep(first, 0.0)
    assert not cache.keep(session_of(5), 1.0)
    assert cache.keep(session_of(4), 1.0)
    assert cache.keep(session_of(5), EVICTABLE_AFTER_S + 0.5), "what was idle for long gives way"
    assert not first.is_kept
    assert len(cache) == 2


def test_a_session_that_grows_beyond_the_limit_is_removed() -> None:
    cache = FetchSessionCache(1000, Random(1), partitions=10)
    session = session_of(6)
    cache.keep(session, 0.0)
    finish(session.update(request({f"u{n}": 0 for n in range(4)}).topics, Pace()))
    cache.check_size(session)
    assert session.is_kept
    finish(session.update(request({"v": 0}).topics, Pace()))
    cache.check_size(session)
    assert not session.is_kept
    assert len(cache) == 0
