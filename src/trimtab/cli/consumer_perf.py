"""Measure how fast a consumer reads, with the options and output of kafka-consumer-perf-test.

The consumer is a member of a group, and does nothing with the records but count them and their
bytes of keys and values. One MB is 2^20 bytes, as in Kafka's tool. Times are local.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trimtab.cli.consume import add_topics, read_topics
from trimtab.cli.date_format import parse_date_format
from trimtab.cli.metrics import describe_metrics, list_metrics, print_metrics
from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_client_options,
    refuse_broker_list,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.stopping import Stop
from trimtab.cli.style import say_warning
from trimtab.cli.table import show_count
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.blocking.consumer import Consumer

EXAMPLES = """\
  trimtab consumer-perf --topic t --num-records 1000000
  trimtab consumer-perf --topic t --num-records 1000000 --show-detailed-stats \\
      --reporting-interval 1000 --command-property max.poll.records=5000
  trimtab consumer-perf --include 'load-.*' --num-records 100000 --json
"""

CLIENT_ID: Final = "perf-consumer-client"
DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"
POLL_MS: Final = 100
_MEGABYTE: Final = 1024 * 1024

_HEAD_TIMES: Final = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
HEAD: Final = (
    f"start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    f"{_HEAD_TIMES}"
)
DETAILED_HEAD: Final = (
    f"time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, {_HEAD_TIMES}"
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    options = {
        "--num-records --messages N>0": "end after this many records",
        "--group GROUP": "the consumer group (default: perf-consumer- and a random number)",
        "--from-latest": "where the group has no offset, begin at the end (default: with the "
        "earliest record)",
        "--fetch-size BYTES>0": "most bytes of a partition in one fetch (default: 1048576)",
        "--socket-buffer-size BYTES>0": "receive buffer of the socket (default: 2097152)",
        "--timeout MS>0=10000": "end when no record has arrived for this many milliseconds",
        "--show-detailed-stats": "print a line each --reporting-interval, in place of one at the "
        "end",
        "--reporting-interval MS>0=5000": "with --show-detailed-stats: milliseconds between lines",
        "--hide-header": "leave out the first line",
        "--print-metrics": "print the consumer's metrics at the end",
        f"--date-format PATTERN={DATE_FORMAT}": "the form of times, as for Java's SimpleDateFormat",
        "--json": "print a JSON object for each line, without a header; another for the metrics",
    }
    add_options(
        parser, options, required=("--num-records",), types={"--date-format": parse_date_format}
    )
    add_client_options(parser, files=["--consumer.config"])
    refuse_broker_list(parser)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.blocking.consumer import Consumer

    options = read_options(arguments)
    topics = read_topics(arguments)
    is_json, is_detailed = arguments.json, arguments.show_detailed_stats
    if not is_json and not arguments.hide_header:
        print(DETAILED_HEAD if is_detailed else HEAD, flush=True)
    with Stop() as stop, report_unreachable(options), Consumer(**options) as consumer:
        clock = JoinClock()
        consumer.subscribe(topics, on_assigned=clock.assigned, on_revoked=clock.revoked)
        whole = read(consumer, arguments, clock, stop)
        if not is_detailed:
            print(json.dumps(whole.describe()) if is_json else whole, flush=True)
        metrics = list_metrics(consumer.metrics(), options["client.id"])
    if arguments.print_metrics and is_json:
        print(json.dumps({"metrics": describe_metrics(metrics)}))
    elif arguments.print_metrics:
        print_metrics(metrics)
    if whole.records < arguments.num_records and not stop.code:
        say_warning(
            f"WARNING: only {whole.records} of {show_count(arguments.num_records, 'record')}: none "
            f"arrived for {arguments.timeout} ms; --timeout waits longer"
        )
    return stop.code


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The consumer's options: those of the command, over properties, over the tool's defaults."""
    given = {
        "group.id": arguments.group,
        "receive.buffer.bytes": arguments.socket_buffer_size,
        "max.partition.fetch.bytes": arguments.fetch_size,
        "auto.offset.reset": "latest" if arguments.from_latest else None,
    }
    return {
        "client.id": CLIENT_ID,
        "check.crcs": "false",
        "group.id": f"perf-consumer-{random.randrange(100_000)}",
        "receive.buffer.bytes": 2 * _MEGABYTE,
        "max.partition.fetch.bytes": _MEGABYTE,
        "auto.offset.reset": "earliest",
        **read_client_options(arguments, "consumer"),
        **{name: value for name, value in given.items() if value is not None},
    }


class JoinClock:
    """How long the consumer has had no partitions: from the start, or from when it lost them all,
    until it gets some."""

    def __init__(self) -> None:
        self._owned: set[TopicPartition] = set()
        self._began_ms = _now_ms()
        self.total_ms = 0.0

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._owned.difference_update(partitions)
        if not self._owned:
            self._began_ms = _now_ms()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        if not self._owned:
            self.total_ms += _now_ms() - self._began_ms
        self._owned.update(partitions)


class Period(NamedTuple):
    """What was read in a period; as text, a line of Kafka's ConsumerPerformance.

    Attributes:
        began, ended: seconds since 1970.
        before: what had been read before the period: bytes and records.
        bytes, records: in all, since the start.
        joining_ms: milliseconds of the period in which the consumer had no partitions.
        is_whole: whether it is the whole run.
        write_time: the text of a time.
    """

    began: float
    ended: float
    before: tuple[int, int]
    bytes: int
    records: int
    joining_ms: int
    is_whole: bool
    write_time: Callable[[float], str]

    @property
    def rates(self) -> tuple[float, float]:
        """MB and records per second."""
        return self._rates((self.ended - self.began) * 1000)

    @property
    def fetching_ms(self) -> int:
        return round((self.ended - self.began) * 1000) - self.joining_ms

    @property
    def fetch_rates(self) -> tuple[float, float]:
        """The same without the time in which it had no partitions."""
        return self._rates(self.fetching_ms)

    def _rates(self, elapsed_ms: float) -> tuple[float, float]:
        if elapsed_ms <= 0:
            return 0.0, 0.0
        read = self.bytes - self.before[0], self.records - self.before[1]
        return read[0] / _MEGABYTE * 1000 / elapsed_ms, read[1] * 1000 / elapsed_ms

    def __str__(self) -> str:
        start = f"{self.write_time(self.began)}, {self.write_time(self.ended)}"
        (megabytes, records), (fetched, fetched_records) = self.rates, self.fetch_rates
        return (
            f"{start if self.is_whole else f'{self.write_time(self.ended)}, 0'}, "
            f"{self.bytes / _MEGABYTE:.4f}, {megabytes:.4f}, {self.records}, {records:.4f}, "
            f"{self.joining_ms}, {self.fetching_ms}, {fetched:.4f}, {fetched_records:.4f}"
        )

    def describe(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "start": self.write_time(self.began),
            "end": self.write_time(self.ended),
            "megabytes": self.bytes / _MEGABYTE,
            "megabytes_per_second": self.rates[0],
            "records": self.records,
            "records_per_second": self.rates[1],
            "rebalance_ms": self.joining_ms,
            "fetch_ms": self.fetching_ms,
            "fetch_megabytes_per_second": self.fetch_rates[0],
            "fetch_records_per_second": self.fetch_rates[1],
        }


def read(consumer: Consumer, arguments: argparse.Namespace, clock: JoinClock, stop: Stop) -> Period:
    """Read until there are enough records, none arrive, or a signal comes; returns the whole run,
    after having printed its parts with --show-detailed-stats."""
    wanted, patience_ms = arguments.num_records, arguments.timeout
    interval_ms = arguments.reporting_interval
    reports, write_time = arguments.show_detailed_stats, arguments.date_format
    began, part_began = time.time(), time.time()
    arrived_ms = reported_ms = _now_ms()
    size = records = 0
    before, joined_before = (0, 0), 0.0
    while records < wanted and not stop.code:
        part = consumer.poll(timeout_ms=POLL_MS)
        now_ms = _now_ms()
        if part:
            arrived_ms = now_ms
            records += len(part)
            for record in part:
                if record.key is not None:
                    size += len(record.key)
                if record.value is not None:
                    size += len(record.value)
        elif now_ms - arrived_ms > patience_ms:
            break
        if reports and now_ms - reported_ms >= interval_ms:
            joining_ms = round(clock.total_ms - joined_before)
            period = Period(
                part_began, time.time(), before, size, records, joining_ms, False, write_time
            )
            print(json.dumps(period.describe()) if arguments.json else period, flush=True)
            before, joined_before = (size, records), clock.total_ms
            part_began, reported_ms = time.time(), now_ms
    joining_ms = round(clock.total_ms)
    return Period(began, time.time(), (0, 0), size, records, joining_ms, True, write_time)


def _now_ms() -> float:
    return time.monotonic() * 1000
