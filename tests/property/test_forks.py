"""Forks of worlds share nothing that changes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.property import test_consumer_group_search as consumers
from tests.property import test_group_search as classic
from tests.property import test_mixed_group_search as mixed
from tests.property.forks import fork


@pytest.mark.parametrize("searches", [classic, consumers, mixed])
def test_a_fork_goes_its_own_way_and_like_a_deep_copy(searches: Any) -> None:
    world = searches.World()
    for step in range(60):
        actions = list(world.actions())
        what, number = actions[step * 7 % len(actions)]
        before = world.key
        forked, copied = fork(world), deepcopy(world)
        forked.act(what, number)
        assert world.key == before
        copied.act(what, number)
        assert forked.key == copied.key
        world = forked
