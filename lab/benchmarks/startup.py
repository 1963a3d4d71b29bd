"""The time from start to the first Metadata answer, and the resident memory after a load."""

from __future__ import annotations

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, kafka_jars
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import run_producer_loop
from lab.processes import Broker, Trimtab

RIVAL = f"Apache Kafka {KAFKA_VERSION}"


def run(runs: int, records: int) -> None:
    sides: list[type[Broker]] = [Trimtab]
    note = ""
    try:
        kafka_jars()
        sides.append(ApacheKafka)
    except RivalMissing as missing:
        note = str(missing)
    starts: dict[type[Broker], list[float]] = {Trimtab: [], ApacheKafka: []}
    memory: dict[type[Broker], list[float]] = {Trimtab: [], ApacheKafka: []}
    with Trimtab():
        pass  # the first start writes Python's bytecode files, which later starts use
    for number in range(runs):
        progress(f"startup: run {number + 1} of {runs}")
        for side in sides:
            with side() as broker:
                starts[side].append(broker.start_seconds)
                run_producer_loop("confluent-kafka", broker, records, {})
                memory[side].append(broker.resident_mib())
    report(
        *("startup", "start to the first Metadata answer", "s"),
        *(starts[Trimtab], RIVAL, starts[ApacheKafka]),
        more_is_better=False,
        note=note,
    )
    report(
        *("startup", f"resident after {records} records of 100 B", "MiB"),
        *(memory[Trimtab], RIVAL, memory[ApacheKafka]),
        more_is_better=False,
        note=note,
    )
