"""Probes of brokers in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.probe import PROBE_TOPIC, BrokerProbe, ProbeLatencies
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import UsageError
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World

MARKS = {"cleanup.policy": "delete", "max.message.bytes": 1578, "retention.ms": 600578}


def admin_of(kafka: VirtualKafka) -> AsyncAdmin:
    return AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin"))


def probe_of(admin: AsyncAdmin, world: World) -> BrokerProbe:
    return BrokerProbe(admin, wall=world.wall_clock)


# The topic


async def test_every_broker_has_a_partition_of_its_own_until_it_is_removed(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        probe = probe_of(admin, world)
        await probe.start()
        view = (await admin.describe_topics([PROBE_TOPIC]))[PROBE_TOPIC]
        assert sorted(each.replicas for each in view.partitions) == [(0,), (1,), (2,)]
        await asyncio.sleep(2.1)
        times = probe.times()
        assert list(times) == [0, 1, 2]
        assert all(len(each.recent) == 8 and max(each.recent) < 0.01 for each in times.values())
        assert probe.troubles == {}
        ends = await admin.list_offsets([(PROBE_TOPIC, index) for index in range(3)])
        assert all(8 <= each.offset <= 10 for each in ends.values())
        await probe.remove()
        assert PROBE_TOPIC not in await admin.topics()
        await probe.remove()


async def test_the_topic_of_a_run_that_was_killed_is_used_and_then_removed(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        killed = probe_of(admin, world)
        await killed.start()
        await killed.stop()
        before = (await admin.describe_topics([PROBE_TOPIC]))[PROBE_TOPIC].topic_id
        probe = probe_of(admin, world)
        await probe.start()
        view = (await admin.describe_topics([PROBE_TOPIC]))[PROBE_TOPIC]
        assert view.topic_id == before
        await asyncio.sleep(1)
        assert set(probe.times()) == {0, 1, 2}
        await probe.remove()
        assert PROBE_TOPIC not in await admin.topics()


@pytest.mark.parametrize(
    ("assignment", "config", "why"),
    [
        ({0: [0]}, {}, "max.message.bytes=1048588, retention.ms=604800000"),
        ({0: [0]}, {**MARKS, "cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({0: [0, 1]}, MARKS, "partitions with several replicas"),
        ({0: [0], 1: [0]}, MARKS, "several partitions on one broker"),
    ],
)
async def test_a_topic_that_is_not_a_probes_is_never_touched(
    world: World,
    kafka: VirtualKafka,
    assignment: dict[int, list[int]],
    config: dict[str, object],
    why: str,
) -> None:
    async with admin_of(kafka) as admin:
        await admin.create_topic(PROBE_TOPIC, assignment=assignment, config=config)
        async with AsyncProducer(
            kafka.bootstrap_servers, random=kafka.random("p"), wall_clock=world.wall_clock
        ) as producer:
            await (await producer.send(PROBE_TOPIC, b"a user's", key=b"k", partition=0))
        probe = probe_of(admin, world)
        for attempt in (probe.start, probe.cover, probe.remove):
            with pytest.raises(UsageError, match=f"is not a probe's: it has {why}.*another topic"):
                await attempt()
        ends = await admin.list_offsets([(PROBE_TOPIC, 0)])
        assert [each.offset for each in ends.values()] == [1]
        view = (await admin.describe_topics([PROBE_TOPIC]))[PROBE_TOPIC]
        assert [each.replicas for each in view.partitions] == [
            tuple(each) for each in assignment.values()
        ]


async def test_a_broker_that_comes_is_covered_and_one_that_goes_is_forgotten(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        await kafka.stop(1)
        probe = probe_of(admin, world)
        await probe.start()
        await asyncio.sleep(1)
        assert list(probe.times()) == [0, 2]
        await kafka.start(1)
        await probe.cover()
        await asyncio.sleep(3)
        assert list(probe.times()) == [0, 1, 2]
        assert probe.troubles == {}
        await kafka.stop(0)
        await probe.cover()
        assert list(probe.times()) == [1, 2]
        await kafka.start(0)
        await probe.cover()
        await asyncio.sleep(3)
        assert list(probe.times()) == [0, 1, 2]
        await probe.remove()


async def test_a_new_broker_is_covered_while_another_one_is_down(
    world: World, kafka: VirtualKafka
) -> None:
    """The topic's partition on the broker that is down has no leader, and gets none."""
    async with admin_of(kafka) as admin:
        await kafka.stop(1)
        probe = probe_of(admin, world)
        await probe.start()
        await kafka.stop(2)
        await kafka.start(1)
        began = world.loop.time()
        await probe.cover()
        assert world.loop.time() - began < 6
        await asyncio.sleep(3)
        assert list(probe.times()) == [0, 1]
        assert probe.troubles == {}
        await kafka.start(2)
        await probe.remove()


async def test_a_topic_that_somebody_deletes_is_created_again(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        probe = probe_of(admin, world)
        await probe.start()
        await asyncio.sleep(2.1)
        await admin.delete_topic(PROBE_TOPIC)
        await asyncio.sleep(2.1)
        assert set(probe.troubles) == {0, 1, 2}
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(probe.troubles[0])
        assert max(probe.times()[0].recent) < 0.3  # a refusal is no slowness
        await probe.cover()
        await asyncio.sleep(1)
        assert probe.troubles == {}
        await probe.remove()


async def test_wrong_use_is_refused(world: World, kafka: VirtualKafka) -> None:
    async with admin_of(kafka) as admin:
        with pytest.raises(UsageError, match="interval_s=0"):
            BrokerProbe(admin, interval_s=0)
        with pytest.raises(UsageError, match="timeout_s=-1"):
            BrokerProbe(admin, timeout_s=-1)
        probe = probe_of(admin, world)
        await probe.start()
        with pytest.raises(UsageError, match="has started already"):
            await probe.start()
        await probe.remove()


# What it measures


async def test_a_slow_disk_or_a_slow_network_of_a_broker_is_seen(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        probe = probe_of(admin, world)
        await probe.start()
        kafka.slow(1, produce_ms=80)
        world.network.set_link("broker-2", ANY, NetworkLink(30, 30))
        await asyncio.sleep(4)
        times = probe.times()
        assert max(times[0].recent) < 0.01
        assert times[1].recent == pytest.approx([0.08] * 8, abs=0.01)
        assert times[2].recent == pytest.approx([0.06] * 8, abs=0.01)
        await probe.remove()


async def test_a_broker_that_hangs_counts_what_it_has_waited_and_delays_no_other(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        probe = probe_of(admin, world)
        await probe.start()
        await asyncio.sleep(3)
        world.loop.pause("broker-1")
        await asyncio.sleep(2.1)
        times = probe.times()
        assert max(times[0].recent) < 0.01
        waits = times[1].recent
        steps = [first - second for first, second in pairwise(waits)]
        assert all(0.125 <= step <= 0.375 for step in steps)
        assert len({round(step, 6) for step in steps}) == 7
        assert 1.0 < waits[0] < 2.1
        longest = waits[0]
        await asyncio.sleep(20)
        assert 0.8 < probe.times()[1].recent[0] / longest < 2.2
        assert "did not answer" in str(probe.troubles[1]) or "no connection" in str(
            probe.troubles[1]
        )
        world.loop.resume("broker-1")
        await asyncio.sleep(8)
        assert max(probe.times()[1].recent) < 0.01
        assert probe.troubles == {}
        await probe.remove()


async def test_requests_to_a_broker_that_hangs_do_not_pile_up(
    world: World, kafka: VirtualKafka
) -> None:
    async with admin_of(kafka) as admin:
        probe = probe_of(admin, world)
        await probe.start()
        await asyncio.sleep(1)
        world.loop.pause("broker-1")
        for _ in range(100):
            await asyncio.sleep(0.3)
            assert probe._session is not None
            assert all(each.in_flight <= 1 for each in probe._session.connections.connections)
            assert len(probe._requests) <= 3
        world.loop.resume("broker-1")
        await probe.remove()


def test_what_was_usual_is_known_once_it_is_ten_minutes_old() -> None:
    latencies = ProbeLatencies(0.25)
    now = 0.0

    def pass_time(seconds: float, each: float) -> None:
        nonlocal now
        for _ in range(int(seconds * 4)):
            latencies.due(now)
            latencies.answer(now + each)
            now += 0.25

    pass_time(600, 0.01)
    assert latencies.times(now).usual_p99 is None
    pass_time(300, 0.5)  # slow since then
    assert latencies.times(now).usual_p99 == pytest.approx(0.01)
    assert latencies.times(now).recent == pytest.approx([0.5] * 8)
    pass_time(600, 0.5)
    assert latencies.times(now).usual_p99 == pytest.approx(0.5)
    pass_time(3 * 3600, 0.02)
    assert latencies.times(now).usual_p99 == pytest.approx(0.02)
    assert len(latencies._history) <= 2 * 4 * 4200


def test_the_99th_percentile_of_the_last_two_minutes() -> None:
    latencies = ProbeLatencies(0.25)
    assert latencies.worst_of(120) is None
    for index in range(2000):
        latencies.due(index)
        latencies.answer(index + (1.0 if index < 1500 else 0.01 if index % 50 else 0.05))
    assert latencies.worst_of(120) == pytest.approx(0.05)
    assert latencies.worst_of(480) == 1.0
