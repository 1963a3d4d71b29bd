"""Shows the progress of a session's streams: a listener, and a line in the terminal.

    spark.streams.addListener(ProgressListener())

    flights: batch 12 read 8.0 MB, 10,240 records; behind by 3.1 GB, 1,203,334 records, 42 s

Without a listener, the same numbers are in `query.lastProgress.sources[0].latestOffset`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from trimtab.spark.stream.offsets import STATE

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


_UNITS = ("kB", "MB", "GB", "TB")


class SourceProgress(NamedTuple):
    """The progress of one source of a query after a batch.

    Attributes:
        query: the query's name; its run's id if it has none.
        batch: the batch's number.
        batch_records: offsets that the batch has read.
        batch_bytes: its bytes in the log; None if no option of the stream counts bytes.
        lag_records: offsets left to read.
        lag_bytes: their bytes; None if no option counts bytes.
        lag_seconds: age of the oldest unread record; None if unknown.
    """

    query: str
    batch: int
    batch_records: int
    batch_bytes: int | None
    lag_records: int
    lag_bytes: int | None
    lag_seconds: float | None

    def __str__(self) -> str:
        text = f"{self.query}: batch {self.batch} read "
        if self.batch_bytes is not None:
            text += f"{_show_bytes(self.batch_bytes)}, "
        text += f"{self.batch_records:,} records; "
        if not self.lag_records:
            return text + "nothing is left"
        text += "behind by "
        if self.lag_bytes is not None:
            text += f"{_show_bytes(self.lag_bytes)}, "
        text += f"{self.lag_records:,} records"
        return text if self.lag_seconds is None else f"{text}, {self.lag_seconds:,.0f} s"


def read_progress(progress: StreamingQueryProgress) -> list[SourceProgress]:
    """The progress of a query's sources of format `trimtab`."""
    found = []
    for source in progress.sources:
        latest: Any = source.latestOffset
        # Some of Spark's classes give JSON as text, others as parsed values.
        if isinstance(latest, str):
            latest = json.loads(latest)
        if isinstance(latest, Mapping) and STATE in latest:
            state = latest[STATE]
            found.append(
                SourceProgress(
                    progress.name or str(progress.runId),
                    progress.batchId,
                    state["batchRecords"],
                    state.get("batchBytes"),
                    state["lagRecords"],
                    state.get("lagBytes"),
                    state.get("lagSeconds"),
                )
            )
    return found


class ProgressListener(StreamingQueryListener):
    """Reports the progress of streams after each batch.

    Args:
        show: called with each source's progress. The default prints a line on standard error,
            which replaces the line before if that is a terminal.
    """

    def __init__(self, show: Callable[[SourceProgress], object] | None = None) -> None:
        self._line = ProgressLine() if show is None else None
        self._show = show or self._line

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        assert self._show is not None
        for each in read_progress(event.progress):
            self._show(each)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if self._line is not None:
            self._line.end_line()


class ProgressLine:
    """Writes progress as lines; in a terminal each line replaces the one before.

    Args:
        file: standard error by default.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._is_open = False

    def __call__(self, progress: SourceProgress | str) -> None:
        if self._file.isatty():
            self._file.write(f"\r\x1b[K{progress}")
            self._is_open = True
        else:
            self._file.write(f"{progress}\n")
        self._file.flush()

    def end_line(self) -> None:
        """End the line, so that further output begins on a new one."""
        if self._is_open:
            self._file.write("\n")
            self._file.flush()
        self._is_open = False


def _show_bytes(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, len(_UNITS))
    return f"{count / 1000**power:.1f} {_UNITS[power - 1]}"
