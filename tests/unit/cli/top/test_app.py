"""The screen of `trimtab top`, as keys, clicks and new snapshots change it."""

from __future__ import annotations

import asyncio
import html
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.unit.cli.live.made_snapshots import TAKEN_S, Made, make_snapshot, make_tail, spread
from trimtab.balance.limits import PartitionLimits
from trimtab.cli.live.findings import find
from trimtab.cli.live.recording import Recorder, find_recorded_plan
from trimtab.cli.live.rows import summarize
from trimtab.cli.live.source import Recorded, Source
from trimtab.cli.top.app import TopApp
from trimtab.cli.top.grid import Grid
from trimtab.client.collector import Snapshot
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.records import TopicPartition

FLIGHTS = TopicPartition("flights", 0)
TOPICS = {
    "flights": [Made(9_000_000.0, (0, 1, 2)), *spread([300_000.0] * 12, factor=3)[1:]],
    "audit": spread([4000.0] * 3, factor=3),
    "carriers": spread([2000.0] * 3, factor=3),
}


class Shown(Source):
    """What a test shows as a live cluster."""

    def __init__(self, *snapshots: Snapshot) -> None:
        super().__init__(is_live=True)
        self.has_ended = False
        for snapshot in snapshots:
            self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        self.history.add(snapshot.taken_s, snapshot.topics, snapshot.metered.load, snapshot.levels)
        self.snapshot, self.summary = snapshot, summarize(snapshot)
        self.findings = find(self.summary)

    @property
    def is_over(self) -> bool:
        return self.has_ended


def make(topics: dict[str, list[Made]] | None = None, **parts: Any) -> Snapshot:
    """Broker 0 is hot because of one key, and broker 2 is slow."""
    given: dict[str, Any] = {
        "racks": ["a", "b", "c"],
        "tails": {FLIGHTS: make_tail({"LH400": 0.81, "BA7": 0.1}, {"4711": 0.97, "12": 0.03})},
        "slow": SlowBrokers({2: "stores a record in 180 ms, the others in 7"}, {}, {}),
        "answers": {broker: Answers(0.007, 0.02) for broker in range(3)},
        "limits": PartitionLimits(1000, 2500),
        "lags": [
            PartitionLag("billing", FLIGHTS, 10, 9010, 9000, 90.0, 10.0, None),
            PartitionLag("search", FLIGHTS, 9000, 9010, 10, 90.0, 100.0, 1.0),
        ],
        **parts,
    }
    return make_snapshot(TOPICS if topics is None else topics, **given)


def read(app: TopApp) -> str:
    """The text on the screen."""
    svg = app.export_screenshot(simplify=True)
    rows: dict[float, str] = {}
    for at, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows[float(at)] = rows.get(float(at), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(rows[at] for at in sorted(rows))


def run(
    check: Callable[[TopApp, Pilot[None]], Awaitable[None]],
    source: Source | None = None,
    size: tuple[int, int] = (80, 24),
) -> TopApp:
    app = TopApp(source or Shown(make()), 0.02, lambda: TAKEN_S + 4.6)

    async def run_app() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await check(app, pilot)

    asyncio.run(run_app())
    return app


def list_rows(app: TopApp) -> list[str]:
    """The first cell of each row that is shown."""
    grid = app.query_one(Grid)
    lines = [grid.render_line(y).text for y in range(1, grid.size.height)]
    return [line.split()[0] for line in lines if line.strip()]


def test_five_questions_are_answered_by_one_or_two_keys() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        first = read(app)
        assert "Broker 2 is slow: stores a record in 180 ms, the others in 7." in first
        assert "Its load is not above the others'" in first.replace("\n", " ")
        assert re.search(r"it costs +broker 0 +sends 2\.\d times the mean", first)
        await pilot.press("3")  # which key?
        text = read(app).replace("\n", " ")
        assert re.search(r"key +'LH400' +has +81%", text)
        assert re.search(r"producer +4711 +wrote +97%", text)
        await pilot.press("2")  # is it slow?
        assert re.search(r"2 +c +slow +0\.\d\d", read(app))
        await pilot.press("5")  # what does it cost?
        assert re.search(r"all +any +another +\d+\.\d MB +\d\.\d TB +\d\d\.\d\d", read(app))
        await pilot.press("6")  # 200 partitions?
        assert re.search(r"200 +3 +yes", read(app))
        assert re.search(r"1,000 +3 +no +max\.partitions=2500 leaves", read(app))

    run(check)


def test_one_line_says_how_the_cluster_is() -> None:
    async def check(app: TopApp, _: Pilot[None]) -> None:
        text = read(app)
        assert "cluster-1, 5 s ago: 3 brokers, 1 slow; 3 topics, 18 partitions; 12.3 MB/s" in text
        assert re.search(r"level \d\.\d\d, at best \d\.\d\d", text.replace("\n", " "))

    run(check, size=(160, 30))


def test_rates_are_measured_first() -> None:
    source = Shown()

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        assert "Measuring: rates need two looks" in read(app)
        await pilot.press("3", "enter", "slash", "x", "enter", "S", "escape", "down")
        source.show(make())
        app.look()
        await pilot.pause()
        assert "cluster-1" in read(app)

    run(check, source)


def test_a_cluster_that_stops_answering_keeps_its_last_snapshot_with_its_age() -> None:
    source = Shown(make())

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        source.trouble = "broker 0 did not answer [bold]"
        app.look()
        await pilot.pause()
        assert "broker 0 did not answer [bold]" in read(app)
        assert "cluster-1, 5 s ago" in read(app)
        source.trouble = ""
        app.look()
        await pilot.pause()
        assert "did not answer" not in read(app)

    run(check, source)


def test_what_is_unknown_is_said() -> None:
    shown = make(
        {"a": [Made(1.0), Made(None)]},
        answers={0: Answers(0.1, None)},
        slow=SlowBrokers({}, {}, {}),
    )

    async def check(app: TopApp, _: Pilot[None]) -> None:
        assert "slow: ? (--probe)" in read(app)
        assert "1 partition not measured" in read(app)

    run(check, Shown(shown), (160, 30))


def test_a_look_while_the_screen_closes_changes_nothing() -> None:
    source = Shown(make())

    async def check(app: TopApp, _: Pilot[None]) -> None:
        source.show(make(number=10))

    app = run(check, source)
    app.look()
    assert not app.is_running


def test_a_watch_that_has_ended_ends_the_screen() -> None:
    source = Shown(make())

    async def check(app: TopApp, _: Pilot[None]) -> None:
        source.has_ended = True
        app.look()

    assert run(check, source).return_code == 0


def test_tables_are_chosen_by_number_and_by_tab() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        seen = [app.page.at]
        for key in ("tab", "3", "shift+tab", "7", "tab", "shift+tab", "8", "0"):
            await pilot.press(key)
            seen.append(app.page.at)
        assert seen == [
            "findings",
            "brokers",
            "topics",
            "brokers",
            "plan",
            "findings",
            "plan",
            "plan",
            "plan",
        ]

    run(check)


def test_a_filter_shows_the_rows_with_these_words_until_escape() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "slash", *"aR")
        assert list_rows(app) == ["carriers"]
        await pilot.press("enter", "down")
        assert "/aR" in read(app)
        assert "1 of 3" in read(app)
        await pilot.press("slash")
        assert app.query_one("#filter").display
        await pilot.press("x")
        assert list_rows(app) == []
        assert "No row has these words." in read(app)
        await pilot.press("escape")
        assert list_rows(app) == ["flights", "audit", "carriers"]
        assert not app.query_one("#filter").display

    run(check)


def test_letters_in_a_filter_are_no_commands() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "slash", *"q2P?")
        assert app.page.words == "q2P?"
        assert app.page.at == "topics"
        await pilot.press("tab")
        assert (app.page.at, app.page.words) == ("groups", "")
        assert app.query_one(Grid).has_focus

    run(check)


def test_a_letter_sorts_and_sorts_the_other_way_round() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "T")
        assert list_rows(app) == ["audit", "carriers", "flights"]
        assert "topic▲" in read(app)
        await pilot.press("T")
        assert list_rows(app) == ["flights", "carriers", "audit"]
        assert "topic▼" in read(app)
        await pilot.press("S")  # skew, then size
        assert app.page.column == 7
        await pilot.press("S")
        assert app.page.column == 8
        await pilot.press("S")
        assert app.page.column == 7
        await pilot.press("L", "Z")  # a curve does not sort, and nothing begins with Z
        assert app.page.column == 7

    run(check)


def test_a_click_on_a_head_sorts_and_on_a_row_opens() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.click(Grid, offset=(2, 0))
        assert list_rows(app) == ["audit", "carriers", "flights"]
        await pilot.click(Grid, offset=(2, 0))
        assert list_rows(app)[0] == "flights"
        await pilot.click(Grid, offset=(2, 2))
        assert app.page.row == "carriers"
        await pilot.click(Grid, offset=(2, 2))
        assert app.page.title == "topic carriers"
        await pilot.click(Grid, offset=(70, 0))
        await pilot.click(Grid, offset=(2, 9))
        assert app.page.title == "topic carriers"

    run(check)


def test_enter_goes_down_and_escape_back_with_what_was_chosen() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "R", "enter")
        assert app.page.title == "broker 0"
        assert "flights-0" in read(app)
        await pilot.press("enter")
        assert (app.page.title, app.page.at) == ("topic flights", "partitions")
        await pilot.press("2")
        assert re.search(r"flights-0 +81% +LH400", read(app))
        await pilot.press("3")
        assert re.search(r"flights-0 +97% +4711", read(app))
        await pilot.press("4")
        assert re.search(r"billing +flights-0 +9,000 +never at this rate", read(app))
        await pilot.press("enter")
        assert app.page.title == "group billing"
        await pilot.press("enter", "escape", "escape", "escape", "escape")
        assert (app.page.title, app.page.at, app.page.column) == ("", "brokers", 1)
        await pilot.press("escape")
        assert app.page.title == ""

    run(check)


def test_a_finding_opens_what_it_is_about() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"hot-key", "enter", "enter")
        assert app.page.title == "topic flights"
        await pilot.press("escape", "escape", "slash", *"growing", "enter", "enter")
        assert app.page.title == "group billing"

    run(check)


def test_the_cursor_stays_on_its_row_when_others_pass_it() -> None:
    source = Shown(make())

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "down")
        assert app.page.row == "audit"
        topics = {**TOPICS, "carriers": spread([70_000_000.0]), "new": spread([60_000_000.0])}
        source.show(make(topics, number=10))
        app.look()
        await pilot.pause()
        assert list_rows(app) == ["carriers", "new", "flights", "audit"]
        assert app.page.row == "audit"
        await pilot.press("up")
        assert app.page.row == "flights"
        source.show(make({"audit": TOPICS["audit"]}, number=11))
        app.look()
        await pilot.pause()
        assert app.page.row == "audit"

    run(check, source)


def test_a_topic_that_is_gone_leaves_its_page_empty() -> None:
    source = Shown(make())

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "enter")
        source.show(make({"audit": TOPICS["audit"]}, tails={}, lags=[]))
        for key in "1234":
            app.look()
            await pilot.press(key)
            assert list_rows(app) == []
        await pilot.press("escape")
        assert list_rows(app) == ["audit"]

    run(check, source)


def test_room_is_asked_for_a_topic() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("6", "slash", *"777x1", "enter")
        assert re.search(r"777 +1 +yes", read(app))
        await pilot.press("slash", *" 33 X 9 ", "enter")
        assert re.search(r"33 +9 +no +only 3 of the 9 brokers", read(app))
        await pilot.press("slash", *"many", "enter")
        await pilot.pause()
        assert "write partitions x replicas, such as 200x3" in read(app)
        await pilot.press("slash", *"0x3", "enter")
        await pilot.pause()
        assert "0x3: write 1 to 100000 partitions of 1 to 1000 replicas" in read(app)
        await pilot.press("slash", *"44", "enter")
        assert re.search(r"44 +3 +yes", read(app))

    run(check)


def test_help_is_shown_until_any_key() -> None:
    source = Shown(make())

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        for key in ("x", "escape", "3"):
            await pilot.press("question_mark")
            source.show(make(number=10))
            app.look()
            await pilot.pause()
            assert "Nothing here changes the cluster." in read(app)
            await pilot.press(key)
            await pilot.pause()
            assert "Nothing here changes" not in read(app)
            assert app.page.at == "findings"

    run(check, source)


def test_names_are_shown_as_they_are() -> None:
    topics = {"[bold]a[/]": [Made(9000.0)], "b": [Made(1.0)]}
    lags = [PartitionLag("g\x1b[31m[red]", TopicPartition("b", 0), 0, 9, 9, 1.0, 1.0, None)]
    tails = {TopicPartition("b", 0): make_tail({"k\x1b]0;x[/]": 1.0})}

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert "[bold]a[/]" in read(app)
        await pilot.press("slash", *"[bold]", "enter")
        assert "/[bold]" in read(app)
        await pilot.press("enter")
        assert "topic [bold]a[/]" in read(app)
        await pilot.press("escape", "escape", "4")
        assert r"g\x1b[31m[red]" in read(app)
        await pilot.press("enter")
        assert r"group g\x1b[31m[red]" in read(app)
        await pilot.press("escape", "3", "B", "down", "enter", "2")
        assert r"k\x1b]0;x[/]" in read(app)

    run(check, Shown(make(topics, lags=lags, tails=tails, slow=SlowBrokers({}, {}, {}))))


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 5)])
def test_a_terminal_of_any_size_shows_the_row_with_the_cursor(size: tuple[int, int]) -> None:
    topics = {f"topic-{index:03}": [Made(9000.0 - index)] for index in range(150)}

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "pagedown", "end")
        assert app.page.row == "topic-149"
        await pilot.resize_terminal(*size)
        await pilot.pause()
        if size[1] >= 10:
            assert "topic-149" in list_rows(app)
        await pilot.press("home")
        assert app.page.row == "topic-000"
        assert list_rows(app)[:1] in (["topic-000"], [])
        await pilot.press("pagedown", "pageup", "up", "right", "right", "left")
        assert app.page.row == "topic-000"

    run(check, Shown(make(topics)), (100, 30))


def test_rows_scroll_by_as_little_as_is_needed() -> None:
    topics = {f"topic-{index:03}": [Made(9000.0 - index)] for index in range(150)}

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        count = len(list_rows(app))
        await pilot.press(*["down"] * count)
        assert list_rows(app)[0] == "topic-001"
        assert list_rows(app)[-1] == app.page.row == f"topic-{count:03}"
        await pilot.press("up")
        assert list_rows(app)[0] == "topic-001"

    run(check, Shown(make(topics)))


def test_a_head_is_clicked_from_its_first_letter_to_the_gap_behind_it() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        for x, column in ((0, 0), (9, 0), (11, 1), (22, 1), (23, 2)):  # a mark makes it wider
            await pilot.click(Grid, offset=(x, 0))
            assert app.page.column == column

    run(check)


def test_further_columns_are_to_the_right() -> None:
    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert "size" not in read(app)
        await pilot.press(*["right"] * 40)
        assert "size" in read(app)

    run(check, size=(60, 24))


def test_of_9000_topics_200_are_shown_and_a_filter_finds_the_others() -> None:
    topics = {f"topic-{index:04}": [Made(9000.0 - index, (0,))] for index in range(9000)}

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert "200 of 9,000" in read(app)
        await pilot.press("slash", *"8999")
        assert list_rows(app) == ["topic-8999"]

    run(check, Shown(make(topics)))


def test_a_recording_says_when_it_was(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r")
    recorder.write(find_recorded_plan(make()))
    recorder.close()

    async def check(app: TopApp, pilot: Pilot[None]) -> None:
        assert "cluster-1, the busiest moment of a recording, 2026-05-" in read(app)
        await pilot.press("7")
        assert "Plan:" in read(app)

    run(check, Recorded(tmp_path / "r"), (120, 40))


@pytest.mark.parametrize("value", ["1", None])
def test_without_colours_the_cursor_and_what_is_wrong_can_be_told(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)

    async def check(app: TopApp, _: Pilot[None]) -> None:
        svg = app.export_screenshot()
        colours = set(re.findall(r"fill: (#[0-9a-f]{6})", svg))
        assert (len(colours) <= 3) is (value is not None)  # text, dim text, ground
        assert len(colours) > 1
        assert "act now" in read(app)

    run(check)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        (["q"], 0),
        (["ctrl+c"], 130),
        (["ctrl+q"], 130),
        (["slash", "q", "ctrl+c"], 130),
        (["question_mark", "ctrl+c"], 130),
    ],
)
def test_a_key_ends_it_anywhere(keys: list[str], code: int) -> None:
    async def check(_: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*keys)

    assert run(check).return_code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(number: signal.Signals) -> None:
    async def check(_: TopApp, pilot: Pilot[None]) -> None:
        os.kill(os.getpid(), number)
        await pilot.pause()
        await pilot.pause()

    assert run(check).return_code == 128 + number
