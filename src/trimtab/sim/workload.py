"""Who uses a cluster while faults happen: producers that note what they were told, and readers.

A record's value names its sender and its number, so that every record that is read back can be
held against what was sent and acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.records import Record, RecordMetadata, TopicPartition
from trimtab.sim.checkers import Checkers, Violation
from trimtab.sim.world import World


class RecordId(NamedTuple):
    """Which of a sender's records it is."""

    sender: int
    number: int


@dataclass
class Ledger:
    """What one sender has sent to one topic, and what it was told.

    Attributes:
        keeps: what is acknowledged must be there in the end.
        orders: what it sent to a partition must be there once and in its order.
    """

    topic: str
    keeps: bool
    orders: bool
    sent: int = 0
    acknowledged: dict[int, RecordMetadata] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)

    def note(self, number: int, delivery: Delivery) -> bool:
        """An outcome; False if it is the second."""
        if number in self.acknowledged or number in self.failed:
            return False
        error = delivery.exception()
        if error is not None:
            self.failed[number] = error
        else:
            self.acknowledged[number] = delivery.result()
        return True


class Sender:
    """One producer that sends to one topic, in bursts, until it is told to stop.

    Args:
        checkers: are told of each record that was acknowledged.
        keeps: whether what is acknowledged must be there in the end.
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        topic: str,
        options: Mapping[str, Any],
        checkers: Checkers,
        keeps: bool,
    ) -> None:
        self._world = world
        self._number = number
        self._bootstrap = bootstrap
        self._options = options
        self._random = world.random(f"sender {number}")
        self.host = f"sender-{number}"
        self.ledger = Ledger(topic, keeps, bool(options.get("enable_idempotence", True)))
        self._checkers = checkers
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Send no more; `run` ends when everything has its outcome."""
        self._stopping.set()

    async def run(self) -> None:
        random = self._random
        async with AsyncProducer(
            self._bootstrap,
            wall_clock=self._world.wall_clock,
            random=self._world.random(f"producer {self._number}"),
            **self._options,
        ) as producer:
            while not self._stopping.is_set():
                for _ in range(random.choice((1, 1, 1, 2, 5, 10))):
                    await self._send(producer)
                pause_s = random.expovariate(1) * random.choice((0.02, 0.2, 2))
                try:
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()
                except TimeoutError:
                    pass
            await producer.flush()

    async def _send(self, producer: AsyncProducer) -> None:
        ledger = self.ledger
        number = ledger.sent
        ledger.sent += 1
        value = b"%d %d " % (self._number, number) + bytes(self._random.randrange(200))
        await producer.send(ledger.topic, value, on_delivery=partial(self._note, number))

    def _note(self, number: int, delivery: Delivery) -> None:
        # An exception would end here, as the callback is the producer's.
        if not self.ledger.note(number, delivery):
            self._checkers.fail(f"record {number} of {self.host} has a second outcome")
        told = self.ledger.acknowledged.get(number)
        if told is not None and self.ledger.keeps:
            self._checkers.acknowledged(told.topic, told.partition, told.offset, self.host)


def read_id(record: Record) -> RecordId:
    sender, number, _ = (record.value or b"").split(b" ", 2)
    return RecordId(int(sender), int(number))


class Readings:
    """What all readers have read: the same record at the same place, always."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int, int], RecordId] = {}

    def note(self, record: Record, reader: str, is_guarded: bool) -> None:
        place = (record.topic, record.partition, record.offset)
        found = read_id(record)
        known = self.records.setdefault(place, found)
        if known != found and is_guarded:
            raise Violation(f"{reader} reads {found} at {place}, where {known} was read before")
        self.records[place] = found


class Reader:
    """A consumer that follows partitions of guarded topics, from their beginning.

    It must see every offset once, in order.
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        places: list[TopicPartition],
        readings: Readings,
        options: Mapping[str, Any],
    ) -> None:
        self._world = world
        self._bootstrap = bootstrap
        self._readings = readings
        self._options = options
        self.host = f"reader-{number}"
        self.next = dict.fromkeys(places, 0)

    async def run(self) -> None:
        async with AsyncConsumer(
            self._bootstrap, random=self._world.random(self.host), **self._options
        ) as consumer:
            consumer.assign(list(self.next))
            consumer.seek_to_beginning()
            while True:
                for record in await consumer.poll(timeout_ms=5_000, max_records=10_000):
                    self._note(record)

    def _note(self, record: Record) -> None:
        place = TopicPartition(record.topic, record.partition)
        if record.offset != self.next[place]:
            raise Violation(
                f"{self.host} reads offset {record.offset} of {place}, not {self.next[place]}"
            )
        self.next[place] = record.offset + 1
        self._readings.note(record, self.host, is_guarded=True)


async def read_all(
    world: World, bootstrap: str, places: list[TopicPartition]
) -> dict[TopicPartition, list[tuple[int, RecordId]]]:
    """Every record of these partitions, with its offset."""
    found: dict[TopicPartition, list[tuple[int, RecordId]]] = {place: [] for place in places}
    async with AsyncAdmin(bootstrap, random=world.random("last admin")) as admin:
        ends = await admin.list_offsets(places, "latest")
    async with AsyncConsumer(bootstrap, random=world.random("last reader")) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        while any(
            (found[place][-1][0] + 1 if found[place] else 0) < ends[place].offset
            for place in places
        ):
            polled = await consumer.poll(timeout_ms=30_000, max_records=10_000)
            if not polled:
                raise Violation("the last reader is not given what is there")
            for record in polled:
                place = TopicPartition(record.topic, record.partition)
                found[place].append((record.offset, read_id(record)))
    return found


def judge(
    senders: list[Sender], stored: Mapping[TopicPartition, list[tuple[int, RecordId]]]
) -> None:
    """Hold the ledgers against what is stored in the end.

    Raises:
        Violation: an acknowledged record is lost or elsewhere, or an idempotent sender's records
            are doubled or out of order.
    """
    by_place = {
        (place.topic, place.partition, offset): record
        for place, records in stored.items()
        for offset, record in records
    }
    for number, sender in enumerate(senders):
        ledger = sender.ledger
        missing = ledger.sent - len(ledger.acknowledged) - len(ledger.failed)
        if missing:
            raise Violation(f"{sender.host}: {missing} records have no outcome")
        if ledger.keeps:
            for record, told in ledger.acknowledged.items():
                found = by_place.get((told.topic, told.partition, told.offset))
                if found != (number, record):
                    raise Violation(
                        f"{sender.host}: record {record} was acknowledged at {told}, where "
                        f"{found} is"
                    )
        if ledger.orders and ledger.keeps:
            _judge_order(sender, number, stored)


def _judge_order(
    sender: Sender, number: int, stored: Mapping[TopicPartition, list[tuple[int, RecordId]]]
) -> None:
    seen: set[int] = set()
    for place, records in stored.items():
        last = -1
        for offset, record in records:
            if record.sender != number or place.topic != sender.ledger.topic:
                continue
            if record.number in seen:
                raise Violation(f"{sender.host}: record {record.number} is stored twice")
            if record.number < last:
                raise Violation(
                    f"{sender.host}: record {record.number} at offset {offset} of {place} comes "
                    f"behind {last}"
                )
            seen.add(record.number)
            last = record.number
