from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from lab.drawing import (
    Bar,
    Span,
    draw_latencies,
    draw_shares,
    draw_timeline,
    to_document,
)
from lab.output import Latency
from trimtab.cli.plot import NARROW, WIDE, Layout

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
