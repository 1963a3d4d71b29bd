from __future__ import annotations

from random import Random

import numpy
import pytest

from trimtab.balance.cluster_load import DISK, IN, OUT, BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.limits import LimitExceeded, PartitionLimits
from trimtab.balance.what_if import (
    LoadWindows,
    add_topic,
    assign,
    even_shares,
    expect_rates,
    grow,
    join_windows,
    lose_brokers,
    spread_topic,
)
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
FREE = PartitionLimits(LONG_MAX, LONG_MAX)
BROKERS = {each: BrokerState(each, f"r{each}", 100) for each in (1, 2, 3)}


def load(*rates: float, brokers: dict[int, BrokerState] = BROKERS) -> ClusterLoad:
    """t-0 on 1 and 2, t-1 on 2 and 3, u-0 on 3; each is read twice, and stores ten seconds."""
    placed = {T0: (1, 2), T1: (2, 3), U0: (3,)}
    return ClusterLoad(
        brokers,
        [
            PartitionLoad(
                each, replicas, replicas[0], frozenset(replicas), rate, 2 * rate, round(10 * rate)
            )
            for (each, replicas), rate in zip(placed.items(), rates, strict=False)
        ],
    )


def windows(*loads: ClusterLoad) -> LoadWindows:
    return join_windows(enumerate(loads))


def sums(windows: LoadWindows, resource: str) -> dict[int, list[float]]:
    return {id: each.tolist() for id, each in windows.sum_by_broker()[resource].items()}


def test_brokers_have_what_is_written_sent_and_stored_in_each_window() -> None:
    found = windows(load(100, 200, 30), load(300, 200, 50))
    assert sums(found, IN) == {1: [100, 300], 2: [300, 500], 3: [230, 250]}
    assert sums(found, OUT) == {1: [300, 900], 2: [600, 600], 3: [60, 100]}
    assert sums(found, DISK) == {1: [1000, 3000], 2: [3000, 5000], 3: [2300, 2500]}
    assert [each.bytes_in for each in found.load.partitions] == [200, 200, 40]


def test_loads_of_one_window_are_averaged() -> None:
    found = join_windows([(0, load(100)), (0, load(300)), (7, load(500))])
    assert found.bytes_in.tolist() == [[200], [500]]


def test_where_a_partition_was_not_measured_its_mean_is_taken() -> None:
    found = windows(load(100), load(100, 200), load(100, 400))
    assert found.bytes_in[:, 1].tolist() == [300, 200, 400]
    assert [each.partition for each in windows(load(1, 2), load(1)).load.partitions] == [T0]


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing was measured"):
        windows()


def test_dead_brokers_are_not_summed() -> None:
    dead = {**BROKERS, 2: BROKERS[2]._replace(is_alive=False)}
    assert sums(windows(load(100, brokers=dead)), IN) == {1: [100], 3: [0]}


def test_growth_of_all_and_of_one_topic() -> None:
    measured = windows(load(100, 200, 30))
    assert grow(measured, 3).bytes_in.tolist() == [[300, 600, 90]]
    grown = grow(measured, 3, "u")
    assert (grown.bytes_in.tolist(), grown.bytes_out.tolist()) == (
        [[100, 200, 90]],
        [[200, 400, 180]],
    )
    assert grown.sizes.tolist() == [[1000, 2000, 900]]
    assert measured.bytes_in.tolist() == [[100, 200, 30]]
    with pytest.raises(UsageError, match="'v' is not measured"):
        grow(measured, 3, "v")


def test_more_partitions_share_the_topics_bytes_and_are_placed() -> None:
    measured = windows(load(150, 150, 30), load(300, 300, 30))
    shares = even_shares(measured, "t", 6)
    after = spread_topic(measured, "t", shares, FREE, Random(0))
    assert after.bytes_in.tolist() == [[50, 50, 30, *[50] * 4], [100, 100, 30, *[100] * 4]]
    partitions = {each.partition: each for each in after.load.partitions}
    assert partitions[T0].replicas == (1, 2)
    assert [partitions[TopicPartition("t", at)].leader for at in range(2, 6)] != [1] * 4
    assert all(len(each.replicas) == 2 for each in partitions.values() if each.partition != U0)
    assert sum(each[0] for each in sums(after, IN).values()) == pytest.approx(2 * 300 + 30)


def test_fewer_partitions_are_refused() -> None:
    with pytest.raises(UsageError, match="Kafka takes none away: give 2 or more"):
        spread_topic(windows(load(1, 1)), "t", numpy.ones(1), FREE, Random(0))


def test_a_topic_that_is_uneven_now_needs_its_key() -> None:
    with pytest.raises(
        UsageError, match=r"differs from the mean by 33%, so keys decide.*--key t:key"
    ):
        even_shares(windows(load(100, 200)), "t", 4)


def test_other_shares_of_the_same_partitions_move_nothing() -> None:
    after = spread_topic(windows(load(100, 200)), "t", numpy.array([0.9, 0.1]), FREE, Random(0))
    assert after.bytes_in.tolist() == [[pytest.approx(270), pytest.approx(30)]]
    assert [each.replicas for each in after.load.partitions] == [(1, 2), (2, 3)]


def test_a_topic_more_is_even_and_within_the_limits() -> None:
    measured = windows(load(100, 200), load(100, 200))
    rates = (numpy.array([60.0, 120.0]), 0.0, 600.0)
    after = add_topic(measured, "v", 3, 2, rates, FREE, Random(0))
    assert after.bytes_in[:, 2:].tolist() == [[20] * 3, [40] * 3]
    assert after.sizes[:, 2:].tolist() == [[200] * 3] * 2
    assert {each.leader for each in after.load.partitions[2:]} == {1, 2, 3}
    with pytest.raises(LimitExceeded, match="at most 1 can be placed"):
        add_topic(measured, "v", 3, 2, rates, PartitionLimits(2, LONG_MAX), Random(0))
    with pytest.raises(UsageError, match="4 replicas need as many brokers, and 3"):
        add_topic(measured, "v", 3, 4, rates, FREE, Random(0))
    with pytest.raises(UsageError, match="'t' exists"):
        add_topic(measured, "t", 3, 2, rates, FREE, Random(0))


def test_placement_is_drawn() -> None:
    measured = windows(load(100, 200))
    placed = {
        tuple(
            each.replicas
            for each in add_topic(
                measured, "v", 1, 1, (1, 1, 1), FREE, Random(seed)
            ).load.partitions
        )
        for seed in range(20)
    }
    assert len(placed) > 1


def test_the_next_replica_in_sync_leads_when_a_broker_is_lost() -> None:
    after = lose_brokers(windows(load(100, 200, 30)), [2])
    assert [each.leader for each in after.load.partitions] == [1, 3, 3]
    assert sums(after, IN) == {1: [100], 3: [230]}
    assert sums(after, OUT) == {1: [200], 3: [400 + 60]}, "there is no follower to send to"


def test_what_has_no_leader_is_not_written() -> None:
    after = lose_brokers(windows(load(100, 200, 30)), [3])
    assert after.load.partitions[2].leader == -1
    assert after.bytes_in.tolist() == [[100, 200, 0]]
    lagging = load(100, 200)
    lagging.partitions[0] = lagging.partitions[0]._replace(in_sync=frozenset({1}))  # type: ignore[index]
    assert lose_brokers(windows(lagging), [1]).load.partitions[0].leader == -1


def test_brokers_that_do_not_exist_or_are_all_cannot_be_lost() -> None:
    with pytest.raises(UsageError, match="no broker 7; there are 1, 2, 3"):
        lose_brokers(windows(load(100)), [7])
    with pytest.raises(UsageError, match="no broker would be left"):
        lose_brokers(windows(load(100)), [1, 2, 3])


def test_a_plan_is_carried_out() -> None:
    after = assign(windows(load(100, 200)), {T1: [3, 1]})
    assert sums(after, IN) == {1: [300], 2: [100], 3: [200]}
    assert sums(after, OUT)[3] == [600]
    with pytest.raises(UsageError, match="partition u-0, which is not measured"):
        assign(windows(load(100, 200)), {U0: [1]})
    with pytest.raises(UsageError, match="on broker 9: there is none"):
        assign(windows(load(100, 200)), {T1: [9]})


def test_rates_of_a_table_are_read_as_often_as_those_measured() -> None:
    measured = windows(load(100, 200), load(300, 200))
    after = expect_rates(measured, {T0: numpy.array([10.0, 20.0, 30.0])})
    assert after.bytes_in.tolist() == [[10, 200], [20, 200], [30, 200]]
    assert after.bytes_out.tolist() == [[20, 400], [40, 400], [60, 400]]
    assert after.sizes.tolist() == [[2000, 2000]] * 3


def test_some_windows_have_their_own_means() -> None:
    some = windows(load(100), load(300), load(500)).select(slice(1, 3))
    assert (some.bytes_in.tolist(), some.load.partitions[0].bytes_in) == ([[300], [500]], 400)
