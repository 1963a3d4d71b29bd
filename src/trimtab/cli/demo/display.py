"""What the demo shows while it runs and at its end: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trimtab.cli.demo.experiment import Run, Way
from trimtab.cli.demo.summary import Summary
from trimtab.cli.latency import format_duration

_PLAIN_WIDTH = 170
_PLAIN_STEPS = 10


class Show(Protocol):
    """Shows the runs as they are now."""

    def __call__(self, runs: Sequence[Run], /) -> None: ...


class Display:
    """Standard output."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        # Where nobody is looking, there is no window to fit into.
        self._console = console if console.is_terminal else Console(width=_PLAIN_WIDTH)

    def say(self, text: str) -> None:
        """One line of what happens now."""
        self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """A line of what happens now, and on a terminal a sign that it still does."""
        self.say(text)
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(""):
            yield

    @contextmanager
    def follow(self, ways: Sequence[Way], total: int) -> Iterator[Show]:
        """Show how far each way is; on a terminal as bars, else a line for every tenth."""
        if not self._console.is_terminal:
            yield self._follow_plainly()
            return
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        # Drawing takes time from the producers, which run in this process.
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
        """The tables and the sentences."""
        slow = str(summary["slow_broker"])
        self._console.print(_tabulate_load(summary, slow))
        self._console.print(_tabulate_ways(summary, slow))
        self._console.print(_tabulate_flights(summary))
        for sentence in summary["findings"]:
            self._console.print(Text(sentence), soft_wrap=True)


def _tabulate_load(summary: Summary, slow: str) -> Table:
    table = _table("Load by partition (KIP-794)", ["way", "partition", "broker", "rack"])
    for head in ("TotalBatches", "TotalBytes", "TotalRecords", "BytesPerBatch", "RecordsPerBatch"):
        table.add_column(head, justify="right")
    table.add_column("share", justify="right")
    for way in summary["ways"].values():
        for index, row in enumerate(way["partitions"]):
            table.add_row(
                way["title"] if index == 0 else "",
                str(row["partition"]),
                f"{row['leader']}{' slow' if str(row['leader']) == slow else ''}",
                row["rack"],
                f"{row['TotalBatches']:,}",
                f"{row['TotalBytes']:,}",
                f"{row['TotalRecords']:,}",
                "" if row["BytesPerBatch"] is None else f"{row['BytesPerBatch']:,.1f}",
                "" if row["RecordsPerBatch"] is None else f"{row['RecordsPerBatch']:,.2f}",
                f"{row['ShareOfBytes']:.1%}",
                end_section=index == len(way["partitions"]) - 1,
            )
    return table


def _tabulate_ways(summary: Summary, slow: str) -> Table:
    table = _table("Throughput, latency, bytes by broker", ["way"])
    for head in ("records/s", "MB/s", "avg", "p50", "p95", "p99", "p99.9", "max"):
        table.add_column(head, justify="right")
    for broker in next(iter(summary["ways"].values()))["bytes_by_broker"]:
        table.add_column(f"broker {broker}{' slow' if broker == slow else ''}", justify="right")
    table.add_column("max/mean", justify="right")
    table.add_column("variation", justify="right")
    for way in summary["ways"].values():
        latency = way["latency_ms"]
        durations = (
            latency["average"],
            latency["p50"],
            latency["p95"],
            latency["p99"],
            latency["p99_9"],
            latency["max"],
        )
        table.add_row(
            way["title"],
            f"{way['records_per_second']:,.0f}",
            f"{way['value_bytes_per_second'] / 1e6:.2f}",
            *map(format_duration, durations),
            *(f"{size / 1e6:.1f} MB" for size in way["bytes_by_broker"].values()),
            f"{way['max_over_mean']:.2f}",
            f"{way['coefficient_of_variation']:.2f}",
        )
    return table


def _tabulate_flights(summary: Summary) -> Table:
    table = _table("Flights by carrier and airport", ["carrier", "origin"])
    for head in ("flights", "mean delay", "p95 delay", "cancelled"):
        table.add_column(head, justify="right")
    for row in summary["flights"]:
        mean, late = row["mean_departure_delay"], row["p95_departure_delay"]
        table.add_row(
            row["carrier"],
            row["origin"],
            f"{row['flights']:,}",
            "" if mean is None else f"{mean:.1f} min",
            "" if late is None else f"{late:.0f} min",
            f"{row['cancelled_share']:.1%}",
        )
    return table


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table
