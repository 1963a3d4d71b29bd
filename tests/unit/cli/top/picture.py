"""Writes docs/top.svg, the picture in docs/top.md: python -m tests.unit.cli.top.picture"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random

from tests.unit.cli.live.made_snapshots import TAKEN_S, Made, spread
from tests.unit.cli.top.test_app import Shown, make
from trimtab.cli.top.app import TopApp
from trimtab.client.collector import Snapshot

PICTURE = Path(__file__).resolve().parents[4] / "docs" / "top.svg"
SMALL = ("audit", "baggage", "bookings", "carriers", "crews", "fares", "weather")


def make_hour() -> list[Snapshot]:
    random, shown = Random(7), []
    for number in range(20):
        flights = [random.uniform(6e6, 9e6), *(random.uniform(2e5, 4e5) for _ in range(11))]
        topics: dict[str, list[Made]] = {
            "flights": [
                each._replace(out=2 * (each.rate or 0.0), size=800_000_000)
                for each in spread(flights, factor=3)
            ]
        }
        for at, name in enumerate(SMALL, 1):
            rates = [random.uniform(1e5, 2e5) / at for _ in range(6)]
            topics[name] = [
                each._replace(out=each.rate or 0.0, size=60_000_000)
                for each in spread(rates, factor=3)
            ]
        shown.append(make(topics, number=number + 1, taken_s=TAKEN_S + 5 * number - 95))
    return shown


async def draw() -> str:
    app = TopApp(Shown(*make_hour()), 0.02, lambda: TAKEN_S + 2)
    async with app.run_test(size=(100, 26)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        svg = app.export_screenshot(title="trimtab top")
    return re.sub(r"@font-face {.*?}\s*", "", svg, flags=re.DOTALL)  # they are loaded from the net


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(draw()), encoding="utf-8")
