"""`trimtab groups --watch`: the lag of groups, and when it is cleared, look after look."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.options import read_client_options
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import TableColumn, write_columns
from trimtab.cli.selection import ADMIN_TIMEOUT_MS
from trimtab.cli.style import WARNING, paint, say_warning
from trimtab.cli.table import show_count
from trimtab.kafka.errors import Unavailable

if TYPE_CHECKING:
    from trimtab.client.measure.lag import GroupLag, Look, PartitionLag
    from trimtab.client.measure.sample import LoadSample

_WINDOW_S: Final = 30.0
"""Rates are means over so long, if there are looks enough: consumers commit every few seconds."""
_TOP: Final = 20
_NOTES: Final = 3
"""Lines about what is not known."""


def watch_groups(arguments: argparse.Namespace) -> int:
    options = {"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **read_client_options(arguments)}
    if arguments.timeout is not None:
        options["default.api.timeout.ms"] = arguments.timeout
    with report_unreachable(options), asyncio.Runner() as runner:
        return runner.run(_watch(arguments, options))


async def _watch(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    from trimtab.client.admin import AsyncAdmin
    from trimtab.client.measure.lag import Look, measure_lag
    from trimtab.client.measure.sample import take_offsets

    loop = asyncio.get_running_loop()
    looks: deque[tuple[float, Look]] = deque()
    screen, code, count = _Screen(), 0, 0
    async with AsyncAdmin(options) as admin:
        while True:
            began = loop.time()
            try:
                sample = await take_offsets(admin, arguments.group or None)
            except Unavailable as error:
                if not looks:
                    raise
                screen.keep()
                say_warning(str(error))
            else:
                add_look(looks, began, Look(sample.groups, sample.ends))
                lags = measure_lag([look for _, look in looks])
                missing = find_missing(arguments.group, sample)
                notes = [f"consumer group '{each}' does not exist" for each in missing]
                notes += sample.unknown
                top = arguments.top or _TOP
                if arguments.json:
                    print(json.dumps(show_look(sample.measured_s, lags, notes, top)), flush=True)
                else:
                    screen.show(sample.measured_s, lags, notes, top)
                code = 1 if missing else 0
            count += 1
            if count == arguments.count:
                return code
            await asyncio.sleep(max(0.0, began + arguments.watch - loop.time()))


def add_look(looks: deque[tuple[float, Look]], at: float, look: Look) -> None:
    """Add a look, and drop those before the window, but not the one before this."""
    looks.append((at, look))
    while len(looks) > 2 and looks[1][0] <= at - _WINDOW_S:
        looks.popleft()


def find_missing(groups: Sequence[str], sample: LoadSample) -> list[str]:
    """Those of these groups that no broker knows; none while a broker does not answer."""
    known = sample.groups.keys() | sample.refused_groups.keys()
    return [] if sample.silent else sorted(set(groups) - known)


def choose_top(lags: Sequence[PartitionLag], count: int) -> list[PartitionLag]:
    """Those with most lag, an unknown lag last."""
    return nsmallest(count, lags, key=lambda each: (each.lag is None, -(each.lag or 0), *each[:2]))


def show_look(
    at: float, lags: Sequence[PartitionLag], notes: Sequence[str], count: int
) -> dict[str, Any]:
    """One look, for JSON.

    Args:
        at: seconds since the epoch.
    """
    from trimtab.client.measure.lag import sum_lag

    top = choose_top(lags, count)
    return {
        "timestamp": round(at * 1000),
        "groups": [
            {"group": each.group, "partitions": each.partitions, "lag": each.lag, **_rates(each)}
            for each in sum_lag(lags).values()
        ],
        "partitions": [_show(each) for each in top],
        "others": {
            "partitions": len(lags) - len(top),
            "lag": sum(each.lag or 0 for each in lags) - sum(each.lag or 0 for each in top),
        },
        "unknown": [*notes],
    }


def _show(lag: PartitionLag) -> dict[str, Any]:
    return {
        "group": lag.group,
        **lag.partition._asdict(),
        "offset": lag.committed,
        "logEndOffset": lag.end,
        "lag": lag.lag,
        **_rates(lag),
    }


def _rates(lag: PartitionLag | GroupLag) -> dict[str, Any]:
    return {
        "writtenPerSecond": lag.written_per_s,
        "readPerSecond": lag.read_per_s,
        "trend": lag.trend,
        "secondsToClear": lag.seconds_to_clear,
    }


def write_look(
    at: float, lags: Sequence[PartitionLag], notes: Sequence[str], count: int
) -> list[str]:
    """One look, for people."""
    top = choose_top(lags, count)
    groups = show_count(len({each.group for each in lags}), "group")
    partitions = show_count(len(lags), "partition")
    whole = sum(each.lag or 0 for each in lags)
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    lines = [f"{clock}  {groups}, {partitions}, a lag of {whole:,}"]

    def number(value: float | None) -> str | None:
        return None if value is None else f"{value:,.1f}"

    columns = [
        TableColumn("GROUP", "group", 10, fits=True),
        TableColumn("TOPIC", "topic", 10, fits=True),
        TableColumn("PARTITION", "partition", 9),
        TableColumn("LAG", "lag", 9, fits=True, show=lambda lag: lag and f"{lag:,}"),
        TableColumn("CLEARED-IN", "cleared", 18),
        TableColumn("TREND", "trend", 9),
        TableColumn("WRITTEN/S", "writtenPerSecond", 9, fits=True, show=number),
        TableColumn("READ/S", "readPerSecond", 9, fits=True, show=number),
        TableColumn("CURRENT-OFFSET", "offset", 14),
        TableColumn("LOG-END-OFFSET", "logEndOffset"),
    ]
    if top:
        lines += write_columns(
            columns, [{**_show(each), "cleared": say_when(each)} for each in top]
        )
    others = len(lags) - len(top)
    if others:
        rest = whole - sum(each.lag or 0 for each in top)
        lines.append(f"… and {show_count(others, 'more partition')}, with a lag of {rest:,}")
    lines += notes[:_NOTES]
    if len(notes) > _NOTES:
        lines.append(f"… and {show_count(len(notes) - _NOTES, 'more line')} like these")
    return lines


def say_when(lag: PartitionLag) -> str:
    """When the lag is cleared, or why that is not said."""
    if lag.end is None:
        return "the end is unknown"
    if lag.is_beyond_end:
        return "beyond the end"
    if not lag.lag:
        return "no lag"
    if lag.trend is None:
        return "measuring …"
    seconds = lag.seconds_to_clear
    return "never at this rate" if seconds is None else show_time(seconds)


def show_time(seconds: float) -> str:
    """Such as `45 s`, `12 min`, `3.5 h`, `12 days`."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


class _Screen:
    """Prints blocks of lines; on a terminal, each in the place of the one before."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._lines = 0

    def keep(self) -> None:
        """Leave what is printed where it is."""
        self._lines = 0

    def show(
        self, at: float, lags: Sequence[PartitionLag], notes: Sequence[str], count: int
    ) -> None:
        before = "\n" if self._lines else ""
        size = shutil.get_terminal_size()
        if self._is_live:
            before = f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
            others = 3 + min(len(notes), _NOTES + 1) + 1  # the last one has the cursor
            count = max(1, min(count, size.lines - others))
        lines = write_look(at, lags, notes, count)
        if self._is_live:
            # A group's id may be any text, control sequences included.
            clean = ("".join(each if each.isprintable() else "?" for each in ln) for ln in lines)
            lines = [line[: size.columns - 1] for line in clean]
        colours = [WARNING if " growing " in line else None for line in lines]
        print(before + "\n".join(map(paint, lines, colours)), flush=True)
        self._lines = len(lines)
