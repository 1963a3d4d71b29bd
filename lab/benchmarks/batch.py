"""Record batches: the compiled module compared with the same source, interpreted.

Each side runs in its own process (`TRIMTAB_PURE=1` interprets), alternately, on one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from lab.benchmarks.report import progress, report

VALUE = b"x" * 100
BATCH_BYTES = 131_072
SECONDS = 0.5
RIVAL = "the same module interpreted"


def run(runs: int, records: int) -> None:
    sides: dict[str, list[dict[str, float]]] = {"0": [], "1": []}
    for number in range(runs):
        progress(f"batch: run {number + 1} of {runs}")
        for pure, results in sides.items():
            done = subprocess.run(
                [sys.executable, "-m", "lab.benchmarks.batch"],
                env={**os.environ, "TRIMTAB_PURE": pure},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            results.append(json.loads(done.stdout))
    for metric in sides["0"][0]:
        report(
            *("batch", metric, "records/s"),
            [result[metric] for result in sides["0"]],
            RIVAL,
            [result[metric] for result in sides["1"]],
            more_is_better=True,
        )


def measure() -> dict[str, float]:
    """Records per second of each operation, in this process."""
    from trimtab.kafka.wire.batch_cy import BatchBuilder, read_records, verify

    def fill() -> BatchBuilder:
        builder = BatchBuilder(BATCH_BYTES)
        append = builder.append
        while append(1_700_000_000_000, None, VALUE, ()):
            pass
        return builder

    batch = bytes(fill().build())
    count = fill().count
    if len(read_records("t", 0, batch, 0)) != count:
        raise RuntimeError("a batch does not read back what was appended to it")

    def append_all() -> None:
        fill()

    def build() -> None:
        fill().build()

    return {
        "append": _rate(append_all, count),
        "append and build": _rate(build, count),
        "verify": _rate(lambda: verify(batch, 0, len(batch)), count),
        "read": _rate(lambda: read_records("t", 0, batch, 0), count),
    }


def _rate(call: Callable[[], object], records: int) -> float:
    """Records per second of repeated calls, each of which handles `records` records."""
    call()
    calls = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        call()
        calls += 1
    return calls * records / elapsed


if __name__ == "__main__":
    print(json.dumps(measure()))
