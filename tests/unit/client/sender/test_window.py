"""How many requests keep a broker busy, from answers that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trimtab.client.sender.window import (
    GATHER,
    RATE_INTERVAL,
    STALE,
    RecordRate,
    Window,
    gather_time,
)


@dataclass
class Load:
    requests: int = 0
    moved_at: float = -1.0
    alone: float = 0.0
    behind: float = 0.0
    drain_rate: float = 0.0

    @property
    def load(self) -> Load:
        return self


class Served:
    """A window, and a broker that works `service` seconds on a request, `distance` away."""

    def __init__(self, service: float, distance: float = 0.0) -> None:
        self.load = Load()
        self.window = Window(self.load, 5)
        self.now = 0.0
        self._service, self._distance = service, distance
        self._free_at = 0.0

    def send(self, *at: float) -> None:
        """Send a request at each of these times from now, and wait for all answers."""
        events = []
        for later in at:
            sent = self.now + later
            begin = max(sent + self._distance / 2, self._free_at)
            self._free_at = begin + self._service
            events.append((sent, 0, sent))
            events.append((self._free_at + self._distance / 2, 1, sent))
        alone: dict[float, bool] = {}
        for when, is_answer, sent in sorted(events):
            if is_answer:
                self.window.answered(when, sent, alone.pop(sent), 1000)
            else:
                alone[sent] = self.window.sent(when)
            self.now = when


def test_before_any_answer_the_window_is_the_largest() -> None:
    assert Window(Load(), 5).size(0.0) == 5
    assert Window(Load(), 1).size(0.0) == 1


def test_a_broker_that_works_on_one_request_at_a_time_has_a_window_of_one() -> None:
    served = Served(0.005)
    for _ in range(5):
        served.send(0.0, 0.001, 0.002)
    assert served.load.alone == pytest.approx(0.005)
    assert served.load.behind == pytest.approx(0.005)
    assert served.window.size(served.now) == 1
    assert served.window.has_room(served.now)
    served.window.sent(served.now)
    assert not served.window.has_room(served.now)


def test_a_broker_that_is_far_away_has_as_many_as_fit_into_its_answer_time() -> None:
    served = Served(0.0003, 0.030)
    for _ in range(5):
        served.send(0.0, 0.001, 0.002, 0.003)
    assert served.load.alone == pytest.approx(0.0303)
    assert served.load.behind == pytest.approx(0.001)
    assert served.window.size(served.now) == 5


def test_a_window_is_between_these() -> None:
    served = Served(0.010, 0.010)
    for _ in range(5):
        served.send(0.0, 0.001, 0.002)
    assert served.load.behind == pytest.approx(0.010)
    assert served.window.size(served.now) == 2, "one at the broker, one on its way"


def test_a_window_is_tried_with_one_more_if_it_was_not_measured_for_a_second() -> None:
    served = Served(0.005)
    served.send(0.0, 0.001)
    assert served.window.size(served.now + STALE) == 1
    assert served.window.size(served.now + STALE + 0.001) == 2


def test_what_other_producers_queue_does_not_open_the_window() -> None:
    """Their requests make answers late; the least answer time of the last seconds counts."""
    served = Served(0.005)
    for _ in range(5):
        served.send(0.0, 0.001)
    for _ in range(8):
        served._free_at = served.now + 0.1
        served.send(0.0)
    assert served.load.alone == pytest.approx(0.105)
    assert served.window.size(served.now) == 1


def test_an_answer_behind_others_corrects_the_time_alone() -> None:
    """It took at most that long, and at least the time since the one before."""
    quick, slow = Served(0.050), Served(0.005)
    quick.send(0.0)
    quick._service = 0.001
    quick.send(0.0, 0.0001)
    assert quick.load.alone < 0.050
    slow.send(0.0)
    slow._service = 0.050
    slow.send(0.0, 0.001)
    assert slow.load.alone > 0.005


def test_an_answer_behind_others_may_be_quicker_than_the_time_alone() -> None:
    load = Load()
    window = Window(load, 5)
    window.sent(0.0)
    window.answered(0.050, 0.0, True, 1)
    first = window.sent(1.0)
    assert not window.sent(1.001)
    window.answered(1.050, 1.0, first, 1)
    assert not window.sent(1.0502)
    window.answered(1.051, 1.001, False, 1)
    assert load.alone == pytest.approx(0.050)
    window.answered(1.055, 1.0502, False, 1)
    assert load.alone < 0.050, "the lower of two medians, of 4 and of 50 ms"


def test_a_lost_request_is_no_longer_open() -> None:
    load = Load()
    window = Window(load, 5)
    assert window.sent(1.0)
    assert not window.sent(1.5)
    assert (load.requests, load.moved_at) == (2, 1.0)
    window.lost(2.0)
    assert (load.requests, load.moved_at) == (1, 2.0)
    window.lost(2.0)
    assert load.requests == 0
    assert (load.alone, load.behind) == (0.0, 0.0)


def test_the_rate_of_records_is_that_of_a_tenth_of_a_second_or_more() -> None:
    rate = RecordRate()
    assert rate.count(0, 5.0)
    assert not rate.count(50, 5.0 + RATE_INTERVAL / 2)
    assert rate.count(300, 5.0 + 2 * RATE_INTERVAL)
    assert rate.per_second == pytest.approx(1500)


def test_batches_gather_for_part_of_the_quickest_answer_if_enough_records_come() -> None:
    nodes = [Load(alone=0.020), Load(alone=0.005), Load()]
    assert gather_time(1000, nodes) == pytest.approx(GATHER * 0.005)
    assert gather_time(500, nodes) == 0.0, "one record in that time: not worth the wait"
    assert gather_time(1e6, [Load()]) == 0.0, "nothing is known"
