"""A cluster whose processes are killed under load: acknowledged records are stored once, in order.

`ROUNDS` (environment; default 3) is the number of kills of all nodes; `pytest -s` prints counts.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from lab.processes import answers_metadata, free_neighbours, nodes_of, resident_mib, words_of
from trimtab import Admin, Consumer, Producer, TopicPartition
from trimtab.client.accumulator.queues_cy import Delivery

ROUNDS = int(os.environ.get("ROUNDS", "3"))
BROKERS = 3
PARTITIONS = 6
BURST = 1000
TOPIC = "killed"
EXIT_SECONDS = 30
PROMISED_MIB = 300
"""Limit on the resident memory of three brokers and the controller together."""


UP = (sys.executable, "-m", "trimtab", "cluster", "up")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=EXIT_SECONDS, check=False
    )


@contextmanager
def running(port: int, data: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`trimtab cluster up`, ready; killed at the end if it still runs."""
    command = [
        *UP,
        *("--brokers", str(BROKERS)),
        *("--racks", "a,b,c", "--port", str(port), "--data", str(data), *options),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready {addresses(port)}\n"
            yield process
        finally:
            process.kill()


def addresses(port: int) -> str:
    return ",".join(f"127.0.0.1:{port + broker}" for broker in range(BROKERS))


@pytest.fixture
def port() -> int:
    """The first of as many consecutive free ports as there are brokers."""
    return free_neighbours(BROKERS)


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only a zombie, which has no command line."""
    return not any(words_of(pid))


def kill_everything(supervisor: subprocess.Popen[str]) -> None:
    """Kill all processes at once, as a reset of the machine would; but the page cache survives."""
    supervisor.send_signal(signal.SIGSTOP)  # or it would restart the first ones killed
    for pid in nodes_of(supervisor.pid).values():
        os.kill(pid, signal.SIGKILL)
    supervisor.kill()
    assert supervisor.wait(EXIT_SECONDS) == -signal.SIGKILL


def kill_node(name: str, supervisor: subprocess.Popen[str]) -> None:
    os.kill(nodes_of(supervisor.pid)[name], signal.SIGKILL)


class Sent(dict[int, tuple[int, int]]):
    """(partition, offset) by acknowledged number.

    Attributes:
        next: the next unused number.
    """

    next = 0

    def note(self, number: int, delivery: Delivery) -> None:
        if delivery.exception() is None:
            self[number] = delivery.result()[1:3]


def send_burst(producer: Producer, sent: Sent) -> Delivery:
    """Send numbers; returns the delivery of the last one."""
    delivery: Delivery
    for number in range(sent.next, sent.next + BURST):
        delivery = producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        delivery.add_done_callback(partial(sent.note, number))
    sent.next += BURST
    return delivery


def send_until_killed(
    servers: str, sent: Sent, acknowledgements: int, kill: Callable[[], None]
) -> None:
    """Send, and after this many acknowledgements kill, while other records are in flight."""
    enough = len(sent) + acknowledgements
    with Producer(
        bootstrap_servers=servers,
        acks="all",
        linger_ms=1,
        request_timeout_ms=1000,
        delivery_timeout_ms=2000,
    ) as producer:
        while len(sent) < enough:
            last = send_burst(producer, sent)
        assert not last.done(), "no records are in flight"
        kill()


def read_everything(servers: str) -> dict[tuple[int, int], int]:
    """The number stored at each (partition, offset)."""
    partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    with Admin(bootstrap_servers=servers) as admin:
        ends = admin.list_offsets(partitions, "latest")
    missing = sum(end.offset for end in ends.values())
    stored: dict[tuple[int, int], int] = {}
    with Consumer(bootstrap_servers=servers, check_crcs=True) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while len(stored) < missing:
            records = consumer.poll(timeout_ms=10_000)
            assert records, f"{len(stored)} of {missing} records, then nothing for 10 s"
            stored |= {(r.partition, r.offset): int(r.value or b"") for r in records}
    return stored


def check_everything_is_there(stored: dict[tuple[int, int], int], sent: Sent, what: str) -> None:
    """Check that each acknowledged number is at its offset, none is duplicated, all in order."""
    lost = [number for number, place in sent.items() if stored.get(place) != number]
    duplicated = [number for number, times in Counter(stored.values()).items() if times > 1]
    print(
        f"\n{what}: {len(sent)} acknowledged, {len(lost)} lost, "
        f"{len(duplicated)} duplicated, {len(stored) - len(sent)} stored unacknowledged"
    )
    assert (lost, duplicated) == ([], [])
    for partition in range(PARTITIONS):
        numbers = [stored[place] for place in sorted(stored) if place[0] == partition]
        assert numbers == sorted(numbers)


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.parametrize("replication_factor", [1, 3])
def test_acknowledged_records_survive_kill_9_of_all_processes(
    port: int, tmp_path: Path, replication_factor: int
) -> None:
    draw = random.Random(3)
    servers = addresses(port)
    sent = Sent()
    for round_number in range(ROUNDS):
        with running(port, tmp_path) as process:
            if round_number == 0:
                with Admin(bootstrap_servers=servers) as admin:
                    admin.create_topic(
                        TOPIC, partitions=PARTITIONS, replication_factor=replication_factor
                    )
            send_until_killed(
                servers, sent, draw.randrange(5_000, 30_000), partial(kill_everything, process)
            )
    with running(port, tmp_path) as process:
        stored = read_everything(servers)
        process.terminate()
        assert process.wait(EXIT_SECONDS) == 0
    check_everything_is_there(stored, sent, f"{ROUNDS} kills of all, RF {replication_factor}")


def test_clients_keep_working_while_nodes_are_killed_one_after_another(
    port: int, tmp_path: Path
) -> None:
    """One of the nodes is the controller: brokers serve without it, and it keeps its decisions."""
    servers = addresses(port)
    sent = Sent()
    with running(port, tmp_path, "--config", "min.insync.replicas=2") as process:
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Producer(bootstrap_servers=servers, acks="all", linger_ms=1) as producer:
            for name in ("broker-0", "controller", "broker-1", "broker-2", "controller"):
                killed = nodes_of(process.pid)[name]
                kill_node(name, process)
                last = send_burst(producer, sent)
                while not last.done() or nodes_of(process.pid).get(name) in (None, killed):
                    last = send_burst(producer, sent)
                    producer.flush()
        assert len(sent) == sent.next, "not every record was acknowledged"
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("afterwards", partitions=1, replication_factor=3)
        stored = read_everything(servers)
        assert sum(map(resident_mib, nodes_of(process.pid).values())) < PROMISED_MIB
        process.terminate()
        assert process.wait(EXIT_SECONDS) == 0
        assert process.stderr is not None
        told = process.stderr.read()
    assert told.count("was killed by SIGKILL, it is started again") == 5
    check_everything_is_there(stored, sent, "five nodes killed, one after another")


def test_no_process_keeps_running_when_the_supervisor_is_killed(port: int, tmp_path: Path) -> None:
    with running(port, tmp_path) as process:
        left = [os.pidfd_open(pid) for pid in nodes_of(process.pid).values()]
        process.kill()
        process.wait(EXIT_SECONDS)
        assert len(left) == BROKERS + 1
        for descriptor in left:
            assert select.select([descriptor], [], [], EXIT_SECONDS)[0], "it still runs"
            os.close(descriptor)
    for broker in range(BROKERS):
        assert (tmp_path / f"broker-{broker}" / ".kafka_cleanshutdown").exists()


def test_a_cluster_that_cannot_start_prints_the_reason_and_leaves_nothing(
    port: int, tmp_path: Path
) -> None:
    command = [*UP, "--brokers", "1", "--port"]
    with running(port, tmp_path):
        taken = run([*command, str(port)])
        in_use = run([*command, "0", "--data", str(tmp_path), "--brokers", str(BROKERS)])
    assert (taken.returncode, taken.stdout) == (1, "")
    assert taken.stderr.startswith(f"trimtab cluster: cannot reserve port {port} on 127.0.0.1: ")
    assert (in_use.returncode, in_use.stdout) == (1, "")
    assert "data directory" in in_use.stderr
    assert "is in use by another" in in_use.stderr
    assert f"its log: {tmp_path}/logs/" in in_use.stderr


def test_with_stop_at_eof_the_cluster_ends_with_its_standard_input(
    port: int, tmp_path: Path
) -> None:
    with running(port, tmp_path, "--stop-at-eof") as process:
        left = nodes_of(process.pid)
        assert process.stdin is not None
        process.stdin.write("words end nothing")
        process.stdin.flush()
        assert answers_metadata(port)
        process.stdin.close()
        process.stdin = None
        assert process.wait(EXIT_SECONDS) == 0
    assert all(map(is_gone, left.values()))


def test_with_stop_at_eof_an_input_that_cannot_end_is_refused() -> None:
    refused = subprocess.run(
        [*UP, "--stop-at-eof", "--port", "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS,
        check=False,
    )
    assert refused.returncode != 0
    assert "--stop-at-eof: standard input cannot be watched" in refused.stderr
    assert "make it a pipe" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_cluster_cleanly(port: int, tmp_path: Path, number: int) -> None:
    with running(port, tmp_path) as process:
        left = nodes_of(process.pid)
        assert set(left) == {"controller", "broker-0", "broker-1", "broker-2"}
        process.send_signal(number)
        assert process.wait(EXIT_SECONDS) == 0
    assert not answers_metadata(port)
    assert all(map(is_gone, left.values()))
    for broker in range(BROKERS):
        assert (tmp_path / f"broker-{broker}" / ".kafka_cleanshutdown").exists()
