from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from trimtab.cli.latency import Latency, format_duration
from trimtab.cli.plot import (
    NARROW,
    WIDE,
    Bar,
    Column,
    Layout,
    Span,
    draw_columns,
    draw_latencies,
    draw_shares,
    draw_timeline,
    to_document,
)

NAMES = {"0": "broker 0 (slow)", "1": "broker <1>"}
LATENCY: Latency = {"average": 2, "p50": 1, "p95": 10, "p99": 100, "p99_9": 1000, "max": 2000}


def texts(svg: str) -> list[str]:
    """What a plot says; that it is well-formed comes first."""
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


def test_shares_are_as_long_as_they_are_large() -> None:
    bars = [Bar("one & only", {"0": 0.25, "1": 0.75}, {"0": 1e6, "1": 3e6})]
    svg = draw_shares(bars, NAMES, "0", 0.5, "shares")
    lengths = [float(length) for length in re.findall(r'width="([\d.]+)" height="20"', svg)]
    assert lengths[1] == pytest.approx(3 * lengths[0], rel=0.01)
    said = texts(svg)
    assert {"One & only", "25%", "75%", "even share 50%", "broker <1>"} <= set(said)


def test_the_highlighted_part_comes_first_and_in_its_own_color() -> None:
    bars = [Bar("a", {"0": 0.5, "1": 0.5}, {})]
    svg = draw_shares(bars, NAMES, "1", None, "shares")
    assert re.findall(r'rect class="(\w+)"', svg)[:2] == ["slow", "b1"]
    assert "even share" not in svg


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_no_share_is_written_under_the_dashed_line(layout: Layout) -> None:
    bars = [Bar("a", {"0": cut / 100, "1": 1 - cut / 100}, {}) for cut in range(101)]
    root = ElementTree.fromstring(draw_shares(bars, NAMES, "0", 1 / 3, "shares", layout))
    (even,) = {float(line.attrib["x1"]) for line in root.iter("line")}
    written = [text for text in root.iter("text") if text.get("class") == "inside"]
    assert len(written) > 100
    for text in written:
        begins = float(text.attrib["x"])
        assert not begins - 2 < even < begins + 8 * len(text.text or "")


def test_a_narrow_plot_writes_names_above_the_bars_and_stays_inside() -> None:
    bars = [Bar("adaptive with timeout", {"0": 0.3, "1": 0.7}, {})]
    svg = draw_shares(bars, {"0": "broker 0 (slow)", "1": "broker 1"}, "0", 0.5, "x", NARROW)
    assert 'class="name" x="0"' in svg
    ends = [
        float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)
    ]
    assert max(ends) <= NARROW.width


def test_latencies_stand_on_a_logarithmic_scale() -> None:
    svg = draw_latencies([("row", LATENCY)], "latencies")
    places = [float(x) for x in re.findall(r'<circle class="[\w-]+" cx="([\d.]+)"', svg)]
    steps = [after - before for before, after in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert {"1 ms", "10 ms", "1 s", "Row"} <= set(texts(svg))


def test_a_timeline_goes_from_zero_to_the_highest() -> None:
    svg = draw_timeline(
        [0.0, 1.0, 2.0],
        {"here": [0.0, 50.0, 100.0], "there": [100.0, 0.0, 0.0]},
        [Span("before", 0, 1), Span("after", 1, 2)],
        "records/s",
        "timeline",
    )
    here, there = (
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'points="([^"]*)"', svg)
    )
    assert here[0][1] == there[1][1] > here[1][1] > here[2][1] == there[0][1]
    assert {"before", "after", "100", "here, records/s", "2 s"} <= set(texts(svg))


def test_a_timeline_needs_two_moments() -> None:
    with pytest.raises(ValueError, match="1 moments"):
        draw_timeline([0.0], {"a": [1.0]}, [], "x", "timeline")


def test_a_document_is_svg_that_loads_nothing() -> None:
    document = to_document(draw_latencies([("row", LATENCY)], "latencies"))
    assert ElementTree.fromstring(document).tag == "{http://www.w3.org/2000/svg}svg"
    assert document.count("http") == 1


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(5100, "5.1 s"), (999.5, "1.0 s"), (32, "32 ms"), (1.44, "1.4 ms")],
)
def test_durations_are_short(milliseconds: float, text: str) -> None:
    assert format_duration(milliseconds) == text


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_columns_are_as_tall_as_they_are_large_and_stay_inside(layout: Layout) -> None:
    columns = [Column(f"<{at}>", {"a": 10.0 * at, "b": 5.0}) for at in range(60)]
    names = {"a": "first & below", "b": "second"}
    svg = draw_columns(columns, names, lambda value: f"{value:.0f} B", 300, "columns", layout)
    root = ElementTree.fromstring(svg)
    drawn = [each for each in root.iter("rect") if each.find("title") is not None]
    assert len(drawn) == 2 * 60 - 1  # nothing is not drawn
    heights = {each.findtext("title"): float(each.attrib["height"]) for each in drawn}
    assert heights["<59>, first & below: 590 B"] == pytest.approx(
        2 * heights["<29>, first & below: 290 B"], rel=0.05
    )
    for each in drawn:
        assert float(each.attrib["x"]) + float(each.attrib["width"]) <= layout.width
        assert float(each.attrib["y"]) >= 0
    below, above = (float(each.attrib["y"]) for each in drawn[-2:])
    assert below - above == pytest.approx(float(drawn[-1].attrib["height"]), abs=0.2)
    said = texts(svg)
    assert {"<0>", "<59>", "595 B", "0 B", "first & below", "second"} <= set(said)
    (level,) = (each for each in root.iter("line") if each.get("class") == "even")
    zero = max(float(each.attrib["y1"]) for each in root.iter("line"))
    tall = heights["<59>, first & below: 590 B"] + heights["<59>, second: 5 B"]
    assert zero - float(level.attrib["y1"]) == pytest.approx(tall * 300 / 595, rel=0.01)


def test_one_column_of_nothing_is_drawn_too() -> None:
    svg = draw_columns([Column("it", {"": 0.0})], {"": ""}, str, None, "columns")
    assert "<rect" not in svg
    assert texts(svg).count("it") == 1
