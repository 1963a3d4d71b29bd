"""`trimtab load` without a verb: the load of some seconds, measured without Spark.

Tests: tests/unit/cli/load/test_live.py
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.live.options import check_live_options, watch
from trimtab.cli.options import read_client_options
from trimtab.cli.reach import report_unreachable
from trimtab.cli.style import paint, say_note, say_warning
from trimtab.cli.table import align, show_bytes, show_count
from trimtab.kafka.errors import UsageError
from trimtab.threads.clock import monotonic_clock

if TYPE_CHECKING:
    from trimtab.cli.live.findings import Finding
    from trimtab.cli.live.rows import Summary
    from trimtab.cli.live.source import Source
    from trimtab.cli.live.tables import Table

_PATIENCE_S: Final = 60.0
"""Beyond the window: a cluster with 40,000 partitions is looked at each ten seconds."""


def run_live(arguments: argparse.Namespace) -> int:
    """Measure, and print.

    Raises:
        UsageError: an option is out of range.
        KafkaError: the cluster does not answer.
    """
    from trimtab.cli.live.findings import find

    check_live_options(arguments)
    if arguments.top < 1:
        raise UsageError(f"--top {arguments.top}: write 1 or more")
    with (
        _ended_by_sigterm(),
        report_unreachable(read_client_options(arguments)),
        watch(arguments) as source,
    ):
        say_note(f"Measuring for {arguments.window:g} s …")
        summary = measure(source, arguments.window)
        findings = find(summary)  # the source may have a newer one by now
    if arguments.json:
        print(json.dumps(show(summary, findings, arguments.top)))
        return 0
    print(describe(summary, findings, arguments.top, arguments.cost_per_gb))
    for line in summary.snapshot.metered.unknown:
        say_warning(f"not measured: {line}")
    return 0


def measure(
    source: Source, window_s: float, clock: Callable[[], float] = monotonic_clock
) -> Summary:
    """The first summary whose rates are of a whole window.

    Raises:
        Unavailable: there is none in time.
    """
    end, number = clock() + window_s, 0
    while True:
        number = source.wait(number, max(0.0, end - clock()) + _PATIENCE_S).number
        if clock() >= end and source.summary is not None:
            return source.summary


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, too, leaves no topic for probes."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(summary: Summary, findings: Sequence[Finding], top: int) -> dict[str, Any]:
    """For JSON."""
    snapshot = summary.snapshot
    return {
        "cluster": snapshot.cluster_id,
        "timestamp": round(snapshot.taken_s * 1000),
        "totals": summary.totals._asdict(),
        "levels": {
            name: {"level": level.level, "reachable": level.reachable, "mean": level.mean}
            for name, level in snapshot.levels.items()
        },
        "brokers": [row._asdict() for row in summary.brokers],
        "topics": [row._asdict() for row in summary.topics[:top]],
        "groups": [{**row._asdict(), "trend": row.trend} for row in summary.groups[:top]],
        "racks": [row._asdict() for row in summary.racks],
        "newest_records": [
            {
                **partition._asdict(),
                "keys": [share._asdict() for share in tail.keys],
                "producers": [share._asdict() for share in tail.producers],
            }
            for partition, tail in snapshot.tails.items()
        ],
        "findings": [
            {
                "severity": each.advice.severity,
                "rule": each.advice.rule,
                "subject": each.subject,
                "evidence": each.evidence,
                "action": each.advice.action,
            }
            for each in findings
        ],
        "unknown": [*snapshot.metered.unknown],
    }


def describe(summary: Summary, findings: Sequence[Finding], top: int, cost_per_gb: float) -> str:
    """Tables for people, then the findings."""
    from trimtab.balance.advice import SEVERITIES
    from trimtab.balance.cluster_load import OUT
    from trimtab.cli.live import tables
    from trimtab.cli.live.findings import explain_hottest

    totals, level = summary.totals, summary.snapshot.levels[OUT]
    unmeasured = totals.partitions - totals.measured
    lines = [
        f"Cluster {tables.show_text(summary.snapshot.cluster_id or 'without an id')}: "
        f"{show_count(totals.topics, 'topic')}, {show_count(totals.partitions, 'partition')}"
        + (f" ({unmeasured:,} not measured)" if unmeasured else ""),
        f"{show_bytes(totals.bytes_in)}/s in, {show_bytes(totals.bytes_out)}/s out, "
        f"{totals.records_in:,.0f} records/s; the busiest broker sends {level.level:.2f} times the "
        f"mean, at best {level.reachable:.2f}",
    ]
    if hottest := explain_hottest(summary):
        lines.append(tables.show_text(hottest))
    shown = {
        "Brokers": tables.of_brokers(summary),
        "Topics with most load": tables.of_topics(summary),
        "Hot keys": tables.of_tails(summary, "keys"),
        "Groups": tables.of_groups(summary),
        "Between racks": tables.of_racks(summary, cost_per_gb),
    }
    for title, table in shown.items():
        if table.rows:
            lines += ["", *_write(title, table, top)]
    lines += ["", "Findings"]
    if not findings:
        lines.append("Nothing to do: no rule is broken.")
    for each in findings:
        colour = tables.of_findings(findings).colour(each)
        head = f"{SEVERITIES[each.advice.severity]}: {each.subject} ({each.advice.rule})"
        lines += [
            paint(tables.show_text(head), colour),
            f"  {tables.show_text(each.evidence)}",
            f"  -> {each.advice.action}",
        ]
    return "\n".join(lines)


def _write(title: str, table: Table, top: int) -> list[str]:
    rows = table.rows[:top]
    heads = [column.head for column in table.columns]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    head, *lines = align([heads, *map(table.write, rows)], right=right)
    more = len(table.rows) - len(rows)
    rest = [f"… and {more:,} more (--top N)"] if more else []
    colours = map(table.colour, rows)
    return [title, head, *map(paint, lines, colours), *rest]
