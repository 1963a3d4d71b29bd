"""What a broker's metrics cost: the same load with metrics, scraped every second, and without.

Both sides are one process, which counts requests or not: two processes of the same program differ
by more than metrics cost. Small requests are the worst case, as metrics cost by request and scrape.
What a broker always counts, bytes and records by topic, is in both sides.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Topics, run_producer_loop
from lab.processes import STOP_SECONDS, cpu_seconds, resident_mib
from trimtab.kafka.wire.framing import encode_request
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

SCRAPE_S = 1.0
PRODUCES: Mapping[str, Mapping[str, object]] = {
    "produce, batches of 64 KiB": {"batch.size": 65_536, "linger.ms": 5},
    "produce, batches of 10 records": {"batch.num.messages": 10},
}
FETCHES = {"fetches of 1 MiB": (1 << 20, 5_000), "fetches of 64 KiB": (1 << 16, 40_000)}
"""Bytes of a response, and responses of a run."""
FETCH_VERSION = 12
PIPELINED = 5
_LENGTH = struct.Struct(">i")


class Node:
    """`lab.benchmarks.metrics_node` as a process, while entered."""

    name = "trimtab"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.benchmarks.metrics_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address, port = self._answer().split()
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._scrape()  # the first one imports what it needs
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def resident_mib(self) -> float:
        return resident_mib(self._process.pid)

    def switch(self, on: bool) -> float:
        """Count requests of new connections, or not; returns the CPU time so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("on\n" if on else "off\n")
        self._process.stdin.flush()
        return float(self._answer())

    @contextmanager
    def scraped(self, on: bool) -> Iterator[None]:
        """Fetch the metrics every second meanwhile, if `on`."""
        ended = threading.Event()

        def repeat() -> None:
            while on and not ended.wait(SCRAPE_S):
                self._scrape()

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _scrape(self) -> None:
        with urllib.request.urlopen(self._url) as page:
            page.read()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process with the broker has ended")
        return answer


def run(runs: int, records: int) -> None:
    with Node() as node:
        topic = Topics(node.address).create(1)
        run_producer_loop("confluent-kafka", node, records, {"batch.size": 60_000}, topic)
        for name, options in PRODUCES.items():
            compare(node, name, "record", records, runs, partial(produce, node, records, options))
        for name, (size, count) in FETCHES.items():
            compare(node, name, "response", count, runs, partial(fetch, node, topic, count, size))


def compare(
    node: Node, name: str, what: str, count: int, runs: int, load: Callable[[], float]
) -> None:
    """Run a load with and without metrics in turn, and report both.

    Args:
        count: of what a run has.
        load: its result is their number per second.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(runs):
        progress(f"metrics: {name}, run {number + 1} of {runs}")
        for on in (True, False) if number % 2 else (False, True):
            with node.scraped(on):
                before = node.switch(on)
                rates[on].append(load())
                times[on].append((node.switch(on) - before) / count * 1e6)
    for metric, unit, found, more_is_better in (
        (f"{what}s_per_s", f"{what}s/s", rates, True),
        (f"broker_cpu_us_per_{what}", "us", times, False),
    ):
        report(
            *("metrics", f"{metric}, {name}", unit, found[True]),
            *("trimtab without metrics", found[False]),
            more_is_better=more_is_better,
        )


def produce(node: Node, records: int, options: Mapping[str, object]) -> float:
    """Records per second of a producer."""
    return run_producer_loop("confluent-kafka", node, records, options).records_per_second


def fetch(node: Node, topic: str, count: int, size: int) -> float:
    """Responses per second to requests that are encoded before: the broker is the bottleneck. The
    record at offset 0 is in a batch of its own."""
    wanted = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    frame = b"".join(encode_request(request, FETCH_VERSION, 1, "bench"))
    host, _, port = node.address.partition(":")
    received = bytearray(2 * size)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(frame * PIPELINED)
        began = time.perf_counter()
        for number in range(count):
            (length,) = _LENGTH.unpack(receive(connection, memoryview(received)[:4]))
            if length < size // 2:
                raise RuntimeError(f"a response of {length} bytes, not of about {size}")
            receive(connection, memoryview(received)[:length])
            if number < count - PIPELINED:
                connection.sendall(frame)
        return count / (time.perf_counter() - began)


def receive(connection: socket.socket, into: memoryview) -> memoryview:
    """Fill the buffer."""
    found = 0
    while found < len(into):
        found += connection.recv_into(into[found:])
    return into
