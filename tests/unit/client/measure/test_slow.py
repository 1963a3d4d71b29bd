"""Which brokers are called slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from trimtab.client.measure.followers import Blame
from trimtab.client.measure.slow import ProbeTimes, SlowRests, collect_signs, find_slow

WELL = (0.002,) * 8
LATE = (0.1,) * 8
SIGN = ["a poll takes 300 ms"]


def find(
    times: Mapping[int, Sequence[float]],
    signed: Sequence[int] = (),
    usual: Mapping[int, float] | None = None,
) -> tuple[list[int], list[int], list[int]]:
    probes = {
        broker: ProbeTimes(recent, (usual or {}).get(broker)) for broker, recent in times.items()
    }
    found = find_slow(probes, dict.fromkeys(signed, SIGN))
    return list(found.slow), list(found.alarm), list(found.suspected)


def test_slow_probes_and_another_sign_make_a_broker_slow() -> None:
    probes = {0: ProbeTimes(WELL), 1: ProbeTimes(LATE), 2: ProbeTimes(WELL)}
    found = find_slow(probes, {1: SIGN})
    assert found.slow == {1: "probes take 100 ms, those of its peers 2.0 ms; a poll takes 300 ms"}


def test_slow_probes_alone_make_a_suspect() -> None:
    assert find({0: WELL, 1: LATE, 2: WELL}) == ([], [], [1])


def test_a_sign_alone_makes_nothing() -> None:
    assert find({0: WELL, 1: WELL, 2: WELL}, [0, 1, 2]) == ([], [], [])


def test_half_of_the_probes_are_not_enough_to_judge_by() -> None:
    assert find({0: WELL, 1: LATE[:7], 2: WELL}, [1]) == ([], [], [])
    assert find({0: WELL, 1: LATE[:3] + WELL[:5], 2: WELL}, [1]) == ([], [], [])
    assert find({0: WELL, 1: LATE[:5] + WELL[:3], 2: WELL}, [1]) == ([1], [], [])


@pytest.mark.parametrize(("peers", "slow"), [(0.019, [1]), (0.021, [])])
def test_five_times_the_peers_are_the_least(peers: float, slow: list[int]) -> None:
    assert find({0: (peers,) * 8, 1: LATE, 2: (peers,) * 8}, [1])[0] == slow


@pytest.mark.parametrize(("own", "slow"), [(0.020, []), (0.0201, [1])])
def test_twenty_milliseconds_are_the_least(own: float, slow: list[int]) -> None:
    assert find({0: WELL, 1: (own,) * 8, 2: WELL}, [1])[0] == slow


@pytest.mark.parametrize(("usual", "slow"), [(0.09, [1]), (0.11, [])])
def test_a_broker_that_is_as_usual_is_not_slow(usual: float, slow: list[int]) -> None:
    """In another region, say."""
    assert find({0: WELL, 1: LATE, 2: WELL}, [1], {1: usual})[0] == slow


def test_a_single_broker_is_judged_by_itself() -> None:
    assert find({0: LATE}, [0])[0] == [0]
    assert find({0: WELL}, [0])[0] == []


def test_more_than_a_tenth_are_an_alarm_with_their_names() -> None:
    times = dict.fromkeys(range(20), WELL)
    assert find({**times, 3: LATE, 7: LATE}, [3, 7]) == ([3, 7], [], [])
    assert find({**times, 3: LATE, 7: LATE, 9: LATE}, [3, 7, 9]) == ([], [3, 7, 9], [])
    assert find({0: LATE, 1: LATE, 2: WELL, 3: WELL, 4: WELL}, [0, 1]) == ([], [0, 1], [])


def test_a_broker_that_is_slow_again_and_again_rests_longer_each_time() -> None:
    rests = SlowRests()
    now, lengths = 0.0, []
    for _ in range(9):
        rests.note([1], now)
        rests.note([1], now + 10)  # still
        begin = now = now + 10
        assert rests.resting(now) == {1}
        while rests.resting(now):
            now += 60
        lengths.append(now - begin)
    assert lengths[:4] == [360, 660, 1260, 2460]
    assert lengths[-1] == 6 * 3600 + 60
    now += 7 * 3600
    rests.note([1, 2], now)
    assert rests.resting(now + 299) == {1, 2}
    assert rests.resting(now + 301) == set()


def test_every_kind_of_sign_is_named() -> None:
    signs = collect_signs(
        Blame(frozenset({1}), frozenset({2})), {0: 0.003, 1: 0.3, 2: 0.003}, {0: 0.4, 1: 3.2}
    )
    assert signs == {
        1: [
            "all its followers fall behind",
            "a poll takes 300 ms",
            "its last fetch of metadata was 3.2 s ago",
        ],
        2: ["it falls behind all its leaders"],
    }


def test_polls_that_are_slow_everywhere_are_no_sign() -> None:
    assert collect_signs(round_trips={0: 0.3, 1: 0.3, 2: 0.4}) == {}
    assert collect_signs(round_trips={0: 0.001, 1: 0.019}) == {}
    assert collect_signs(round_trips={0: 5.0}) == {}
    assert collect_signs() == {}
