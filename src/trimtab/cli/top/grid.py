"""A table of plain lines that is drawn within a millisecond.

Textual's own DataTable measures and draws each cell for itself: 200 rows took a quarter of a
second, and a refresh may not.

Tests: test_app.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

_GAP: Final = "  "


class Grid(ScrollView, can_focus=True):
    """Rows below a head that stays. One row has the cursor, if there are any."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1_000_000)"),
        Binding("end", "move(1_000_000)"),
        Binding("enter", "open"),
    ]

    @dataclass
    class Moved(Message):
        """The cursor is at another row."""

        at: int

    @dataclass
    class Opened(Message):
        """Enter, or a click on the row with the cursor."""

        at: int

    @dataclass
    class HeadClicked(Message):
        column: int

    def __init__(self) -> None:
        super().__init__()
        self._head = ""
        self._ends: list[int] = []
        self._lines: list[str] = []
        self._styles: Sequence[Style] = ()
        self._at = 0

    def fill(
        self,
        heads: Sequence[str],
        cells: Sequence[Sequence[str]],
        rights: Sequence[bool],
        styles: Sequence[Style],
        at: int,
    ) -> None:
        """Show these rows.

        Args:
            rights: whether a column is aligned right.
            styles: one for each row.
            at: the row with the cursor.
        """
        widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
        self._ends = []
        for width in widths:
            self._ends.append((self._ends[-1] if self._ends else 0) + width + len(_GAP))
        self._head, *self._lines = (
            _GAP.join(
                " " * (width - cell_len(cell)) + cell if is_right else set_cell_size(cell, width)
                for cell, width, is_right in zip(row, widths, rights, strict=True)
            )
            for row in (heads, *cells)
        )
        self._styles = styles
        self.virtual_size = Size(sum(widths) + len(_GAP) * (len(widths) - 1), 1 + len(cells))
        self._at = at
        self._scroll_to_cursor()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width, at = self.size.width, y - 1 + top
        if y == 0:
            text, style = self._head, Style(bold=True, underline=True)
        elif at < len(self._lines):
            text = self._lines[at]
            style = self._styles[at] + Style(reverse=at == self._at)
        else:
            text, style = "", Style()
        strip = Strip([Segment(text, style)], cell_len(text))
        return strip.crop_extend(left, left + width, style).apply_style(self.rich_style + style)

    def _scroll_to_cursor(self) -> None:
        _, top = self.scroll_offset
        shown = max(1, self.size.height - 1)
        if not top <= self._at < top + shown:
            y = self._at if self._at < top else self._at - shown + 1
            self.scroll_to(y=y, animate=False, force=True)

    def on_resize(self) -> None:
        self._scroll_to_cursor()

    def action_move(self, steps: int) -> None:
        if self._lines:
            self._at = min(max(0, self._at + steps), len(self._lines) - 1)
            self._scroll_to_cursor()
            self.refresh()
            self.post_message(self.Moved(self._at))

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 2))

    def action_open(self) -> None:
        if self._lines:
            self.post_message(self.Opened(self._at))

    def on_click(self, event: events.Click) -> None:
        left, top = self.scroll_offset
        at = event.y - 1 + top
        if event.y == 0:
            column = sum(end <= event.x + left for end in self._ends)
            if column < len(self._ends):
                self.post_message(self.HeadClicked(column))
        elif at == self._at:
            self.action_open()
        elif at < len(self._lines):
            self.action_move(at - self._at)
