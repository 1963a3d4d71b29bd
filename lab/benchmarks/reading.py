"""Brokers from which Java's ConsumerPerformance reads; with Apache Kafka, both warm.

The tool is bound by itself, so that the brokers' CPU time per record says more than the rate.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.consumer import read_with_java
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing
from lab.benchmarks.producer import TUNED
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import RECORD_BYTES, Topics, run_producer_loop
from lab.processes import Broker, Trimtab

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
_MB = 1e6


class Served(NamedTuple):
    """One run of the tool."""

    mb_per_second: float
    broker_cpu_us_per_record: float


def run(runs: int, records: int) -> None:
    with ExitStack() as parts:
        found: dict[Broker, list[Served]] = {}
        topics: dict[Broker, str] = {}
        try:
            for make in (Trimtab, ApacheKafka):
                broker = parts.enter_context(make())
                topics[broker] = Topics(broker.address).create()
                run_producer_loop("trimtab send_table", broker, records, TUNED, topics[broker])
                read_with_java(broker, topics[broker], records)  # warms it up
                found[broker] = []
            for number in range(runs):
                for broker, served in found.items():
                    progress(f"reading: {broker.name}, run {number + 1} of {runs}")
                    before = broker.cpu_seconds()
                    reading = read_with_java(broker, topics[broker], records)
                    used = broker.cpu_seconds() - before
                    rate = reading.records_per_second * RECORD_BYTES / _MB
                    served.append(Served(rate, used / records * 1e6))
        except RivalMissing as missing:
            progress(f"reading: {missing}")
            return
    ours, theirs = found.values()
    report(
        *("reading", "mb_per_s of Java's ConsumerPerformance", "MB/s"),
        [each.mb_per_second for each in ours],
        RIVAL,
        [each.mb_per_second for each in theirs],
        more_is_better=True,
    )
    report(
        *("reading", "broker_cpu_us_per_record, Java's ConsumerPerformance", "us"),
        [each.broker_cpu_us_per_record for each in ours],
        RIVAL,
        [each.broker_cpu_us_per_record for each in theirs],
        more_is_better=False,
    )
