"""The clients of a cluster under faults: senders that note each acknowledgement, and readers.

A record's value has its sender and number, so that every record that is read back can be compared
with those sent and acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from lab.reliability.checkers import Checkers, Violation
from lab.reliability.histories import History
from lab.reliability.topic_kinds import TopicKind
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record, RecordMetadata, TopicPartition
from trimtab.sim.world import World

_DAMAGED_RETRY_S = 1.0
_READ_S = 60.0
_KEYS = 8
_TOMBSTONES = 0.2
_ID = "id"


class RecordId(NamedTuple):
    """Identifies a record: the number of its sender, and its number among the sender's records."""

    sender: int
    number: int


class Stored(NamedTuple):
    """A record that was read back; its timestamp is in milliseconds."""

    offset: int
    id: RecordId
    key: bytes | None
    has_value: bool
    timestamp: int


@dataclass
class Ledger:
    """The records that one sender has sent to one topic, and their outcomes.

    Attributes:
        kind: the topic's guarantees.
        sent: number of records sent.
        acknowledged: by number of the record.
        failed: by number of the record.
        contents: for a compacted topic, each record's key, and whether it has a value.
        sent_before_unclean: number of records sent before the first unclean election.
    """

    topic: str
    kind: TopicKind
    sent: int = 0
    acknowledged: dict[int, RecordMetadata] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    contents: list[tuple[bytes, bool]] = field(default_factory=list)
    sent_before_unclean: int = 0

    def note(self, number: int, delivery: Delivery) -> bool:
        """Note a record's outcome; False if it already had one."""
        if number in self.acknowledged or number in self.failed:
            return False
        error = delivery.exception()
        if error is not None:
            self.failed[number] = error
        else:
            self.acknowledged[number] = delivery.result()
        return True


class Sender:
    """One producer that sends to one topic, in bursts, until `stop`.

    Args:
        checkers: receive each acknowledgement.
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
        """Send no more; `run` ends when every record has its outcome."""
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
            ledger.sent_before_unclean = ledger.sent
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
        # The producer would swallow an exception of its callback, so `fail` also keeps it.
        ledger = self.ledger
        if not ledger.note(number, delivery):
            self._checkers.fail(f"record {number} of {self.host} has a second outcome")
        metadata = ledger.acknowledged.get(number)
        if metadata is not None and ledger.kind.acks == "all":
            self._checkers.acknowledged(
                metadata.topic, metadata.partition, metadata.offset, self.host
            )


def read_id(record: Record) -> RecordId:
    """The sender and number in a record.

    Raises:
        Violation: no sender has sent such a record.
    """
    content = record.headers[0][1] if record.headers else record.value
    sender, _, rest = (content or b"").partition(b" ")
    number, end, padding = rest.partition(b" ")
    value = record.value
    if record.headers and value is not None and content is not None:
        end, padding = b" ", value.removeprefix(content)
    if not (sender.isdigit() and number.isdigit() and end) or padding.strip(b"\0"):
        raise Violation(f"a record was read that no sender has sent: {record}")
    return RecordId(int(sender), int(number))


class ObservedRecords:
    """The records that the readers have read; an offset always has the same record."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int, int], RecordId] = {}

    def note(self, record: Record, reader: str) -> None:
        position = (record.topic, record.partition, record.offset)
        found = read_id(record)
        known = self.records.setdefault(position, found)
        if known != found:
            raise Violation(f"{reader} reads {found} at {position}, where {known} was read before")


class Reader:
    """A consumer that reads partitions from the beginning, of topics that lose no committed record.

    It must see every offset once, in order, except those compacted or deleted from the front.

    Attributes:
        next: by partition, the offset that it reads next.
        damaged_batches: how often a poll failed because of a damaged batch.
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        partitions: list[TopicPartition],
        kinds: Mapping[str, TopicKind],
        checkers: Checkers,
        options: Mapping[str, Any],
    ) -> None:
        self._world = world
        self._bootstrap = bootstrap
        self._kinds = kinds
        self._checkers = checkers
        self._observed = ObservedRecords()
        self._options = options
        self.host = f"reader-{number}"
        self.next = dict.fromkeys(partitions, 0)
        self.damaged_batches = 0

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
                    self.damaged_batches += 1
                    await asyncio.sleep(_DAMAGED_RETRY_S)
                    continue
                for record in records:
                    self._note(record)

    def _note(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        expected, offset = self.next[partition], record.offset
        kind = self._kinds[partition.topic]
        history = self._checkers.find_history(*partition)
        start = 0 if history is None else history.start
        if offset != expected and not (
            # After an out-of-range error it resets, perhaps to a replica that has deleted less.
            (kind.shortens and expected < start and offset <= start)
            or (kind.compacts and offset > expected)
        ):
            raise Violation(
                f"{self.host} reads offset {offset} of {partition}, not {expected}; the log start "
                f"offset is {start}"
            )
        self.next[partition] = offset + 1
        self._observed.note(record, self.host)


async def read_all(
    world: World, bootstrap: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[Stored]]:
    """Read every record of these partitions with a new consumer."""
    found: dict[TopicPartition, list[Stored]] = {partition: [] for partition in partitions}
    async with AsyncAdmin(bootstrap, random=world.random("last admin")) as admin:
        ends = await admin.list_offsets(partitions, "latest")
    async with AsyncConsumer(
        bootstrap, auto_offset_reset="earliest", random=world.random("last reader")
    ) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _READ_S
        while True:
            for record in await consumer.poll(timeout_ms=1_000, max_records=10_000):
                partition = TopicPartition(record.topic, record.partition)
                found[partition].append(
                    Stored(
                        record.offset,
                        read_id(record),
                        record.key,
                        record.value is not None,
                        record.timestamp,
                    )
                )
            positions = [await consumer.position(partition) for partition in partitions]
            if all(
                position >= ends[partition].offset
                for partition, position in zip(partitions, positions, strict=True)
            ):
                return found
            if loop.time() > deadline_s:
                raise Violation(f"the last reader did not reach the end within {_READ_S:g} s")


def check_records(
    senders: list[Sender],
    stored: Mapping[TopicPartition, list[Stored]],
    checkers: Checkers,
    now_ms: int,
) -> None:
    """Compare the ledgers with the stored records.

    Raises:
        Violation: an acknowledged record is missing or at another offset, or an idempotent sender's
            records are duplicated or out of order, and the topic's kind does not allow it.
    """
    by_position = {
        (partition.topic, partition.partition, record.offset): record.id
        for partition, records in stored.items()
        for record in records
    }
    for number, sender in enumerate(senders):
        ledger = sender.ledger
        missing = ledger.sent - len(ledger.acknowledged) - len(ledger.failed)
        if missing:
            raise Violation(f"{sender.host}: {missing} records have no outcome")
        for record, metadata in ledger.acknowledged.items():
            found = by_position.get((metadata.topic, metadata.partition, metadata.offset))
            history = checkers.find_history(metadata.topic, metadata.partition)
            assert history is not None
            if found != (number, record) and not _may_be_missing(ledger, record, metadata, history):
                raise Violation(
                    f"{sender.host}: record {record} was acknowledged at {metadata}, but {found} "
                    "is there"
                )
            if found is not None and found != (number, record) and ledger.kind.keeps:
                raise Violation(f"{sender.host}: {found} is at {metadata}, not {record}")
        if ledger.kind.is_idempotent and not checkers.has_elected_uncleanly(ledger.topic):
            _check_order(sender, number, stored)
        if ledger.kind.compacts:
            _check_latest(sender, number, stored, now_ms)


def _may_be_missing(
    ledger: Ledger, record: int, metadata: RecordMetadata, history: History
) -> bool:
    kind = ledger.kind
    if kind.compacts:
        return True  # `_check_latest` checks the records that must be there
    if kind.shortens:
        return metadata.offset < history.start
    if kind.keeps:
        return False
    if kind.acks != "all":
        return True
    lost_from = history.lost_from
    return history.unclean_epoch >= 0 and (
        record >= ledger.sent_before_unclean
        or (lost_from is not None and metadata.offset >= lost_from)
    )


def _check_latest(
    sender: Sender, number: int, stored: Mapping[TopicPartition, list[Stored]], now_ms: int
) -> None:
    """The latest acknowledged record of each key is stored; a tombstone may have been removed after
    `delete.retention.ms`. Then an older record may be back: a replica that was away for longer has
    missed the tombstone, as in Apache Kafka."""
    ledger = sender.ledger
    latest: dict[tuple[int, bytes], tuple[int, int]] = {}
    for record, metadata in ledger.acknowledged.items():
        which = metadata.partition, ledger.contents[record][0]
        latest[which] = max(latest.get(which, (-1, -1)), (metadata.offset, record))
    last_stored: dict[tuple[int, bytes], Stored] = {}
    for partition, records in stored.items():
        for each in records:
            if partition.topic == ledger.topic and each.id.sender == number:
                if ledger.contents[each.id.number] != (each.key, each.has_value):
                    raise Violation(f"{sender.host}: a stored record was never sent: {each}")
                last_stored[partition.partition, each.key or b""] = each
    for (index, key), (offset, record) in latest.items():
        found = last_stored.get((index, key))
        if found is not None and found.offset >= offset:
            continue
        has_value = ledger.contents[record][1]
        age_ms = now_ms - sender.sent_ms[record]
        if has_value or age_ms < ledger.kind.delete_retention_ms:
            raise Violation(
                f"{sender.host}: the last acknowledged record of key {key!r} in partition {index} "
                f"is {record} at {offset} (has a value: {has_value}), sent {age_ms} ms ago, but "
                f"{found} is stored last"
            )


def _check_order(
    sender: Sender, number: int, stored: Mapping[TopicPartition, list[Stored]]
) -> None:
    seen: set[int] = set()
    for partition, records in stored.items():
        last = -1
        for each in records:
            record = each.id
            if record.sender != number or partition.topic != sender.ledger.topic:
                continue
            if record.number in seen:
                raise Violation(f"{sender.host}: record {record.number} is stored twice")
            if record.number < last:
                raise Violation(
                    f"{sender.host}: record {record.number} at offset {each.offset} of {partition} "
                    f"comes after record {last}"
                )
            seen.add(record.number)
            last = record.number
