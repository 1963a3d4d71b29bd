"""A broker that becomes slow, or leads everything: what a producer notices, and for how long.

Three brokers, 12 partitions, RF 3; a producer sends 500 records of 1 kB a second, and notes how
long each takes. Then broker 0 becomes slow: its process is stopped for 20 ms, or 500 ms, half of
the time (SIGSTOP, SIGCONT), as by a slow disk or garbage collection. Or it leads all
partitions from the beginning. Nobody does anything; or preferred leaders are elected every five
seconds, as Kafka's tool and its automatic election do; or `trimtab balance --watch --probe
--leaders-only` runs.

With `ACKS=all` a record also waits for the slow broker while this follows in the ISR, whoever
leads; by default it waits for its leader only. Prints the 99th percentile before, meanwhile and
afterwards, and the seconds until broker 0 leads nothing, or a third. On trimtab and Apache Kafka.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import RivalMissing
from lab.benchmarks.report import progress, report
from lab.processes import Trimtab, nodes_of
from trimtab import Admin, AsyncProducer
from trimtab.kafka.errors import KafkaError

PARTITIONS = 12
RATE = 500
SIZE = 1_000
BEFORE_S = 15.0
"""The balancer measures meanwhile, as it does while it watches."""
TROUBLE_S = 25.0
RELIEF_S = 10.0
ACKS: Any = os.environ.get("ACKS", "1")
WAYS = ("nobody", "preferred election", "trimtab balance --watch")
TROUBLES = {"slow by 20 ms": 20.0, "slow by 500 ms": 500.0, "leads everything": 0.0}
_topics = count()


def run(runs: int, records: int) -> None:
    """Run each case once; `runs` and `records` are ignored."""
    makers: list[Any] = [Trimtab, KafkaCluster]
    for make in makers:
        try:
            with make(3) as cluster:
                for trouble, late_ms in TROUBLES.items():
                    found = {way: _measure(cluster, trouble, late_ms, way) for way in WAYS}
                    _tell(cluster.name, trouble, found)
        except RivalMissing as missing:
            progress(f"relief: no Apache Kafka: {missing}")


def _tell(where: str, trouble: str, found: dict[str, dict[str, float]]) -> None:
    ours = found[WAYS[-1]]
    for rival in WAYS[:-1]:
        for metric, value in ours.items():
            unit = "s" if metric == "seconds until relieved" else "ms"
            theirs = found[rival][metric]
            report(
                *("relief", f"{metric}, broker 0 {trouble}, on {where}", unit),
                *([value], rival, [theirs]),
                more_is_better=False,
            )


def _measure(cluster: Any, trouble: str, late_ms: float, way: str) -> dict[str, float]:
    progress(f"relief: broker 0 {trouble}, {way}, on {cluster.name}")
    topic = f"relief-{next(_topics)}"
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(cluster.address))
        placed = {
            index: [(index + step) % 3 for step in range(3)] if late_ms else [0, 1, 2]
            for index in range(PARTITIONS)
        }
        admin.create_topic(topic, assignment=placed, config={"min.insync.replicas": "2"})
        stack.callback(admin.delete_topic, topic)
        end_writing = stack.enter_context(_writer(cluster.address, topic))
        if not late_ms:
            time.sleep(BEFORE_S)
        trouble_s = time.time()
        if late_ms:
            stack.enter_context(_acting(way, cluster.address, admin, topic))
            time.sleep(BEFORE_S)
            trouble_s = time.time()
            stack.enter_context(_slowed(_pid_of(cluster), late_ms))
        else:
            stack.enter_context(_acting(way, cluster.address, admin, topic))
        relieved_s = _await_relief(admin, topic, 0 if late_ms else PARTITIONS // 3, trouble_s)
        end_s = time.time()
        times = end_writing()
    changed_s = end_s if relieved_s is None else trouble_s + relieved_s
    return {
        "seconds until relieved": float("nan") if relieved_s is None else relieved_s,
        "p99 before": _p99(times, trouble_s - 5, trouble_s),
        "p99 meanwhile": _p99(times, trouble_s, changed_s),
        "p99 afterwards": _p99(times, end_s - 8, end_s),
    }


def _await_relief(admin: Admin, topic: str, most: int, begin_s: float) -> float | None:
    """Seconds until broker 0 leads so many partitions at most; None if it does not come to that.
    Returns when the trouble is over."""
    found = None
    while (passed := time.time() - begin_s) < TROUBLE_S:
        with suppress(KafkaError):
            leaders = admin.describe_topics([topic])[topic].leaders
            if found is None and leaders.count(0) <= most:
                found = passed
        time.sleep(0.1)
    return found


def _p99(times: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """In milliseconds, of the records sent in this time."""
    some = sorted(took for at, took in times if begin_s <= at < end_s)
    return some[int(0.99 * len(some))] if some else float("nan")


def _pid_of(cluster: Any) -> int:
    if isinstance(cluster, Trimtab):
        return nodes_of(cluster.supervisor_pid)["broker-0"]
    pid: int = cluster.pids[0]
    return pid


@contextmanager
def _in_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work in a thread, until the event that it is given is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _slowed(pid: int, late_ms: float) -> Iterator[None]:
    def stutter(over: threading.Event) -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(late_ms / 1000)
            os.kill(pid, signal.SIGCONT)
            time.sleep(late_ms / 1000)

    with _in_thread(stutter):
        yield


@contextmanager
def _acting(way: str, address: str, admin: Admin, topic: str) -> Iterator[None]:
    if way == "nobody":
        yield
        return
    if way == "preferred election":

        def elect(over: threading.Event) -> None:
            while not over.wait(5):
                with suppress(KafkaError):
                    admin.elect_leaders([(topic, index) for index in range(PARTITIONS)])

        with _in_thread(elect):
            yield
        return
    words = ("--watch", "--probe", "--leaders-only", "--window", "3")
    with subprocess.Popen(
        [sys.executable, "-m", "trimtab", "balance", "--bootstrap-server", address, *words],
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _writer(address: str, topic: str) -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """Sends in a process of its own; call what it yields for the times."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "times"
        process = subprocess.Popen(
            [sys.executable, "-m", "lab.benchmarks.relief", address, topic, str(file)],
            stdin=subprocess.PIPE,
        )

        def end() -> list[tuple[float, float]]:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
            words = (line.split() for line in file.read_text().splitlines())
            return [(float(at), float(took)) for at, took in words]

        try:
            time.sleep(5)
            yield end
        finally:
            process.kill()
            process.wait()


async def _write(address: str, topic: str) -> list[str]:
    """Send until standard input ends; returns when each record was sent, and how long it took."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    lines: list[str] = []

    async def send(producer: AsyncProducer, index: int) -> None:
        begin_s = time.time()
        await (await producer.send(topic, bytes(SIZE), partition=index % PARTITIONS))
        lines.append(f"{begin_s} {1000 * (time.time() - begin_s)}\n")

    async with AsyncProducer(address, linger_ms=0, acks=ACKS) as producer:
        begin_s, number = loop.time(), 0
        tasks: set[asyncio.Task[None]] = set()
        while not ended.done():
            task = asyncio.create_task(send(producer, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(max(0.0, begin_s + number / RATE - loop.time()))
        await asyncio.gather(*tasks)
    return lines


if __name__ == "__main__":
    Path(sys.argv[3]).write_text("".join(asyncio.run(_write(sys.argv[1], sys.argv[2]))))
