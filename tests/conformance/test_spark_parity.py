"""What `format("trimtab")` reads beside Spark's own Kafka connector, option by topic.

Skipped without Java; the first run fetches Apache Kafka's and the connector's jars. The matrix is
`lab/benchmarks/parity.py`, in a process of its own: the connector's jars must be there when Spark
starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.benchmarks.jars import RivalMissing, connector_jars, find_java, kafka_jars

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900


@pytest.mark.timeout(PATIENCE + 60)
def test_no_case_differs_but_those_that_the_guide_lists() -> None:
    try:
        find_java()
        kafka_jars()
        connector_jars()
    except RivalMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [sys.executable, "-m", "lab.benchmarks.parity"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in lines if line.get("unexpected")] == []
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = {(line["cluster"], line["outcome"]) for line in lines}
    assert outcomes == {
        (cluster, outcome)
        for cluster in ("Apache Kafka", "trimtab")
        for outcome in ("same", "both fail", "differs")
    }
    guide = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    assert {line["listed_as"] for line in lines if line["outcome"] == "differs"} <= {
        row.split("|")[1].strip() for row in guide.splitlines() if row.startswith("| ")
    }
