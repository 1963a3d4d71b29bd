"""`trimtab skew` on a Parquet file of keys, beside pandas, which counts the same keys.

Keys are texts such as `user-123456`, drawn from ten million by Zipf's law (exponent 0.8), so that
most occur seldom. pandas reads the column and counts each key (`value_counts`), as one would do by
hand; it does not compute partitions yet. Each runs in a process of its own, and its peak is shown.
For 100 million keys: `--runs 1 --records 100000000`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from lab.benchmarks.report import progress, report

KEYS = 10_000_000
EXPONENT = 0.8
PARTITIONS = 48
RIVAL = "pandas"
ROWS_AT_ONCE = 1_000_000
_MEASURE = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps([seconds, peak, done.returncode, done.stdout]))
"""
_COUNT = """
import sys, pandas
counts = pandas.read_parquet(sys.argv[1], columns=["key"])["key"].value_counts()
print(counts.index[0], counts.iloc[0])
"""


def run(runs: int, records: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "keys.parquet"
        progress(f"skew: writing {records} keys")
        _write(path, records)
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        pandas = _pandas()
        words = [sys.executable, "-m", "trimtab", "skew", str(path), "--key", "key", "--json"]
        for _ in range(runs):
            progress("skew: trimtab")
            ours.append(_measure([*words, "--partitions", str(PARTITIONS)], {0, 1, 3}))
            if pandas is not None:
                progress("skew: pandas")
                theirs.append(_measure([pandas, "-c", _COUNT, str(path)], {0}))
        note = "" if pandas else "pandas cannot be installed"
        for at, (metric, unit) in enumerate((("seconds", "s"), ("peak memory", "MiB"))):
            report(
                *("skew", f"{metric}, {records} keys", unit, [each[at] for each in ours]),
                *(RIVAL, [each[at] for each in theirs]),
                more_is_better=False,
                note=note,
            )


def _write(path: Path, records: int) -> None:
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(1)
    chances = numpy.cumsum(numpy.arange(1, KEYS + 1) ** -EXPONENT)
    chances /= chances[-1]
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("key", pyarrow.string())])) as writer:
        for first in range(0, records, ROWS_AT_ONCE):
            drawn = numpy.searchsorted(chances, random.random(min(ROWS_AT_ONCE, records - first)))
            numbers = pyarrow.array(drawn).cast(pyarrow.string())
            keys = pyarrow.compute.binary_join_element_wise("user", numbers, "-")
            writer.write_table(pyarrow.table({"key": keys}))


def _measure(words: list[str], codes: set[int]) -> tuple[float, float]:
    """Seconds and MiB at the peak."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, peak, code, shown = json.loads(done.stdout)
    if code not in codes:
        raise RuntimeError(f"{words} ended with {code}: {shown}")
    return seconds, peak


def _pandas() -> str | None:
    """A Python that has pandas, in an environment of its own; None if it cannot be had."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trimtab" / "pandas"
    python = home / "bin" / "python"
    if not python.exists():
        progress("skew: installing pandas")
        venv.create(home, with_pip=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "pandas", "pyarrow"])
        if done.returncode:
            return None
    return str(python)
