"""The lower bound of the partitioner study, by hand and against the model."""

from __future__ import annotations

import pytest

from lab.benchmarks.partitioning import LATE, POLICIES, SLOW, WELL
from lab.benchmarks.partitioning_bound import least_total
from lab.benchmarks.partitioning_model import Model, Scenario, always, serve


def least(delay: float, rate: float, records: int, size: int, seconds: int = 1) -> float:
    """Of one broker that gets all records of one producer, in seconds."""
    counts, sizes = [records] * seconds, [records * size] * seconds

    def serve_at(now: float, size: int) -> float:
        return delay + size / rate

    return least_total(serve_at, counts, sizes, counts, 1 / records, 1)


def test_a_record_takes_a_request_at_least() -> None:
    # The last one may not be answered yet.
    assert least(0.001, 1e6, 10, 1000) == pytest.approx(9 * 0.002)


def test_records_gather_where_a_broker_works_on_few_requests() -> None:
    # 100 records, 10 requests of 0.1 s: ten in each, and the first has waited for 9 / 100 s.
    assert least(0.1, 1e12, 100, 1) == pytest.approx(90 * 0.1 + 100 * 0.045, abs=0.11)


def test_a_backlog_grows() -> None:
    # 2 MB/s for a broker that takes 1 MB/s: after each second another MB waits.
    found = least(0.0, 1e6, 2000, 1000, seconds=3)
    assert found == pytest.approx((0 + 500 + 1500), rel=1e-3)


def test_a_better_second_counts_only_for_those_that_come_shortly_before_it() -> None:
    def serve_at(now: float, size: int) -> float:
        return 0.020 if now < 1.0 else 0.001

    found = least_total(serve_at, [100, 0], [100, 0], [100, 0], 0.01, 1)
    assert found == pytest.approx(98 * 0.020 + 2 * 0.001)
    none = least_total(serve_at, [0, 0], [0, 0], [100, 0], 0.01, 1)
    assert none == 0.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("slow", (SLOW, WELL, WELL), 3, 2048, seconds=3.0),
        Scenario("late", (LATE, WELL), 4, 500, seconds=3.0, linger=0.005, producers=2),
        Scenario("throttled", (serve(rate=1e6), WELL), 4, 3000, sizes=always(1000), seconds=3.0),
        Scenario("bursts", (serve(delay=0.002),) * 3, 12, 2000, burst=100, seconds=3.0),
    ],
    ids=lambda scenario: scenario.name,
)
def test_no_partitioner_is_below_it(scenario: Scenario, policy: str) -> None:
    outcome = Model(scenario, POLICIES[policy], 1).run()
    assert 0.0 < outcome.least <= outcome.average
