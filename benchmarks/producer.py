"""`Producer.send` of 100 B values from a plain Python loop, beside confluent-kafka.

Each run is a process of its own; both send to the same cluster of ours, in another process.
"""

from __future__ import annotations

from benchmarks.processes import Trimtab
from benchmarks.report import progress, report
from benchmarks.workload import Loop, run_producer_loop

SETTINGS: dict[str, dict[str, object]] = {
    "batch 128 KiB, linger 5 ms, acks 1": {"batch.size": 131072, "linger.ms": 5, "acks": "1"},
    "each client's defaults": {},
}


def run(runs: int, records: int) -> None:
    with Trimtab() as broker:
        for name, options in SETTINGS.items():
            ours: list[Loop] = []
            theirs: list[Loop] = []
            for number in range(runs):
                progress(f"producer: {name}, run {number + 1} of {runs}")
                ours.append(run_producer_loop("trimtab", broker, records, options))
                theirs.append(run_producer_loop("confluent-kafka", broker, records, options))
            report(
                *("producer", f"records_per_s, {name}", "records/s"),
                [loop.records_per_second for loop in ours],
                "confluent-kafka",
                [loop.records_per_second for loop in theirs],
                more_is_better=True,
            )
            report(
                *("producer", f"client_cpu_us_per_record, {name}", "us"),
                [loop.cpu_us_per_record for loop in ours],
                "confluent-kafka",
                [loop.cpu_us_per_record for loop in theirs],
                more_is_better=False,
            )
