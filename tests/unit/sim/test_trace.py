"""What a virtual world remembers of itself."""

from __future__ import annotations

from trimtab.sim.trace import Trace
from trimtab.sim.world import World


def traced(*events: str, keep_lines: bool = False) -> Trace:
    with World(1) as world:
        trace = Trace(world.loop, keep_lines)
        for event in events:
            trace.append(event)
        return trace


def test_the_same_events_have_the_same_hash() -> None:
    assert traced("a", "b").hash == traced("a", "b").hash
    assert traced("a", "b").hash != traced("b", "a").hash
    assert traced("a", "b").hash != traced("a").hash


def test_only_the_last_lines_are_kept_unless_all_are_wanted() -> None:
    events = [str(number) for number in range(50)]
    assert len(traced(*events).lines) == 20
    assert traced(*events).count == 50
    kept = traced(*events, keep_lines=True).lines
    assert [line.split()[1] for line in kept] == events
    assert kept[0].startswith("0.000000 ")
