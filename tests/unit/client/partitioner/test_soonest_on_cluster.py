"""The real producer and brokers in virtual time: the settings of KIP-480 and KIP-794, and brokers
that recover or freeze."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, cast

import pytest

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.admin import AsyncAdmin
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World


class Setting(NamedTuple):
    """`late` are milliseconds by broker; `later` those that broker 0 has from `changes_at` on;
    `link` is the way to broker 0."""

    late: Mapping[int, float]
    partitions: int
    rate: int
    size: int
    records: int = 8192
    later: float = 0.0
    changes_at: float = math.inf
    link: NetworkLink = NetworkLink()


SERIES_1 = Setting({0: 20}, 3, 2048, 512)
SERIES_2 = Setting({0: 20}, 3, 4096, 512)
KIP_480 = Setting({0: 5, 1: 5, 2: 5}, 16, 1000, 100)


class Sent(NamedTuple):
    """A record: when it was sent, in seconds from the first one, to which broker, and how many
    milliseconds its acknowledgement took."""

    second: float
    broker: int
    latency: float


class Measured(NamedTuple):
    """`sent` is in the order of acknowledgement; `bytes_` by partition."""

    sent: list[Sent]
    bytes_: list[int]
    records_per_batch: float

    @property
    def latencies(self) -> list[float]:
        return sorted(each.latency for each in self.sent)

    @property
    def average(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def p99(self) -> float:
        return self.latencies[int(0.99 * len(self.latencies))]

    @property
    def deviation(self) -> float:
        """The largest difference from the mean, over the mean."""
        mean = sum(self.bytes_) / len(self.bytes_)
        return max(abs(size - mean) for size in self.bytes_) / mean


async def _produce(world: World, setting: Setting, balance: str | float | None) -> Measured:
    loop = world.loop
    sent: list[Sent] = []

    def acknowledged(second: float, delivery: Delivery) -> None:
        latency = 1000 * (loop.time() - begin - second)
        sent.append(Sent(second, leaders[delivery.result().partition], latency))

    cluster = Cluster(
        brokers=3, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    )
    async with cluster:
        with world.network.at("client"):
            async with AsyncAdmin(cluster.bootstrap_servers, random=world.random("admin")) as admin:
                await admin.create_topic("foo", partitions=setting.partitions)
                (topic,) = (await admin.describe_topics(["foo"])).values()
                leaders = topic.leaders
            first = cluster.bootstrap_servers.split(",")[0]
            world.network.set_link(first, ANY, setting.link)
            for broker, late in setting.late.items():
                cluster.slow(broker=broker, produce_ms=late)
            async with AsyncProducer(
                cluster.bootstrap_servers,
                wall_clock=world.wall_clock,
                random=world.random("producer"),
                linger_ms=0,
                partitioner_balance=balance,
            ) as producer:
                begin = loop.time()
                has_changed = False
                for number in range(setting.records):
                    await asyncio.sleep(max(0.0, begin + number / setting.rate - loop.time()))
                    second = loop.time() - begin
                    if second >= setting.changes_at and not has_changed:
                        has_changed = True
                        cluster.slow(broker=0, produce_ms=setting.later)
                    delivery = await producer.send("foo", bytes(setting.size))
                    delivery.add_done_callback(partial(acknowledged, second))
                await producer.flush()
                partitions = producer.partitioning("foo").partitions
                nodes = producer.metrics()["producer-node-metrics"]
    batches = sum(cast(Mapping[str, float], node)["batch-total"] for node in nodes.values())
    return Measured(sent, [p.chosen_bytes for p in partitions], setting.records / batches)


def measure(setting: Setting, balance: str | float | None) -> Measured:
    with World(7) as world:
        measured = world.run(_produce(world, setting, balance))
    assert len(measured.sent) == setting.records
    return measured


@pytest.mark.kip(480)
@pytest.mark.parametrize("balance", ["strict", 0.1, "free"])
def test_no_record_waits_for_a_busy_broker_while_another_is_free(balance: str | float) -> None:
    """KIP-480's setting: KIP-794's logic 26.7 ms on average."""
    measured = measure(KIP_480, balance)
    assert measured.average < 8
    assert measured.p99 < 10
    assert measured.records_per_batch > 2.5
    if balance == "strict":
        assert measured.deviation < 0.1


@pytest.mark.kip(794)
@pytest.mark.parametrize("setting", [SERIES_1, SERIES_2], ids=["series 1", "series 2"])
def test_a_slow_broker_costs_its_own_records_and_no_others(setting: Setting) -> None:
    default, strict = measure(setting, None), measure(setting, "strict")
    bounded, free = measure(setting, 0.1), measure(setting, "free")
    assert default.average > 25
    assert strict.average < 12
    assert strict.p99 < 50
    assert strict.deviation < 0.05
    assert bounded.average < strict.average
    assert bounded.deviation < 0.15
    assert free.average < 1.5
    assert free.p99 < 2


@pytest.mark.parametrize("balance", ["strict", 0.1, "free"])
def test_a_broker_that_was_slow_has_its_share_again_within_three_seconds(
    balance: str | float,
) -> None:
    setting = SERIES_1._replace(records=9 * 2048, changes_at=5.0)
    measured = measure(setting, balance)
    shares = {
        second: statistics.mean(
            each.broker == 0 for each in measured.sent if second <= each.second < second + 1
        )
        for second in range(9)
    }
    assert shares[4] < {"strict": 0.37, 0.1: 0.33, "free": 0.05}[balance]
    assert all(shares[second] > 0.9 / 3 for second in (7, 8))


@pytest.mark.parametrize("balance", ["strict", 0.1, "free"])
@pytest.mark.parametrize("usual", [0.0, 5.0])
def test_a_broker_that_freezes_gets_nothing_after_twice_its_usual_time(
    balance: str | float, usual: float
) -> None:
    """From when it owes an answer; an answer time counts as a millisecond at least."""
    setting = Setting({0: usual, 1: usual, 2: usual}, 3, 2048, 512, 8192, 2000.0, 3.0)
    measured = measure(setting, balance)
    lost = [
        each
        for each in measured.sent
        if each.broker == 0 and each.latency > 100 and each.second < setting.changes_at + 1
    ]
    first, last = min(each.second for each in lost), max(each.second for each in lost)
    usual_ms = statistics.median(each.latency for each in measured.sent)
    assert 1000 * (last - first) < 2 * max(1.0, usual_ms)


@pytest.mark.parametrize(("balance", "share"), [("strict", 1 / 3), (0.1, 0.3)])
@pytest.mark.parametrize(("late_share", "late_ms"), [(0.05, 60), (0.025, 50)])
def test_a_broker_that_is_late_at_random_gets_its_share(
    balance: str | float, share: float, late_share: float, late_ms: float
) -> None:
    """Its requests and its answers are late, so a tenth of the latter, or 5 %."""
    setting = Setting({}, 3, 2048, 512, link=NetworkLink(late_share=late_share, late_ms=late_ms))
    measured = measure(setting, balance)
    got = statistics.mean(each.broker == 0 for each in measured.sent)
    assert got == pytest.approx(share, abs=0.02)
    assert measured.average < measure(setting, None).average
