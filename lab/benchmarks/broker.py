"""trimtab's broker compared with Apache Kafka's, under load from Java's ProducerPerformance.

There are two rivals: a freshly started Kafka, as in a test cluster, and one after two uncounted
warm-up runs. Each run of the tool is a new JVM, on both sides.
"""

from __future__ import annotations

from contextlib import ExitStack

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Load, run_producer_performance
from lab.processes import Trimtab

SETTINGS = {
    "tuned": {"batch.size": "131072", "linger.ms": "10", "acks": "1"},
    "defaults": {"client.id": "perf"},
}
WARM_UP_RUNS = 2


def run(runs: int, records: int) -> None:
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        # The load comes from the rival's tool: without it nothing can be measured.
        for name in SETTINGS:
            for side in ("fresh", "warm"):
                _report(name, side, [], [], str(missing))
        return
    with ExitStack() as stack:
        ours = stack.enter_context(Trimtab())
        warm = stack.enter_context(ApacheKafka())
        for number in range(WARM_UP_RUNS):
            progress(f"broker: warming Apache Kafka up, {number + 1} of {WARM_UP_RUNS}")
            run_producer_performance(warm, records, SETTINGS["tuned"])
        for name, properties in SETTINGS.items():
            loads: dict[str, list[Load]] = {"ours": [], "fresh": [], "warm": []}
            for number in range(runs):
                progress(f"broker: {name}, run {number + 1} of {runs}")
                loads["ours"].append(run_producer_performance(ours, records, properties))
                loads["warm"].append(run_producer_performance(warm, records, properties))
                with ApacheKafka() as fresh:
                    loads["fresh"].append(run_producer_performance(fresh, records, properties))
            for side in ("fresh", "warm"):
                _report(name, side, loads["ours"], loads[side])


def _report(name: str, side: str, ours: list[Load], theirs: list[Load], note: str = "") -> None:
    rival = f"Apache Kafka {KAFKA_VERSION}, {side}"
    report(
        *("broker", f"records_per_s, {name}", "records/s"),
        [load.records_per_second for load in ours],
        rival,
        [load.records_per_second for load in theirs],
        more_is_better=True,
        note=note,
    )
    report(
        *("broker", f"broker_cpu_us_per_record, {name}", "us"),
        [load.broker_cpu_us_per_record for load in ours],
        rival,
        [load.broker_cpu_us_per_record for load in theirs],
        more_is_better=False,
        note=note,
    )
