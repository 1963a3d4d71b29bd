"""A cluster process that is killed under load: what was acknowledged is there, in order, once.

`ROUNDS` (environment; default 3) says how often it is killed; `pytest -s` prints the figures.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.processes import answers_metadata, free_ports
from trimtab import Admin, Consumer, Producer, TopicPartition
from trimtab.client.accumulator.queues_cy import Delivery

ROUNDS = int(os.environ.get("ROUNDS", "3"))
BROKERS = 3
PARTITIONS = 6
BURST = 1000
TOPIC = "killed"
EXIT_SECONDS = 30


@contextmanager
def running(port: int, data: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`trimtab cluster up`, ready; killed at the end if it still runs."""
    command = [
        *(sys.executable, "-m", "trimtab", "cluster", "up", "--brokers", str(BROKERS)),
        *("--racks", "a,b,c", "--port", str(port), "--data", str(data), *options),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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
    """The first of as many free ports in a row as there are brokers."""
    while True:
        first = min(free_ports(BROKERS))
        if not any(answers_metadata(first + broker) for broker in range(BROKERS)):
            return first


def send_until_killed(
    process: subprocess.Popen[str], servers: str, first: int, acknowledgements: int
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Send numbers; once so many are acknowledged kill the process, with others under way.

    Returns:
        The next unused number, and (partition, offset) by acknowledged number.
    """
    acknowledged: dict[int, tuple[int, int]] = {}
    deliveries: list[Delivery] = []

    def note(number: int, delivery: Delivery) -> None:
        if delivery.exception() is None:
            acknowledged[number] = delivery.result()[1:3]

    with Producer(
        bootstrap_servers=servers,
        acks="all",
        linger_ms=1,
        request_timeout_ms=1000,
        delivery_timeout_ms=2000,
    ) as producer:
        last_burst = False
        while not last_burst:
            last_burst = len(acknowledged) >= acknowledgements
            for number in range(first + len(deliveries), first + len(deliveries) + BURST):
                delivery = producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                delivery.add_done_callback(partial(note, number))
                deliveries.append(delivery)
        assert not deliveries[-1].done(), "nothing is under way"
        process.kill()
        assert process.wait(EXIT_SECONDS) == -signal.SIGKILL
    return first + len(deliveries), acknowledged


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
            records = consumer.poll(timeout_ms=5000)
            assert records, f"{len(stored)} of {missing} records, then nothing for 5 s"
            stored |= {(r.partition, r.offset): int(r.value or b"") for r in records}
    return stored


def test_what_was_acknowledged_survives_kill_9(port: int, tmp_path: Path) -> None:
    draw = random.Random(3)
    servers = addresses(port)
    acknowledged: dict[int, tuple[int, int]] = {}
    number = 0
    for round_number in range(ROUNDS):
        with running(port, tmp_path) as process:
            if round_number == 0:
                with Admin(bootstrap_servers=servers) as admin:
                    admin.create_topic(TOPIC, partitions=PARTITIONS)
            number, more = send_until_killed(
                process, servers, number, draw.randrange(5_000, 30_000)
            )
            acknowledged |= more
    with running(port, tmp_path) as process:
        stored = read_everything(servers)
        process.terminate()
        assert process.wait(EXIT_SECONDS) == 0

    lost = [n for n, place in acknowledged.items() if stored.get(place) != n]
    counts = Counter(stored.values())
    duplicated = [n for n, times in counts.items() if times > 1]
    print(
        f"\n{ROUNDS} kills: {len(acknowledged)} acknowledged, {len(lost)} lost, "
        f"{len(duplicated)} duplicated, {len(stored) - len(acknowledged)} stored unacknowledged"
    )
    assert (lost, duplicated) == ([], [])
    for partition in range(PARTITIONS):
        numbers = [stored[place] for place in sorted(stored) if place[0] == partition]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_cluster_cleanly(port: int, tmp_path: Path, number: int) -> None:
    with running(port, tmp_path) as process:
        process.send_signal(number)
        assert process.wait(EXIT_SECONDS) == 0
    assert not answers_metadata(port)
