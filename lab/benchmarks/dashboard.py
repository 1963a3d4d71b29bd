"""`trimtab dashboard` on a cluster of 9,000 topics and 40,000 partitions, with load; and, with its
jars, on Apache Kafka with a hundred topics.

The page's process is measured: memory, CPU while nobody looks, CPU of one refresh for a reader, and
the seconds until a page is there. A refresh renders a page; readers of the same page share it. What
it asks the brokers is counted in this process, which watches the cluster as the page's does.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress, report
from lab.processes import Trimtab, cpu_seconds, peak_mib, resident_mib
from trimtab import AsyncAdmin, Producer
from trimtab.cli.live.source import Watched
from trimtab.client.network.connection import Connection
from trimtab.kafka.wire.schema import Request

TOPICS = 9_000
WIDE = 1_000
"""Topics with eight partitions; the others have four."""
PAGES = {
    "/": "cluster",
    "/topics": "topics",
    "/topics/t-0": "topic",
    "/brokers/1": "broker",
    "/racks": "racks",
    "/room": "room",
    "/plan": "plan",
}
WINDOW_S = 30
WATCHED_S = 60
REFRESHES = 50
LOADED = 200


def run(runs: int, records: int) -> None:
    sides: dict[str, tuple[Callable[[], Trimtab | KafkaCluster], int]] = {
        "trimtab": (lambda: Trimtab(3), TOPICS)
    }
    try:
        find_java()
        kafka_jars()
        sides["Apache Kafka"] = lambda: KafkaCluster(3), 100
    except RivalMissing as missing:
        progress(f"dashboard: {missing}")
    for name, (start, topics) in sides.items():
        progress(f"dashboard: {name}, {topics} topics")
        with start() as cluster:
            _measure(name, cluster.address, topics)


def _measure(cluster: str, servers: str, topics: int) -> None:
    wide = topics * WIDE // TOPICS
    partitions = asyncio.run(_create(servers, topics, wide))
    title = f"{cluster}, {topics:,} topics, {partitions:,} partitions"
    with _load(servers, min(topics, LOADED)), _dashboard(servers) as (pid, port):
        begin = time.monotonic()
        while b"busiest broker" not in _get(port, "/")[1]:
            if time.monotonic() - begin > 300:
                raise TimeoutError("the dashboard shows no load after 300 s")
            time.sleep(1)
        _tell(title, "first rates", "s", time.monotonic() - begin)
        before, begin = cpu_seconds(pid), time.monotonic()
        time.sleep(WATCHED_S)
        busy = (cpu_seconds(pid) - before) / (time.monotonic() - begin)
        _tell(title, "CPU while nobody looks", "% of a core", 100 * busy)
        for path, name in PAGES.items():
            took, spent = [], []
            for turn in range(REFRESHES):
                before, begin = _serving_seconds(pid), time.monotonic()
                _get(port, f"{path}?turn={turn}")  # another address, so it is drawn again
                took.append(time.monotonic() - begin)
                spent.append(_serving_seconds(pid) - before)
            _tell(title, f"CPU of a refresh, {name}", "ms", 1000 * sum(spent) / REFRESHES)
            _tell(title, f"page there, {name}, median", "ms", 1000 * sorted(took)[REFRESHES // 2])
            _tell(title, f"page there, {name}, slowest", "ms", 1000 * max(took))
        _tell(title, "memory", "MiB", resident_mib(pid))
        _tell(title, "most memory", "MiB", peak_mib(pid))
        for api, count in _count_requests(servers).most_common():
            _tell(title, f"requests, {api}", "a minute", count)


def _serving_seconds(pid: int) -> float:
    """CPU time of the first thread, which serves; another one watches the cluster."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _tell(title: str, what: str, unit: str, value: float) -> None:
    report(
        *("dashboard", f"{title}: {what}", unit, [value], "none", []),
        more_is_better=False,
        note="no other page shows it",
    )


def _count_requests(servers: str) -> Counter[str]:
    """The requests of a minute, all brokers together, once there are rates."""
    counts: Counter[str] = Counter()
    write = Connection._write

    def count(connection: Connection, request: Request[Any], *rest: Any) -> None:
        counts[type(request).__name__.removesuffix("Request")] += 1
        write(connection, request, *rest)

    with patch.object(Connection, "_write", count):
        options = {"bootstrap.servers": servers}
        with Watched(options, window_s=WINDOW_S, show_key=lambda key: key.hex()) as source:
            source.wait(0, 300)
            counts.clear()
            time.sleep(60)
            del counts["Produce"]  # of the load; the collector sends none without probes
            return Counter(counts)


async def _create(servers: str, topics: int, wide: int) -> int:
    """Create topics, some at a time; returns how many partitions they have."""
    free = asyncio.Semaphore(64)
    async with AsyncAdmin(servers) as admin:

        async def create(index: int) -> None:
            async with free:
                await admin.create_topic(f"t-{index}", partitions=8 if index < wide else 4)

        await asyncio.gather(*(create(index) for index in range(topics)))
    return 4 * topics + 4 * wide


@contextmanager
def _load(servers: str, topics: int) -> Iterator[None]:
    """About 1,000 records/s to some of the topics, half of them to the first."""
    over = threading.Event()

    def produce() -> None:
        with Producer(servers, linger_ms=100) as producer:
            while not over.wait(0.1):
                for index in range(50):
                    producer.send("t-0", bytes(500), key=b"hot" if index % 3 else b"%d" % index)
                    producer.send(f"t-{1 + index % (topics - 1)}", bytes(500))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _dashboard(servers: str) -> Iterator[tuple[int, int]]:
    """The process and the port of a dashboard."""
    words = [sys.executable, "-m", "trimtab", "dashboard", "--bootstrap-server", servers]
    words += ["--port", "0", "--window", str(WINDOW_S)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r":(\d+)/", line)
        if found is None:
            raise RuntimeError(f"the dashboard says {line!r}")
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.wait(30)


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
