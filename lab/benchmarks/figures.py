"""Measures and writes every table of figures in README.md and docs.

    python -m lab.benchmarks.figures                       run all stages, store, write the tables
    python -m lab.benchmarks.figures --only producer demo  run only these; keep the others' figures
    python -m lab.benchmarks.figures --write-only          write the tables from the stored figures

`docs/figures.json` keeps each stage's rows with the commit, the date and the machine. A table is
between `<!-- figures: NAME -->` and `<!-- end of figures -->`; a table without stored figures is
not changed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab.benchmarks import turns
from lab.benchmarks.partitioning import draw, draw_balance, measure, word_table
from lab.benchmarks.report import progress
from lab.output import format_duration

ROOT: Final = Path(__file__).resolve().parents[2]
STORE: Final = "docs/figures.json"
SEEDS: Final = 2500
"""Number of runs of the simulation for the table of failures."""

Row = Mapping[str, Any]
Stored = dict[str, dict[str, Any]]
"""By stage: commit, date, machine, and rows."""


class Table(NamedTuple):
    """A table between two marks.

    Attributes:
        render: makes its lines from the stored figures, which include all of its stages.
    """

    file: str
    stages: Sequence[str]
    render: Callable[[Stored, Sequence[str]], list[str]]


def render_stages(stored: Stored, stages: Sequence[str], wanted: str = "") -> list[str]:
    """A line for each measurement that matches `wanted`, with its rival's figure."""
    lines = ["| stage | | trimtab | compared with | | |", "|---|---|--:|--:|--:|---|"]
    for stage in stages:
        label = f"`{stage}`"
        for row in stored[stage]["rows"]:
            if not re.search(wanted, row["metric"]):
                continue
            missing = row.get("note") or "not measured"
            beside = missing if row["rival_value"] is None else _value(row, "rival_value")
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g} x"
            ours = "" if row["value"] is None else f"**{_value(row, 'value')}**"
            cells = (label, _words(row["metric"]), ours, beside, ratio, row["rival"])
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
            label = ""
    return lines


def render_speed(stored: Stored, stages: Sequence[str]) -> list[str]:
    """Like `render_stages`, without memory and without measurements that have no rival."""
    rows = {
        stage: {**stored[stage], "rows": [row for row in stored[stage]["rows"] if _is_speed(row)]}
        for stage in stages
    }
    return render_stages({**stored, **rows}, stages)


def _is_speed(row: Row) -> bool:
    return "memory" not in row["metric"] and "bare socket" not in row["rival"]


def _words(metric: str) -> str:
    """What a metric measures, without its unit, which the figure has."""
    name, _, setting = metric.partition(", ")
    if name in ("records_per_s", "rows_per_s"):
        return setting
    if name.endswith("cpu_us_per_record"):
        whose = name.removesuffix("cpu_us_per_record").rstrip("_")
        return f"{setting}: {whose} CPU".replace("  ", " ")
    return metric


def render_facts(stored: Stored, stages: Sequence[str]) -> list[str]:
    """A line for each measurement: its figure, its rival's, and its other values."""
    lines = ["| stage | | trimtab | compared with | |", "|---|---|--:|--:|---|"]
    for stage in stages:
        label = f"`{stage}`"
        for row in stored[stage]["rows"]:
            ours = f"**{_value(row, 'value')}**" if "value" in row else ""
            beside = "" if row.get("rival_value") is None else _value(row, "rival_value")
            more = {key: value for key, value in row.items() if key not in _SHOWN_ELSEWHERE}
            told = "; ".join(filter(None, [row.get("rival", ""), *_flatten(more)]))
            cells = (label, row.get("metric", ""), ours, beside, told)
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
            label = ""
    return lines


_SHOWN_ELSEWHERE: Final = {
    *("stage", "metric", "value", "unit", "rival", "rival_value", "ratio", "runs", "note"),
    *("min", "max", "rival_min", "rival_max"),
    *("faults_by_kind", "failed_seeds", "records_per_s", "seed"),
}


def _flatten(values: Mapping[str, Any]) -> list[str]:
    """`name figure` for each value; `name: name figure, name figure` for a dictionary."""
    told = []
    for key, value in values.items():
        name = key.replace("_", " ")
        if isinstance(value, Mapping):
            told.append(f"{name}: {', '.join(_flatten(value))}")
        else:
            told.append(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}")
    return told


def render_settings(stored: Stored, stages: Sequence[str]) -> list[str]:
    """A line for each configuration of a proposal's setting, with its rival's figures."""
    (stage,) = stages
    lines = ["| on | producer | average ms | p99 ms | uneven | Java's: average | p99 | uneven | |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|---|")
    found: dict[str, dict[str, Row]] = {}
    for row in stored[stage]["rows"]:
        metric, _, setting = row["metric"].partition(", on ")
        found.setdefault(setting, {})[metric.partition("_of_")[0]] = row
    before = ""
    for setting, rows in found.items():
        where, _, producer = setting.rpartition(", ")
        cells = ["" if where == before else where, producer]
        before = where
        uneven = rows.get("spread") or rows["deviation"]
        for key in ("value", "rival_value"):
            cells += [_milliseconds(rows[name][key]) for name in ("average_ms", "p99_ms")]
            cells.append("" if uneven[key] is None else f"{uneven[key]:.1%}")
        lines.append(f"| {' | '.join(cells)} | {uneven['rival']} |")
    return lines


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def render_demo(stored: Stored, stages: Sequence[str]) -> list[str]:
    (stage,) = stages
    lines = ["| way | bytes to slow broker 0 | broker 1 | broker 2 | p50 | p99 |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for way in stored[stage]["rows"]:
        shares = " | ".join(f"{way['share_by_broker'][broker]:.1%}" for broker in "012")
        times = " | ".join(format_duration(way["latency_ms"][mark]) for mark in ("p50", "p99"))
        lines.append(f"| {way['title']} ({way['kip']}) | {shares} | {times} |")
    return lines


def render_partitioning(stored: Stored, stages: Sequence[str]) -> list[str]:
    (stage,) = stages
    return word_table(stored[stage]["rows"])


def render_turns(stored: Stored, stages: Sequence[str]) -> list[str]:
    (stage,) = stages
    return turns.table(stored[stage]["rows"])


class Headline(NamedTuple):
    """A figure in README.md: which stored row it is, and its name there."""

    stage: str
    metric: str
    rival: str
    name: str


HEADLINES: Final = (
    Headline(
        "java",
        "records_per_s, on Apache Kafka 4.3.0, batch 128 KiB, linger 5 ms, acks 1",
        "Java's ProducerPerformance 4.3.0",
        "producer: to Apache Kafka, batches of 128 KiB, acks=1",
    ),
    Headline(
        "table",
        "records_per_s, batch 128 KiB, linger 5 ms, acks 1, into a sink",
        "confluent-kafka produce_batch",
        "producer: an Arrow table, to a broker that only counts records",
    ),
    Headline(
        "replication",
        "records_per_s, 100 B, defaults",
        "Apache Kafka 4.3.0",
        "cluster: three brokers and acks=all, Java's producer with its defaults",
    ),
    Headline(
        "startup",
        "start to the first Metadata answer",
        "Apache Kafka 4.3.0",
        "cluster: start of one broker, until it answers",
    ),
    Headline(
        "spark",
        "rows_per_s, 1000000 records of 100 B",
        "spark-sql-kafka-0-10 4.2.0",
        "Spark: reading a topic",
    ),
)


def render_headlines(stored: Stored, stages: Sequence[str]) -> list[str]:
    lines = ["| | trimtab | compared with | |", "|---|--:|--:|---|"]
    for headline in HEADLINES:
        for row in stored[headline.stage]["rows"]:
            if (row["metric"], row["rival"]) == (headline.metric, headline.rival):
                missing = row.get("note") or "not measured"
                beside = missing if row["rival_value"] is None else _value(row, "rival_value")
                cells = (headline.name, f"**{_value(row, 'value')}**", beside, headline.rival)
                lines.append(f"| {' | '.join(cells)} |")
    return lines


TABLES: Final = {
    "producer": Table("docs/measured.md", ("producer", "table", "java"), render_speed),
    "consumer": Table("docs/measured.md", ("consumer", "reading"), render_speed),
    "groups": Table("docs/measured.md", ("groups", "consumer_memory"), render_stages),
    "kip480": Table("docs/measured.md", ("kip480",), render_settings),
    "kip794": Table("docs/measured.md", ("kip794",), render_settings),
    "cluster": Table("docs/measured.md", ("broker", "startup", "spark"), render_stages),
    "replication": Table("docs/measured.md", ("replication",), render_stages),
    "partitions": Table("docs/measured.md", ("partitions",), render_stages),
    "failures": Table("docs/measured.md", ("sim", "kills", "patience"), render_facts),
    "limits": Table("docs/measured.md", ("fetch", "placement", "reassignment"), render_facts),
    "demo": Table("docs/measured.md", ("demo",), render_demo),
    "partitioning": Table("docs/partitioning.md", ("partitioning",), render_partitioning),
    "turns": Table("docs/partitioning.md", ("turns",), render_turns),
    "headlines": Table(
        "README.md", tuple(headline.stage for headline in HEADLINES), render_headlines
    ),
}
STAGES: Final = tuple(dict.fromkeys(stage for table in TABLES.values() for stage in table.stages))


def _value(row: Row, key: str) -> str:
    value, unit = row[key], row["unit"]
    if unit == "us":
        unit = "µs"
    if value >= 1_000_000:
        return f"{value / 1e6:.2f} M {unit}"
    return f"{value / 1000:.0f} k {unit}" if value >= 10_000 else f"{value:,.4g} {unit}"


def render(table: Table, stored: Stored) -> str | None:
    """The table, with the origin of its figures; None if a stage has no stored figures."""
    if any(stage not in stored for stage in table.stages):
        return None
    lines = table.render(stored, table.stages)
    origins: dict[str, list[str]] = {}
    for stage in table.stages:
        of = stored[stage]
        origin = f"{of['date']} at commit {of['commit']} on {of['machine']}"
        origins.setdefault(origin, []).append(f"`{stage}`")
    said = "; ".join(f"{', '.join(names)}: {origin}" for origin, names in origins.items())
    return "\n".join([*lines, "", f"Measured by `make figures`. {said}."])


def marks(name: str) -> re.Pattern[str]:
    """A pattern that matches a table with its marks; its second group is the table."""
    begin, end = re.escape(f"<!-- figures: {name} -->\n"), re.escape("\n<!-- end of figures -->")
    return re.compile(f"({begin})(.*?)({end})", re.S)


def write_tables(root: Path, stored: Stored) -> None:
    """Put every table that can be rendered between its marks.

    Raises:
        ValueError: a table has no marks.
    """
    for name, table in TABLES.items():
        path = root / table.file
        text = path.read_text(encoding="utf-8")
        found = marks(name).search(text)
        if found is None:
            raise ValueError(f"{table.file} has no marks <!-- figures: {name} -->")
        drawn = render(table, stored)
        if drawn is not None:
            begin, end = found.span(2)
            path.write_text(text[:begin] + drawn + text[end:], encoding="utf-8")
    if "partitioning" in stored:
        for name, drawer in (("partitioning", draw), ("balance", draw_balance)):
            picture = drawer(stored["partitioning"]["rows"])
            (root / "docs" / f"{name}.svg").write_text(picture, encoding="utf-8")


def load(root: Path) -> Stored:
    path = root / STORE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def run_stage(stage: str, runs: int | None, records: int | None) -> list[Any]:
    """Run a stage and return its rows.

    Raises:
        CalledProcessError: it failed; standard error has the reason.
    """
    if stage == "partitioning":
        return measure(runs or 3)
    if stage == "demo":
        with tempfile.TemporaryDirectory() as out:
            more = [] if records is None else ["--records", str(records)]
            command = [sys.executable, "-m", "trimtab", "demo", "--out", out, *more]
            subprocess.run(command, check=True, stdout=sys.stderr)
            summary = json.loads((Path(out) / "summary.json").read_text(encoding="utf-8"))
        return list(summary["ways"].values())
    command = [sys.executable, "-m", "lab.benchmarks", stage]
    if stage == "sim":
        command = [sys.executable, "-m", "lab.reliability", "--jobs", "2", "--seeds", str(SEEDS)]
        runs = records = None
    command += [] if runs is None else ["--runs", str(runs)]
    command += [] if records is None else ["--records", str(records)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return [json.loads(line) for line in printed.stdout.splitlines() if line.startswith("{")]


def describe_place() -> dict[str, str]:
    """The commit, the date and the machine."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "lab")
    python = platform.python_version()
    return {
        "commit": f"{commit} (changed)" if changed else commit,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {python}",
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    parser.add_argument("--runs", type=int, metavar="N", help="of each side (default: the stage's)")
    parser.add_argument("--records", type=int, metavar="N", help="default: the stage's")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the tree that is written")
    arguments = parser.parse_args(argv)
    stored = load(arguments.root)
    for stage in () if arguments.write_only else arguments.only:
        progress(f"figures: {stage}")
        place = describe_place()
        stored[stage] = {**place, "rows": run_stage(stage, arguments.runs, arguments.records)}
        text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
        (arguments.root / STORE).write_text(text, encoding="utf-8")
    write_tables(arguments.root, stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
