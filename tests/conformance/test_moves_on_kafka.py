"""The executor of moves on three brokers of Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from tests.kafka import needs_kafka, three_members
from trimtab import Admin, Producer
from trimtab.balance.observed import Observed
from trimtab.balance.steps import Decided, MoveRules
from trimtab.balance.throttles import LISTS, RATES, mark_rate
from trimtab.client.admin import AsyncAdmin, ConfigSource
from trimtab.client.moves import MoveExecutor, MoveReport
from trimtab.kafka.records import TopicPartition

pytestmark = needs_kafka

LIMIT_S = 120


@pytest.fixture(scope="module")
def members() -> Iterator[list[KafkaMember]]:
    with three_members(KafkaMember) as members:
        yield members


@pytest.fixture
def topic(members: list[KafkaMember], request: pytest.FixtureRequest) -> Iterator[str]:
    """Two partitions of 2 MB on brokers 0 and 1."""
    name = request.node.name.replace("_", "-")
    with Admin(members[0].address) as admin, Producer(members[0].address) as producer:
        admin.create_topic(name, assignment={0: [0, 1], 1: [0, 1]})
        for partition in (0, 1):
            for _ in range(20):
                producer.send(name, bytes(100_000), partition=partition)
        producer.flush()
        yield name
        admin.delete_topic(name)


def drive(members: list[KafkaMember], scenario: Callable[[AsyncAdmin], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncAdmin(members[0].address) as admin:
            await scenario(admin)

    asyncio.run(whole())


async def throttles(admin: AsyncAdmin, topic: str) -> dict[str, str | None]:
    """What is set; Kafka keeps a list that was emptied as an option without entries."""
    entries = [
        *(await admin.describe_topic_configs([topic], LISTS))[topic],
        *[
            entry._replace(name=f"{broker} {entry.name}")
            for broker in range(3)
            for entry in await admin.describe_configs("broker", broker)
            if entry.name in RATES
        ],
    ]
    return {
        each.name: each.value
        for each in entries
        if each.value and each.source < ConfigSource.DEFAULT_CONFIG
    }


def test_leaders_and_replicas_move_throttled_and_nothing_is_left(
    members: list[KafkaMember], topic: str
) -> None:
    wanted = {TopicPartition(topic, 0): (2, 1), TopicPartition(topic, 1): (1, 0)}
    seen: list[Observed] = []

    def watch(observed: Observed, decided: Decided) -> None:
        seen.append(observed)

    async def scenario(admin: AsyncAdmin) -> None:
        await admin.alter_configs("topic", topic, append={LISTS[0]: "1:0,6:1,7:2"})
        killed = dict(zip(RATES, mark_rate(200_000), strict=True))  # an earlier run left it
        await admin.alter_configs("broker", 1, killed)
        rules = MoveRules(200_000)
        report = await MoveExecutor(admin, wanted, rules, watch=watch).run()
        assert report.moved == (TopicPartition(topic, 0),)
        assert report.elected == (TopicPartition(topic, 1),)
        assert (report.given_up, report.left) == ({}, ())
        assert report.bytes >= 2_000_000
        assert report.notes == (f"topic {topic} has throttled replicas of others: 7:2",)
        view = (await admin.describe_topics([topic]))[topic]
        assert [each.replicas for each in view.partitions] == [(2, 1), (1, 0)]
        assert view.leaders == (2, 1)
        assert await throttles(admin, topic) == {LISTS[0]: "7:2"}

    drive(members, scenario)
    assert any({0, 1, 2} == observed.rates.keys() for observed in seen)
    copied = [size for observed in seen for size in observed.copied.values()]
    assert any(0 < size < 2_000_000 for size in copied)


def test_killed_and_started_again_it_goes_on_and_stopped_it_cancels(
    members: list[KafkaMember], topic: str
) -> None:
    moved = TopicPartition(topic, 0)
    slow, fast = MoveRules(1_000), MoveRules(50_000_000)

    async def begin(
        admin: AsyncAdmin, rules: MoveRules
    ) -> tuple[MoveExecutor, asyncio.Task[MoveReport]]:
        """Move slowly, until the move is under way."""
        under_way = asyncio.Event()

        def watch(observed: Observed, decided: Decided) -> None:
            if observed.partitions[moved].is_moving:
                under_way.set()

        executor = MoveExecutor(admin, {moved: (0, 2)}, rules, watch=watch)
        running = asyncio.create_task(executor.run())
        await under_way.wait()
        return executor, running

    async def scenario(admin: AsyncAdmin) -> None:
        executor, running = await begin(admin, slow)
        executor.stop()
        report = await running
        assert report.given_up == {moved: "stopped"}
        assert report.left == ()
        assert await throttles(admin, topic) == {}
        assert await admin.list_reassignments() == {}

        _, running = await begin(admin, slow)
        running.cancel()
        await asyncio.wait([running])
        assert await throttles(admin, topic) != {}
        report = await MoveExecutor(admin, {moved: (0, 2)}, slow).run()
        assert report.moved == (moved,)
        assert await throttles(admin, topic) == {}
        report = await MoveExecutor(admin, {moved: (0, 2)}, fast).run()
        assert (report.moved, report.notes) == ((), ())

    drive(members, scenario)
