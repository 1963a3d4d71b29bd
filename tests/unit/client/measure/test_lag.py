"""Lag, rates and the time to clear the lag, from looks that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.client.measure.made_samples import Log, make_sample
from trimtab.client.measure.lag import GroupLag, Look, PartitionLag, measure_lag, sum_lag
from trimtab.client.measure.sample import Timed
from trimtab.kafka.records import TopicPartition

P = TopicPartition("flights", 0)
Q = TopicPartition("flights", 1)


def look(
    at: float,
    committed: Mapping[str, Mapping[TopicPartition, int]],
    ends: Mapping[TopicPartition, int],
) -> Look:
    return Look(
        {group: Timed(at, offsets) for group, offsets in committed.items()}, {0: Timed(at, ends)}
    )


def of_one(*offsets: tuple[int, int], step: float = 10.0) -> PartitionLag:
    """One group in one partition: its committed offset and the end, every `step` seconds."""
    looks = [
        look(step * turn, {"g": {P: committed}}, {P: end})
        for turn, (committed, end) in enumerate(offsets)
    ]
    (lag,) = measure_lag(looks)
    return lag


def test_one_look_tells_the_lag_and_no_rate() -> None:
    assert of_one((70, 100)) == PartitionLag("g", P, 70, 100, 30, None, None, None)
    assert of_one((70, 100)).trend is None


def test_two_looks_tell_rates_and_the_time_to_clear() -> None:
    lag = of_one((0, 1000), (500, 1200))
    assert lag == PartitionLag("g", P, 500, 1200, 700, 20.0, 50.0, 700 / 30)
    assert lag.trend == "shrinking"


def test_a_lag_that_grows_is_never_cleared() -> None:
    lag = of_one((0, 1000), (100, 2000))
    assert (lag.written_per_s, lag.read_per_s, lag.seconds_to_clear) == (100.0, 10.0, None)
    assert lag.trend == "growing"


def test_equal_rates_never_clear_a_lag() -> None:
    assert of_one((0, 1000), (100, 1100)).seconds_to_clear is None
    assert of_one((5, 1000), (5, 1000)).seconds_to_clear is None
    assert of_one((5, 1000), (5, 1000)).trend == "steady"


def test_no_lag_is_cleared_already() -> None:
    assert of_one((100, 100)).seconds_to_clear == 0.0
    assert of_one((0, 50), (100, 100)).seconds_to_clear == 0.0


@pytest.mark.parametrize(
    ("read", "trend"),
    [(1050, "steady"), (960, "steady"), (940, "growing"), (1060, "shrinking")],
)
def test_rates_within_a_twentieth_are_a_steady_lag(read: int, trend: str) -> None:
    assert of_one((0, 5000), (read, 6000)).trend == trend


def test_a_slow_gain_on_a_steady_lag_has_its_time() -> None:
    lag = of_one((0, 50_000), (1040, 51_000))
    assert lag.trend == "steady"
    assert lag.seconds_to_clear == pytest.approx(lag.lag / 4.0 if lag.lag else None)


def test_rates_are_means_over_all_looks() -> None:
    """Commits move in steps: 0, 100, 0 in ten seconds each."""
    lag = of_one((0, 1000), (0, 1000), (100, 1000), (100, 1030))
    assert lag.read_per_s == pytest.approx(100 / 30)
    assert lag.written_per_s == 1.0


def test_a_group_that_went_back_has_no_read_rate_until_two_looks_later() -> None:
    lag = of_one((500, 1000), (900, 1100), (0, 1200))
    assert (lag.lag, lag.written_per_s) == (1200, 10.0)
    assert (lag.read_per_s, lag.seconds_to_clear, lag.trend) == (None, None, None)
    assert of_one((500, 1000), (0, 1000), (1200, 2000)).read_per_s == 120.0, "not 35 over both"


def test_an_earlier_fall_ends_the_run_for_good() -> None:
    """From 10 up to 20, which is not above the 30 in between."""
    assert of_one((10, 90), (30, 90), (20, 90), (25, 90)).read_per_s == 0.5


def test_an_end_that_fell_has_no_write_rate() -> None:
    """The topic was created again."""
    lag = of_one((500, 1000), (0, 40))
    assert (lag.end, lag.lag, lag.written_per_s, lag.read_per_s) == (40, 40, None, None)
    assert of_one((500, 1000), (0, 40), (0, 140)).written_per_s == 10.0


def test_a_commit_beyond_the_end_is_no_lag_and_is_told() -> None:
    lag = of_one((1000, 40))
    assert (lag.lag, lag.seconds_to_clear, lag.is_beyond_end) == (0, 0.0, True)
    assert of_one((1000, 40), (1000, 50)).trend is None
    assert not of_one((40, 40)).is_beyond_end


def test_a_partition_without_an_end_has_no_lag() -> None:
    """It was deleted, or its leader has not answered."""
    looks = [
        look(0, {"g": {P: 7}}, {P: 9}),
        look(10, {"g": {P: 8}}, {}),
    ]
    (lag,) = measure_lag(looks)
    assert lag == PartitionLag("g", P, 8, None, None, None, 0.1, None)
    assert not lag.is_beyond_end


def test_a_new_partition_of_a_group_has_no_read_rate() -> None:
    looks = [
        look(0, {"g": {P: 7}}, {P: 9, Q: 100}),
        look(10, {"g": {P: 7, Q: 50}}, {P: 9, Q: 200}),
    ]
    of_q = measure_lag(looks)[1]
    assert of_q == PartitionLag("g", Q, 50, 200, 150, 10.0, None, None)


def test_an_answer_left_out_in_between_is_bridged() -> None:
    looks = [
        look(0, {"g": {P: 0}}, {P: 100}),
        look(10, {}, {}),
        look(20, {"g": {P: 40}}, {P: 120}),
    ]
    (lag,) = measure_lag(looks)
    assert (lag.written_per_s, lag.read_per_s) == (1.0, 2.0)


def test_a_group_that_the_last_look_lacks_is_left_out() -> None:
    looks = [look(0, {"g": {P: 0}, "h": {P: 1}}, {P: 5}), look(10, {"h": {P: 2}}, {P: 5})]
    assert [each.group for each in measure_lag(looks)] == ["h"]


def test_each_answer_has_its_own_time() -> None:
    """A slow broker told the end 5 s later, and the coordinator 2 s."""
    looks = [
        Look({"g": Timed(0, {P: 0})}, {0: Timed(0, {P: 100})}),
        Look({"g": Timed(12, {P: 120})}, {1: Timed(15, {P: 250})}),
    ]
    (lag,) = measure_lag(looks)
    assert (lag.written_per_s, lag.read_per_s) == (10.0, 10.0)


def test_two_looks_of_one_moment_tell_no_rate() -> None:
    assert of_one((0, 10), (5, 20), step=0).read_per_s is None


def test_no_looks_and_no_groups_are_no_lag() -> None:
    assert measure_lag([]) == []
    assert measure_lag([look(0, {}, {P: 1})]) == []
    assert sum_lag([]) == {}


def test_the_parts_of_a_sample_are_a_look() -> None:
    logs = {P: Log(0, 10), Q: Log(0, 20, leader=1)}
    sample = make_sample(0, logs, {"g": {P: 4, Q: 5}})
    lags = measure_lag([Look(sample.groups, sample.ends)])
    assert [each.lag for each in lags] == [6, 15]


# sums


def sums(before: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]) -> GroupLag:
    """Of one group; the ends are 1000 and then 1100, but a partition's that is not P or Q."""
    ends = [{P: end, Q: end} for end in (1000, 1100)]
    looks = [look(0, {"g": before}, ends[0]), look(10, {"g": now}, ends[1])]
    return sum_lag(measure_lag(looks))["g"]


def test_a_group_is_cleared_with_its_last_partition() -> None:
    group = sums({P: 0, Q: 500}, {P: 300, Q: 1000})
    assert group == GroupLag("g", 2, 900, 20.0, 80.0, 800 / 20)
    assert group.trend == "shrinking"


def test_a_group_with_a_partition_that_grows_is_never_cleared() -> None:
    group = sums({P: 0, Q: 500}, {P: 900, Q: 550})
    assert (group.trend, group.seconds_to_clear) == ("shrinking", None)


def test_a_deleted_partition_does_not_keep_a_group_from_being_cleared() -> None:
    group = sums({P: 0, TopicPartition("old", 0): 5}, {P: 300, TopicPartition("old", 0): 5})
    assert (group.partitions, group.lag, group.seconds_to_clear) == (2, 800, 800 / 20)


def test_a_group_of_deleted_partitions_has_no_rates() -> None:
    old = TopicPartition("old", 0)
    assert sums({old: 5}, {old: 5}) == GroupLag("g", 1, 0, None, None, None)


def test_groups_are_summed_apart() -> None:
    lags = measure_lag([look(0, {"g": {P: 1}, "h": {P: 2, Q: 3}}, {P: 10, Q: 10})])
    assert {name: each.lag for name, each in sum_lag(lags).items()} == {"g": 9, "h": 15}


def test_hundreds_of_groups_in_ten_thousand_partitions_are_all_told() -> None:
    partitions = [TopicPartition(f"t{number // 100}", number % 100) for number in range(10_000)]
    looks = [
        look(
            10.0 * turn,
            {f"g{group}": dict.fromkeys(partitions[group::200], 10 * turn) for group in range(200)},
            dict.fromkeys(partitions, 100 + turn),
        )
        for turn in range(3)
    ]
    lags = measure_lag(looks)
    assert len(lags) == 10_000
    assert {(each.lag, each.read_per_s, each.written_per_s) for each in lags} == {(82, 1.0, 0.1)}
