"""Memory of consumers with much to read: 1,000 partitions, each with 1 MiB of lag (KIP-74).

Each client reads everything with its default options, in a process of its own. The figure is the
peak of its resident memory above that before it assigns the partitions.
"""

from __future__ import annotations

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.consumer import run_consumer_loop
from lab.benchmarks.jars import RivalMissing
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Topics
from lab.processes import Broker, Trimtab
from trimtab import Producer

PARTITIONS = 1_000
RECORD_BYTES = 10_240
EACH = 102
"""Records of a partition: 1 MiB with their overhead."""
OURS = ("trimtab", "trimtab lists", "trimtab columns")
RIVALS = ("confluent-kafka", "aiokafka", "kafka-python")
_MIB = 1 << 20


def run(runs: int, records: int) -> None:
    """Compare; `records` is ignored."""
    for make in (Trimtab, ApacheKafka):
        try:
            with make() as broker:
                _compare(broker, runs)
        except RivalMissing as missing:
            progress(f"consumer_memory: without Apache Kafka: {missing}")


def _compare(broker: Broker, runs: int) -> None:
    where = "Apache Kafka" if isinstance(broker, ApacheKafka) else "our broker"
    topic = _fill(broker)
    found: dict[str, list[float]] = {client: [] for client in (*OURS, *RIVALS)}
    for number in range(runs):
        for client, peaks in found.items():
            progress(f"consumer_memory: {client} from {where}, run {number + 1} of {runs}")
            job = client, broker.address, topic, PARTITIONS, PARTITIONS * EACH, RECORD_BYTES
            peaks.append(run_consumer_loop(*job)["peak_bytes"] / _MIB)
    for ours in OURS:
        for rival in RIVALS:
            metric = f"peak of memory of {ours}, from {where}"
            report(
                *("consumer_memory", metric, "MiB", found[ours], rival, found[rival]),
                more_is_better=False,
            )


def _fill(broker: Broker) -> str:
    topic = Topics(broker.address).create(PARTITIONS)
    value = bytes(RECORD_BYTES)
    progress(f"consumer_memory: {PARTITIONS * EACH * RECORD_BYTES >> 20} MiB into {topic}")
    with Producer(broker.address, batch_size=_MIB // 4, linger_ms=100) as producer:
        for partition in range(PARTITIONS):
            for _ in range(EACH):
                producer.send(topic, value, partition=partition)
    return topic
