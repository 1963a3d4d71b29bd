"""No text of a picture meets another one, or leaves the picture or its bar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest

from lab.demo.experiment import WAYS
from lab.demo.report import render_report as render_demo
from lab.drawing import (
    Bar,
    Batch,
    Group,
    Panel,
    Point,
    Span,
    draw_batches,
    draw_groups,
    draw_latencies,
    draw_points,
    draw_shares,
    draw_timeline,
    to_document,
)
from lab.output import Latency
from tests.pictures import find_faults, svgs
from tests.unit.cli.load.test_report import make_summary as make_load_summary
from tests.unit.lab.demo.test_report import make_summary, make_way
from trimtab.cli.load.report import render_report as render_load
from trimtab.cli.plot import NARROW, WIDE, Column, Layout, draw_columns, fit, text_width
from trimtab.cli.table import show_bytes

DOCS = Path(__file__).resolve().parents[3] / "docs"
PICTURES = sorted({*DOCS.rglob("*.svg")} - {DOCS / "top.svg"})  # that is Textual's picture
LONG = "a name that is far longer than the room that there is for it, whatever the screen"
LAYOUTS = [WIDE, NARROW]


def assert_readable(drawn: str) -> None:
    assert list(find_faults(drawn)) == []


def test_the_faults_are_found() -> None:
    drawn = (
        '<svg viewBox="0 0 100 60"><rect x="0" y="30" width="20" height="20"/>'
        '<text x="0" y="20">first</text><text x="10" y="22">second</text>'
        '<text x="70" y="20">too long</text><text class="inside" x="2" y="44">100%</text></svg>'
    )
    assert list(find_faults(drawn)) == [
        "'too long' leaves the picture",
        "'100%' leaves its bar",
        "'first' meets 'second'",
    ]


@pytest.mark.parametrize("path", PICTURES, ids=[path.stem for path in PICTURES])
def test_the_pictures_of_the_documentation_can_be_read(path: Path) -> None:
    assert_readable(path.read_text(encoding="utf-8"))


def test_the_reports_pictures_can_be_read() -> None:
    shares = [(1 / 3, 1 / 3, 1 / 3), (0.72, 0.14, 0.14), (0.003, 0.45, 0.547), (0.0, 1.0, 0.0)]
    ways = {
        way.name: make_way(way.title, shares[at % 4], 3.0 * 4**at) for at, way in enumerate(WAYS)
    }
    pages = [render_demo(make_summary(ways))]
    pages += [render_load(make_load_summary(partitions)) for partitions in (2, 6, 33, 1000)]
    found = [drawn for page in pages for drawn in svgs(page)]
    assert len(found) == 2 * (4 + 3 * 4)
    for drawn in found:
        assert_readable(drawn)


@pytest.mark.parametrize(("layout", "even"), list(product(LAYOUTS, [None, 0.01, 1 / 3, 0.95, 1.0])))
def test_shares_can_be_read(layout: Layout, even: float | None) -> None:
    bars = [Bar(LONG, {"0": cut / 50, "1": 1 - cut / 50}, {}) for cut in range(51)]
    names = {"0": LONG, "1": "broker 1", **{str(at): f"broker {at}" for at in range(2, 12)}}
    assert_readable(draw_shares(bars, names, "0", even, "shares", layout))


@pytest.mark.parametrize(("layout", "count"), list(product(LAYOUTS, [1, 2, 3, 6, 12, 60])))
def test_columns_can_be_read_and_fill_their_axis(layout: Layout, count: int) -> None:
    for title, most in (("partition {}", 7e5), ("2026-11-23 {:02}:00 UTC", 9), (LONG, 1e15)):
        columns = [Column(title.format(at), {"a": most, "b": 1.0}) for at in range(count)]
        names = {"a": LONG, "b": "other topics"}
        drawn = draw_columns(columns, names, show_bytes, most / 2, "columns", layout)
        assert_readable(drawn)
        rects = [each.split('"') for each in drawn.split('<rect class="b1" x=')[1:]]
        assert float(rects[count - 1][1]) >= layout.width * (0.8 - 0.5 / count) * (count > 1)


@pytest.mark.parametrize(("layout", "most"), list(product(LAYOUTS, [0.02, 5.0, 1e5])))
def test_latencies_can_be_read(layout: Layout, most: float) -> None:
    least = Latency(average=0.01, p50=0.01, p95=0.01, p99=0.01, p99_9=0.01, max=0.01)
    longest = Latency(average=0.01, p50=0.01, p95=0.01, p99=0.01, p99_9=most, max=most)
    rows = [(LONG, least), ("free", longest)]
    assert_readable(draw_latencies(rows, "latencies", layout=layout))


def test_a_timeline_can_be_read() -> None:
    spans = [Span("before", 0, 1), Span("a very long title", 1, 2), Span(LONG, 1.5, 30)]
    lines = {LONG: [0.0, 123_456_789.0], "there": [1.0, 2.0], "elsewhere": [3.0, 4.0]}
    assert_readable(draw_timeline([0.0, 30.0], lines, spans, "records/s", "timeline"))


def test_groups_can_be_read() -> None:
    names = ["round robin", "sticky", "uniform", "adaptive", "strict", "0.1", "free"]
    groups = [Group(f"{at} slow", [0.3, 5.4, 32.0, 999.9, 6e3, 1e5, 1e5]) for at in range(3)]
    assert_readable(to_document(draw_groups(groups, names, "groups")))


@pytest.mark.parametrize("seed", range(50))
def test_points_can_be_read(seed: int) -> None:
    random = Random(seed)
    names = ["round robin", "sticky", "uniform", "adaptive", "strict", "0.1", "free"]

    def place(points: Sequence[Point]) -> tuple[float, float]:
        """Often where another one is already, nearly."""
        if points and random.random() < 0.5:
            near = random.choice(points)
            return near.x * random.uniform(0.95, 1.05), near.y * random.uniform(0.95, 1.05)
        return 10 ** random.uniform(-3.5, 0.6), 10 ** random.uniform(-1, 4)

    panels = []
    for _ in range(3):
        points: list[Point] = []
        for at, name in enumerate(names):
            points.append(Point(name, *place(points), f"c{at}"))
        panels.append(Panel("KIP-794, series 1: average latency", points, [4, 5, 6]))
    assert_readable(to_document(draw_points(panels, 0.001, 4.0, "difference", "points")))


def test_batches_can_be_read() -> None:
    batches = [Batch(row, 0, 36, 50) for row in range(3)]
    rows = ("0, slow", "broker 1", "broker 2")
    drawn = to_document(draw_batches(rows, batches, 36, "a record waits", "batches"))
    assert_readable(drawn)
    assert drawn.count(">36<") == 3


def test_a_text_is_cut_where_it_does_not_fit() -> None:
    assert fit("short", 100) == "short"
    cut = fit(LONG, 100)
    assert cut.endswith("…")
    assert LONG.startswith(cut[:-1])
    assert text_width(cut) <= 100
    assert fit("x", 0) == ""
