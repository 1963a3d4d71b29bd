"""Each fault alone, in virtual time: it happens, and a producer gets over it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from lab.benchmarks.faults import FaultRates, FaultyCluster, draw_fault_rates
from trimtab.client.admin import AsyncAdmin
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.sim.world import World

TOPIC = "topic"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(4)]
RECORDS = 200


def produce(rates: FaultRates, **options: Any) -> tuple[FaultyCluster, list[object], int]:
    """Send one record to a batch; the faults, the outcomes, and how many records are stored."""

    async def run(world: World) -> tuple[FaultyCluster, list[object], int]:
        cluster = Cluster(storage=world.disk, now_ms=world.now_ms, random=world.random("cluster"))
        async with cluster, AsyncAdmin(cluster.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, partitions=len(PARTITIONS))
            faulty = FaultyCluster(
                cluster.addresses[0], 3, rates, world.random("weather"), is_virtual=True
            )
            async with (
                faulty,
                AsyncProducer(
                    faulty.bootstrap_servers,
                    wall_clock=world.wall_clock,
                    random=world.random("producer"),
                    batch_size=0,
                    linger_ms=0,
                    request_timeout_ms=500,
                    retry_backoff_ms=5,
                    metadata_max_age_ms=100,
                    **options,
                ) as producer,
            ):
                deliveries = []
                for number in range(RECORDS):
                    deliveries.append(
                        await producer.send(TOPIC, b"%d" % number, partition=number % 4)
                    )
                    await asyncio.sleep(0.01)
                await producer.flush()
            ends = await admin.list_offsets(PARTITIONS, "latest")
        assert faulty.failures == []
        outcomes: list[object] = [each.exception() for each in deliveries]
        return faulty, outcomes, sum(end.offset for end in ends.values())

    with World(3) as world:
        return world.run(run(world))


@pytest.mark.parametrize(
    ("fault", "share", "seen"),
    [
        ("late", 0.2, "held"),
        ("late", 0.2, "late"),
        ("held", 0.05, "held"),
        ("unheard", 0.1, "request lost"),
        ("cut_there", 0.1, "request cut"),
        ("unanswered", 0.1, "response lost"),
        ("cut_back", 0.1, "response cut"),
        ("silenced", 0.05, "silenced"),
        ("trickling", 0.1, "trickles"),
        ("refused", 0.2, "refused: NOT_ENOUGH_REPLICAS"),
        ("doubted", 0.2, "doubted: REQUEST_TIMED_OUT"),
        ("throttled", 0.2, "throttled"),
        ("unidentified", 0.9, "no producer id yet"),
        ("elections", 5, "elected"),
        ("elections", 5, "lost its leader"),
        ("elections", 5, "refused: NOT_LEADER_OR_FOLLOWER"),
        ("breakdowns", 3, "froze"),
        ("breakdowns", 3, "is down"),
        ("resets", 3, "reset"),
    ],
)
def test_a_producer_gets_over_it(fault: str, share: float, seen: str) -> None:
    rates: dict[str, Any] = {fault: share}
    faulty, outcomes, stored = produce(replace(FaultRates(), **rates))
    assert faulty.seen[seen] > 0, faulty.seen
    assert (outcomes, stored) == ([None] * RECORDS, RECORDS)


def test_what_arrives_after_its_client_has_gone_is_not_stored_again() -> None:
    rates = FaultRates(held=0.1, longest_hold=1.5, is_outliving=True)
    faulty, outcomes, stored = produce(rates)
    assert faulty.seen["held"] > 0
    assert (outcomes, stored) == ([None] * RECORDS, RECORDS)


def test_some_brokers_learn_late_of_elections() -> None:
    faulty, outcomes, stored = produce(FaultRates(elections=5, stale=0.3))
    assert faulty.seen["stale metadata"] > 0
    assert (outcomes, stored) == ([None] * RECORDS, RECORDS)


def test_a_final_refusal_is_told_and_nothing_is_stored() -> None:
    _, outcomes, stored = produce(FaultRates(final=0.1))
    codes = [error.code for error in outcomes if isinstance(error, BrokerError)]
    assert set(codes) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD}
    assert stored == RECORDS - len(codes) == outcomes.count(None)


def test_without_rates_there_are_no_faults() -> None:
    faulty, outcomes, stored = produce(FaultRates())
    assert faulty.seen.total() == 0
    assert (outcomes, stored) == ([None] * RECORDS, RECORDS)


def test_rates_depend_on_the_seed_and_given_ones_are_kept() -> None:
    drawn = [draw_fault_rates(Random(seed), doubted=0.5) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert {each.doubted for each in drawn} == {0.5}
