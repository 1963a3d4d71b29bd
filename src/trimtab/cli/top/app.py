"""What `trimtab top` shows: a line about the cluster, one table, and a text about its row.

    page of the cluster ─ Enter ─▶ page of a broker, topic or group ─ Enter ─▶ …; Esc goes back

A page has some tables, of which one is shown. It is drawn again when there is a newer snapshot.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from trimtab.balance.cluster_load import OUT
from trimtab.cli.limits import PlannedTopic
from trimtab.cli.live import tables
from trimtab.cli.live.findings import Finding, explain_hottest
from trimtab.cli.live.rows import Summary
from trimtab.cli.live.source import Source
from trimtab.cli.live.tables import Table, show_text
from trimtab.cli.style import ERROR, WARNING
from trimtab.cli.table import show_bytes, show_count
from trimtab.cli.top.grid import Grid
from trimtab.threads.clock import wall_clock

_LOOK_S: Final = 1.0
_MOST: Final = 200
"""Rows of a table; the others are found with a filter."""
_STYLES: Final = {
    ERROR: Style(color="red", bold=True),
    WARNING: Style(color="yellow"),
    None: Style(),
}
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_KEYS: Final = "/ filter  A…Z sort  Enter open  Esc back  ? help  q quit"
_HELP: Final = """\
1 … 7, Tab    another table            /        show rows with these words
↑ ↓ PgUp PgDn another row              Enter    open the broker, topic or group
← →           further columns          Esc      back; end the filter
A … Z         sort by the column that begins with this letter; again: the
              next such column, or the other way round. A click on its head, too
?             this help                q        end

findings  what is wrong, the worst first, and what to do about it
brokers   level: what its leaders send, by the mean; 1 is even. lately: sent
          answers: 99 % of probes (--probe) take less; otherwise the last poll
topics    skew: bytes of the largest partition, by the mean of all
groups    how far they are behind, and when they will have caught up
racks     bytes between racks, and what they cost (--cost-per-gb)
room      would one more topic fit? / asks for another one: 200x3 is 200
          partitions of 3 replicas
plan      what `trimtab balance` would do now

lately is a curve of the last times at which rates were kept, from 0 to its
largest value. Nothing here changes the cluster.          Any key goes back."""


@dataclass
class Page:
    """A place to be at, and what is chosen there.

    Attributes:
        title: "" for the whole cluster.
        makers: by the name of each table, what makes it of a summary.
        is_reversed: whether the table is sorted the other way round than usual.
    """

    title: str
    makers: Mapping[str, Callable[[Summary], Table]]
    at: str = ""
    words: str = ""
    column: int | None = None
    is_reversed: bool = False
    row: str = ""
    """The name of the row with the cursor."""

    def __post_init__(self) -> None:
        self.show(self.at or next(iter(self.makers)))

    def show(self, name: str) -> None:
        self.at, self.words, self.column, self.is_reversed, self.row = name, "", None, False, ""


class Help(ModalScreen[None]):
    CSS = "Help { align: center middle; } Help Static { width: 80; border: solid; padding: 0 1; }"

    def compose(self) -> ComposeResult:
        yield Static(Text(_HELP))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()


class TopApp(App[None]):
    """The terminal's whole screen.

    Args:
        source: of snapshots; its last one is looked at each second.
        cost_per_gb: between racks.
        wall: seconds since the epoch.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #state { height: auto; max-height: 25%; }
    #tabs { height: 1; }
    Grid { height: 1fr; scrollbar-size: 0 1; }
    #row { height: 5; max-height: 25%; border-top: solid; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #keys { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "end(130)", priority=True),
        Binding("q", "end(0)"),
        Binding("tab", "turn(1)", priority=True),
        Binding("shift+tab", "turn(-1)", priority=True),
        Binding("slash", "filter"),
        Binding("escape", "leave", priority=True),
        Binding("question_mark", "help"),
    ]

    def __init__(
        self, source: Source, cost_per_gb: float, wall: Callable[[], float] = wall_clock
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # the terminal's own colours
        self._source = source
        self._wall = wall
        self._summary: Summary | None = None
        self._findings: Sequence[Finding] = ()
        self._asked: list[PlannedTopic] = []
        self._table: Table | None = None
        self._shown: list[str] = []
        self._rows: list[object] = []
        history = source.history
        makers: dict[str, Callable[[Summary], Table]] = {
            "findings": lambda _: tables.of_findings(self._findings),
            "brokers": lambda summary: tables.of_brokers(summary, history),
            "topics": lambda summary: tables.of_topics(summary, history),
            "groups": tables.of_groups,
            "racks": lambda summary: tables.of_racks(summary, cost_per_gb),
            "room": lambda summary: tables.of_room(summary, self._asked),
            "plan": lambda summary: tables.of_plan(summary.snapshot),
        }
        self._pages = [Page("", makers)]

    @property
    def page(self) -> Page:
        return self._pages[-1]

    def compose(self) -> ComposeResult:
        # Kept, not queried: a look while the screen closes would find only some of them.
        self._state, self._tabs = Static(id="state"), Static(id="tabs")
        self._grid, self._row = Grid(), Static(id="row")
        self._filter, self._keys = Input(id="filter"), Static(id="keys")
        yield from (self._state, self._tabs, self._grid, self._row, self._filter, self._keys)

    def on_mount(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.action_end, 128 + number)
        self.set_interval(_LOOK_S, self.look)
        self._grid.focus()
        self.look()

    def look(self) -> None:
        """Show the last snapshot, and its age."""
        if not self._grid.is_attached:
            return  # the screen is being closed
        if self._source.is_live and self._source.is_over:
            self.exit()  # the source's end says why
            return
        summary = self._source.summary
        if summary is not None and summary is not self._summary:
            self._summary, self._findings = summary, self._source.findings
            self.draw()
        self._draw_state()

    # Drawing

    def _draw_state(self) -> None:
        """The line about the cluster."""
        source, summary = self._source, self._summary
        text = Text()
        if source.is_live and source.trouble:
            text.append(f" {show_text(source.trouble)} \n", "reverse")
        if summary is None:
            text.append("Measuring: rates need two looks at the cluster, some seconds apart …")
            self._state.update(text)
            return
        snapshot, totals = summary.snapshot, summary.totals
        age = f"{max(0.0, self._wall() - snapshot.taken_s):.0f} s ago"
        if not source.is_live:
            taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.taken_s))
            age = f"the busiest moment of a recording, {taken}"
        level = snapshot.levels[OUT]
        slow = sum(row.state == "slow" for row in summary.brokers)
        down = sum(row.state == "down" for row in summary.brokers)
        is_probed = any(row.p99_s is not None for row in summary.brokers)
        text.append(f"{show_text(snapshot.cluster_id or 'a cluster without an id')}, {age}: ")
        text.append(f"{show_count(len(summary.brokers), 'broker')}")
        for count, state, colour in ((down, "down", ERROR), (slow, "slow", WARNING)):
            if count:
                text.append(f", {count} {state}", _STYLES[colour])
        if not is_probed:
            text.append(", slow: ? (--probe)")
        text.append(
            f"; {show_count(totals.topics, 'topic')}, {show_count(totals.partitions, 'partition')}"
            f"; {show_bytes(totals.bytes_in)}/s in, {show_bytes(totals.bytes_out)}/s out; "
            f"level {level.level:.2f}, at best {level.reachable:.2f}"
        )
        unmeasured = totals.partitions - totals.measured
        if unmeasured:
            text.append(f"; {show_count(unmeasured, 'partition')} not measured", _STYLES[WARNING])
        hottest = explain_hottest(summary)
        if hottest:
            text.append(f"\n{show_text(hottest)}", "bold")
        self._state.update(text)

    def draw(self) -> None:
        """The table again."""
        if self._summary is None:
            return
        page = self.page
        table = self._table = page.makers[page.at](self._summary)
        rows = table.choose(page.words, page.column, page.is_reversed, _MOST)
        names = [table.identify(row) for row in rows]
        at = names.index(page.row) if page.row in names else 0
        heads = [column.head for column in table.columns]
        if page.column is not None:
            is_number = table.columns[page.column].is_number
            heads[page.column] += "▲" if is_number == page.is_reversed else "▼"
        self._grid.fill(
            heads,
            [table.write(row) for row in rows],
            [column.is_number for column in table.columns],
            [_STYLES[table.colour(row)] for row in rows],
            at,
        )
        self._rows, self._shown = rows, names
        page.row = names[at] if rows else page.row
        self._draw_row(at)
        self._draw_tabs(len(table.rows))

    def _draw_tabs(self, count: int) -> None:
        page, text = self.page, Text(no_wrap=True)
        text.append(f"{show_text(page.title)}  " if page.title else "", "bold")
        for number, name in enumerate(page.makers, 1):
            label = f"{number} {name}"
            if name == "findings" and self._findings:
                label += f" {len(self._findings)}"
            text.append(f" {label} ", "reverse" if name == page.at else "")
        self._tabs.update(text)
        keys = Text(no_wrap=True)
        if page.words:
            keys.append(f"/{show_text(page.words)}  ", "bold")
        if len(self._rows) < count:
            keys.append(f"{len(self._rows):,} of {count:,}  ", "bold")
        self._keys.update(keys.append(_KEYS, "dim"))

    def _draw_row(self, at: int) -> None:
        text = ""
        if self._table is not None:
            if 0 <= at < len(self._rows):
                text = self._table.explain(self._rows[at])
            elif self.page.words and self._table.rows:
                text = "No row has these words."
            else:
                text = self._table.note
        lines = map(show_text, text.splitlines())
        self._row.update(Text("\n".join(lines)))

    # What keys and clicks do

    def action_end(self, code: int) -> None:
        self.exit(return_code=code)

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_turn(self, steps: int) -> None:
        names = [*self.page.makers]
        self._show(names[(names.index(self.page.at) + steps) % len(names)])

    def action_filter(self) -> None:
        field = self._filter
        is_room = self.page.at == "room"
        field.placeholder = "partitions x replicas, such as 200x3" if is_room else "words"
        field.value = self.page.words
        field.display = True
        field.focus()

    def action_leave(self) -> None:
        if isinstance(self.screen, Help):
            self.pop_screen()
        elif self._filter.display or self.page.words:
            self.page.words = ""
            self._end_filter()
            self.draw()
        elif len(self._pages) > 1:
            self._pages.pop()
            self.draw()

    def on_key(self, event: events.Key) -> None:
        letter = event.character or ""
        if not letter.isascii() or self._filter.has_focus:
            return
        if letter.isdecimal() and 0 < int(letter) <= len(self.page.makers):
            self._show([*self.page.makers][int(letter) - 1])
        elif letter.isupper():
            self._sort_by_letter(letter.lower())

    def on_grid_head_clicked(self, event: Grid.HeadClicked) -> None:
        self._sort(event.column)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        if event.at < len(self._shown):
            self.page.row = self._shown[event.at]
            self._draw_row(event.at)

    def on_grid_opened(self, event: Grid.Opened) -> None:
        if self._table is None or event.at >= len(self._rows):
            return
        opened = self._table.opens(self._rows[event.at])
        if opened is not None and self.page.title != " ".join(opened):
            self._pages.append(self._make_page(*opened))
            self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.page.at != "room" and event.input.display:
            self.page.words = event.value
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        why = self._ask_room(event.value) if self.page.at == "room" else ""
        self._end_filter()
        self.draw()
        if why:
            self._row.update(Text(why))

    def _end_filter(self) -> None:
        self._filter.display = False
        self._grid.focus()

    def _ask_room(self, text: str) -> str:
        """Try out a topic of `200x3`, or of `200` with three replicas; why not, or ""."""
        count, _, factor = text.lower().replace(" ", "").partition("x")
        if not (count.isdecimal() and (factor or "3").isdecimal()):
            return f"{show_text(text)!r}: write partitions x replicas, such as 200x3"
        if not 0 < int(count) <= 100_000 or not 0 < int(factor or 3) <= 1_000:
            return f"{text}: write 1 to 100000 partitions of 1 to 1000 replicas"
        self._asked = [PlannedTopic("a topic", int(count), int(factor or 3)), *self._asked[:9]]
        self.page.row = ""
        return ""

    def _show(self, name: str) -> None:
        self._end_filter()
        self.page.show(name)
        self.draw()

    def _sort_by_letter(self, letter: str) -> None:
        columns = [] if self._table is None else self._table.columns
        found = [
            at
            for at, each in enumerate(columns)
            if each.head.startswith(letter) and not each.is_curve
        ]
        if found:
            now = self.page.column
            later = [at for at in found if now is not None and at > now]
            self._sort(later[0] if later and now in found else found[0])

    def _sort(self, column: int) -> None:
        page = self.page
        if self._table is None or self._table.columns[column].is_curve:
            return
        page.is_reversed = page.column == column and not page.is_reversed
        page.column, page.row = column, ""
        self.draw()

    def _make_page(self, kind: str, name: str) -> Page:
        history, makers = self._source.history, dict[str, Callable[[Summary], Table]]()
        if kind == "broker":
            makers["partitions"] = partial(tables.of_partitions, history=history, broker=int(name))
        elif kind == "topic":
            makers["partitions"] = partial(tables.of_partitions, history=history, topic=name)
            makers["keys"] = partial(tables.of_tails, kind="keys", topic=name)
            makers["producers"] = partial(tables.of_tails, kind="producers", topic=name)
            makers["consumers"] = partial(tables.of_consumers, topic=name)
        else:
            makers["partitions"] = partial(tables.of_consumers, group=name)
        return Page(f"{kind} {name}", makers)
