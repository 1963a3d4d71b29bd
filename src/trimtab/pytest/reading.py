"""Reads the records of a topic, and asserts which ones a block of code produces.

Tests: test_plugin.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Protocol

from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.network.option_types import ConnectionOptions
from trimtab.kafka.arguments import checked_integer, checked_seconds
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import Deserializer, Record, TopicPartition

_POLL_MS = 50
_PATIENCE: ConnectionOptions = {
    "request_timeout_ms": 2000,
    "socket_connection_setup_timeout_ms": 1000,
    "socket_connection_setup_timeout_max_ms": 1000,
}
"""How long a broker may take to answer: the test may have cut it off."""
_SHOWN = 10
"""Records that the message of a failed assertion shows."""


class TopicReader:
    """Reads topics of one cluster; for the whole session, as connections take time.

    Args:
        bootstrap_servers: the cluster's addresses.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._admin = Admin(bootstrap_servers, **_PATIENCE)

    def close(self) -> None:
        """Close its connections."""
        self._admin.close()

    def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """The end of each partition; of none if there is no such topic yet."""
        try:
            found = self._admin.list_offsets(self._partitions(topic), at="latest")
        except BrokerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return {}
            raise
        return {partition: listed.offset for partition, listed in found.items()}

    def read(
        self,
        topic: str,
        starts: Mapping[TopicPartition, int],
        count: int | None,
        timeout_s: float,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> list[Record]:
        """The records from `starts` to the present end; waits for as many as `count`.

        Raises:
            AssertionError: the present end was not reached in time.
        """
        __tracebackhide__ = True
        deadline = monotonic() + timeout_s
        records: list[Record] = []
        with Consumer(
            self._servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            **_PATIENCE,
        ) as consumer:
            partitions = self._partitions(topic)
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, starts.get(partition, 0))
            while True:
                ends = consumer.end_offsets(partitions)
                while behind := [
                    partition
                    for partition in partitions
                    if consumer.position(partition) < ends[partition]
                ]:
                    if monotonic() > deadline:
                        break
                    records += consumer.poll(_POLL_MS)
                missing = count is not None and len(records) < count
                if behind and not missing:
                    first = behind[0]
                    raise AssertionError(
                        f"partition {first.partition} of {topic!r} was read up to offset "
                        f"{consumer.position(first)} of {ends[first]} within {timeout_s} s; is its "
                        f"leader down? Else give more timeout_s{_shown(records)}"
                    )
                if not missing or monotonic() > deadline:
                    return sorted(records, key=lambda record: (record.partition, record.offset))
                records += consumer.poll(_POLL_MS)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        count = len(self._admin.describe_topics([topic])[topic].partitions)
        return [TopicPartition(topic, number) for number in range(count)]


class ReadRecords:
    """The type of the fixture `kafka_records`."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader

    def __call__(
        self,
        topic: str,
        count: int | None = None,
        timeout_s: float = 10,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> list[Record]:
        """The records of a topic up to its present end, ordered by partition and offset. Those of
        aborted and open transactions are left out.

        Args:
            count: wait until there are as many; None does not wait.
            timeout_s: how long to wait, seconds.

        Raises:
            AssertionError: there are fewer than `count` when the time is over, or the present end
                of a partition was not reached.
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        __tracebackhide__ = True
        _check(count, timeout_s)
        records = self._reader.read(
            topic, {}, count, timeout_s, key_deserializer, value_deserializer
        )
        if count is not None and len(records) < count:
            raise AssertionError(
                f"{topic!r} has {_counted(len(records))} after {timeout_s} s, not {count}"
                f"{_shown(records)}"
            )
        return records


class AssertProduces(Protocol):
    """The type of the fixture `assert_produces`."""

    def __call__(
        self,
        topic: str,
        values: Sequence[object] | None = None,
        count: int | None = None,
        timeout_s: float = 10,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> AbstractContextManager[list[Record]]: ...


@dataclass(eq=False)
class expect_records:  # noqa: N801 - used like a function
    """Assert which records a block produces to a topic, itself or through others.

    `with` gives a list, which has them after the block, ordered by partition and offset. If the
    block raises, nothing is asserted.

    Args:
        values: those expected, in any order.
        count: how many are expected; without `values` and `count`, one or more.
        timeout_s: how long to wait for them after the block, seconds.

    Raises:
        AssertionError: too few have come when the time is over, too many, or others.
    """

    reader: TopicReader
    topic: str
    values: Sequence[object] | None = None
    count: int | None = None
    timeout_s: float = 10
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        values, count = self.values, self.count
        if isinstance(values, str | bytes):
            raise UsageError(f"values={values!r}: give a list of values, such as [{values!r}]")
        if values is not None and count is not None:
            raise UsageError("values and count are both given; give one")
        _check(count, self.timeout_s)
        self._is_exact = values is not None or count is not None
        self._least = len(values) if values is not None else 1 if count is None else count
        self._starts: Mapping[TopicPartition, int] = {}
        self._produced: list[Record] = []

    def __enter__(self) -> list[Record]:
        self._starts = self.reader.end_offsets(self.topic)
        return self._produced

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        if error is not None:
            return
        self._produced += self.reader.read(
            self.topic,
            self._starts,
            self._least,
            self.timeout_s,
            self.key_deserializer,
            self.value_deserializer,
        )
        found, least = len(self._produced), self._least
        if found < least or (found > least and self._is_exact):
            within = f" within {self.timeout_s} s" if found < least else ""
            raise AssertionError(
                f"{_counted(found)} produced to {self.topic!r}{within}, not {least}"
                + (_compared(self.values, self._produced) or _shown(self._produced))
            )
        if differences := _compared(self.values, self._produced):
            raise AssertionError(f"other records produced to {self.topic!r}{differences}")


def _check(count: int | None, timeout_s: float) -> None:
    if count is not None:
        checked_integer("count", count)
    checked_seconds("timeout_s", timeout_s)


def _compared(values: Sequence[object] | None, produced: Sequence[Record]) -> str:
    """What is missing and what is too much; "" if nothing is."""
    if values is None:
        return ""
    lines: list[str] = []
    expected, found = ([repr(each) for each in values], [repr(each.value) for each in produced])
    for title, missing in (
        ("missing", Counter(expected) - Counter(found)),
        ("not expected", Counter(found) - Counter(expected)),
    ):
        if missing:
            lines.append(f"\n  {title}: {_listed(list(missing.elements()))}")
    return "".join(lines)


def _shown(records: Sequence[Record]) -> str:
    return f"\n  values: {_listed([repr(each.value) for each in records])}" if records else ""


def _listed(shown: Sequence[str]) -> str:
    more = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f", and {more} more" if more > 0 else "")


def _counted(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"
