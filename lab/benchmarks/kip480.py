"""KIP-480's setting: trimtab's producer and Java's, on trimtab's cluster and on Apache Kafka.

Each broker answers produce requests 5 ms late; a topic of 16 partitions; 1000 records/s of 100
bytes with linger.ms=0. `lab.benchmarks.proposals` says the rest.

The stage sends 30,000 records in each run. `python -m lab.benchmarks.kip480 --records 100000` sends
more, and `--cluster` and `--configuration` select.
"""

from __future__ import annotations

import asyncio
import sys

from lab.benchmarks.proposals import Perf, Proposal, main, run_stage
from lab.experiments.cluster import ExperimentCluster
from lab.experiments.kip480 import (
    CONFIGURATIONS,
    PRODUCE_MS,
    RATE,
    RECORD_BYTES,
    Case,
    measure,
    new_topic,
)

CASE = Case(producers=1)


def _measure(
    target: ExperimentCluster, series: int | None, name: str, records: int, perf: Perf
) -> dict[str, float]:
    with new_topic(target, CASE, name) as view:
        command = perf(view.name, records, RECORD_BYTES, RATE)
        measured = asyncio.run(measure(CASE, command, records))
        stored = target.count_records(view)
    mean = sum(stored) / len(stored)
    return {
        "average_ms": measured.latency_ms["average"],
        "p99_ms": measured.latency_ms["p99"],
        # Java's client counts requests, which may have several batches.
        "records_per_batch": measured.records_per_batch
        or measured.runs[0].metrics["records-per-request-avg"],
        "deviation_of_partitions": max(abs(count - mean) for count in stored) / mean,
    }


PROPOSAL = Proposal(
    stage="kip480",
    slow=dict.fromkeys(range(3), PRODUCE_MS),
    records=30_000,
    configurations=["adaptive", "sticky", "strict", "free"],
    settings={name: way.settings for name, way in CONFIGURATIONS.items()},
    java_settings={"adaptive": {}, "sticky": {}},
    rivals={"round_robin": "adaptive", "strict": "adaptive", "free": "adaptive"},
    metrics={
        "average_ms": ("ms", False),
        "p99_ms": ("ms", False),
        "records_per_batch": ("records", True),
        "deviation_of_partitions": ("of the mean", False),
    },
    measure=_measure,
)


def run(runs: int, records: int) -> None:
    run_stage(PROPOSAL, records)


if __name__ == "__main__":
    sys.exit(main(PROPOSAL, __doc__))
