"""The progress of streams: what a listener hands over, and the line in a terminal."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.spark.stream.offsets import STATE
from trimtab.spark.stream.progress import (
    ProgressLine,
    ProgressListener,
    SourceProgress,
    read_progress,
)

LAG = {
    "batchRecords": 10_240,
    "batchBytes": 8_000_000,
    "lagRecords": 1_203_334,
    "lagBytes": 3_100_000_000,
    "lagSeconds": 41.7,
}
LINE = "flights: batch 12 read 8.0 MB, 10,240 records; behind by 3.1 GB, 1,203,334 records, 42 s"


def event(*latest: object, name: str | None = "flights") -> Any:
    sources = [SimpleNamespace(latestOffset=each) for each in latest]
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, runId="run-7", batchId=12, sources=sources)
    )


def test_only_sources_of_ours_are_read_however_spark_hands_them_over() -> None:
    offset = {"t": {"0": 7}, STATE: LAG}
    happened = event(offset, json.dumps(offset), {"t": {"0": 7}}, None, "null", name=None)
    found = read_progress(happened.progress)
    assert found == [found[0]] * 2
    assert found[0] == SourceProgress("run-7", 12, *LAG.values())  # type: ignore[arg-type]


def test_the_listener_hands_each_progress_over() -> None:
    shown: list[SourceProgress] = []
    listener = ProgressListener(shown.append)
    listener.onQueryProgress(event({STATE: LAG}))
    assert list(map(str, shown)) == [LINE]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lagSeconds": None}, LINE.removesuffix(", 42 s")),
        ({"lagRecords": 0}, "flights: batch 12 read 8.0 MB, 10,240 records; nothing is left"),
        (
            {"batchBytes": None, "lagBytes": None, "lagSeconds": None},
            "flights: batch 12 read 10,240 records; behind by 1,203,334 records",
        ),
        (
            {"batchBytes": 999, "lagBytes": 10**16},
            LINE.replace("8.0 MB", "999 B").replace("3.1 GB", "10000.0 TB"),
        ),
    ],
)
def test_what_is_not_known_is_not_said(changes: dict[str, Any], text: str) -> None:
    happened = event({STATE: {k: v for k, v in (LAG | changes).items() if v is not None}})
    assert str(read_progress(happened.progress)[0]) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_a_line_replaces_the_one_before() -> None:
    progress = read_progress(event({STATE: LAG}).progress)[0]
    terminal = Terminal()
    line = ProgressLine(terminal)
    line(progress)
    line(progress)
    line.end_line()
    line.end_line()
    assert terminal.getvalue() == f"\r\x1b[K{LINE}\r\x1b[K{LINE}\n"
    file = io.StringIO()
    line = ProgressLine(file)
    line(progress)
    line.end_line()
    assert file.getvalue() == f"{LINE}\n"


def test_a_query_that_ends_ends_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    listener = ProgressListener()
    listener.onQueryStarted(event())
    listener.onQueryProgress(event({STATE: LAG}))
    listener.onQueryTerminated(event())
    assert capsys.readouterr().err == f"{LINE}\n"
