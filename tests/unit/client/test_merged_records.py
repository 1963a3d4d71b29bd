"""`merge_split` of an `AsyncConsumer`, on a cluster in virtual time.

The headers are written by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from trimtab import merge_split
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.merged_records import AsyncMergedRecords
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    write_moved,
    write_split,
)
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World

T = [TopicPartition("t", index) for index in range(3)]


@pytest.fixture
def kafka(world: World) -> Iterator[VirtualKafka]:
    kafka = VirtualKafka(world, 1, {"group.initial.rebalance.delay.ms": 0})
    kafka.start_all()
    yield kafka
    kafka.close()


class Topic:
    """A topic `t` of three partitions, into which numbered records are written."""

    def __init__(self, world: World, kafka: VirtualKafka, producer: AsyncProducer) -> None:
        self.world, self.kafka, self.producer = world, kafka, producer

    async def split(self, partition: int, *numbers: int, open_numbers: int = 0) -> None:
        for number in numbers:
            header = SPLIT_HEADER, write_split(7, number, open_numbers)
            await self.write(partition, b"%d" % number, header)

    async def write(self, partition: int, value: bytes, *headers: tuple[str, bytes]) -> None:
        sent = self.producer.send("t", value, key=b"k", partition=partition, headers=headers)
        await (await sent)

    def consumer(self, **options: Any) -> AsyncConsumer:
        random, servers = self.kafka.random("consumer"), self.kafka.bootstrap_servers
        options = {"auto_offset_reset": "earliest", **options}
        return AsyncConsumer(servers, random=random, **options)

    def member(self, **options: Any) -> AsyncConsumer:
        consumer = self.consumer(group_id="g", enable_auto_commit=False, **options)
        consumer.subscribe(["t"])
        return consumer


@asynccontextmanager
async def opened(world: World, kafka: VirtualKafka) -> AsyncIterator[Topic]:
    servers = kafka.bootstrap_servers
    async with (
        AsyncAdmin(servers, random=kafka.random("admin")) as admin,
        AsyncProducer(
            servers, random=kafka.random("producer"), wall_clock=world.wall_clock, linger_ms=0
        ) as producer,
    ):
        await admin.create_topic("t", 3)
        yield Topic(world, kafka, producer)


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


async def read(records: AsyncMergedRecords, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(60):
        async for record in records:
            found.append(record.value)
            if len(found) == count:
                return found
    return found


def numbers(*wanted: int) -> list[bytes]:
    return [b"%d" % number for number in wanted]


async def test_split_records_are_iterated_over_in_order(world: World, kafka: VirtualKafka) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        for number in range(30):
            await topic.split(number * 7 % 3, number)
        consumer.assign(T)
        records = merge_split(consumer)
        assert await read(records, 30) == numbers(*range(30))
        assert (records.held, records.held_bytes, records.given_up, records.late) == (0, 0, 0, 0)


async def test_a_number_that_was_lost_is_passed_over_once_the_ends_are_known(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        await topic.split(0, 0, 2, 4)
        await topic.split(1, 1, 6)
        consumer.assign(T)
        records = merge_split(consumer)
        begun = world.loop.time()
        assert await read(records, 5) == numbers(0, 1, 2, 4, 6)
        assert world.loop.time() - begun < 2
        assert (records.given_up, records.late) == (0, 0)


async def test_a_moved_key_comes_after_what_its_old_partition_has(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        consumer.assign(T)
        consumer.pause(T[0])
        await topic.write(0, b"0")
        await topic.write(1, b"1", (MOVED_HEADER, write_moved(0, -1)))
        await topic.write(1, b"2")
        records = merge_split(consumer)
        assert await records.poll(3_000) == []
        assert records.held == 2
        consumer.resume(T[0])
        assert await read(records, 3) == numbers(0, 1, 2)


async def test_a_poll_returns_no_more_than_it_should(world: World, kafka: VirtualKafka) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        await topic.split(0, *range(10))
        consumer.assign(T)
        records = merge_split(consumer)
        assert values(await records.poll(1_000, max_records=4)) == numbers(0, 1, 2, 3)
        assert values(await records.poll(0)) == numbers(*range(4, 10))
        begun = world.loop.time()
        assert await records.poll(700) == []
        assert world.loop.time() - begun == pytest.approx(0.7, abs=0.01)


async def test_no_more_is_committed_than_what_was_returned(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic:
        async with topic.member() as consumer:
            await topic.split(0, 0, 1)
            await topic.split(1, 3, 4, open_numbers=2)
            records = merge_split(consumer)
            seen = await read(records, 1)
            await records.commit()
            assert await committed(consumer) == [1, 0, 0]
            seen += await read(records, 1)
            await records.commit()
            seen += values(await records.poll(100))
            assert (seen, records.held) == (numbers(0, 1), 2)
            assert await committed(consumer) == [2, 0, 0]
            await topic.split(2, 2)
            assert await read(records, 2) == numbers(2, 3)
            await records.commit()
            assert await committed(consumer) == [2, 1, 1]
        await topic.split(0, 5)
        async with topic.member() as successor:
            assert await read(merge_split(successor), 2) == numbers(4, 5)


async def committed(consumer: AsyncConsumer) -> list[int]:
    return [0 if each is None else each.offset for each in (await consumer.committed(T)).values()]


async def test_a_transaction_that_is_open_is_waited_for(world: World, kafka: VirtualKafka) -> None:
    servers = kafka.bootstrap_servers
    async with (
        opened(world, kafka) as topic,
        topic.consumer(isolation_level="read_committed") as consumer,
        AsyncProducer(
            servers, random=kafka.random("p"), wall_clock=world.wall_clock, transactional_id="x"
        ) as other,
    ):
        await other.init_transactions()
        await other.begin_transaction()
        header = SPLIT_HEADER, write_split(7, 1, 0)
        await (await other.send("t", b"1", key=b"k", partition=1, headers=[header]))
        await topic.split(0, 0, 2)
        consumer.assign(T)
        records = merge_split(consumer)
        assert await read(records, 1) == numbers(0)
        assert await records.poll(20_000) == []
        await other.commit_transaction()
        assert await read(records, 2) == numbers(1, 2)


async def test_little_memory_is_enough_to_keep_the_order(world: World, kafka: VirtualKafka) -> None:
    async with opened(world, kafka) as topic, topic.consumer(max_poll_records=20) as consumer:
        for number in range(300):
            await topic.split(0 if number < 100 else 1 + number % 2, number)
        consumer.assign(T)
        consumer.pause(T[0])
        records = merge_split(consumer, max_bytes=5_000)
        assert await records.poll(500) == []
        assert consumer.paused() == {*T}
        assert records.held_bytes < 7_000
        consumer.resume(T[0])
        assert await read(records, 300) == numbers(*range(300))
        assert (records.given_up, consumer.paused()) == (0, set())


async def test_partitions_that_are_not_assigned_are_named(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        await topic.write(0, b"before")
        await topic.split(0, 0)
        consumer.assign(T[:1])
        records = merge_split(consumer)
        assert await read(records, 1) == [b"before"]
        for _ in range(2):
            with pytest.raises(UsageError, match=r"topic t has .* partitions 1, 2 of 3 are not"):
                await records.poll(1_000)
        consumer.assign(T)
        assert await read(records, 1) == numbers(0)


async def test_what_is_held_of_a_partition_that_is_taken_away_comes_to_its_next_reader(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic, topic.member() as first:
        await topic.split(0, 0)
        await topic.split(1, 2, open_numbers=1)
        records = merge_split(first)
        assert await read(records, 1) == numbers(0)
        await records.commit()
        assert await records.poll(100) == []
        assert records.held == 1
        async with topic.member() as second:
            others = merge_split(second)
            errors = []
            for each in (records, others) * 20:
                try:
                    await each.poll(200)
                except UsageError as error:
                    errors.append(error)
            assert errors
        assert records.given_up == records.late == others.held == 0
        await topic.split(2, 1)
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) < 2:
                with suppress(UsageError):  # until all partitions are assigned again
                    found += values(await records.poll(1_000))
                await asyncio.sleep(0.1)
        assert found == numbers(1, 2)


async def test_a_partition_that_is_sought_is_read_again(world: World, kafka: VirtualKafka) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        await topic.split(0, 0, 2, 3)
        await topic.split(1, 1)
        consumer.assign(T)
        records = merge_split(consumer)
        assert await read(records, 3) == numbers(0, 1, 2)
        consumer.seek(T[0], 1)
        assert await read(records, 2) == numbers(2, 3)
        assert records.late == 2


async def test_a_group_takes_new_partitions_before_order_goes_on(
    world: World, kafka: VirtualKafka
) -> None:
    async with opened(world, kafka) as topic, topic.member(metadata_max_age_ms=1_000) as consumer:
        await topic.split(0, 0)
        records = merge_split(consumer)
        assert await read(records, 1) == numbers(0)
        await records.commit()
        async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:
            await admin.create_partitions("t", 4)
        async with AsyncProducer(
            kafka.bootstrap_servers, random=kafka.random("q"), wall_clock=world.wall_clock
        ) as producer:
            header = SPLIT_HEADER, write_split(7, 1, 0)
            await (await producer.send("t", b"1", partition=3, headers=[header]))
        await topic.split(0, 2)
        assert await read(records, 2) == numbers(1, 2)


async def test_reading_goes_on_while_ends_cannot_be_looked_up(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(world, kafka) as topic, topic.consumer() as consumer:
        asked = 0

        def fail(partitions: object, timeout: float, receive: Any) -> None:
            nonlocal asked
            asked += 1
            if asked % 2:  # the others are never answered
                receive(KafkaError("no leader"))

        with monkeypatch.context() as patch:
            patch.setattr(consumer._fetcher, "find_ends", fail)
            await topic.split(0, 0, 2)
            consumer.assign(T)
            records = merge_split(consumer)
            assert await read(records, 1) == numbers(0)
            assert await records.poll(60_000) == []
            assert 4 <= asked <= 12
            await topic.write(1, b"other")
            assert await read(records, 1) == [b"other"]
        assert await read(records, 1) == numbers(2)


async def test_what_an_interrupted_call_had_taken_is_read_again(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(world, kafka) as topic, topic.consumer(max_poll_records=2) as consumer:
        await topic.split(1, 1, 2)
        consumer.assign(T)
        records = merge_split(consumer)
        assert await records.poll(100) == []
        await topic.split(0, 0, 3)
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_end_run", interrupt)
            with pytest.raises(KeyboardInterrupt):
                await records.poll(1_000)
        assert await read(records, 4) == numbers(0, 1, 2, 3)


def interrupt() -> None:
    raise KeyboardInterrupt


async def test_what_would_commit_held_records_is_refused(world: World, kafka: VirtualKafka) -> None:
    async with opened(world, kafka) as topic:
        async with topic.consumer(group_id="g") as consumer:
            with pytest.raises(UsageError, match=r"enable\.auto\.commit=true would .*: set"):
                merge_split(consumer)
        async with topic.consumer() as consumer:
            with pytest.raises(UsageError, match="max_bytes=0"):
                merge_split(consumer, max_bytes=0)
            with pytest.raises(UsageError, match="patience='long'"):
                merge_split(consumer, patience="long")  # type: ignore[call-overload]
            with pytest.raises(UsageError, match="commit needs a group"):
                await merge_split(consumer).commit()
        with pytest.raises(UsageError, match="give a Consumer or an AsyncConsumer"):
            merge_split(topic)  # type: ignore[call-overload]
