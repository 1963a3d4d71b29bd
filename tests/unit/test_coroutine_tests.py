"""How tests that are coroutines run (`pytest_pyfunc_call` in tests/conftest.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_pyfunc_call
from trimtab.sim.world import World


def test_a_coroutine_runs_in_the_virtual_time_of_its_world_and_fails_with_its_error() -> None:
    async def test(given: int) -> None:
        await asyncio.sleep(3600)
        assert given == 2

    with World(1) as world:
        for given in (1, 2):
            item: Any = SimpleNamespace(obj=test, funcargs={"world": world, "given": given, "a": 0})
            if given == 1:
                with pytest.raises(AssertionError):
                    pytest_pyfunc_call(item)
            else:
                assert pytest_pyfunc_call(item) is True
        assert world.loop.time() == pytest.approx(7200)


def test_functions_are_left_to_pytest() -> None:
    item: Any = SimpleNamespace(obj=lambda: None, funcargs={})
    assert pytest_pyfunc_call(item) is None
