"""Measure a producer: send as fast as it goes, or at a rate; print throughput and latency.

The options and the lines printed are those of kafka-producer-perf-test, so figures and scripts
carry over. A latency runs from the call of send to the acknowledgement, in milliseconds. MB are
2^20 bytes, as there. With a transactional id, or a --transaction-duration-ms, records are sent in
transactions.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.cli.failures import Failures
from trimtab.cli.options import add_client_options, read_client_options
from trimtab.cli.reach import unreachable_is_said
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.producer import Producer

EXAMPLES = """\
  trimtab producer-perf --topic t --num-records 1000000 --record-size 100 --throughput -1
  trimtab producer-perf --topic t --num-records 60000 --record-size 512 --throughput 2000 \\
      --command-property linger.ms=10 batch.size=131072 acks=all --print-metrics
  trimtab producer-perf --topic t --num-records 100000 --payload-file lines.txt --throughput -1
  trimtab producer-perf --topic t --num-records 100000 --record-size 100 --throughput -1 \\
      --transaction-duration-ms 500 --warmup-records 10000
"""

DISTINCT_PAYLOADS = 10_000
"""Random payloads are made before the clock starts, this many at most, and then sent in turn."""

SAMPLES = 500_000
"""Latencies kept for the percentiles, as in Kafka's tool; average and maximum are of all."""

FOLD = 65_536
"""Latencies that may wait to be added up."""

SHORTEST_SLEEP_S = 0.002

CLIENT_ID = "perf-producer-client"
TRANSACTION_DURATION_MS = 3000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="send to this topic")
    parser.add_argument(
        "--num-records", required=True, type=_positive, metavar="N", help="how many to send"
    )
    parser.add_argument(
        "--throughput",
        required=True,
        type=_rate,
        metavar="N",
        help="records per second, roughly, at most; -1: as fast as they go",
    )
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument(
        "--record-size", type=_positive, metavar="BYTES", help="random letters, so many"
    )
    payload.add_argument(
        "--payload-file", metavar="FILE", help="payloads drawn at random from this file"
    )
    payload.add_argument(
        "--payload-monotonic", action="store_true", help="the numbers 0, 1, 2, … as text"
    )
    parser.add_argument(
        "--payload-delimiter",
        default="\\n",
        metavar="TEXT",
        help="what separates the payloads of the file (default: a new line)",
    )
    parser.add_argument(
        "--key-distribution",
        choices=("none", "range", "random"),
        default="none",
        help="keys: none, the numbers below --record-key-range in turn, or such at random",
    )
    parser.add_argument(
        "--record-key-range", type=_positive, metavar="N", help="how many different keys"
    )
    parser.add_argument(
        "--keyed-share",
        type=_share,
        default=1.0,
        metavar="SHARE",
        help="how many of the records have a key, 0 to 1 (default: 1; not in Kafka's tool)",
    )
    parser.add_argument(
        "--random-seed",
        type=int,
        default=0,
        metavar="N",
        help="of payloads and keys: the same seed, the same records (default: 0)",
    )
    parser.add_argument(
        "--transactional-id",
        metavar="ID",
        help="send in transactions, as this producer; stronger than the option transactional.id "
        "(default with --transaction-duration-ms: performance-producer- and a random UUID)",
    )
    parser.add_argument(
        "--transaction-duration-ms",
        type=_positive,
        metavar="MS",
        help="commit a transaction that is this old, and begin the next "
        f"(default with a transactional id: {TRANSACTION_DURATION_MS})",
    )
    parser.add_argument(
        "--warmup-records",
        type=int,
        default=0,
        metavar="N",
        help="a second summary leaves out the first N records (KIP-1052; default: 0)",
    )
    parser.add_argument(
        "--reporting-interval",
        type=_positive,
        default=5000,
        metavar="MS",
        help="time between two lines of progress (default: 5000)",
    )
    parser.add_argument(
        "--print-metrics", action="store_true", help="print the producer's metrics at the end"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the figures as one JSON object; progress goes to standard error",
    )
    add_client_options(parser, properties=["--producer-props"], files=["--producer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.producer import Producer

    total: int = arguments.num_records
    if arguments.warmup_records >= total:
        raise UsageError(
            f"--warmup-records {arguments.warmup_records}: must be fewer than --num-records {total}"
        )
    options = read_client_options(arguments)
    options.setdefault("client.id", CLIENT_ID)
    transaction_ms = choose_transactions(arguments, options)
    draw = random.Random(arguments.random_seed)
    with progress_apart(arguments.json):
        next_payload = choose_payloads(arguments, draw)
    next_key = choose_keys(arguments, draw)
    failures = Failures()
    producer = Producer(**options)
    try:
        with unreachable_is_said(options), collector_paused(), progress_apart(arguments.json):
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
                **({"metrics": metrics} if arguments.print_metrics else {}),
            }
            print(json.dumps(result, indent=2))
        else:
            for summary in summaries:
                print(summary)
            if arguments.print_metrics:
                print_metrics(metrics)
    except BaseException:
        producer.close(timeout=0)  # after Ctrl-C nobody waits for what is still on its way
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
    """Send all records at the rate asked for and wait for their acknowledgements.

    Returns:
        The closing figures: of all records, and of those after the warm-up; none if all failed.
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
            failures.add(error)
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

    The transactional id, where one is needed and none given, is made up and added to the options.
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
    """The function that gives one key after the other; None for records without keys.

    Raises:
        UsageError: --key-distribution and --record-key-range do not go together.
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
    """Without Python's cycle collector: its pauses grow with what waits to be sent, nothing here
    makes cycles, and they would count as latency."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def progress_apart(is_json: bool) -> Iterator[None]:
    """With --json what is printed on the way goes to standard error."""
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        yield


class PerfSummary(NamedTuple):
    """What a run came to; its text is the line that Kafka's ProducerPerformance ends with.

    Attributes:
        megabytes_per_second: in units of 2^20 bytes.
        average: milliseconds, as all that follow.
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
    """Counts acknowledgements and words them as Kafka's ProducerPerformance does.

    Args:
        expected: how many records are to come; decides which latencies are kept for percentiles.
        interval_ms: a window's length; at its end a line goes to `report`.
        now_ms: the time at the start. Times are milliseconds of any one clock.
        is_steady: these are the records after the warm-up, and its lines say so (KIP-1052).
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
        # What is not yet folded into the sums: `record` runs once per record and does little.
        self._latencies: list[float] = []
        self._bytes = 0
        self._all = _Sums()
        self._window = _Sums()

    @property
    def count(self) -> int:
        """Records acknowledged so far."""
        return self._all.count + len(self._latencies)

    def record(self, latency_ms: float, size: int, now_ms: float) -> None:
        """One record of `size` bytes was acknowledged."""
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
        """Report no more windows: others are reported now."""
        self._report = lambda line: None

    def total(self, now_ms: float) -> PerfSummary:
        """The closing figures. At least one record must have been counted."""
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
        first = -self._all.count % self._every  # of what is folded now, the next one to be kept
        self._samples.extend(map(int, self._latencies[first :: self._every]))
        for sums in (self._all, self._window):
            sums.add(self._latencies, self._bytes)
        self._latencies.clear()
        self._bytes = 0


class _Sums:
    """Acknowledgements of some stretch of time, added up."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.latency_sum = self.latency_max = 0.0

    def add(self, latencies: Sequence[float], size: int) -> None:
        if latencies:
            self.count += len(latencies)
            self.bytes += size
            self.latency_sum += sum(latencies)
            self.latency_max = max(self.latency_max, max(latencies))

    def rates(self, elapsed_ms: float) -> tuple[float, float]:
        """Records and mebibytes a second."""
        seconds = max(elapsed_ms, 1e-3) / 1000
        return self.count / seconds, self.bytes / seconds / 2**20


def choose_payloads(arguments: argparse.Namespace, draw: random.Random) -> Callable[[], bytes]:
    """The function that gives one payload after the other.

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


def list_metrics(metrics: Mapping[str, Mapping[str, Any]], client_id: str) -> dict[str, Any]:
    """A producer's metrics by the names that Kafka's tools print: group, metric, tags.

    Groups of nodes or topics hold a set of metrics for each, which becomes a tag.
    """
    listed = {}
    for group, entries in metrics.items():
        tag = "node-id" if group == "producer-node-metrics" else "topic"
        for name, value in entries.items():
            if isinstance(value, Mapping):
                tags = f"{{client-id={client_id}, {tag}={name}}}"
                listed.update({f"{group}:{each}:{tags}": of for each, of in value.items()})
            else:
                listed[f"{group}:{name}:{{client-id={client_id}}}"] = value
    return listed


def print_metrics(listed: Mapping[str, Any]) -> None:
    """One metric a line, aligned as Kafka's tools do."""
    width = max(map(len, listed))
    print(f"\n{'Metric Name':<{width}}   Value")
    for name, value in sorted(listed.items()):
        print(f"{name:<{width}} : {_word_value(value)}")


def _word_value(value: object) -> str:
    """As Java words a double; whatever is no number as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if math.isfinite(value):
        return f"{value:.3f}"
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number greater than zero")
    return int(text)


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
    """NaN, which no range holds, for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _now_ms() -> float:
    return time.perf_counter() * 1000
