"""Lags of followers, and who is blamed for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping

import pytest

from tests.unit.client.measure.made_samples import Log, make_sample
from trimtab.balance.cluster_load import PartitionLoad
from trimtab.client.measure.followers import (
    Blame,
    EndsRound,
    PairLag,
    choose_replicas,
    find_blame,
    find_lags,
    poll_ends,
)
from trimtab.kafka.arguments import Partition
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.sim.world import World

P = TopicPartition("flights", 0)
Q = TopicPartition("flights", 1)
BEHIND = PairLag(1000, 50.0, 500.0)
WELL = PairLag(3, 0.5, 300.0)


def ends(at: float, told: Mapping[int, Mapping[TopicPartition, int]]) -> EndsRound:
    return EndsRound(told, dict.fromkeys(told, at), {}, {})


TOPICS = make_sample(
    0, {P: Log(0, 0, leader=0), Q: Log(0, 0, leader=1, replicas=(1, 0, 2))}
).topics.value


def test_a_lag_is_the_leaders_end_minus_the_followers() -> None:
    lags = find_lags(
        TOPICS,
        ends(0, {0: {P: 1000}, 1: {P: 1000}}),
        ends(2, {0: {P: 3000}, 1: {P: 2400}}),
    )
    assert lags == {(0, 1): PairLag(600, 300.0, 1000.0)}
    assert lags[0, 1].seconds == 0.6
    assert lags[0, 1].is_behind


def test_a_pairs_lag_is_that_of_all_its_partitions() -> None:
    topics = make_sample(0, {P: Log(0, 0), Q: Log(0, 0)}).topics.value
    lags = find_lags(
        topics,
        ends(0, {0: {P: 0, Q: 0}, 1: {P: 0, Q: 0}}),
        ends(1, {0: {P: 100, Q: 300}, 1: {P: 60, Q: 300}}),
    )
    assert lags == {(0, 1): PairLag(40, 40.0, 400.0)}


def test_only_the_leader_and_its_followers_make_pairs() -> None:
    told = {broker: {Q: 10} for broker in (0, 1, 2)}
    assert set(find_lags(TOPICS, ends(0, told), ends(1, told))) == {(1, 0), (1, 2)}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({0: {P: 10}}, {0: {P: 20}, 1: {P: 10}}),
        ({0: {P: 10}, 1: {P: 10}}, {0: {P: 20}}),
        ({1: {P: 10}}, {0: {P: 20}, 1: {P: 10}}),
        ({0: {P: 1000}, 1: {P: 1000}}, {0: {P: 20}, 1: {P: 10}}),
    ],
    ids=["follower before", "follower now", "leader before", "created again"],
)
def test_what_is_not_known_in_both_rounds_makes_no_pair(
    before: Mapping[int, Mapping[TopicPartition, int]],
    now: Mapping[int, Mapping[TopicPartition, int]],
) -> None:
    assert find_lags(TOPICS, ends(0, before), ends(1, now)) == {}


def test_a_partition_that_is_not_described_makes_no_pair() -> None:
    told = {broker: {TopicPartition("gone", 0): 1} for broker in (0, 1)}
    assert find_lags(TOPICS, ends(0, told), ends(1, told)) == {}


def test_without_traffic_only_a_lag_that_stays_is_behind() -> None:
    idle = {0: {P: 1000}, 1: {P: 1000}}
    assert not find_lags(TOPICS, ends(0, idle), ends(1, idle))[0, 1].is_behind
    stuck = {0: {P: 1000}, 1: {P: 900}}
    lag = find_lags(TOPICS, ends(0, stuck), ends(1, stuck))[0, 1]
    assert lag.seconds == math.inf
    assert lag.is_behind


def test_a_follower_that_catches_up_is_not_behind() -> None:
    """As after its restart."""
    lags = find_lags(
        TOPICS,
        ends(0, {0: {P: 100_000}, 1: {P: 0}}),
        ends(1, {0: {P: 101_000}, 1: {P: 30_000}}),
    )
    assert lags[0, 1].growth < 0
    assert not lags[0, 1].is_behind


def blame(behind: Iterable[tuple[int, int]], well: Iterable[tuple[int, int]]) -> Blame:
    return find_blame({**dict.fromkeys(behind, BEHIND), **dict.fromkeys(well, WELL)})


def test_a_leader_that_all_its_followers_are_behind_is_slow() -> None:
    found = blame([(0, 1), (0, 2), (0, 3)], [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (1, 0)])
    assert found == Blame(frozenset({0}), frozenset())


def test_a_follower_that_is_behind_all_its_leaders_is_slow() -> None:
    found = blame([(0, 3), (1, 3), (2, 3)], [(0, 1), (1, 2), (2, 0), (3, 0), (3, 1)])
    assert found == Blame(frozenset(), frozenset({3}))


def test_a_broker_that_is_slow_as_both_is_named_for_both() -> None:
    found = blame([(0, 2), (1, 2), (2, 0), (2, 1)], [(0, 1), (1, 0)])
    assert found == Blame(frozenset({2}), frozenset({2}))


def test_a_leader_whose_only_follower_is_slow_everywhere_is_not_blamed() -> None:
    found = blame([(0, 3), (1, 3), (2, 3)], [(1, 2), (2, 1)])
    assert found == Blame(frozenset(), frozenset({3}))


def test_of_a_single_pair_both_are_named() -> None:
    assert blame([(0, 1)], []) == Blame(frozenset({0}), frozenset({1}))


def test_a_follower_behind_some_of_its_leaders_is_not_slow() -> None:
    found = blame([(0, 2)], [(0, 1), (1, 2), (2, 1)])
    assert found == Blame(frozenset(), frozenset())
    assert blame([], []) == found


def load(name: str, bytes_in: float, *replicas: int, leader: int | None = None) -> PartitionLoad:
    leads = replicas[0] if leader is None else leader
    partition = TopicPartition(name, 0)
    return PartitionLoad(partition, replicas, leads, frozenset(replicas), bytes_in, 0.0, 0)


def test_the_busiest_partitions_of_each_pair_are_watched() -> None:
    chosen = choose_replicas(
        [
            load("a", 1, 0, 1),
            load("b", 9, 0, 1),
            load("c", 5, 0, 1),
            load("d", 0, 1, 0),
            load("e", 0, 2),
            load("f", 99, 1, 2, leader=-1),
        ],
        each_pair=2,
    )
    names = {broker: sorted(each.topic for each in of) for broker, of in chosen.items()}
    assert names == {0: ["b", "c", "d"], 1: ["b", "c", "d"]}


class Lister:
    """Broker 1 has lost a disk, 2 hangs, 3 cannot be reached, and 4 is not alive."""

    async def list_replica_ends(
        self, replicas: Mapping[int, Iterable[Partition]]
    ) -> dict[int, dict[TopicPartition, int | BrokerError]]:
        (broker,) = replicas
        if broker == 2:
            await asyncio.get_running_loop().create_future()
        if broker == 3:
            raise Unavailable("broker 3 cannot be reached")
        if broker == 4:
            return {4: dict.fromkeys((P, Q), BrokerError(ErrorCode.BROKER_NOT_AVAILABLE))}
        error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "", str(Q))
        await asyncio.sleep(0.05)
        return {broker: {P: 7, Q: error if broker == 1 else 8}}


async def test_brokers_that_do_not_answer_are_named_and_delay_no_others(world: World) -> None:
    round_ = await poll_ends(Lister(), {broker: [P, Q] for broker in range(5)}, timeout_s=0.5)
    assert round_.ends == {0: {P: 7, Q: 8}, 1: {P: 7}}
    assert round_.round_trips == pytest.approx({0: 0.05, 1: 0.05, 2: 0.5, 3: 0.0, 4: 0.0})
    assert round_.at == pytest.approx({0: 0.05, 1: 0.05})
    assert round_.silent == {
        2: "no answer within 0.5 s",
        3: "broker 3 cannot be reached",
        4: "BROKER_NOT_AVAILABLE (8)",
    }
