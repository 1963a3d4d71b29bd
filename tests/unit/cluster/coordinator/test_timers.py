"""Deadlines: looked at in time, and once."""

from __future__ import annotations

from trimtab.cluster.coordinator.timers import Timers


def test_keys_come_when_they_are_due_each_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("b", 2.0)
    timers.set("a", 1.0)
    assert timers.next_due == 1.0
    assert list(timers.pop_due(0.9)) == []
    assert list(timers.pop_due(2.0)) == ["a", "b"]
    assert timers.next_due is None


def test_a_deadline_that_is_put_off_is_looked_at_by_the_old_one() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    assert timers.next_due == 1.0
    (key,) = timers.pop_due(1.0)
    timers.set(key, 5.0)
    assert timers.next_due == 5.0


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 5.0)
    timers.set("a", 1.0)
    assert list(timers.pop_due(9.0)) == ["a"]


def test_heartbeats_do_not_grow_the_heap() -> None:
    timers: Timers[int] = Timers()
    for second in range(1000):
        for key in range(10):
            timers.set(key, second + 10.0)
    assert len(timers._heap) == 10
