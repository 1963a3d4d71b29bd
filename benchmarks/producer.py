"""`Producer.send` of 100 B values from a plain Python loop, beside confluent-kafka and aiokafka.

Each run is a process of its own; all send to the same cluster of ours, in another process. The
clients take turns. `send_table` is in the stage `table`, Java's producer in `java`.
"""

from __future__ import annotations

from benchmarks.processes import Trimtab
from benchmarks.workload import compare_loops, report_memory

TUNED: dict[str, object] = {"batch.size": 131072, "linger.ms": 5, "acks": "1"}
# aiokafka is slow: so many times fewer records for it and for what is measured beside it.
AIOKAFKA_SHARE = 10


def run(runs: int, records: int) -> None:
    with Trimtab() as broker:
        sides = {"trimtab": "", "confluent-kafka": "confluent-kafka"}
        tuned = "batch 128 KiB, linger 5 ms, acks 1"
        found = compare_loops("producer", tuned, broker, sides, records, runs, TUNED)
        report_memory("producer", tuned, found)
        compare_loops("producer", "each client's defaults", broker, sides, records, runs, {})
        compare_loops(
            "producer",
            f"delivery callbacks, {tuned}",
            broker,
            {
                "trimtab with callbacks": "",
                "confluent-kafka with callbacks": "confluent-kafka with callbacks",
            },
            records,
            runs,
            TUNED,
        )
        compare_loops(
            "producer",
            f"asyncio, {tuned}",
            broker,
            {"trimtab asyncio": "", "aiokafka": "aiokafka"},
            max(1, records // AIOKAFKA_SHARE),
            runs,
            TUNED,
            note="both on uvloop",
        )
