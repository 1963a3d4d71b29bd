"""What is kept of an hour."""

from __future__ import annotations

import math

import pytest

from tests.unit.balance.level_cases import partition
from trimtab.balance.cluster_load import BrokerState, ClusterLoad
from trimtab.balance.level_plan import find_levels
from trimtab.client.measure import history
from trimtab.client.measure.history import LoadHistory
from trimtab.client.topic_view import PartitionView, TopicView

BROKERS = {id: BrokerState(id, None, 0) for id in (0, 1)}


def view(partitions: int, name: str = "t") -> TopicView:
    each = PartitionView(0, 0, (0, 1), (0, 1), ())
    return TopicView(
        name,
        bytes(16),
        False,
        (each,) * partitions,
        (0,) * partitions,
        (None,) * partitions,
        tuple(range(partitions)),
    )


def add(kept: LoadHistory, at: float, *rates: float, partitions: int = 0) -> None:
    loads = [partition(index, (0, 1), bytes_in=rate) for index, rate in enumerate(rates)]
    load = ClusterLoad(BROKERS, loads)
    kept.add(at, {"t": view(partitions or len(rates))}, load, find_levels(load))


def test_curves_of_brokers_topics_and_partitions() -> None:
    kept = LoadHistory(seconds=7200)
    add(kept, 10, 100, 50)
    add(kept, 20, 200, 50)
    assert kept.of_topic("t") == ((10, 20), (150, 250))
    assert kept.of_partition("t", 0) == ((10, 20), (100, 200))
    assert kept.of_partition("t", 2) == kept.of_topic("other") == ((), ())
    written, sent = kept.of_broker(0)
    assert written.values == sent.values == (150, 250)
    assert kept.of_broker(1)[1].values == (0, 0)
    assert kept.of_broker(7) == (((), ()), ((), ()))
    assert kept.of_topic("t", last=1) == ((20,), (250,))


def test_a_partition_that_was_not_measured_has_no_value() -> None:
    kept = LoadHistory()
    add(kept, 0, 100, partitions=3)
    assert math.isnan(kept.of_partition("t", 2).values[0])
    assert kept.of_topic("t").values == (100,)


def test_a_topic_that_grows_keeps_its_past() -> None:
    kept = LoadHistory()
    add(kept, 0, 1)
    add(kept, 10, 1, 2)
    assert kept.of_partition("t", 1) == ((10,), (2,))
    assert kept.of_topic("t").values == (1, 3)


@pytest.mark.parametrize("step", [5.0, 1.0])
def test_an_hour_is_kept_and_no_more(step: float) -> None:
    kept = LoadHistory()
    for index in range(int(2 * 3600 / step)):
        add(kept, index * step, 1.0)
    times = kept.of_topic("t").times
    assert times[-1] - times[0] == pytest.approx(3600, abs=10)
    assert 700 <= len(times) <= 801


def test_many_partitions_have_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_RATES", 2000)
    kept = LoadHistory()
    for index in range(720):
        add(kept, index * 5.0, *[1.0] * 100)
    assert 20 <= len(kept.of_topic("t").times) <= 23


def test_a_clock_that_goes_back_begins_anew() -> None:
    kept = LoadHistory()
    add(kept, 1000, 1)
    add(kept, 10, 2)
    assert kept.of_topic("t") == ((10,), (2,))
