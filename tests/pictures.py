"""Finds texts in pictures that meet other texts, or leave the picture or the bar they are in.

The widths of texts are those of DejaVu Sans, which is wider than the other fonts of pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

_SIZES = {"": 13.0, "faint": 12.0, "inside": 12.0, "tight": 11.0}
_BOLD = {"inside", "bold"}
_ASCENT, _DESCENT = 0.76, 0.2

# In thousandths of the size; what is missing here is 0.62 wide.
_WIDTHS = {
    **dict.fromkeys("ijl", 0.28),
    **dict.fromkeys(" ,.;:", 0.33),
    **dict.fromkeys("ft()[]|/-'!", 0.39),
    **dict.fromkeys("rI", 0.41),
    **dict.fromkeys("csxvyzk", 0.58),
    **dict.fromkeys("m", 0.98),
    **dict.fromkeys("w%", 0.95),
    **dict.fromkeys("MW@", 0.99),
    **dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ→…", 0.75),
}


class Box(NamedTuple):
    text: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def is_in(self, other: Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


def find_faults(svg: str) -> Iterator[str]:
    """A line for each text that cannot be read."""
    root = ElementTree.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    picture = Box("", left, top, left + width, top + height)
    bars = [_bar(each) for each in root.iter() if each.tag.endswith("rect")]
    texts = [(each, _box(each)) for each in root.iter() if each.tag.endswith("text")]
    for element, box in texts:
        if not box.is_in(picture):
            yield f"{box.text!r} leaves the picture"
        if element.get("class") == "inside" and not any(box.is_in(bar) for bar in bars):
            yield f"{box.text!r} leaves its bar"
    for (_, one), (_, other) in combinations(texts, 2):
        if one.text and other.text and one.meets(other):
            yield f"{one.text!r} meets {other.text!r}"


def svgs(page: str) -> list[str]:
    """The pictures of an HTML page."""
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def _bar(element: ElementTree.Element) -> Box:
    x, y, width, height = (float(element.attrib[each]) for each in ("x", "y", "width", "height"))
    return Box("", x, y, x + width, y + height)


def _box(element: ElementTree.Element) -> Box:
    text = "".join(element.itertext())
    classes = element.get("class", "").split() or [""]
    size = min(_SIZES.get(each, 13.0) for each in classes)
    width = size * sum(_WIDTHS.get(each, 0.64) for each in text)
    if _BOLD.intersection(classes):
        width *= 1.1
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    left = x - width * {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0.0)
    return Box(text, left, y - _ASCENT * size, left + width, y + _DESCENT * size)
