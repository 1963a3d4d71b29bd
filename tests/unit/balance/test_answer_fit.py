"""Answer times drawn from queues whose capacity is known."""

from __future__ import annotations

import numpy
import pytest

from trimtab.balance.answer_fit import Answered, AnswerFit
from trimtab.kafka.errors import UsageError

CAPACITY = 50e6
WORK_S = 0.001
BASE_S = 0.002


def queue(
    bytes_s: float, seed: int, base_s: float = BASE_S, count: int = 20_000
) -> tuple[float, float]:
    """The median and the 99th percentile of what probes wait in a queue, by Lindley's recursion."""
    random = numpy.random.default_rng(seed)
    busy = bytes_s / CAPACITY
    work = random.exponential(WORK_S, count)
    between = random.exponential(WORK_S / busy, count)
    steps = numpy.concatenate([[0.0], numpy.cumsum(work - between)])
    waits = steps - numpy.minimum.accumulate(steps)
    return tuple(base_s + numpy.quantile(waits, (0.5, 0.99)))


def measured(loads: list[float], windows: int = 10) -> list[Answered]:
    return [
        Answered(broker, load, *queue(load, 100 * broker + window))
        for broker, load in enumerate(loads)
        for window in range(windows)
    ]


def test_a_queue_is_forecast_within_a_quarter_at_twice_its_load() -> None:
    fit = AnswerFit(measured([5e6, 8e6, 12e6, 16e6, 20e6]))
    for load in (25e6, 30e6, 35e6):
        said = fit.predict(4, numpy.array([load]))[1]
        came = numpy.mean([queue(load, seed)[1] for seed in range(5)])
        assert said == pytest.approx(came, rel=0.25), load


def test_a_broker_that_is_slower_than_others_stays_so() -> None:
    slow = [Answered(9, 10e6, *queue(10e6, seed, base_s=0.02)) for seed in range(10)]
    fit = AnswerFit([*measured([8e6, 10e6, 14e6]), *slow])
    fast_s, slow_s = (fit.predict(id, numpy.array([10e6]))[1] for id in (1, 9))
    assert slow_s - fast_s == pytest.approx(0.018, rel=0.2)


def test_the_interval_holds_most_of_what_was_measured() -> None:
    answered = measured([10e6, 15e6], windows=40)
    fit = AnswerFit(answered)
    inside = 0
    for each in answered:
        low, mid, high = fit.predict(each.broker, numpy.array([each.bytes_s]))
        assert low < mid < high < 1.5 * mid
        inside += low <= each.p99_s <= high
    assert inside >= 0.88 * len(answered)


def test_more_than_twice_the_measured_load_is_refused() -> None:
    fit = AnswerFit(measured([6e6, 12e6, 18e6]))
    fit.predict(0, numpy.array([6e6, 35e6]))
    with pytest.raises(UsageError, match=r"broker 0 would have 2\.1 times the bytes/s"):
        fit.predict(0, numpy.array([6e6, 38e6]))


def test_a_load_near_the_capacity_is_refused() -> None:
    fit = AnswerFit(measured([20e6, 30e6, 35e6, 40e6, 42e6]))
    with pytest.raises(UsageError, match="does not tell how long"):
        fit.predict(0, numpy.array([60e6]))


def test_a_broker_without_probes_and_few_measurements_are_refused() -> None:
    with pytest.raises(UsageError, match="broker 7 was not probed"):
        AnswerFit(measured([1e6, 2e6])).predict(7, numpy.array([1e6]))
    with pytest.raises(UsageError, match="7 answers of probes are too few"):
        AnswerFit(measured([1e6], windows=7))


def test_idle_brokers_have_their_usual_answers() -> None:
    idle = [Answered(0, 0.0, 0.001, 0.004)] * 10
    assert AnswerFit(idle).predict(0, numpy.zeros(1)) == pytest.approx((0.004,) * 3)


def test_alike_loads_do_not_tell_of_others() -> None:
    """But they tell of themselves."""
    fit = AnswerFit([Answered(0, 10e6, 0.001, 0.01)] * 10)
    assert fit.predict(0, numpy.array([10e6])) == pytest.approx((0.01,) * 3)
    with pytest.raises(UsageError, match="does not tell how long answers take"):
        fit.predict(0, numpy.array([18e6]))


def test_a_broker_whose_slowest_answers_alone_are_slower_stays_so() -> None:
    usual = measured([8e6, 10e6, 14e6])
    uneasy = [each._replace(broker=9, p99_s=3 * each.p99_s) for each in usual if each.broker == 1]
    fit = AnswerFit([*usual, *uneasy])
    (_, usual_s, _), (_, uneasy_s, _) = (fit.predict(id, numpy.array([10e6])) for id in (1, 9))
    assert uneasy_s == pytest.approx(3 * usual_s, rel=0.05)
