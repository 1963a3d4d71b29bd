"""`rack_traffic` beside the counters of three brokers of Apache Kafka, read over JMX.

Skipped without Java; the first run fetches Apache Kafka's jars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lab.benchmarks.apache_kafka import KafkaMember, run_java
from lab.processes import free_ports
from tests.kafka import three_members
from tests.spark.frames import consume, read
from trimtab import Admin, Producer
from trimtab.spark import load
from trimtab.spark.load.snapshots import take_snapshot, to_frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "flights"
PLACED = {0: [0, 1], 1: [1, 2], 2: [2, 0], 3: [0, 2], 4: [0, 1], 5: [1, 0]}
RACKS = ("r0", "r1", "r2")
COUNT = 20_000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Observed(KafkaMember):
    """A broker whose counters can be read over JMX, and that serves consumers by rack."""

    def __init__(self, number: int, controller_port: int) -> None:
        super().__init__(number, controller_port)
        (self._jmx_port,) = free_ports(1)

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "replica.selector.class": SELECTOR}

    def command(self) -> list[str]:
        java, *rest = super().command()
        remote = "-Dcom.sun.management.jmxremote"
        flags = {"port": self._jmx_port, "authenticate": "false", "ssl": "false"}
        jmx = [f"{remote}.{name}={value}" for name, value in flags.items()]
        return [
            java,
            f"{remote}.host=127.0.0.1",
            "-Djava.rmi.server.hostname=127.0.0.1",
            *jmx,
            *rest,
        ]

    def count(self, name: str) -> int:
        """A counter of all topics, in bytes since the broker started."""
        answer = run_java(
            "org.apache.kafka.tools.JmxTool",
            *("--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self._jmx_port}/jmxrmi"),
            *("--object-name", f"kafka.server:type=BrokerTopicMetrics,name={name}"),
            *("--attributes", "Count", "--one-time", "--report-format", "original"),
            heap="64m",
        )
        return int(answer.strip().splitlines()[-1].split(",")[-1])


@pytest.fixture
def brokers() -> Iterator[list[Observed]]:
    with three_members(Observed) as members:
        yield members


def test_traffic_is_what_the_brokers_counted(spark: SparkSession, brokers: list[Observed]) -> None:
    servers = ",".join(member.address for member in brokers)
    with Admin(servers) as admin:
        admin.create_topic(TOPIC, assignment=PLACED)
    with Producer(servers, acks="all", compression_type="lz4") as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"%d " % number * 40)
    # The consumer without a rack reads from leaders, the other from replicas in its rack.
    for rack in ("r2", ""):
        consume(servers, rack, [(TOPIC, number) for number in PLACED])
    counted = {
        name: {rack: broker.count(name) for rack, broker in zip(RACKS, brokers, strict=True)}
        for name in (
            *("BytesInPerSec", "BytesOutPerSec"),
            *("ReplicationBytesInPerSec", "ReplicationBytesOutPerSec"),
        )
    }

    frames = to_frames(spark, take_snapshot({"bootstrap.servers": servers}))
    records = read(spark, servers, load.RECORDS, subscribe=TOPIC)
    table = load.partition_load(records, frames.partitions)
    clients = [
        (TOPIC, "produce", "r0", 1.0, False),
        (TOPIC, "consume", "r2", 1.0, True),
        (TOPIC, "consume", "r0", 1.0, False),
    ]
    moved: dict[str, Counter[str]] = {name: Counter() for name in counted}
    for row in load.rack_traffic(
        table, frames.partitions, spark.createDataFrame(clients, load.CLIENTS)
    ).collect():
        if row.kind == "produce":
            moved["BytesInPerSec"][row.toRack] += row.Bytes
        elif row.kind == "consume":
            moved["BytesOutPerSec"][row.fromRack] += row.Bytes
        else:
            moved["ReplicationBytesOutPerSec"][row.fromRack] += row.Bytes
            moved["ReplicationBytesInPerSec"][row.toRack] += row.Bytes
    for name, by_rack in counted.items():
        assert min(by_rack.values()) > 0, (name, by_rack)
        assert dict(moved[name]) == pytest.approx(by_rack, rel=0.02), name
