"""Where reading begins and where it ends: --last, --since, --until, --follow.

Reading that has an end reads the offsets that there were when it began. Only these are fetched: the
offset of a time is looked up, and the newest records are read from the end backwards.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from trimtab.cli.consume.where import Expression, Seen
from trimtab.cli.options import is_given
from trimtab.cli.style import say_warning
from trimtab.kafka.errors import BrokerError, ErrorCode, LogTruncation, UsageError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.threads.clock import monotonic_clock

if TYPE_CHECKING:
    from trimtab.cli.stopping import Stop
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import MergedRecords
    from trimtab.client.group_offsets import OffsetAndMetadata

T = TypeVar("T")

OPTIONS: Final = {
    "--last N>0": "only the newest N records of all partitions together, of those that --where "
    "lets through, oldest first by time; ends then",
    "--since TIME": "only records from this time on: so long ago, such as 90s, 15m, 1h30m or 7d; "
    "or such as 2026-01-31T08:00 (UTC unless it has an offset), or milliseconds since 1970",
    "--until TIME": "only records before this time",
}

POLL_MS: Final = 200
"""Longest wait of one poll; Ctrl-C and other ends are checked after each poll."""
GONE_S: Final = 5.0
"""After so long without records a topic that is said not to exist does not."""

_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_LEAST_WINDOW: Final = 16

Wanted: TypeAlias = Callable[[Record], bool]
"""Whether a record is asked for."""

Span: TypeAlias = dict[TopicPartition, tuple[int, int]]
"""By partition the first offset, and the end, which is exclusive."""


class Bounds(NamedTuple):
    """What to read.

    Attributes:
        last: how many of the newest records; None for all.
        since, until: times in milliseconds since 1970; None for any. The second is exclusive.
        follows: whether new records come too, so that there is no end.
    """

    last: int | None = None
    since: int | None = None
    until: int | None = None
    follows: bool = False

    @property
    def is_given(self) -> bool:
        return self[:3] != (None, None, None)


def choose_records(bounds: Bounds, where: str | None) -> Wanted | None:
    """Whether a record is asked for, by its time and by --where; None if all are.

    Raises:
        UsageError: the expression has another form.
    """
    since = bounds.since
    read = None if where is None else Expression(where, "--where").read
    if since is None and read is None:
        return None
    # The offset of a time is that of the first record at or after it. Older ones may follow.
    return lambda record: (
        (since is None or record.timestamp >= since) and (read is None or bool(read(Seen(record))))
    )


def read_bounds(arguments: argparse.Namespace, now_ms: int) -> Bounds:
    """Raises:
    UsageError: a time has another form, or two options contradict each other.
    """
    since, until = (
        None if text is None else read_time(f"--{name}", text, now_ms)
        for name, text in (("since", arguments.since), ("until", arguments.until))
    )
    if until is not None and arguments.follow:
        raise UsageError(f"--until {arguments.until} does not go with --follow: give one")
    if since is not None and until is not None and since >= until:
        raise UsageError(
            f"--since {arguments.since} is not before --until {arguments.until}: no record is"
        )
    return Bounds(arguments.last, since, until, arguments.follow)


def refuse_with_group(arguments: argparse.Namespace, names: Iterable[str]) -> None:
    """Raises:
    UsageError: one of these options is given, and they say what a group says.
    """
    for name in names:
        if is_given(getattr(arguments, name)):
            raise UsageError(
                f"--{name} does not go with a group, which assigns partitions and keeps "
                "offsets; change these with `trimtab groups --reset-offsets`"
            )


def read_time(option: str, text: str, now_ms: int) -> int:
    """A time in milliseconds since 1970: so long ago, or as ISO 8601 has it.

    Raises:
        UsageError: the text has another form.
    """
    if text.isdecimal() and text.isascii():
        return int(text)
    ago = _AGO.findall(text)
    if ago and "".join(map("".join, ago)) == text:
        return now_ms - round(1000 * sum(float(count) * _UNITS[unit] for count, unit in ago))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: write so long ago, such as 90s, 15m, 1h30m or 7d, or a time such "
            "as 2026-01-31T08:00 or 2026-01-31T08:00+02:00"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def find_span(consumer: Consumer, partitions: Collection[TopicPartition], bounds: Bounds) -> Span:
    """The offsets that there are now, within the times."""
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    # In a transaction that is open, an offset may be found after the end.
    if bounds.since is not None:
        starts = _find_time(consumer, ends, bounds.since)
    if bounds.until is not None:
        ends = _find_time(consumer, ends, bounds.until)
    return {each: (min(starts[each], ends[each]), ends[each]) for each in partitions}


def _find_time(
    consumer: Consumer, ends: Mapping[TopicPartition, int], at: int
) -> dict[TopicPartition, int]:
    """The first offset at or after a time; the partition's end if there is none."""
    found = consumer.offsets_for_times(dict.fromkeys(ends, max(0, at)))
    return {
        partition: ends[partition] if first is None else min(first.offset, ends[partition])
        for partition, first in found.items()
    }


class Source:
    """Reads what is assigned to a consumer: to the ends of a span, or for ever.

    The consumer's `auto.offset.reset` is none, if there is a span.

    Args:
        span: None reads for ever.
        merged: the consumer's records in order, if they are to be read so.
        waits: whether it waits for a topic that was deleted, which may be created again.
    """

    def __init__(
        self,
        consumer: Consumer,
        span: Span | None,
        merged: MergedRecords | None = None,
        waits: bool = False,
    ) -> None:
        self._consumer, self._merged = consumer, merged
        self._ends: dict[tuple[str, int], int] | None = None
        if span is not None:
            self._ends = {partition: end for partition, (_, end) in span.items()}
        self._left = {each for each, (start, end) in (span or {}).items() if start < end}
        self._waits = waits
        self._gone_since: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all partitions that are assigned were read to their ends."""
        assigned = self._consumer.assignment()
        return self._ends is not None and bool(assigned) and self._left.isdisjoint(assigned)

    def seek(self, partition: TopicPartition, start: int | OffsetAndMetadata) -> None:
        # Who merges looks up the ends himself, and must be able to read up to these.
        ends = None if self._merged is not None else self._ends
        self._consumer.seek(partition, start, None if ends is None else ends.get(partition, 0))

    def poll(self, timeout_ms: int = POLL_MS, max_records: int | None = None) -> list[Record]:
        """The next records before the ends."""
        source = self._consumer if self._merged is None else self._merged
        records = self.read(lambda: source.poll(timeout_ms, max_records)) or []
        ends = self._ends
        # The last batch that is fetched may have records behind the end.
        return (
            records if ends is None else [each for each in records if each.offset < ends[each[:2]]]
        )

    def read(self, call: Callable[[], T]) -> T | None:
        """What a call to the consumer returns, a list or a table; None if it must be repeated.

        Raises:
            BrokerError: a topic was deleted, or records that were read are no longer in the log.
        """
        try:
            found = call()
        except BrokerError as error:
            self._go_behind(error)
            return None
        self._look_for_topics(bool(found))
        if self._left and self._ends is not None:
            self._look_for_ends(self._ends, found)
        return found

    def _look_for_ends(self, ends: Mapping[tuple[str, int], int], found: object) -> None:
        """Without a record, too, a position may reach an end: the last offsets of a partition may
        be of transaction markers, or of records that are compacted."""
        looked = self._left & self._consumer.assignment()
        merged = None if self._merged is None else self._merged.offsets()
        if merged is not None:
            self._left -= {each for each in looked if merged[each].offset >= ends[each]}
            return
        if isinstance(found, list) and found:
            looked.intersection_update({each[:2] for each in found})
        self._left -= {each for each in looked if self._consumer.position(each) >= ends[each]}

    def _look_for_topics(self, has_records: bool) -> None:
        """A consumer itself waits for a topic that was deleted."""
        problem = None if has_records or self._waits else self._consumer.problem()
        if not isinstance(problem, BrokerError) or problem.code not in _GONE:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = monotonic_clock()
        elif monotonic_clock() - self._gone_since >= GONE_S:
            raise BrokerError(problem.code, "the topic was deleted meanwhile", problem.subject)

    def _go_behind(self, error: BrokerError) -> None:
        """Go on behind records that were deleted before they were read, as by retention."""
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or isinstance(error, LogTruncation):
            raise error
        consumer = self._consumer
        [partition] = [each for each in consumer.assignment() if str(each) == error.subject]
        at, [start] = consumer.position(partition), consumer.beginning_offsets([partition]).values()
        if start <= at:
            raise error
        say_warning(f"{partition}: offsets {at} to {start - 1} were deleted before they were read")
        self.seek(partition, start)


def read_span(consumer: Consumer, span: Span, stop: Stop) -> Iterator[Record]:
    """Every record of these offsets, as they come from the partitions."""
    source = Source(consumer, span)
    consumer.assign(span)
    for partition, (start, _) in span.items():
        source.seek(partition, start)
    while not source.is_over and not stop.code:
        yield from source.poll()


def read_last(
    consumer: Consumer, span: Span, count: int, is_wanted: Wanted | None, stop: Stop
) -> list[Record]:
    """The newest wanted records of a span, oldest first by time.

    Each partition is read backwards in windows that double, until a whole window is older than the
    records that were found. So of balanced partitions about six times `count` records are read.
    """
    newest: list[tuple[int, TopicPartition, int, Record]] = []
    unread = {each: bounds for each, bounds in span.items() if bounds[0] < bounds[1]}
    width = max(_LEAST_WINDOW, 2 * count // max(1, len(unread)))
    while unread and not stop.code:
        window = {each: (max(start, end - width), end) for each, (start, end) in unread.items()}
        latest: dict[TopicPartition, int] = {}
        for record in read_span(consumer, window, stop):
            partition = TopicPartition(record.topic, record.partition)
            latest[partition] = max(record.timestamp, latest.get(partition, record.timestamp))
            if is_wanted is None or is_wanted(record):
                found = record.timestamp, partition, record.offset, record
                (heappush if len(newest) < count else heappushpop)(newest, found)
        oldest = newest[0][0] if len(newest) == count else None
        unread = {
            each: (start, window[each][0])
            for each, (start, _) in unread.items()
            if start < window[each][0] and (oldest is None or latest.get(each, oldest) >= oldest)
        }
        width *= 2
    return [record for _, _, _, record in sorted(newest, key=lambda found: found[:3])]
