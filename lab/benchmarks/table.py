"""`send_table` of 100 B values, compared with confluent-kafka's `produce` and `produce_batch`.

The clients send to a sink, which counts and discards records (`lab/benchmarks/sink.py`), because a
broker that stores them is slower than this producer. The same run measures the machine's limit: the
same number of bytes, written by a bare loop into a socket and then to files
(`lab/benchmarks/loopback.py`).
"""

from __future__ import annotations

from lab.benchmarks.loopback import carry
from lab.benchmarks.producer import TUNED
from lab.benchmarks.report import progress, report
from lab.benchmarks.sink import Sink
from lab.benchmarks.workload import RECORD_BYTES, Loop, compare_loops, report_memory
from lab.processes import Trimtab

# Length, attributes, deltas of timestamp and offset, lengths of key and value, header count.
RECORD_OVERHEAD_BYTES = 10
LARGE: dict[str, object] = {"batch.size": 1048576, "linger.ms": 5, "acks": "1"}
SIDES = {
    "trimtab send_table": "",
    "confluent-kafka": "confluent-kafka produce",
    "confluent-kafka produce_batch": "confluent-kafka produce_batch",
}


def run(runs: int, records: int) -> None:
    with Sink() as sink:
        setting = "batch 128 KiB, linger 5 ms, acks 1, into a sink"
        found = compare_loops(
            "table", setting, sink, SIDES, records, runs, TUNED, makes_topics=False
        )
        report_memory("table", setting, found)
        setting = "batch 1 MiB, linger 5 ms, acks 1, into a sink"
        large = compare_loops(
            *("table", setting, sink, {"trimtab send_table": ""}, records, runs, LARGE),
            makes_topics=False,
        )
    with Trimtab() as broker:
        setting = "batch 128 KiB, linger 5 ms, acks 1, stored by our broker"
        stored = compare_loops(
            *("table", setting, broker, {"trimtab send_table": ""}, records, runs, TUNED)
        )
    carried = []
    for number in range(runs):
        progress(f"table: bare socket and files, run {number + 1} of {runs}")
        answer = carry(records * (RECORD_BYTES + RECORD_OVERHEAD_BYTES))
        carried.append(
            Loop(records / answer["seconds"], answer["cpu_seconds"] / records * 1e6, 0.0)
        )
    for name, loops in {
        "batch 128 KiB, into a sink": found["trimtab send_table"],
        "batch 1 MiB, into a sink": large["trimtab send_table"],
        "batch 128 KiB, stored by our broker": stored["trimtab send_table"],
    }.items():
        _report_beside_control(name, loops, carried)


def _report_beside_control(name: str, ours: list[Loop], carried: list[Loop]) -> None:
    control = "the same bytes, bare socket into files"
    report(
        *("table", f"records_per_s, {name}", "records/s"),
        [loop.records_per_second for loop in ours],
        control,
        [loop.records_per_second for loop in carried],
        more_is_better=True,
    )
    report(
        *("table", f"client_cpu_us_per_record, {name}", "us"),
        [loop.cpu_us_per_record for loop in ours],
        control,
        [loop.cpu_us_per_record for loop in carried],
        more_is_better=False,
    )
