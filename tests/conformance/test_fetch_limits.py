"""The consumer under KIP-74: memory for what it prefetches, and equal turns of full partitions.

`LAG_PARTITIONS=1000` reads 1,000 partitions of 1 MiB with Kafka's default limits, within 256 MiB of
address space.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from tests.kafka import needs_kafka, started
from trimtab import Admin, Cluster, Consumer, Producer

pytestmark = pytest.mark.kip(74)

MIB = 1024 * 1024

# -- memory

PARTITIONS = int(os.environ.get("LAG_PARTITIONS", "240"))
IS_FULL_SIZE = PARTITIONS >= 1_000
BROKERS = 3
RECORD_BYTES = 1_000
FETCH_MAX_BYTES = 50 * MIB if IS_FULL_SIZE else 8 * MIB
ADDRESS_SPACE = 256 * MIB if IS_FULL_SIZE else 120 * MIB
"""Of which an arena of the allocator for the client's thread reserves 64 MiB."""

READER = """
import json, resource, sys
from pathlib import Path
from trimtab import Consumer

servers, topic, partitions, max_bytes, space, how = sys.argv[1:]

def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024

start = status("VmSize")
resource.setrlimit(resource.RLIMIT_AS, (start + int(space),) * 2)
read = size = 0
options = {"auto.offset.reset": "earliest", "fetch.max.bytes": int(max_bytes)}
with Consumer(servers, **options) as consumer:
    wanted = [(topic, each) for each in range(int(partitions))]
    left = sum(consumer.end_offsets(wanted).values())
    consumer.assign(wanted)
    while left:
        if how == "poll":
            records = consumer.poll(30_000)
            assert records, f"{left} records are left, and none came"
            left -= len(records)
            size += sum(len(record.value) for record in records)
        else:
            batches = consumer.fetch_batches(30_000)
            assert batches is not None, f"{left} records are left, and none came"
            left -= batches.next_offset - batches.start
            size += len(batches.data)
print(json.dumps({"bytes": size, "peak": status("VmPeak") - start, "resident": status("VmHWM")}))
"""


@pytest.fixture(scope="module")
def lagging() -> Iterator[str]:
    """Brokers with `PARTITIONS` partitions of 1 MiB."""
    with Cluster(brokers=BROKERS) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("lag", PARTITIONS)
        with Producer(servers, batch_size=64 * 1024) as producer:
            for partition in range(PARTITIONS):
                for _ in range(MIB // RECORD_BYTES):
                    producer.send("lag", bytes(RECORD_BYTES), partition=partition)
        yield servers


@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["poll", "fetch_batches"])
def test_a_wide_lag_is_read_in_little_memory(lagging: str, how: str) -> None:
    words = [lagging, "lag", str(PARTITIONS), str(FETCH_MAX_BYTES), str(ADDRESS_SPACE), how]
    done = subprocess.run(
        [sys.executable, "-c", READER, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(f"{how}: address space {found['peak'] / MIB:.0f} MiB above the start")
    assert found["bytes"] >= PARTITIONS * (MIB // RECORD_BYTES) * RECORD_BYTES


def test_a_record_larger_than_every_limit_comes_through(lagging: str) -> None:
    small: dict[str, Any] = {
        "fetch.max.bytes": 1,
        "max.partition.fetch.bytes": 1,
        "auto.offset.reset": "earliest",
    }
    with Admin(lagging) as admin:
        admin.create_topic("large", 2, config={"max.message.bytes": 10 * MIB})
    with Producer(lagging, max_request_size=10 * MIB, buffer_memory=64 * MIB) as producer:
        for number in range(6):
            producer.send(
                "large", bytes([number]) * (1 + number % 3 * 2 * MIB), partition=number % 2
            )
    with Consumer(lagging, **small) as consumer:
        consumer.assign([("large", 0), ("large", 1)])
        values: list[bytes | None] = []
        while len(values) < 6:
            records = consumer.poll(30_000)
            assert records
            values += [record.value for record in records]
    assert {(each[0], len(each)) for each in values if each} == {
        (number, 1 + number % 3 * 2 * MIB) for number in range(6)
    }


# -- turns

FULL = 20
FETCHES = 1_000
SERVED = 3
"""Partitions that one response has room for."""
BATCH_BYTES = 1_000


class KafkaWithoutSessions(ApacheKafka):
    """Its cache has no place for a fetch session."""

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "max.incremental.fetch.session.cache.slots": "0"}


@contextmanager
def full_partitions(servers: str) -> Iterator[Consumer]:
    """A consumer of 20 partitions that always have more: each response has room for three."""
    topic = "always-full"
    with Admin(servers) as admin:
        admin.create_topic(topic, FULL)
    batches = 2 * FETCHES * SERVED // FULL
    with Producer(servers, batch_size=0) as producer:
        for number in range(FULL * batches):
            producer.send(topic, bytes(BATCH_BYTES - 80), partition=number % FULL)
    options: dict[str, Any] = {
        "auto.offset.reset": "earliest",
        "fetch.max.bytes": SERVED * BATCH_BYTES,
        "max.partition.fetch.bytes": BATCH_BYTES,
    }
    with Consumer(servers, **options) as consumer:
        consumer.assign([(topic, each) for each in range(FULL)])
        yield consumer


def check_shares(consumer: Consumer) -> None:
    """After 1,000 fetches, what came of each partition differs by at most 5 % from the mean."""
    read: Counter[int] = Counter()
    for _ in range(FETCHES * SERVED):
        batches = consumer.fetch_batches(30_000)
        assert batches is not None
        read[batches.partition.partition] += len(batches.data)
    mean = sum(read.values()) / FULL
    shares = [read[partition] / mean for partition in range(FULL)]
    print(f"shares from {min(shares):.4f} to {max(shares):.4f}")
    assert 0.95 <= min(shares) <= max(shares) <= 1.05


@pytest.mark.parametrize("slots", [1_000, 0], ids=["sessions", "no sessions"])
def test_full_partitions_get_equal_shares(slots: int) -> None:
    config = {"max.incremental.fetch.session.cache.slots": slots}
    with Cluster(config=config) as cluster, full_partitions(cluster.bootstrap_servers) as consumer:
        check_shares(consumer)


@needs_kafka
@pytest.mark.parametrize(
    "kind", [ApacheKafka, KafkaWithoutSessions], ids=["sessions", "no sessions"]
)
def test_full_partitions_of_apache_kafka_get_equal_shares(kind: type[ApacheKafka]) -> None:
    with started(kind()) as kafka, full_partitions(kafka.address) as consumer:
        check_shares(consumer)
