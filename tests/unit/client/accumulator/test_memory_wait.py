"""The wait of one call for buffer memory."""

from __future__ import annotations

import pytest

from tests.unit.client.odd_values import make_accumulator
from trimtab.client.accumulator.memory_wait import MemoryWait
from trimtab.kafka.errors import UsageError


def test_a_wait_holds_memory_from_its_grant_to_its_end() -> None:
    accumulator = make_accumulator(buffer_memory=1000)
    wait = MemoryWait(accumulator)
    request = wait.begin_wait(600)
    assert wait.request is request
    assert request.granted.done()
    other = MemoryWait(accumulator)
    assert not other.begin_wait(600).granted.done()
    assert accumulator.memory.waiting == 1
    wait.end_wait()
    assert wait.request is None
    assert accumulator.memory.waiting == 0
    other.end_wait()
    other.end_wait()
    assert accumulator.append("topic", b"x" * 900, None, None, 0, None) is not None


def test_more_than_all_memory_is_granted_once_nothing_is_held() -> None:
    accumulator = make_accumulator(buffer_memory=1000)
    small, large = MemoryWait(accumulator), MemoryWait(accumulator)
    assert small.begin_wait(600).granted.done()
    request = large.begin_wait(1500)
    assert not request.granted.done()
    small.end_wait()
    assert request.granted.done()
    large.end_wait()


def test_a_wait_that_is_refused_ends_as_well() -> None:
    accumulator = make_accumulator()
    accumulator.close(UsageError("the producer is closed"))
    wait = MemoryWait(accumulator)
    with pytest.raises(UsageError, match="the producer is closed"):
        wait.begin_wait(1)
    wait.end_wait()
    assert accumulator.memory.waiting == 0
