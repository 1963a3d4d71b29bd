"""Three brokers whose processes are killed, and start again with their data: trimtab's, and Apache
Kafka's. `min.insync.replicas` is 2; the coordinators' topics have four partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.processes import Trimtab

Killable: TypeAlias = Trimtab | KafkaCluster

BROKERS = 3
_OPTIONS = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
_OPTIONS_OF_KAFKA = {
    **_OPTIONS,
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


def killable_trimtab(options: Mapping[str, str] | None = None) -> Trimtab:
    """A cluster of trimtab, not started yet, with these options besides."""
    chosen = {**_OPTIONS, **(options or {})}
    return Trimtab(BROKERS, config=[f"{name}={value}" for name, value in chosen.items()])


def killable_kafka(options: Mapping[str, str] | None = None) -> KafkaCluster:
    """A cluster of Apache Kafka, not started yet, with these options besides."""
    return KafkaCluster(BROKERS, options={**_OPTIONS_OF_KAFKA, **(options or {})})


CLUSTERS: dict[str, Callable[[Mapping[str, str]], Killable]] = {
    "trimtab": killable_trimtab,
    "apache-kafka": killable_kafka,
}
