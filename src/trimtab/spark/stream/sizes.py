"""How many bytes lie before a stream: learned by a thread of the driver, ahead of the batches.

    Scan, Listing or Probe ─▶ Sizes (a thread) ─▶ Ahead of each partition ─▶ admission

While Spark runs a batch, the sizes for the next ones are learned already. What is remembered is
bounded: small record batches that follow one another are remembered as one piece.

| source of sizes | exact | what it costs | works on |
|---|---|---|---|
| `Listing` (`broker`) | to the record batch | a request to each leader, no data | our brokers |
| `Scan` (`scan`) | to the record batch | the driver reads every byte once, too | every cluster |
| `Probe` (`probe`) | no: says by how much it may be wrong | a few record batches | every cluster |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, Protocol

from trimtab.client.consumer import Consumer
from trimtab.client.fetcher.batch_sizes import Ahead as Asked
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece, find_hungry
from trimtab.wire.batch_cy import BatchHeader, read_headers

logger = logging.getLogger(__name__)

_BATCHES_AHEAD: Final = 2
"""So many limits are known in advance: for the batch to be planned, and for the next one."""

_CLIENT_ID: Final = "trimtab-spark-sizes"
# What was aborted costs as much to read; CRCs are the tasks' business.
_FIXED: Final = {
    "auto.offset.reset": "none",
    "isolation.level": "read_uncommitted",
    "check.crcs": "false",
}
_PLACES: Final = 4
_PARTS: Final = 64
"""What lies between two places is remembered as so many pieces."""
_PROBED_AHEAD: Final = 2
_RETRY_SECONDS: Final = 0.2
_POLL_MS: Final = 250


class Found(NamedTuple):
    """Pieces of one partition, from where they were asked for on.

    Attributes:
        rest: bytes behind these, up to the end that was asked for; None where nobody knows.
    """

    partition: TopicPartition
    start: int
    pieces: Sequence[Piece]
    rest: int | None = None


class Wanted(NamedTuple):
    """What to look for in one partition: from `start` on, about `size` bytes, up to `end`."""

    start: int
    end: int
    size: int


class Source(Protocol):
    """Where sizes come from. For one thread.

    Attributes:
        name: the value of the option `sizeSource`.
        tails: whether `look` waits for what is written while it waits.
        bytes_read: bytes that it has cost so far.
    """

    @property
    def name(self) -> str: ...

    @property
    def tails(self) -> bool: ...

    @property
    def bytes_read(self) -> int: ...

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        """Some of what is wanted, perhaps nothing; waits for a fraction of a second at most.

        Raises:
            KafkaError: nothing can be learned now.
        """

    def close(self) -> None: ...


class Ahead:
    """What is known to lie before one partition.

    Attributes:
        start: where the stream stands.
        known_to: where what is known ends.
        end: where the partition ended when that was last asked.
        size: bytes of all pieces.
        rest: bytes from there to `end`; None where nobody knows.
    """

    __slots__ = ("_is_closed", "end", "known_to", "pieces", "rest", "size", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = self.known_to = start
        self.end = end
        self.pieces: list[Piece] = []
        self.size = 0
        self.rest: int | None = None
        self._is_closed = True

    def add(self, pieces: Iterable[Piece], grain: int) -> None:
        """What follows; joined to what is known up to `grain` bytes."""
        for piece in pieces:
            if piece.next_offset <= self.known_to:
                continue
            self.size += piece.size
            self.known_to = piece.next_offset
            if not self._is_closed and self.pieces[-1].size + piece.size <= grain:
                last = self.pieces[-1]
                self.pieces[-1] = Piece(
                    piece.next_offset,
                    last.size + piece.size,
                    last.time,
                    last.error + piece.error,
                )
            else:
                self.pieces.append(piece)
                self._is_closed = False

    def until(self, end: int) -> list[Piece]:
        """The pieces up to an offset. They stay as they are from now on.

        One that goes on beyond it counts with all its bytes.
        """
        self._is_closed = True
        found = []
        at = self.start
        for piece in self.pieces:
            if at >= end:
                break
            at = piece.next_offset
            found.append(piece if at <= end else piece._replace(next_offset=end))
        return found

    def advance(self, start: int) -> None:
        """The stream stands there now."""
        passed = 0
        while passed < len(self.pieces) and self.pieces[passed].next_offset <= start:
            self.size -= self.pieces[passed].size
            passed += 1
        del self.pieces[:passed]
        self.start = start
        self.known_to = max(self.known_to, start)
        self._is_closed = self._is_closed or not self.pieces


class Sizes:
    """Learns sizes in a thread of its own, which ends with the process.

    Args:
        make_source: makes the source, in that thread.
        limit: the bytes of a batch. About so many, twice, are known in advance; so is the sharing.
        grain: up to so many bytes record batches are remembered as one.
    """

    def __init__(self, make_source: Callable[[], Source], limit: int, grain: int) -> None:
        self._make_source = make_source
        self._limit = limit
        self._grain = grain
        self._changed = threading.Condition()
        self._ahead: dict[TopicPartition, Ahead] = {}
        self._must_know: Mapping[TopicPartition, int] = {}
        self._error: Exception | None = None
        self._has_ended = False
        self._source: Source | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="trimtab-sizes", daemon=True)
        self._thread.start()

    @property
    def source_name(self) -> str:
        """The kind of source in use; empty until it is known."""
        return "" if self._source is None else self._source.name

    @property
    def bytes_read(self) -> int:
        """Bytes that the driver has read to learn sizes."""
        return 0 if self._source is None else self._source.bytes_read

    def follow(
        self, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """The stream stands at `start`, and partitions end at `ends`."""
        with self._changed:
            before, self._ahead = self._ahead, {}
            for partition, end in ends.items():
                ahead = before.get(partition)
                at = start[partition]
                if ahead is None or not ahead.start <= at <= ahead.known_to:
                    ahead = Ahead(at, end)
                else:
                    ahead.advance(at)
                    ahead.end = end
                self._ahead[partition] = ahead
            self._changed.notify_all()

    def pieces(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Piece]]:
        """What is known now of each partition up to these offsets."""
        with self._changed:
            return {p: self._ahead[p].until(end) for p, end in ends.items() if p in self._ahead}

    def await_fair(self, limit: int, timeout: float) -> bool:
        """Wait until enough is known to share out `limit` bytes among all partitions.

        Raises:
            KafkaError: as the source says; the thread goes on trying.
        """
        return self._await(lambda: not self._hungry(limit, only_open=True), timeout)

    def await_known(self, ends: Mapping[TopicPartition, int], timeout: float) -> bool:
        """Wait until everything up to these offsets is known."""

        def is_known() -> bool:
            return all(self._ahead[p].known_to >= end for p, end in ends.items())

        with self._changed:
            self._must_know = dict(ends)
            self._changed.notify_all()
        try:
            return self._await(is_known, timeout)
        finally:
            self._must_know = {}

    def knows(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether everything between these offsets is known."""
        with self._changed:
            return all(
                p in self._ahead
                and self._ahead[p].start <= begins[p]
                and self._ahead[p].known_to >= end
                for p, end in ends.items()
            )

    def rest(self) -> int | None:
        """Bytes behind what is known, of all partitions; None where nobody knows."""
        with self._changed:
            total = 0
            for ahead in self._ahead.values():
                if ahead.known_to < ahead.end:
                    if ahead.rest is None:
                        return None
                    total += ahead.rest
            return total

    @property
    def known(self) -> int:
        """Bytes that are known to lie ahead, of all partitions."""
        with self._changed:
            return sum(ahead.size for ahead in self._ahead.values())

    def close(self) -> None:
        """Have the thread end, and wait for it for a moment."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(2 * _POLL_MS / 1000)

    def _await(self, is_done: Callable[[], bool], timeout: float) -> bool:
        with self._changed:
            done = self._changed.wait_for(lambda: self._error is not None or is_done(), timeout)
            error = self._error
            if not self._has_ended:
                self._error = None
            if error is not None:
                raise error
            return done

    def _hungry(self, limit: int, *, only_open: bool) -> list[TopicPartition]:
        known = {partition: ahead.size for partition, ahead in self._ahead.items()}
        is_open = (
            partition
            for partition, ahead in self._ahead.items()
            if not only_open or ahead.known_to < ahead.end
        )
        return find_hungry(known, is_open, limit)

    def _wanted(self) -> dict[TopicPartition, Wanted]:
        room = self._limit * _BATCHES_AHEAD
        tails = self._source is not None and self._source.tails
        wanted = {}
        for partition in self._hungry(room, only_open=not tails):
            ahead = self._ahead[partition]
            wanted[partition] = Wanted(ahead.known_to, ahead.end, room - ahead.size)
        for partition, end in self._must_know.items():
            ahead = self._ahead[partition]
            if ahead.known_to < end:
                wanted[partition] = Wanted(ahead.known_to, end, room)
        return wanted

    def _run(self) -> None:
        try:
            self._learn_all()
        except Exception as error:  # whoever waits for sizes would wait for ever
            with self._changed:
                self._error, self._has_ended = error, True
                self._changed.notify_all()
        finally:
            if self._source is not None:
                self._source.close()

    def _learn_all(self) -> None:
        wanted: dict[TopicPartition, Wanted] = {}

        def is_due() -> bool:
            nonlocal wanted
            wanted = self._wanted()
            return self._is_closed or bool(wanted)

        while True:
            with self._changed:
                self._changed.wait_for(is_due)
                if self._is_closed:
                    return
            try:
                if self._source is None:
                    self._source = self._make_source()
                found = self._source.look(wanted)
            except KafkaError as error:
                if isinstance(error, Unavailable) and self._source is not None:
                    self._source.close()
                    self._source = None  # a new one knows nothing that is out of date
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_closed, _RETRY_SECONDS)
            else:
                self._learn(found)

    def _learn(self, found: Iterable[Found]) -> None:
        with self._changed:
            for partition, start, pieces, rest in found:
                ahead = self._ahead.get(partition)
                if ahead is not None and start == ahead.known_to:  # else it was moved meanwhile
                    ahead.add(pieces, self._grain)
                    ahead.rest = rest
            self._changed.notify_all()


class Scan:
    """Reads what lies ahead, and keeps nothing but sizes.

    Bytes are those of the log: also of transactions that were aborted, which tasks read as well.

    Args:
        client: the consumer's options.
    """

    name = "scan"
    tails = True

    def __init__(self, client: Mapping[str, str]) -> None:
        limits = {
            "max.partition.fetch.bytes": str(1024 * 1024),
            "fetch.max.bytes": str(8 * 1024 * 1024),
        }
        self._consumer = Consumer(**{"client.id": _CLIENT_ID, **client, **limits, **_FIXED})
        self._positions: dict[TopicPartition, int] = {}
        self.bytes_read = 0

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        self._go_to(wanted)
        try:
            batches = self._consumer.fetch_batches(_POLL_MS)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return self._pass_over_deleted(error)
        if batches is None:
            return []
        self.bytes_read += len(batches.data)
        pieces = [
            Piece(each.next_offset, each.size, each.max_timestamp)
            for each in read_headers(batches.data)
        ]
        self._positions[batches.partition] = batches.next_offset
        return [Found(batches.partition, batches.start, pieces)]

    def close(self) -> None:
        self._consumer.close()

    def _go_to(self, wanted: Mapping[TopicPartition, Wanted]) -> None:
        consumer = self._consumer
        new = wanted.keys() - self._positions.keys()
        if new:
            consumer.assign([*self._positions, *new])
        for partition, (start, *_) in wanted.items():
            if self._positions.get(partition) != start:
                consumer.seek(partition, start)
                self._positions[partition] = start
        paused = consumer.paused()
        if rest := self._positions.keys() - wanted.keys() - paused:
            consumer.pause(*rest)
        if again := paused & wanted.keys():
            consumer.resume(*again)

    def _pass_over_deleted(self, error: BrokerError) -> list[Found]:
        for partition, position in self._positions.items():
            if str(partition) == error.subject:
                earliest = self._consumer.beginning_offsets([partition])[partition]
                return _pass_over(partition, position, earliest, error)
        raise error


class Listing:
    """Asks the leaders, which must be brokers of ours.

    Args:
        client: the consumer's options.

    Raises:
        UsageError: an option of the client that cannot be.
    """

    name = "broker"
    tails = False
    bytes_read = 0

    def __init__(self, client: Mapping[str, str]) -> None:
        self._consumer = Consumer(**{"client.id": _CLIENT_ID, **client, **_FIXED})

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        asked = {partition: Asked(*each) for partition, each in wanted.items()}
        found = []
        error: BrokerError | None = None
        for partition, batches in self._consumer.list_batch_sizes(asked).items():
            start = wanted[partition].start
            if batches.error is None:
                pieces = [Piece(*each) for each in zip(*batches[:3], strict=True)]
                if not pieces and batches.high_watermark < wanted[partition].end:
                    # A new leader does not know yet how far its predecessor had come.
                    code = ErrorCode.OFFSET_NOT_AVAILABLE
                    error = BrokerError(code, "while listing the sizes of batches", str(partition))
                    continue
                if not pieces and not batches.total_bytes:
                    # Compaction has left nothing before what was asked for.
                    pieces = [Piece(wanted[partition].end, 0)]
                rest = max(batches.total_bytes - sum(batches.sizes), 0)
                found.append(Found(partition, start, pieces, rest))
            elif batches.error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                found += _pass_over(partition, start, batches.log_start_offset, batches.error)
            else:
                error = batches.error
        if error is not None and not found:
            raise error
        return found

    def close(self) -> None:
        self._consumer.close()


class Probe:
    """Reads a record batch at a few places, and takes what lies between them to be alike.

    Nothing is read twice but these. Between two places bytes are spread evenly over the offsets;
    how much the two differ says by how much that may be wrong.

    Args:
        client: the consumer's options.
    """

    name = "probe"
    tails = False

    def __init__(self, client: Mapping[str, str]) -> None:
        # A single record batch, whatever its size, is the least that a broker sends (KIP-74).
        limits = {"max.partition.fetch.bytes": "1", "fetch.max.bytes": "1"}
        self._consumer = Consumer(**{"client.id": _CLIENT_ID, **client, **limits, **_FIXED})
        self._density: dict[TopicPartition, float] = {}
        self._next = 0
        self._random = Random(1)
        self.bytes_read = 0

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        # One partition at a time, each in its turn: this takes a request for each place.
        self._next += 1
        partition = sorted(wanted)[self._next % len(wanted)]
        start, end, size = wanted[partition]
        if partition in self._density:
            enough = int(size / self._density[partition]) + 1
            end = min(end, start + _PROBED_AHEAD * enough)
        places = sorted({start, end - 1, *self._draw_places(start, end - 1)})
        try:
            headers = [self._probe(partition, place) for place in places]
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            earliest = self._consumer.beginning_offsets([partition])[partition]
            return _pass_over(partition, start, earliest, error)
        if None in headers:
            return []
        found = list(_between([each for each in headers if each is not None], start, end))
        density = sum(each.size for each in found) / max(found[-1].next_offset - start, 1)
        self._density[partition] = max(density, 1e-9)
        return [Found(partition, start, found)]

    def close(self) -> None:
        self._consumer.close()

    def _draw_places(self, first: int, last: int) -> Iterator[int]:
        """One in each part of the offsets, by chance: evenly spaced they might all be markers."""
        for part in range(_PLACES - 1):
            begin, end = (first + (last - first) * n // (_PLACES - 1) for n in (part, part + 1))
            yield self._random.randint(begin, end)

    def _probe(self, partition: TopicPartition, offset: int) -> BatchHeader | None:
        """The record batch that holds an offset, or the next one."""
        consumer = self._consumer
        consumer.assign([partition])
        consumer.seek(partition, offset, offset + 1)
        batches = consumer.fetch_batches(4 * _POLL_MS)
        if batches is None:
            return None
        self.bytes_read += len(batches.data)
        return read_headers(batches.data)[0]


def _between(headers: Sequence[BatchHeader], start: int, end: int) -> Iterator[Piece]:
    """Pieces from `start` to `end`, estimated from the record batches at a few places between."""
    at = start
    for index, header in enumerate(headers):
        if header.next_offset > at:
            at = header.next_offset
            yield Piece(at, header.size, header.max_timestamp)
        if index + 1 == len(headers):
            break
        following = headers[index + 1]
        offsets = following.base_offset - at
        if offsets <= 0:
            continue
        densities = [
            each.size / max(each.next_offset - each.base_offset, 1) for each in (header, following)
        ]
        parts = min(_PARTS, offsets)
        size = sum(densities) / 2 * offsets / parts
        error = abs(densities[0] - densities[1]) / 2 * offsets / parts
        first = at
        for part in range(1, parts + 1):
            at = first + offsets * part // parts
            yield Piece(at, round(size), header.max_timestamp, round(error))


def _pass_over(
    partition: TopicPartition, start: int, earliest: int, error: BrokerError
) -> list[Found]:
    """Of what has been deleted nothing lies ahead; tasks find out, and say so.

    Raises:
        BrokerError: `start` lies beyond the end; who asks where the partition ends finds out.
    """
    if earliest <= start:
        raise error
    return [Found(partition, start, [Piece(earliest, 0)])]


class Exact:
    """A `Listing` if all brokers serve it, else a `Scan`.

    Args:
        client: the consumer's options.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._source: Listing | Scan = Listing(client)

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def tails(self) -> bool:
        return self._source.tails

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        try:
            return self._source.look(wanted)
        except BrokerError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION or isinstance(self._source, Scan):
                raise
        self._source.close()
        self._source = Scan(self._client)
        return self._source.look(wanted)

    def close(self) -> None:
        self._source.close()


def make_source(kind: str, client: Mapping[str, str]) -> Source:
    """The source of sizes that the option `sizeSource` asks for.

    Raises:
        UsageError: an option of the client that cannot be.
    """
    return Probe(client) if kind == "probe" else Exact(client)
