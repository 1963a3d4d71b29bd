"""KIP-480: the partition of each record, and the changes of the sticky one, as in Java 3.2.3.

Java's producer fetches the topic's metadata, then its brokers stop: nothing is sent, so each batch
is opened by a record. It prints the partitions that it chose at random. trimtab's producer gets the
same random choices, and must use them at the same records, with and without keys, and with given
partitions.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lab.benchmarks.jars import OLD_CLIENT, find_client_jars, java_command
from tests.unit.client.conftest import view_of
from trimtab import Admin, Cluster
from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.partitioner.sticky import StickyPartitioner
from trimtab.kafka.wire.compression import Compression

pytestmark = [
    pytest.mark.kip(480),
    pytest.mark.skipif(
        shutil.which("javac") is None or find_client_jars(OLD_CLIENT) is None,
        reason=f"needs javac and kafka-clients {OLD_CLIENT}: python -m lab.benchmarks.jars",
    ),
]

SOURCE = Path(__file__).parent / "java" / "StickyTwin.java"

TOPIC = "topic"
PARTITIONS = 5
BATCH_SIZE = 300
RECORDS = 4000


def make_story(seed: int) -> list[tuple[int | None, bytes | None, int]]:
    """Records: partition, key, size of the value."""
    random = Random(seed)
    story: list[tuple[int | None, bytes | None, int]] = []
    for _ in range(RECORDS):
        partition = random.randrange(PARTITIONS) if random.random() < 0.2 else None
        key = b"%d" % random.randrange(40) if random.random() < 0.5 else None
        story.append((partition, key, random.randrange(120)))
    return story


def tell_java(name: str, story: list[tuple[int | None, bytes | None, int]]) -> list[list[int]]:
    """For each record its partition, then the partitions chosen at random for it."""
    jars = find_client_jars(OLD_CLIENT)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        twin = subprocess.Popen(
            [
                *java_command("256m"),
                *("-cp", f"{jars}/*", str(SOURCE)),
                *(cluster.bootstrap_servers, TOPIC, name, str(BATCH_SIZE)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert twin.stdout is not None
        assert twin.stdout.readline() == "ready\n"
    said, _ = twin.communicate(
        "gone\n"
        + "".join(
            f"{'-' if partition is None else partition} {'-' if key is None else key.decode()}"
            f" {size}\n"
            for partition, key, size in story
        ),
        timeout=60,
    )
    return [[int(number) for number in line.split()] for line in said.splitlines()]


class Drawn(Random):
    """Returns the random choices of the Java producer."""

    def __init__(self, draws: Iterator[int]) -> None:
        super().__init__()
        self._draws = draws
        self.count = 0

    def randrange(self, *_: object) -> int:
        self.count += 1
        return next(self._draws)


@pytest.mark.parametrize("name", ["Default", "Uniform"])
def test_the_sticky_partition_turns_with_the_same_records(name: str) -> None:
    story = make_story(11)
    java = tell_java(name, story)
    random = Drawn(iter([draw for _, *draws in java for draw in draws]))
    accumulator = Accumulator(
        batch_size=BATCH_SIZE,
        buffer_memory=1 << 40,
        max_request_size=1 << 20,
        compression=Compression.NONE,
        ignores_keys=name == "Uniform",
        make_partitioner=lambda: StickyPartitioner(random),
        now=lambda: 0.0,
        wall_clock=lambda: 0.0,
        lock=threading.RLock(),
        wake=lambda: None,
        on_callback_error=lambda error: pytest.fail(str(error)),
    )
    accumulator.update_topic(view_of([0] * PARTITIONS, name=TOPIC))
    queues = accumulator.topic(TOPIC).queues
    told = aside = 0
    for number, ((partition, key, size), (chosen, *draws)) in enumerate(
        zip(story, java, strict=True)
    ):
        before = [queue.queued_bytes for queue in queues]
        assert accumulator.append(TOPIC, bytes(size), key, None, partition, 1000) is not None
        told += len(draws)
        grown = [p for p in range(PARTITIONS) if queues[p].queued_bytes != before[p]]
        assert (number, grown, random.count) == (number, [chosen], told)
        aside += bool(draws) and (key is not None or partition is not None)
    assert aside > 100  # changes by records that did not go to the sticky partition
