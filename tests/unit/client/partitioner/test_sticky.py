"""KIP-480's partitioner."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.unit.client.scripted_load import ScriptedLoad
from trimtab.client.partitioner.protocol import Weight
from trimtab.client.partitioner.sticky import StickyPartitioner
from trimtab.client.topic_view import TopicView

MakeView = Callable[..., TopicView]
LOAD = ScriptedLoad()
pytestmark = pytest.mark.kip(480)


def test_sticky_never_stays_while_another_is_available(make_view: MakeView) -> None:
    partitioner = StickyPartitioner(Random(1))
    view = make_view([0, 1, -1, 3])
    previous = -1
    for _ in range(100):
        chosen, used_up = partitioner.next_turn(view, previous, 0, LOAD)
        assert chosen != previous
        assert chosen != 2
        assert used_up == 0
        assert partitioner.may_stay(view, chosen, LOAD)
        previous = chosen


def test_sticky_stays_where_it_must(make_view: MakeView) -> None:
    partitioner = StickyPartitioner(Random(1))
    assert partitioner.next_turn(make_view([-1, 1]), 1, 0, LOAD) == (1, 0)
    assert partitioner.next_turn(make_view([-1]), 0, 0, LOAD) == (0, 0)


def test_sticky_weighs_all_that_have_a_leader_alike(make_view: MakeView) -> None:
    partitioner = StickyPartitioner(Random(1))
    assert partitioner.weigh(make_view([0, -1, 2]), LOAD) == {
        0: Weight(0.5, None),
        1: Weight(0.0, "it has no leader"),
        2: Weight(0.5, None),
    }
    assert partitioner.weigh(make_view([-1, -1]), LOAD) == {
        0: Weight(0.5, None),
        1: Weight(0.5, None),
    }
