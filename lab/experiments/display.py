"""The output of an experiment: lines of text, progress bars (with rich) and tables."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from lab.output import format_table

_STEPS = 5
"""Number of progress lines if the output is not a terminal."""


class Display:
    """Writes the output.

    Args:
        stream: where to; standard output if None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._draws = self._stream.isatty() and importlib.util.find_spec("rich") is not None

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def show_table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.say(f"\n{format_table(title, heads, rows)}")

    @contextmanager
    def follow(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show progress: call the function that is yielded with how much of `total` is done."""
        if not self._draws:
            self.say(title)
            yield self._follow_plainly(total)
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining())
        console = Console(file=self._stream)
        with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
            bar = progress.add_task(title, total=total)
            yield lambda done: progress.update(bar, completed=done)
        self.say(title)

    def _follow_plainly(self, total: int) -> Callable[[int], None]:
        said = 0

        def show(done: int) -> None:
            nonlocal said
            step = done * _STEPS // total
            if step > said:
                said = step
                self.say(f"  {min(done / total, 1):.0%}")

        return show
