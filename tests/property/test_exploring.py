"""Forks of worlds share nothing that changes; all states are found, and those that never settle."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.property import test_consumer_group_search as consumers
from tests.property import test_group_search as classic
from tests.property import test_mixed_group_search as mixed
from tests.property.exploring import Settling, Violation, explore, fork


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


class Walk:
    """A world with a place on a line of five; the last one is a trap, if there is one."""

    def __init__(self, has_trap: bool = False) -> None:
        self.place = 0
        self._has_trap = has_trap

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.place,)

    def actions(self) -> Iterator[tuple[str, int]]:
        if self.place < 4:
            yield "go", 1
        if self.place:
            yield "go", -1

    def act(self, what: str, number: int) -> None:
        self.place += number

    def is_settled(self) -> bool:
        return self.place == 0

    def proceed(self) -> None:
        if not (self._has_trap and self.place == 4):
            self.place -= 1


def test_every_state_is_visited_once() -> None:
    assert explore([Walk()], 100, Settling(5)) == 5
    assert explore([Walk()], 3, Settling(5)) == 3


def test_a_false_claim_is_refuted() -> None:
    with pytest.raises(Violation, match="claim"):
        explore([Walk()], 100, Settling(5), lambda world: world.place < 4)


def test_a_state_that_does_not_settle_is_found() -> None:
    with pytest.raises(Violation, match="settle"):
        explore([Walk(has_trap=True)], 100, Settling(5))
    with pytest.raises(Violation, match="settle"):
        explore([Walk()], 100, Settling(1))


def test_what_settled_is_not_followed_again() -> None:
    settling = Settling(3)
    near, far = Walk(), Walk()
    near.place, far.place = 2, 4
    settling.check(near)
    settling.check(far)
    assert (near.place, far.place) == (0, 2)
