"""`Producer.send` compared with Java's ProducerPerformance: on Apache Kafka, and by partitions.

On Apache Kafka both send to the same broker, after uncounted warm-up runs. With increasing numbers
of partitions both send to trimtab's broker, which creates and deletes them quickly.
ProducerPerformance's time includes the JVM's warm-up, trimtab's includes the flush.
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.producer import TUNED
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import PARTITIONS, run_producer_loop, run_producer_performance
from lab.processes import Broker, Trimtab

# The last is the limit of one request in trimtab and in Apache Kafka.
PARTITION_COUNTS = (10, 100, 1_000, 9_999)
WARM_UP_RUNS = 2
JAVA = f"Java's ProducerPerformance {KAFKA_VERSION}"


def run(runs: int, records: int) -> None:
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        report(
            *("java", "records_per_s", "records/s"),
            *([], JAVA, []),
            more_is_better=True,
            note=str(missing),
        )
        return
    _run_on_kafka(runs, records)
    _run_with_partitions(runs, records)


def _run_on_kafka(runs: int, records: int) -> None:
    with ApacheKafka() as broker:
        for number in range(WARM_UP_RUNS):
            progress(f"java: warming Apache Kafka up, {number + 1} of {WARM_UP_RUNS}")
            run_producer_performance(broker, records, _properties(TUNED))
        for name, options in {
            "batch 128 KiB, linger 5 ms, acks 1": TUNED,
            "each client's defaults": {},
        }.items():
            ours, theirs = _run_both(broker, runs, records, options, PARTITIONS, name)
            _report(f"on Apache Kafka {KAFKA_VERSION}, {name}", ours, theirs)


def _run_with_partitions(runs: int, records: int) -> None:
    medians: dict[str, list[list[float]]] = {"ours": [], "theirs": []}
    with Trimtab() as broker:
        for partitions in PARTITION_COUNTS:
            name = f"{partitions} partitions"
            ours, theirs = _run_both(broker, runs, records, TUNED, partitions, name)
            _report(name, ours, theirs)
            medians["ours"].append(ours)
            medians["theirs"].append(theirs)
    report(
        *("java", f"kept from {PARTITION_COUNTS[0]} to {PARTITION_COUNTS[-1]} partitions", "ratio"),
        [last / first for first, last in zip(*_ends(medians["ours"]), strict=True)],
        JAVA,
        [last / first for first, last in zip(*_ends(medians["theirs"]), strict=True)],
        more_is_better=True,
    )


def _ends(series: list[list[float]]) -> tuple[list[float], list[float]]:
    return series[0], series[-1]


def _run_both(
    broker: Broker,
    runs: int,
    records: int,
    options: Mapping[str, object],
    partitions: int,
    name: str,
) -> tuple[list[float], list[float]]:
    """Records per second of each run, trimtab's and the rival's; runs alternate."""
    ours, theirs = [], []
    for number in range(runs):
        progress(f"java: {name}, run {number + 1} of {runs}")
        loop = run_producer_loop("trimtab", broker, records, options, partitions=partitions)
        ours.append(loop.records_per_second)
        load = run_producer_performance(broker, records, _properties(options), partitions)
        theirs.append(load.records_per_second)
    return ours, theirs


def _properties(options: Mapping[str, object]) -> dict[str, str]:
    """The options as text, for the tool, which requires at least one."""
    return {"client.id": "perf", **{name: str(value) for name, value in options.items()}}


def _report(name: str, ours: list[float], theirs: list[float]) -> None:
    report(
        *("java", f"records_per_s, {name}", "records/s"),
        *(ours, JAVA, theirs),
        more_is_better=True,
    )
