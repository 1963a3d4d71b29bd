"""Clients in a Spark worker: used again, closed when idle or of unknown state, left by forks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest

from trimtab.spark.resident import IDLE_SECONDS, Residents


class Desk:
    """Residents whose clients are numbers and whose timers are called by hand."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.closed: list[int] = []
        self.timers: list[Callable[[], None]] = []
        self.residents: Residents[int] = Residents(self.closed.append, self._start_timer)

    def _start_timer(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == IDLE_SECONDS
        self.timers.append(call)

    def make(self, options: Mapping[str, str]) -> int:
        self.made.append(len(self.made))
        return self.made[-1]

    def use(self, key: str) -> int:
        with self.residents.borrow({"client.id": key}, self.make) as client:
            return client

    def pass_time(self) -> None:
        self.timers.pop(0)()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_client_is_used_again_for_the_same_key(desk: Desk) -> None:
    assert [desk.use("a"), desk.use("a"), desk.use("b"), desk.use("a")] == [0, 0, 1, 0]
    assert desk.closed == []


def test_two_tasks_at_once_have_a_client_each(desk: Desk) -> None:
    with desk.residents.borrow({"client.id": "a"}, desk.make) as first:
        assert desk.use("a") != first
    assert sorted((desk.use("a"), desk.use("a"))) == [0, 0]
    assert desk.made == [0, 1]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_one_that_fails_is_closed(desk: Desk, error: type[BaseException]) -> None:
    with pytest.raises(error), desk.residents.borrow({"client.id": "a"}, desk.make):
        raise error
    assert desk.closed == [0]
    assert desk.use("a") == 1


def test_what_is_idle_for_a_whole_period_is_closed(desk: Desk) -> None:
    desk.use("a")
    desk.use("b")
    assert len(desk.timers) == 1
    desk.pass_time()
    desk.use("a")
    desk.pass_time()
    assert desk.closed == [1]
    assert desk.use("a") == 0
    desk.pass_time()
    desk.pass_time()
    assert (desk.closed, desk.timers) == ([1, 0], [])
    assert desk.use("a") == 2
    assert len(desk.timers) == 1


def test_a_fork_does_not_touch_its_parents_clients(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.use("a")
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert desk.use("a") == 1
    assert desk.closed == []
    assert len(desk.timers) == 2
