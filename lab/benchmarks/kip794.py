"""KIP-794's test series: trimtab's producer and Java's, on trimtab's cluster and on Apache Kafka.

Broker 0 answers produce requests 20 ms late; `lab.benchmarks.proposals` says the rest.

A round, every configuration once, takes half an hour. The stage runs one round;
`python -m lab.benchmarks.kip794 --runs 3` runs more, and `--cluster`, `--series` and
`--configuration` select.
"""

from __future__ import annotations

import asyncio
import sys

from lab.benchmarks.proposals import Perf, Proposal, main, run_stage
from lab.experiments.cluster import ExperimentCluster
from lab.experiments.kip794 import (
    CONFIGURATIONS,
    RATES,
    RECORD_BYTES,
    RECORDS,
    SLOW_PRODUCE_MS,
    measure,
    new_topic,
)


def _measure(
    target: ExperimentCluster, series: int | None, name: str, records: int, perf: Perf
) -> dict[str, float]:
    assert series is not None
    with new_topic(target, f"{series}-{name}") as view:
        command = perf(view.name, records, RECORD_BYTES, RATES[series])
        measured = asyncio.run(measure(target, view, series, name, command, records))
    return {
        "average_ms": measured.run.latency_ms["average"],
        "p99_ms": measured.run.latency_ms["p99"],
        "megabytes_per_s": measured.run.megabytes_per_second,
        "slow_broker_share": measured.shares[measured.brokers[0]],
        "spread_of_brokers": measured.spread,
    }


PROPOSAL = Proposal(
    stage="kip794",
    slow={0: SLOW_PRODUCE_MS},
    records=RECORDS,
    configurations=list(CONFIGURATIONS),
    settings={name: way.settings for name, way in CONFIGURATIONS.items()},
    java_settings={
        "sticky": {},  # the default of the old client
        **{name: CONFIGURATIONS[name].settings for name in ("uniform", "adaptive", "timeout")},
    },
    rivals={"strict": "uniform", "0.1": "adaptive", "free": "adaptive"},
    metrics={
        "average_ms": ("ms", False),
        "p99_ms": ("ms", False),
        "megabytes_per_s": ("MiB/s", True),
        "slow_broker_share": ("of the records", False),
        "spread_of_brokers": ("of the mean", False),
    },
    measure=_measure,
    series=list(RATES),
)


def run(runs: int, records: int) -> None:
    run_stage(PROPOSAL, records)


if __name__ == "__main__":
    sys.exit(main(PROPOSAL, __doc__))
