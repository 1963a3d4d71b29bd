"""`Producer.send` of 100 B values in a Python loop, compared with confluent-kafka and aiokafka.

Each run has its own process; the clients alternate. All send to a sink, which counts and discards
records, so that no broker limits the throughput (`lab/benchmarks/sink.py`); then to trimtab's
broker, which stores them. `send_table` is in the stage `table`, Java's producer in `java`.
"""

from __future__ import annotations

from lab.benchmarks.sink import Sink
from lab.benchmarks.workload import compare_loops, report_memory
from lab.processes import Trimtab

TUNED: dict[str, object] = {"batch.size": 131072, "linger.ms": 5, "acks": "1"}
SENT = {"trimtab": "", "confluent-kafka": "confluent-kafka"}
CALLED_BACK = {
    "trimtab with callbacks": "",
    "confluent-kafka with callbacks": "confluent-kafka with callbacks",
}
AWAITED = {"trimtab asyncio": "", "aiokafka": "aiokafka"}
# aiokafka is slow: it and the client it is compared with send this many times fewer records.
AIOKAFKA_SHARE = 10


def run(runs: int, records: int) -> None:
    tuned, defaults = "batch 128 KiB, linger 5 ms, acks 1", "each client's defaults"
    fewer = max(1, records // AIOKAFKA_SHARE)
    for make, where in (Sink, "into a sink"), (Trimtab, "stored by our broker"):
        is_sink = make is Sink
        with make() as broker:
            for setting, sides, count, options in (
                (tuned, SENT, records, TUNED),
                (defaults, SENT, records, {}),
                (f"delivery callbacks, {tuned}", CALLED_BACK, records, TUNED),
                (f"asyncio on uvloop, {tuned}", AWAITED, fewer, TUNED),
            ):
                found = compare_loops(
                    "producer",
                    f"{setting}, {where}",
                    broker,
                    sides,
                    count,
                    runs,
                    options,
                    makes_topics=not is_sink,
                )
                if sides is not AWAITED:
                    report_memory("producer", f"{setting}, {where}", found)
