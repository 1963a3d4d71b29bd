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
from trimtab.errors import CorruptData
from trimtab.records import Record, RecordMetadata, TopicPartition
from trimtab.sim.checkers import Checkers, Violation
from trimtab.sim.histories import History
from trimtab.sim.topic_kinds import TopicKind
from trimtab.sim.world import World

_DAMAGED_S = 1.0
_READ_S = 60.0
_KEYS = 8
_TOMBSTONES = 0.2
_ID = "id"


class RecordId(NamedTuple):
    """Which of a sender's records it is."""

    sender: int
    number: int


class Stored(NamedTuple):
    """A record that was read back, with its wall time in ms."""

    offset: int
    id: RecordId
    key: bytes | None
    has_value: bool
    timestamp: int


@dataclass
class Ledger:
    """What one sender has sent to one topic, and what it was told.

    Attributes:
        topic: where it sends.
        kind: what that topic promises.
        contents: of a compacted topic: each record's key, and whether it has a value.
        unharmed: how many were sent before the first unclean election.
    """

    topic: str
    kind: TopicKind
    sent: int = 0
    acknowledged: dict[int, RecordMetadata] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    contents: list[tuple[bytes, bool]] = field(default_factory=list)
    unharmed: int = 0

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
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        topic: str,
        kind: TopicKind,
        options: Mapping[str, Any],
        checkers: Checkers,
    ) -> None:
        self._world = world
        self._number = number
        self._bootstrap = bootstrap
        self._options = options
        self._random = world.random(f"sender {number}")
        self.host = f"sender-{number}"
        self.ledger = Ledger(topic, kind)
        self.sent_ms: list[int] = []
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
        ledger, random = self.ledger, self._random
        number = ledger.sent
        ledger.sent += 1
        if not self._checkers.has_elected_uncleanly(ledger.topic):
            ledger.unharmed = ledger.sent
        note = partial(self._note, number)
        content = b"%d %d " % (self._number, number)
        value: bytes | None = content + bytes(random.randrange(200))
        if not ledger.kind.compacts:
            await producer.send(ledger.topic, value, on_delivery=note)
            return
        key = b"%d" % random.randrange(_KEYS)
        if random.random() < _TOMBSTONES:
            value = None
        ledger.contents.append((key, value is not None))
        self.sent_ms.append(self._world.now_ms())
        await producer.send(
            ledger.topic, value, key=key, headers=[(_ID, content)], on_delivery=note
        )

    def _note(self, number: int, delivery: Delivery) -> None:
        # An exception would end here, as the callback is the producer's.
        ledger = self.ledger
        if not ledger.note(number, delivery):
            self._checkers.fail(f"record {number} of {self.host} has a second outcome")
        told = ledger.acknowledged.get(number)
        if told is not None and ledger.kind.acks == "all":
            self._checkers.acknowledged(told.topic, told.partition, told.offset, self.host)


def read_id(record: Record) -> RecordId:
    """Whose record it is.

    Raises:
        Violation: it is nothing that anybody has sent.
    """
    content = record.headers[0][1] if record.headers else record.value
    sender, _, rest = (content or b"").partition(b" ")
    number, end, padding = rest.partition(b" ")
    value = record.value
    if record.headers and value is not None and content is not None:
        end, padding = b" ", value.removeprefix(content)
    if not (sender.isdigit() and number.isdigit() and end) or padding.strip(b"\0"):
        raise Violation(f"nobody has sent what is read: {record}")
    return RecordId(int(sender), int(number))


class Readings:
    """What all readers have read: the same record at the same place, always."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int, int], RecordId] = {}

    def note(self, record: Record, reader: str) -> None:
        place = (record.topic, record.partition, record.offset)
        found = read_id(record)
        known = self.records.setdefault(place, found)
        if known != found:
            raise Violation(f"{reader} reads {found} at {place}, where {known} was read before")


class Reader:
    """A consumer that follows partitions of topics that keep what is committed, from their
    beginning.

    It must see every offset once, in order; but what was compacted, or deleted from the front.

    Attributes:
        next: the offset that it will read next, by partition.
        damages: how often it was given a damaged batch, and has refused it.
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        places: list[TopicPartition],
        kinds: Mapping[str, TopicKind],
        checkers: Checkers,
        options: Mapping[str, Any],
    ) -> None:
        self._world = world
        self._bootstrap = bootstrap
        self._kinds = kinds
        self._checkers = checkers
        self._readings = Readings()
        self._options = options
        self.host = f"reader-{number}"
        self.next = dict.fromkeys(places, 0)
        self.damages = 0

    async def run(self) -> None:
        async with AsyncConsumer(
            self._bootstrap,
            auto_offset_reset="earliest",
            random=self._world.random(self.host),
            **self._options,
        ) as consumer:
            consumer.assign(list(self.next))
            consumer.seek_to_beginning()
            while True:
                try:
                    records = await consumer.poll(timeout_ms=5_000, max_records=10_000)
                except CorruptData:
                    self.damages += 1
                    await asyncio.sleep(_DAMAGED_S)
                    continue
                for record in records:
                    self._note(record)

    def _note(self, record: Record) -> None:
        place = TopicPartition(record.topic, record.partition)
        expected, offset = self.next[place], record.offset
        kind = self._kinds[place.topic]
        history = self._checkers.find_history(*place)
        start = 0 if history is None else history.start
        if offset != expected and not (
            # Out of range, it begins anew, perhaps at a replica that has deleted less.
            (kind.shortens and expected < start and offset <= start)
            or (kind.compacts and offset > expected)
        ):
            raise Violation(
                f"{self.host} reads offset {offset} of {place}, not {expected}; its first is "
                f"{start}"
            )
        self.next[place] = offset + 1
        self._readings.note(record, self.host)


async def read_all(
    world: World, bootstrap: str, places: list[TopicPartition]
) -> dict[TopicPartition, list[Stored]]:
    """Every record of these partitions, with its offset."""
    found: dict[TopicPartition, list[Stored]] = {place: [] for place in places}
    async with AsyncAdmin(bootstrap, random=world.random("last admin")) as admin:
        ends = await admin.list_offsets(places, "latest")
    async with AsyncConsumer(
        bootstrap, auto_offset_reset="earliest", random=world.random("last reader")
    ) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _READ_S
        while True:
            for record in await consumer.poll(timeout_ms=1_000, max_records=10_000):
                place = TopicPartition(record.topic, record.partition)
                found[place].append(
                    Stored(
                        record.offset,
                        read_id(record),
                        record.key,
                        record.value is not None,
                        record.timestamp,
                    )
                )
            positions = [await consumer.position(place) for place in places]
            if all(
                position >= ends[place].offset
                for place, position in zip(places, positions, strict=True)
            ):
                return found
            if loop.time() > deadline_s:
                raise Violation("the last reader is not given what is there")


def judge(
    senders: list[Sender],
    stored: Mapping[TopicPartition, list[Stored]],
    checkers: Checkers,
    now_ms: int,
) -> None:
    """Hold the ledgers against what is stored in the end.

    Raises:
        Violation: an acknowledged record is lost or elsewhere, or an idempotent sender's records
            are doubled or out of order; but what the topic's kind allows.
    """
    by_place = {
        (place.topic, place.partition, record.offset): record.id
        for place, records in stored.items()
        for record in records
    }
    for number, sender in enumerate(senders):
        ledger = sender.ledger
        missing = ledger.sent - len(ledger.acknowledged) - len(ledger.failed)
        if missing:
            raise Violation(f"{sender.host}: {missing} records have no outcome")
        for record, told in ledger.acknowledged.items():
            found = by_place.get((told.topic, told.partition, told.offset))
            history = checkers.find_history(told.topic, told.partition)
            assert history is not None
            if found != (number, record) and not _may_be_missing(ledger, record, told, history):
                raise Violation(
                    f"{sender.host}: record {record} was acknowledged at {told}, where {found} is"
                )
            if found is not None and found != (number, record) and ledger.kind.keeps:
                raise Violation(f"{sender.host}: {found} is at {told}, not {record}")
        if ledger.kind.is_idempotent and not checkers.has_elected_uncleanly(ledger.topic):
            _judge_order(sender, number, stored)
        if ledger.kind.compacts:
            _judge_latest(sender, number, stored, now_ms)


def _may_be_missing(ledger: Ledger, record: int, told: RecordMetadata, history: History) -> bool:
    kind = ledger.kind
    if kind.compacts:
        return True  # `_judge_latest` looks at those that must be there
    if kind.shortens:
        return told.offset < history.start
    if kind.keeps:
        return False
    if kind.acks != "all":
        return True
    lost_from = history.lost_from
    return history.lossy_epoch >= 0 and (
        record >= ledger.unharmed or (lost_from is not None and told.offset >= lost_from)
    )


def _judge_latest(
    sender: Sender, number: int, stored: Mapping[TopicPartition, list[Stored]], now_ms: int
) -> None:
    """Of each key the latest record is there, and if it has no value, nothing older is."""
    ledger = sender.ledger
    latest: dict[tuple[int, bytes], tuple[int, int]] = {}
    for record, told in ledger.acknowledged.items():
        place = told.partition, ledger.contents[record][0]
        latest[place] = max(latest.get(place, (-1, -1)), (told.offset, record))
    last_stored: dict[tuple[int, bytes], Stored] = {}
    for partition, records in stored.items():
        for each in records:
            if partition.topic == ledger.topic and each.id.sender == number:
                if ledger.contents[each.id.number] != (each.key, each.has_value):
                    raise Violation(f"{sender.host}: what is stored was never sent: {each}")
                last_stored[partition.partition, each.key or b""] = each
    for (index, key), (offset, record) in latest.items():
        found = last_stored.get((index, key))
        if found is not None and found.offset >= offset:
            continue
        has_value = ledger.contents[record][1]
        if has_value or found is not None:
            raise Violation(
                f"{sender.host}: of key {key!r} in partition {index} record {record}, with a value:"
                f" {has_value}, was acknowledged last, at {offset}, but {found} is stored last"
            )
        sent_ms = sender.sent_ms[record]
        if now_ms - sent_ms < ledger.kind.delete_retention_ms:
            raise Violation(
                f"{sender.host}: of key {key!r} in partition {index} the deletion at {offset} is "
                f"gone {now_ms - sent_ms} ms after it was sent"
            )


def _judge_order(
    sender: Sender, number: int, stored: Mapping[TopicPartition, list[Stored]]
) -> None:
    seen: set[int] = set()
    for place, records in stored.items():
        last = -1
        for each in records:
            record = each.id
            if record.sender != number or place.topic != sender.ledger.topic:
                continue
            if record.number in seen:
                raise Violation(f"{sender.host}: record {record.number} is stored twice")
            if record.number < last:
                raise Violation(
                    f"{sender.host}: record {record.number} at offset {each.offset} of {place} "
                    f"comes behind {last}"
                )
            seen.add(record.number)
            last = record.number
