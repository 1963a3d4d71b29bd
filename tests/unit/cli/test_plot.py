from __future__ import annotations

from xml.etree import ElementTree

import pytest

from trimtab.cli.plot import NARROW, WIDE, Column, Layout, draw_columns


def texts(svg: str) -> list[str]:
    """What a plot says; that it is well-formed comes first."""
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


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
