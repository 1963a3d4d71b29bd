"""Puts the records of split and moved keys in order again. Does no I/O, and has no clock.

    records, as read from each partition ─▶ take ─▶ ready, in the order of each key
                 ends of the partitions ─▶ found ─▶ check ─▶ what certainly does not come

A split key's records have numbers (`partitioner/split_records.py`). A record waits until all
smaller numbers of its sender were returned, or certainly do not come. A number does not come from a
partition that has shown a larger one, as numbers grow within a partition; nor from one that was
read to an end which was looked up after the number was settled. A sender whose records were never
seen begins at 0. So a reader that begins in the middle of a topic first looks up the ends.

A moved key's first record waits until its old partition was read to the end that the record's
header tells, or that was looked up after the record arrived; further records of the key in the new
partition wait behind it.

When more than `max_bytes` are held, each partition that holds something is `full`: the caller reads
only the others. With one producer the earliest record never waits, so this goes on. If nothing
comes from the others for a second, the record that has waited longest is returned, and counted in
`given_up`.

A record that waits costs O(log n), others O(1); a check O(what waits + partitions to read).
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from sys import getsizeof
from typing import Any, Final, TypeAlias

from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    MovedMark,
    SplitMark,
    read_moved,
    read_split,
)
from trimtab.kafka.records import Record, TopicPartition

logger = logging.getLogger("trimtab.client")

MOST_SENDERS: Final = 10_000
"""Senders of a topic that are remembered, but for those that wait. What comes from a forgotten one
waits until the ends were looked up."""
_GRACE_S: Final = 0.2
"""A gap that fills itself within this time, as most do, costs no look-up."""
_STUCK_S: Final = 1.0
"""So long what is on its way to a partition that was read to its end may take."""
_OVERHEAD: Final = 600
"""Bytes of the Python objects that a held record consists of, about, without key and value."""
_MOST_PARTS: Final = 1_000
_SAMPLE: Final = 50
"""So many parts of each collection are measured."""

Position: TypeAlias = Callable[[TopicPartition], int]
"""The offset up to which a partition was read; -1 if it is not known."""


@dataclass(slots=True, eq=False)
class _Sender:
    """One sequence of numbers.

    Attributes:
        expected: all smaller numbers were returned, or do not come.
        settled: all smaller numbers are stored, or have failed for good.
        asked: what was settled before the ends were looked up.
        last: the largest number that each partition has shown.
        old: the largest number at an earlier time. All smaller ones are settled `patience` later.
        since: when it began to wait for the number that it expects.
    """

    expected: int = 0
    settled: int = 0
    asked: int = 0
    highest: int = 0
    old: tuple[float, int] | None = None
    since: float = 0.0
    last: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, int, _Held]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Move:
    """Where a key's earlier records are.

    Attributes:
        told: the end to which that partition must be read, by the record's header; -1 if unknown.
        end: the partition's, looked up, in case `told` is of another log that was copied.
    """

    source: int
    told: int
    end: int | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """The held records of a key in its new partition."""

    partition: int
    key: Hashable
    waiting: deque[tuple[_Held, _Move | None]] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Held:
    record: Record
    partition: TopicPartition
    serial: int
    size: int
    mark: SplitMark | None
    owner: _Sender | _Queue
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class _Topic:
    """
    Attributes:
        partitions: how many it has; 0 while that is to be asked again.
        behind: the partitions that were not yet read to the ends that were looked up last, with
            those ends; None if no ends count.
        unasked, asked: the moves for which an end is to be looked up, or is being looked up.
    """

    name: str
    partitions: int = 0
    senders: OrderedDict[int, _Sender] = field(default_factory=OrderedDict)
    waiting: dict[_Sender, None] = field(default_factory=dict)
    queues: dict[tuple[int, Hashable], _Queue] = field(default_factory=dict)
    behind: dict[int, int] | None = None
    is_asking: bool = False
    unasked: list[_Move] = field(default_factory=list)
    asked: list[_Move] = field(default_factory=list)


class SplitMerger:
    """
    Args:
        max_bytes: how much may be held; it becomes more by at most one record of each partition.
        patience: seconds after which a record that was not stored never will be: more than the
            producers' delivery.timeout.ms.

    Attributes:
        ready: the records to return, in order.
        full: the partitions not to read now.
        unsure: the topic whose number of partitions must be set before `take` goes on.
        held_bytes: about the memory of the records that wait.
        given_up: how often a record was returned although it was not certain that none before it
            comes: too much was held, and nothing else could be read.
        late: records that were returned after larger numbers of their sender: read again, stored
            after `patience`, or after their gap was given up.
    """

    def __init__(self, max_bytes: int, patience: float) -> None:
        self._max_bytes = max_bytes
        self._patience = patience
        self.ready: deque[Record] = deque()
        self.full: set[TopicPartition] = set()
        self.unsure: str | None = None
        self.held_bytes = 0
        self.given_up = 0
        self.late = 0
        self._is_tight = False
        self._topics: dict[str, _Topic] = {}
        self._held: dict[TopicPartition, OrderedDict[int, _Held]] = {}
        self._oldest: OrderedDict[int, _Held] = OrderedDict()
        self._serial = 0
        self._now = 0.0
        self._moved_on = 0.0
        """When something was last taken."""

    @property
    def held(self) -> int:
        """How many records wait."""
        return len(self._oldest)

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first record of each partition that waits, or is ready."""
        firsts = {partition: next(iter(held)) for partition, held in self._held.items()}
        for record in self.ready:
            partition = TopicPartition(record.topic, record.partition)
            firsts[partition] = min(record.offset, firsts.get(partition, record.offset))
        return firsts

    def topics(self) -> dict[str, int]:
        """The topics with such records, and their numbers of partitions."""
        return {topic.name: topic.partitions for topic in self._topics.values()}

    def set_partitions(self, topic: str, partitions: int) -> None:
        """Say how many partitions a topic has; 0 to be asked at the next such record."""
        self._topics[topic].partitions = partitions
        self.unsure = None

    def take(self, records: Sequence[Record], now: float) -> int:
        """Take records that follow each other in one partition; returns how many were taken: fewer
        if the partition became full, or the topic is `unsure`."""
        partition = TopicPartition(records[0].topic, records[0].partition)
        topic = self._topics.get(partition.topic)
        self._now = self._moved_on = now
        for index, record in enumerate(records):
            if not record.headers and (topic is None or not topic.queues):
                self.ready.append(record)
                continue
            mark, moved = _read_marks(record)
            if mark is None and moved is None and (topic is None or not topic.queues):
                self.ready.append(record)
                continue
            if topic is None:
                topic = self._topics[partition.topic] = _Topic(partition.topic)
            if not topic.partitions:
                self.unsure = topic.name
                return index
            if self._admit(topic, partition, record, mark, moved) and self._is_tight:
                return index + 1
        return len(records)

    def _admit(
        self,
        topic: _Topic,
        partition: TopicPartition,
        record: Record,
        mark: SplitMark | None,
        moved: MovedMark | None,
    ) -> bool:
        """Return a record, or hold it; whether it is held."""
        index = partition.partition
        if mark is not None:
            self._note(topic, index, mark)
        if topic.queues or moved is not None:
            at = index, _hashable(record.key)
            queue = topic.queues.get(at)
            move: _Move | None = None
            if moved is not None and index != moved.partition < topic.partitions:
                move = _Move(moved.partition, moved.end)
                topic.unasked.append(move)
            if queue is not None or move is not None:
                if queue is None:
                    queue = topic.queues[at] = _Queue(*at)
                queue.waiting.append((self._hold(record, partition, mark, queue), move))
                return True
        if mark is None:
            self.ready.append(record)
            return False
        sender = topic.senders[mark.sender]
        if mark.number > sender.expected:
            self._wait(topic, sender, self._hold(record, partition, mark, sender))
            return True
        self.ready.append(record)
        self._go_on(topic, sender, mark.number)
        return False

    def _note(self, topic: _Topic, index: int, mark: SplitMark) -> None:
        """What is known of a sender as soon as one of its records was read."""
        sender = topic.senders.get(mark.sender)
        if sender is None:
            sender = topic.senders[mark.sender] = _Sender()
            if len(topic.senders) > MOST_SENDERS:
                id, oldest = topic.senders.popitem(last=False)
                if oldest in topic.waiting:
                    topic.senders[id] = oldest
        else:
            topic.senders.move_to_end(mark.sender)
        number, settled = mark.number, mark.number - mark.open
        if number > sender.last.get(index, -1):
            sender.last[index] = number
        if number > sender.highest:  # no max(): this is done for every record
            sender.highest = number
        if settled > sender.settled:
            sender.settled = settled

    def _wait(self, topic: _Topic, sender: _Sender, held: _Held) -> None:
        assert held.mark is not None
        heappush(sender.waiting, (held.mark.number, held.serial, held))
        if sender not in topic.waiting:
            topic.waiting[sender] = None
            sender.since = self._now

    def _go_on(self, topic: _Topic, sender: _Sender, number: int) -> None:
        """A record with this number, which is at most the expected one, was returned."""
        if number < sender.expected:
            self.late += 1
            return
        sender.expected = number + 1
        if sender.waiting:
            self._release(topic, sender, sender.expected)

    def _release(self, topic: _Topic, sender: _Sender, certain: int) -> None:
        """Return what waits for numbers below `certain`, and what follows those."""
        sender.expected = max(sender.expected, certain)
        while sender.waiting and sender.waiting[0][0] <= sender.expected:
            number, _, held = heappop(sender.waiting)
            sender.expected = max(sender.expected, number + 1)
            self._return(held)
        sender.since = self._now
        if not sender.waiting:
            topic.waiting.pop(sender, None)

    def _hold(
        self,
        record: Record,
        partition: TopicPartition,
        mark: SplitMark | None,
        owner: _Sender | _Queue,
    ) -> _Held:
        self._serial += 1
        held = _Held(record, partition, self._serial, _size(record), mark, owner)
        self._held.setdefault(partition, OrderedDict())[record.offset] = held
        self._oldest[held.serial] = held
        self.held_bytes += held.size
        if self._is_tight:
            self.full.add(partition)
        elif self.held_bytes > self._max_bytes:
            self._is_tight = True
            self.full = set(self._held)
        return held

    def _let_go(self, held: _Held) -> None:
        del self._oldest[held.serial]
        of_partition = self._held[held.partition]
        del of_partition[held.record.offset]
        if not of_partition:
            del self._held[held.partition]
            self.full.discard(held.partition)
        self.held_bytes -= held.size
        # Half: the consumer must not be told to pause and to resume for every record.
        if self._is_tight and self.held_bytes <= self._max_bytes // 2:
            self._is_tight = False
            self.full = set()

    def _return(self, held: _Held) -> None:
        self._let_go(held)
        self.ready.append(held.record)

    # the ends of partitions

    def plan(self, now: float) -> list[TopicPartition]:
        """The partitions whose ends to look up now; `found` must be called before the next plan."""
        wanted: list[TopicPartition] = []
        for topic in self._topics.values():
            if not topic.partitions:
                continue
            indexes: Iterable[int] = {move.source for move in topic.unasked}
            topic.asked, topic.unasked = topic.unasked, []
            if topic.behind is None and self._is_asking(topic, now):
                topic.is_asking = True
                indexes = range(topic.partitions)
                for sender in topic.waiting:
                    sender.asked = sender.settled
            wanted += [TopicPartition(topic.name, index) for index in indexes]
        return wanted

    def _is_asking(self, topic: _Topic, now: float) -> bool:
        """Whether the ends would decide something."""
        is_asking = self._is_tight and bool(topic.waiting or topic.queues)
        for sender in topic.waiting:
            if sender.old is None or now - sender.old[0] >= self._patience:
                if sender.old is not None:
                    sender.settled = max(sender.settled, sender.old[1])
                sender.old = now, sender.highest
            if sender.settled > sender.expected and now - sender.since >= _GRACE_S:
                is_asking = True
        return is_asking

    def found(self, ends: Mapping[TopicPartition, int] | None) -> None:
        """The ends that were looked up, transactions that are open included; None: that failed."""
        for topic in self._topics.values():
            asked, topic.asked = topic.asked, []
            if ends is None:
                topic.unasked += asked
            else:
                for move in asked:
                    move.end = ends[TopicPartition(topic.name, move.source)]
                named = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
                # Unless partitions were added meanwhile.
                if topic.is_asking and named and all(each in ends for each in named):
                    topic.behind = {each.partition: ends[each] for each in named}
            topic.is_asking = False

    def check(self, now: float, position: Position) -> None:
        """Return what no longer needs to wait."""
        self._now = now
        is_over = True
        for topic in self._topics.values():
            if not topic.partitions:
                continue
            for queue in list(topic.queues.values()):
                self._drain(topic, queue, position)
            behind = topic.behind
            if behind is not None:
                for index, end in list(behind.items()):
                    if position(TopicPartition(topic.name, index)) >= end:
                        del behind[index]
            for sender in list(topic.waiting):
                certain = self._certain(topic, sender)
                if certain > sender.expected:
                    self._release(topic, sender, certain)
            if behind is not None and all((topic.name, index) in self.full for index in behind):
                topic.behind = None  # nothing more comes of these ends
            elif topic.waiting or topic.queues:
                is_over = False
        if self._is_tight and not self.ready:
            # While a partition cannot be read to its end, more may come of it.
            limit = _STUCK_S if is_over else self._patience
            if now - self._moved_on >= limit:
                self._give_up(position)

    def _certain(self, topic: _Topic, sender: _Sender) -> int:
        """All smaller numbers were read, or do not come."""
        last, behind = sender.last, topic.behind
        certain = 0
        if behind is not None and len(behind) <= len(last):
            certain = min([sender.asked, *(last.get(index, -1) + 1 for index in behind)])
        if len(last) >= topic.partitions:
            certain = max(certain, min(last.values()) + 1)
        return certain

    def _drain(self, topic: _Topic, queue: _Queue, position: Position) -> None:
        """Return the records of a moved key that need not wait any more."""
        while queue.waiting:
            held, move = queue.waiting[0]
            if move is not None and not self._has_arrived(topic, queue, held, move, position):
                return
            queue.waiting.popleft()
            sender = None if held.mark is None else topic.senders.get(held.mark.sender)
            if sender is not None and held.mark is not None:
                if held.mark.number > sender.expected:
                    held.owner = sender
                    self._wait(topic, sender, held)
                    continue
                self._return(held)
                self._go_on(topic, sender, held.mark.number)
            else:
                self._return(held)
        del topic.queues[queue.partition, queue.key]

    def _has_arrived(
        self, topic: _Topic, queue: _Queue, held: _Held, move: _Move, position: Position
    ) -> bool:
        """Whether all earlier records of a moved key were returned."""
        read = position(TopicPartition(topic.name, move.source))
        if not 0 <= move.told <= read and (move.end is None or read < move.end):
            return False
        before = topic.queues.get((move.source, queue.key))
        if before is None:
            return True
        # The key went there and back: of two that wait for each other the older one is first.
        first = before.waiting[0][0]
        return (held.record.timestamp, held.serial) < (first.record.timestamp, first.serial)

    def _give_up(self, position: Position) -> None:
        """Return what has waited longest, until there is memory to go on."""
        if not self.given_up:
            logger.warning(
                "merge_split holds %d bytes, max_bytes is %d, and nothing else can be read: records"
                " of split or moved keys are returned although earlier ones may follow; give a"
                " larger max_bytes",
                self.held_bytes,
                self._max_bytes,
            )
        while self._is_tight:
            self.given_up += 1
            held = next(iter(self._oldest.values()))
            topic, owner = self._topics[held.partition.topic], held.owner
            if isinstance(owner, _Sender):
                self._release(topic, owner, owner.waiting[0][0])
            else:
                owner.waiting[0] = owner.waiting[0][0], None
                self._drain(topic, owner, position)

    # partitions that are read from elsewhere

    def reset(self, partition: TopicPartition, start: int) -> None:
        """A partition is read from another offset: what was taken of it from there on, and was not
        returned, is dropped, since it comes again.

        Args:
            start: an offset; negative if it is not known, or the partition is not read any more.
        """
        again = [at for at in self._held.get(partition, ()) if at >= start]
        for offset in again:
            held = self._held[partition][offset]
            held.is_dropped = True
            self._let_go(held)
        self.ready = deque(
            record
            for record in self.ready
            if (record.topic, record.partition) != partition or record.offset < start
        )
        topic = self._topics.get(partition.topic)
        if topic is None:
            return
        topic.behind, topic.is_asking = None, False
        for sender in topic.senders.values():
            sender.last.pop(partition.partition, None)
        for sender in list(topic.waiting):
            sender.waiting = [each for each in sender.waiting if not each[2].is_dropped]
            heapify(sender.waiting)
            if not sender.waiting:
                del topic.waiting[sender]
        for at, queue in list(topic.queues.items()):
            queue.waiting = deque(each for each in queue.waiting if not each[0].is_dropped)
            if not queue.waiting:
                del topic.queues[at]


def _read_marks(record: Record) -> tuple[SplitMark | None, MovedMark | None]:
    mark = moved = None
    for name, content in record.headers:
        if name == SPLIT_HEADER:
            mark = read_split(content)
        elif name == MOVED_HEADER:
            moved = read_moved(content)
    return mark, moved


def _hashable(key: Any) -> Hashable:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key  # type: ignore[no-any-return]


def _size(record: Record) -> int:
    """About the bytes of memory that a record takes."""
    headers = sum(len(name) + len(content or b"") for name, content in record.headers)
    return _OVERHEAD + headers + _size_of(record.key) + _size_of(record.value)


def _size_of(value: Any) -> int:
    """About the bytes of an object: bytes, or what a deserializer has made."""
    if isinstance(value, bytes):
        return len(value)
    parts, total, counted = [(value, 1.0)], 0.0, 0
    while parts and counted < _MOST_PARTS:
        part, times = parts.pop()
        counted += 1
        total += times * getsizeof(part)
        if hasattr(part, "__dict__"):
            part = vars(part)
        if isinstance(part, Mapping):
            some = [*islice(part.keys(), _SAMPLE), *islice(part.values(), _SAMPLE)]
            times *= 2 * len(part)
        elif isinstance(part, list | tuple | set | frozenset):
            some = [*islice(part, _SAMPLE)]
            times *= len(part)
        else:
            continue
        parts += [(each, times / len(some)) for each in some]
    return int(total)
