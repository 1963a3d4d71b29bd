from __future__ import annotations

from collections.abc import Mapping

from trimtab.balance.observed import Observed
from trimtab.balance.throttle_steps import ThrottleSteps, name_some
from trimtab.balance.throttles import CopyEnds, ThrottledLists, mark_rate
from trimtab.kafka.records import TopicPartition

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
COPIES = {T0: CopyEnds(frozenset({1, 2}), frozenset({3}))}


def steps(
    leaders: str = "",
    followers: str = "",
    copies: Mapping[TopicPartition, CopyEnds] = COPIES,
    rates: Mapping[int, tuple[int | None, int | None]] | None = None,
    foreign: set[TopicPartition] | None = None,
    rated: frozenset[int] = frozenset(),
) -> ThrottleSteps:
    """Partitions 0 and 1 of topic t are wanted."""
    lists = ThrottledLists(tuple(leaders.split()), tuple(followers.split()))
    observed = Observed(0, {}, {}, frozenset({1, 2, 3}), rates or {}, {"t": lists}, {})
    return ThrottleSteps({T0, T1}, observed, copies, foreign or set(), rated)


def test_what_moves_is_listed_and_what_is_listed_already_is_not_again() -> None:
    assert steps("0:1").find_missing(set()) == {"t": ThrottledLists(("0:2",), ("0:3",))}
    assert steps("0:1 0:2", "0:3").find_missing(set()) == {}
    assert steps().find_missing({"t"}) == {}


def test_all_replicas_cover_what_moves() -> None:
    assert steps("*", "*").find_missing(set()) == {}


def test_of_ours_what_does_not_move_is_removed() -> None:
    stale = steps("0:1 0:2 0:9 1:1", "0:3 1:2").find_stale()
    assert stale == {"t": ThrottledLists(("0:9", "1:1"), ("1:2",))}


def test_throttled_replicas_of_others_stay_and_are_named() -> None:
    kept = steps("2:1 *", "2:2")
    assert kept.find_stale() == {}
    assert kept.notes == ["topic t has throttled replicas of others: *, 2:1, 2:2"]


def test_what_a_killed_run_listed_is_known_by_the_rate_of_its_broker() -> None:
    rates = {1: mark_rate(8), 2: (8, 8), 3: (8, None)}
    throttles = steps("2:1 2:2 2:3 *", "2:2", rates=rates)
    assert throttles.find_stale() == {"t": ThrottledLists(("2:1",), ())}
    assert throttles.notes == ["topic t has throttled replicas of others: *, 2:2, 2:3"]
    of_this_run = steps("2:1 2:2 2:3 *", "2:2", rates=rates, rated=frozenset({1}))
    assert of_this_run.find_stale() == {}


def test_what_others_move_keeps_its_throttle() -> None:
    assert steps("2:1 *", "2:2", foreign={T2}, rates={1: mark_rate(8)}).find_stale() == {}
    assert steps("1:1", "1:2", foreign={T1}).find_stale() == {}


def test_a_topic_is_reverted_if_pairs_listed_a_while_ago_are_gone() -> None:
    assert steps().find_reverted([T0]) == {"t"}
    assert steps().find_reverted([T1]) == set()
    assert steps("0:1 0:2", "0:3").find_reverted([T0]) == set()


def test_rates_with_our_mark_are_ours() -> None:
    rates = {1: mark_rate(8), 2: (8, None), 3: (7, 7)}
    assert steps(rates=rates).rated == {1}
    assert steps(rates=rates, rated=frozenset({2, 9})).rated == {1, 9}
    assert steps(rated=frozenset({2})).rated == set()


def test_rates_are_set_on_live_brokers_that_others_do_not_throttle() -> None:
    throttles = steps(rates={1: mark_rate(8), 2: (7, None), 3: mark_rate(4)})
    assert throttles.change_rates({1: 8, 2: 8, 3: 8, 4: 8}) == {3: 8}
    assert throttles.notes == [
        "broker 2 keeps a throttle of others: 7 bytes/s as leader, None as follower",
        "broker 4 is not alive, and so gets no throttle",
    ]


def test_rates_that_a_throttled_move_of_others_needs_stay() -> None:
    rates = {1: mark_rate(8), 2: mark_rate(8), 3: (7, 7)}
    throttles = steps("2:1", rates=rates, foreign={T2})
    assert throttles.find_needless() == (2,)
    assert len(throttles.notes) == 2
    assert steps("2:1", rates=rates).find_needless() == (1, 2)


def test_of_many_names_three_are_shown() -> None:
    assert name_some([3, 1]) == "1, 3"
    assert name_some(range(5)) == "0, 1, 2 and 2 more"
