"""Measure a producer's throughput and latency, sending at full speed or at a given rate.

The options and the output are those of kafka-producer-perf-test. Latency is the time from the call
of send to the acknowledgement, in milliseconds. One MB is 2^20 bytes, as in Kafka's tool. With
--transactional-id or --transaction-duration-ms records are sent in transactions.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.cli.metrics import describe_metrics, list_metrics, print_metrics
from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_client_options,
    refuse_broker_list,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import Failures
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.blocking.producer import Producer

EXAMPLES = """\
  trimtab producer-perf --topic t --num-records 1000000 --record-size 100 --throughput -1
  trimtab producer-perf --topic t --num-records 60000 --record-size 512 --throughput 2000 \\
      --command-property linger.ms=10 batch.size=131072 acks=all --print-metrics
  trimtab producer-perf --topic t --num-records 100000 --payload-file lines.txt --throughput -1
  trimtab producer-perf --topic t --num-records 100000 --record-size 100 --throughput -1 \\
      --transaction-duration-ms 500 --warmup-records 10000
"""

DISTINCT_PAYLOADS = 10_000
"""At most this many random payloads are generated before the measurement; they are then reused."""

SAMPLES = 500_000
"""About this many latencies are kept for percentiles, as in Kafka's tool; average and maximum
cover all records."""

FOLD = 65_536
"""Latencies are added to the sums when this many have been collected."""

SHORTEST_SLEEP_S = 0.002

CLIENT_ID = "perf-producer-client"
TRANSACTION_DURATION_MS = 3000


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--topic TOPIC": "send to this topic",
        "--num-records N>0": "send this many records",
        "--throughput N": "send at about this many records per second; -1: as fast as possible",
        "--record-size BYTES>0": "payloads are this many random letters",
        "| --payload-file FILE": "payloads are chosen at random from this file",
        "| --payload-monotonic": "payloads are the numbers 0, 1, 2, … as text",
        "--payload-delimiter TEXT=\\n": "the separator of payloads in --payload-file (default: a "
        "new line)",
        "--key-distribution {none,range,random}=none": "keys: none; range: 0 to "
        "--record-key-range - 1, over and over; random: a random one of them",
        "--record-key-range N>0": "number of different keys",
        "--keyed-share SHARE=1.0": "share of the records that have a key, 0 to 1 (default: 1; not "
        "in Kafka's tool)",
        "--random-seed N=0": "seed of random payloads and keys: the same seed sends the same "
        "records",
        "--transactional-id ID": "send in transactions with this id; overrides the client option "
        "transactional.id (default with --transaction-duration-ms: performance-producer- and a "
        "random UUID)",
        "--transaction-duration-ms MS>0": "commit each transaction after this time, in "
        "milliseconds, and begin the next (default with a transactional id: "
        f"{TRANSACTION_DURATION_MS})",
        "--warmup-records N=0": "print a second summary without the first N records (KIP-1052; "
        "default: 0)",
        "--reporting-interval MS>0=5000": "print a line of progress every MS milliseconds",
        "--print-metrics": "print the producer's metrics at the end",
        "--json": "print the results as one JSON object; progress goes to standard error",
    }
    add_options(
        parser,
        options,
        required=("--topic", "--num-records", "--throughput", "--record-size"),
        types={"--throughput": _rate, "--keyed-share": _share},
    )
    add_client_options(parser, properties=["--producer-props"], files=["--producer.config"])
    refuse_broker_list(parser)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.blocking.producer import Producer

    total: int = arguments.num_records
    if arguments.warmup_records >= total:
        raise UsageError(
            f"--warmup-records {arguments.warmup_records}: must be fewer than --num-records {total}"
        )
    options = read_client_options(arguments, "producer")
    options.setdefault("client.id", CLIENT_ID)
    transaction_ms = choose_transactions(arguments, options)
    draw = random.Random(arguments.random_seed)
    with progress_apart(arguments.json):
        next_payload = choose_payloads(arguments, draw)
    next_key = choose_keys(arguments, draw)
    failures = Failures()
    producer = Producer(**options)
    try:
        with report_unreachable(options), collector_paused(), progress_apart(arguments.json):
            if transaction_ms is not None:
                producer.init_transactions()
            summaries = send_all(
                producer, arguments, next_payload, next_key, transaction_ms, failures
            )
        metrics = list_metrics(producer.metrics(), options["client.id"])
        if arguments.json:
            result = {
                "failed": failures.count,
                **{"steady_state" if of.is_steady else "all": of.describe() for of in summaries},
                **({"metrics": describe_metrics(metrics)} if arguments.print_metrics else {}),
            }
            print(json.dumps(result, indent=2))
        else:
            for summary in summaries:
                print(summary)
            if arguments.print_metrics:
                print_metrics(metrics)
    except BaseException:
        producer.close(timeout=0)  # after Ctrl-C or an error, do not wait for unsent records
        raise
    producer.close()
    return failures.report(total)


def send_all(
    producer: Producer,
    arguments: argparse.Namespace,
    next_payload: Callable[[], bytes],
    next_key: Callable[[], bytes | None] | None,
    transaction_ms: float | None,
    failures: Failures,
) -> list[PerfSummary]:
    """Send all records at the given rate, and wait for their acknowledgements.

    Returns:
        The summary of all records, then with a warm-up the one of the records after it. A summary
        of no acknowledged records is left out.
    """
    total, topic, rate = arguments.num_records, arguments.topic, arguments.throughput
    warmup, interval_ms = arguments.warmup_records, arguments.reporting_interval
    if warmup > 0:
        print(
            f"Warmup first {warmup} records. Steady state results will print after the complete "
            "test summary."
        )
    whole = Statistics(total, interval_ms, _now_ms(), print)
    steady: Statistics | None = None

    def acknowledged(
        sent_ms: float, size: int, steady: Statistics | None, delivery: Delivery
    ) -> None:
        error = delivery.exception()
        if error is not None:
            failures.count_failure(error)
            return
        now_ms = _now_ms()
        whole.record(now_ms - sent_ms, size, now_ms)
        if steady is not None:
            steady.record(now_ms - sent_ms, size, now_ms)

    send = producer.send
    key = None
    transaction_began_ms: float | None = None
    started_s = time.monotonic()
    for number in range(total):
        payload = next_payload()
        if next_key is not None:
            key = next_key()
        if transaction_ms is not None and transaction_began_ms is None:
            producer.begin_transaction()
            transaction_began_ms = _now_ms()
        sent_ms = _now_ms()
        if number == warmup and warmup > 0:
            steady = Statistics(total - warmup, interval_ms, sent_ms, print, is_steady=True)
            whole.silence()
        send(topic, payload, key, on_delivery=partial(acknowledged, sent_ms, len(payload), steady))
        if (
            transaction_ms is not None
            and transaction_began_ms is not None
            and sent_ms - transaction_began_ms >= transaction_ms
        ):
            producer.commit_transaction()
            transaction_began_ms = None
        if rate > 0:
            ahead_s = started_s + (number + 1) / rate - time.monotonic()
            if ahead_s > SHORTEST_SLEEP_S:
                time.sleep(ahead_s)
    if transaction_began_ms is not None:
        producer.commit_transaction()
    producer.flush()
    ended_ms = _now_ms()
    return [each.total(ended_ms) for each in (whole, steady) if each is not None and each.count]


def choose_transactions(arguments: argparse.Namespace, options: dict[str, Any]) -> float | None:
    """How long a transaction lasts, in milliseconds; None without transactions.

    Adds the transactional id to the options; a random one if it is needed but not given.
    """
    if arguments.transactional_id is not None:
        options["transactional.id"] = arguments.transactional_id
    duration_ms: int | None = arguments.transaction_duration_ms
    if duration_ms is None:
        return TRANSACTION_DURATION_MS if "transactional.id" in options else None
    options.setdefault("transactional.id", f"performance-producer-{uuid.uuid4()}")
    return duration_ms


def choose_keys(
    arguments: argparse.Namespace, draw: random.Random
) -> Callable[[], bytes | None] | None:
    """A function that returns the next record's key; None if no record has a key.

    Raises:
        UsageError: of --key-distribution and --record-key-range only one is given.
    """
    distribution: str = arguments.key_distribution
    keys: int | None = arguments.record_key_range
    if distribution == "none":
        if keys is not None:
            raise UsageError(f"--record-key-range {keys} needs --key-distribution range or random")
        return None
    if keys is None:
        raise UsageError(f"--key-distribution {distribution} needs --record-key-range")
    share: float = arguments.keyed_share
    numbers = cycle(range(keys))

    def next_key() -> bytes | None:
        if share < 1 and draw.random() >= share:
            return None
        return b"%d" % (next(numbers) if distribution == "range" else draw.randrange(keys))

    return next_key


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable Python's cycle collector: its pauses grow with the number of unsent records, and
    would count as latency. Nothing here creates cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def progress_apart(is_json: bool) -> Iterator[None]:
    """With --json, redirect progress from standard output to standard error."""
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        yield


class PerfSummary(NamedTuple):
    """The results of a run; as text, the last line of Kafka's ProducerPerformance.

    Attributes:
        is_steady: the records of the warm-up are left out.
        megabytes_per_second: in units of 2^20 bytes.
        average: latency in milliseconds, as are all the attributes after it.
    """

    is_steady: bool
    records: int
    records_per_second: float
    megabytes_per_second: float
    average: float
    max: float
    p50: int
    p95: int
    p99: int
    p99_9: int

    def __str__(self) -> str:
        return (
            f"{self.records}{' steady state' if self.is_steady else ''} records sent, "
            f"{self.records_per_second:.6f} records/sec ({self.megabytes_per_second:.2f} MB/sec), "
            f"{self.average:.2f} ms avg latency, {self.max:.2f} ms max latency, "
            f"{self.p50} ms 50th, {self.p95} ms 95th, {self.p99} ms 99th, {self.p99_9} ms 99.9th."
        )

    def describe(self) -> dict[str, Any]:
        """For JSON."""
        latency = ("average", "max", "p50", "p95", "p99", "p99_9")
        return {
            "records": self.records,
            "records_per_second": self.records_per_second,
            "megabytes_per_second": self.megabytes_per_second,
            "latency_ms": {name: getattr(self, name) for name in latency},
        }


class Statistics:
    """Counts acknowledgements, and reports them in the words of Kafka's ProducerPerformance.

    Args:
        expected: number of records to be sent; decides which latencies are kept for percentiles.
        interval_ms: length of a window; at its end `report` is called with a line of text.
        now_ms: the time at the start. All times are milliseconds of one clock.
        is_steady: the records are those after the warm-up, and the lines say so (KIP-1052).
    """

    def __init__(
        self,
        expected: int,
        interval_ms: float,
        now_ms: float,
        report: Callable[[str], object],
        is_steady: bool = False,
    ) -> None:
        self._is_steady = is_steady
        self._every = max(1, expected // SAMPLES)
        self._interval_ms = interval_ms
        self._report = report
        self._started_ms = self._window_started_ms = now_ms
        self._samples = array("i")
        # Not yet added to the sums, because `record` runs once per record and must be cheap.
        self._latencies: list[float] = []
        self._bytes = 0
        self._all = _Sums()
        self._window = _Sums()

    @property
    def count(self) -> int:
        """Records acknowledged so far."""
        return self._all.count + len(self._latencies)

    def record(self, latency_ms: float, size: int, now_ms: float) -> None:
        """Count the acknowledgement of a record of `size` bytes."""
        self._latencies.append(latency_ms)
        self._bytes += size
        if now_ms - self._window_started_ms >= self._interval_ms:
            self._fold()
            if self._is_steady and self._window.count == self._all.count:
                self._report("In steady state.")
            self._report(self._word_window(now_ms))
            self._window = _Sums()
            self._window_started_ms = now_ms
        elif len(self._latencies) >= FOLD:
            self._fold()

    def silence(self) -> None:
        """Report no more windows, because the statistics after the warm-up report theirs."""
        self._report = lambda line: None

    def total(self, now_ms: float) -> PerfSummary:
        """The summary. At least one record must have been counted."""
        self._fold()
        sums = self._all
        rate, megabytes = sums.rates(now_ms - self._started_ms)
        ordered = sorted(self._samples)
        p50, p95, p99, p999 = (ordered[int(p * len(ordered))] for p in (0.5, 0.95, 0.99, 0.999))
        average = sums.latency_sum / sums.count
        return PerfSummary(
            *(self._is_steady, sums.count, rate, megabytes, average, sums.latency_max),
            *(p50, p95, p99, p999),
        )

    def _word_window(self, now_ms: float) -> str:
        sums = self._window
        rate, megabytes = sums.rates(now_ms - self._window_started_ms)
        return (
            f"{sums.count} records sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec), "
            f"{sums.latency_sum / sums.count:.1f} ms avg latency, "
            f"{sums.latency_max:.1f} ms max latency."
        )

    def _fold(self) -> None:
        first = -self._all.count % self._every  # index of the next latency to keep
        self._samples.extend(map(int, self._latencies[first :: self._every]))
        for sums in (self._all, self._window):
            sums.add_latencies(self._latencies, self._bytes)
        self._latencies.clear()
        self._bytes = 0


class _Sums:
    """Sums over the acknowledgements of a period."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.latency_sum = self.latency_max = 0.0

    def add_latencies(self, latencies: Sequence[float], size: int) -> None:
        if latencies:
            self.count += len(latencies)
            self.bytes += size
            self.latency_sum += sum(latencies)
            self.latency_max = max(self.latency_max, max(latencies))

    def rates(self, elapsed_ms: float) -> tuple[float, float]:
        """Records per second and MiB per second."""
        seconds = max(elapsed_ms, 1e-3) / 1000
        return self.count / seconds, self.bytes / seconds / 2**20


def choose_payloads(arguments: argparse.Namespace, draw: random.Random) -> Callable[[], bytes]:
    """A function that returns the next record's payload.

    Raises:
        UsageError: the payload file cannot be read, or is empty.
    """
    if arguments.payload_monotonic:
        numbers = count()
        return lambda: b"%d" % next(numbers)
    if arguments.payload_file is not None:
        payloads = read_payloads(arguments.payload_file, arguments.payload_delimiter)
        return lambda: draw.choice(payloads)
    letters = bytes(65 + code * 26 // 256 for code in range(256))
    payloads = [
        draw.randbytes(arguments.record_size).translate(letters)
        for _ in range(min(arguments.num_records, DISTINCT_PAYLOADS))
    ]
    return cycle(payloads).__next__


def read_payloads(path: str, delimiter: str) -> Sequence[bytes]:
    """The parts of a file between delimiters; the two characters `\\n` mean a new line, as in Java.

    Raises:
        UsageError: the file cannot be read, or is empty.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the payload file {path}: {error.strerror}") from error
    print(f"Reading payloads from: {Path(path).absolute()}")
    separator = b"\n" if delimiter == "\\n" else delimiter.encode()
    if not separator:
        raise UsageError("--payload-delimiter is empty: name at least one character")
    payloads = content.removesuffix(separator).split(separator)
    if not content:
        raise UsageError(f"the payload file {path} is empty: it must hold at least one payload")
    print(f"Number of records read: {len(payloads)}")
    return payloads


def _share(text: str) -> float:
    share = _number(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 1")
    return share


def _rate(text: str) -> float:
    rate = _number(text)
    if rate != -1 and not rate > 0:
        raise argparse.ArgumentTypeError(f"{text} must be records per second, or -1 for no limit")
    return rate


def _number(text: str) -> float:
    """The number in a text; NaN, which is in no range, if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _now_ms() -> float:
    return time.perf_counter() * 1000
