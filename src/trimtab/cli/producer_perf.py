"""Measure a producer: send as fast as it goes, or at a rate; print throughput and latency.

The options and the lines printed are those of kafka-producer-perf-test, so figures and scripts
carry over. A latency runs from the call of send to the acknowledgement, in milliseconds. MB are
2^20 bytes, as there.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.failures import Failures
from trimtab.cli.options import add_client_options, read_client_options
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.accumulator_cy import Delivery

EXAMPLES = """\
  trimtab producer-perf --topic t --num-records 1000000 --record-size 100 --throughput -1
  trimtab producer-perf --topic t --num-records 60000 --record-size 512 --throughput 2000 \\
      --producer-props linger.ms=10 batch.size=131072 acks=all --print-metrics
  trimtab producer-perf --topic t --num-records 100000 --payload-file lines.txt --throughput -1
"""

DISTINCT_PAYLOADS = 10_000
"""Random payloads are made before the clock starts, this many at most, and then sent in turn."""

SAMPLES = 500_000
"""Latencies kept for the percentiles, as in Kafka's tool; average and maximum are of all."""

FOLD = 65_536
"""Latencies that may wait to be added up."""

SHORTEST_SLEEP_S = 0.002


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="send to this topic")
    parser.add_argument(
        "--num-records", required=True, type=_positive, metavar="N", help="how many to send"
    )
    parser.add_argument(
        "--throughput",
        required=True,
        type=float,
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
        "--reporting-interval",
        type=_positive,
        default=5000,
        metavar="MS",
        help="time between two lines of progress (default: 5000)",
    )
    parser.add_argument(
        "--print-metrics", action="store_true", help="print the producer's metrics at the end"
    )
    add_client_options(parser, properties=["--producer-props"], files=["--producer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.producer import Producer

    options = read_client_options(arguments)
    options.setdefault("client.id", "perf-producer-client")
    next_payload = choose_payloads(arguments, random.Random(0))
    total: int = arguments.num_records
    failures = Failures()
    with Producer(**options) as producer, collector_paused():
        statistics = Statistics(total, arguments.reporting_interval, _now_ms(), print)

        def acknowledged(sent_ms: float, size: int, delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                now_ms = _now_ms()
                statistics.record(now_ms - sent_ms, size, now_ms)
            else:
                failures.add(error)

        topic = arguments.topic
        rate = arguments.throughput
        started_s = time.monotonic()
        for number in range(1, total + 1):
            payload = next_payload()
            watch = partial(acknowledged, _now_ms(), len(payload))
            producer.send(topic, payload).add_done_callback(watch)
            if rate > 0:
                ahead_s = started_s + number / rate - time.monotonic()
                if ahead_s > SHORTEST_SLEEP_S:
                    time.sleep(ahead_s)
        producer.flush()
        if statistics.count:
            print(statistics.total(_now_ms()))
        if arguments.print_metrics:
            print_metrics(list_metrics(producer.metrics(), options["client.id"]))
    return failures.report(total)


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


class Statistics:
    """Counts acknowledgements and words them as Kafka's ProducerPerformance does.

    Args:
        expected: how many records are to come; decides which latencies are kept for percentiles.
        interval_ms: a window's length; at its end a line goes to `report`.
        now_ms: the time at the start. Times are milliseconds of any one clock.
    """

    def __init__(
        self, expected: int, interval_ms: float, now_ms: float, report: Callable[[str], object]
    ) -> None:
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
            self._report(self._word_window(now_ms))
            self._window = _Sums()
            self._window_started_ms = now_ms
        elif len(self._latencies) >= FOLD:
            self._fold()

    def total(self, now_ms: float) -> str:
        """The closing line. At least one record must have been counted."""
        self._fold()
        sums = self._all
        rate, megabytes = sums.rates(now_ms - self._started_ms)
        ordered = sorted(self._samples)
        p50, p95, p99, p999 = (ordered[int(p * len(ordered))] for p in (0.5, 0.95, 0.99, 0.999))
        return (
            f"{sums.count} records sent, {rate:.6f} records/sec ({megabytes:.2f} MB/sec), "
            f"{sums.latency_sum / sums.count:.2f} ms avg latency, "
            f"{sums.latency_max:.2f} ms max latency, {p50} ms 50th, {p95} ms 95th, "
            f"{p99} ms 99th, {p999} ms 99.9th."
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
    separator = b"\n" if delimiter == "\\n" else delimiter.encode()
    if not separator:
        raise UsageError("--payload-delimiter is empty: name at least one character")
    payloads = content.removesuffix(separator).split(separator)
    if not content:
        raise UsageError(f"the payload file {path} is empty: it must hold at least one payload")
    print(f"Number of records read: {len(payloads)}")
    return payloads


def list_metrics(metrics: Mapping[str, Any], client_id: str) -> dict[str, float]:
    """A producer's metrics by the names that Kafka's tools print: group, metric, tags."""
    listed = {
        f"producer-metrics:{name}:{{client-id={client_id}}}": float(value)
        for name, value in metrics.items()
        if name != "node"
    }
    for node, traffic in metrics["node"].items():
        tags = f"{{client-id={client_id}, node-id=node-{node}}}"
        for name, value in traffic.items():
            listed[f"producer-node-metrics:{name}:{tags}"] = float(value)
    return listed


def print_metrics(listed: Mapping[str, float]) -> None:
    """One metric a line, aligned as Kafka's tools do."""
    width = max(map(len, listed))
    print(f"\n{'Metric Name':<{width}}   Value")
    for name, value in sorted(listed.items()):
        print(f"{name:<{width}} : {value:.3f}")


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} must be greater than zero")
    return number


def _now_ms() -> float:
    return time.perf_counter() * 1000
