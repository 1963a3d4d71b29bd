"""The demo's output: progress bars on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from lab.demo.experiment import Run, Way
from lab.demo.summary import Summary
from lab.output import format_duration, format_table

_PLAIN_STEPS = 10


class Show(Protocol):
    """Shows the current progress of the runs."""

    def __call__(self, runs: Sequence[Run], /) -> None: ...


class Display:
    """Writes the demo's output.

    Args:
        on_errors: to standard error, in place of standard output.
    """

    def __init__(self, on_errors: bool = False) -> None:
        self._console = Console(highlight=False, stderr=on_errors)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Print a line, and on a terminal show a spinner during the block."""
        self.say(text)
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(""):
            yield

    @contextmanager
    def follow(self, ways: Sequence[Way], total: int) -> Iterator[Show]:
        """Show the progress of each way: as bars on a terminal, else as a line for every tenth."""
        if not self._console.is_terminal:
            yield self._follow_plainly()
            return
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        # Only twice a second: drawing takes CPU from the producers, which run in this process.
        with Progress(
            *columns, console=self._console, transient=True, refresh_per_second=2
        ) as progress:
            bars = [progress.add_task(way.title, total=total) for way in ways]

            def show(runs: Sequence[Run]) -> None:
                for bar, run in zip(bars, runs, strict=True):
                    progress.update(bar, completed=run.acknowledged)

            yield show

    def _follow_plainly(self) -> Show:
        said = 0

        def show(runs: Sequence[Run]) -> None:
            nonlocal said
            done = min(run.acknowledged * _PLAIN_STEPS // run.total for run in runs)
            if done > said:
                said = done
                shares = ", ".join(
                    f"{run.way.title} {run.acknowledged / run.total:.0%}" for run in runs
                )
                self.say(f"  {shares}")

        return show

    def summarize(self, summary: Summary) -> None:
        """Print the tables and the findings."""
        for table in tabulate(summary):
            print(f"{table}\n", flush=True)
        for sentence in summary["findings"]:
            self.say(sentence)


def tabulate(summary: Summary) -> list[str]:
    """The tables that the demo prints, each at most 80 columns wide."""
    slow = str(summary["slow_broker"])
    return [
        _tabulate_load(summary, slow),
        _tabulate_ways(summary, slow),
        _tabulate_flights(summary),
    ]


def _tabulate_load(summary: Summary, slow: str) -> str:
    rows = [
        [
            "" if index else way["title"],
            f"{row['leader']}{' slow' if str(row['leader']) == slow else '     '}",
            f"{row['TotalBatches']:,}",
            f"{row['TotalBytes']:,}",
            f"{row['TotalRecords']:,}",
            "" if row["BytesPerBatch"] is None else f"{row['BytesPerBatch']:,.0f}",
            f"{row['ShareOfBytes']:.1%}",
        ]
        for way in summary["ways"].values()
        for index, row in enumerate(way["partitions"])
    ]
    heads = ["way", "broker", "batches", "bytes", "records", "B/batch", "share"]
    return format_table("Load by partition, one on each broker (KIP-794)", heads, rows)


def _tabulate_ways(summary: Summary, slow: str) -> str:
    ways = list(summary["ways"].values())
    brokers = list(ways[0]["share_by_broker"])
    heads = ["way", "MB/s", "p50", "p99", "p99.9"]
    heads += ["to slow" if broker == slow else f"to {broker}" for broker in brokers]
    rows = [
        [
            way["title"],
            f"{way['value_bytes_per_second'] / 1e6:.2f}",
            *(format_duration(way["latency_ms"][mark]) for mark in ("p50", "p99", "p99_9")),
            *(f"{way['share_by_broker'][broker]:.1%}" for broker in brokers),
        ]
        for way in ways
    ]
    rack = summary["client_rack"]
    title = f"Throughput, latency, share of bytes by broker (rack-aware: from rack {rack})"
    return format_table(title, heads, rows)


def _tabulate_flights(summary: Summary) -> str:
    rows = [
        [
            f"{row['carrier']} {row['origin']}",
            f"{row['flights']:,}",
            _minutes(row["mean_departure_delay"], ".1f"),
            _minutes(row["p95_departure_delay"], ".0f"),
            f"{row['cancelled_share']:.1%}",
        ]
        for row in summary["flights"]
    ]
    heads = ["flights", "count", "mean delay", "p95 delay", "cancelled"]
    return format_table("Flights by carrier and airport", heads, rows)


def _minutes(delay: float | None, form: str) -> str:
    return "" if delay is None else f"{delay:{form}} min"
