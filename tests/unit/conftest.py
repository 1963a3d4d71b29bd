"""Runs tests that are coroutines."""

from __future__ import annotations

from functools import partial
from inspect import iscoroutinefunction

import pytest

from trimtab.sim.world import World


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test with the method `run` of the first argument that has one.

    `@pytest.mark.run(...)` gives `run` further arguments.
    """
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test = partial(pyfuncitem.obj, **arguments)
    runner = next(each for each in arguments.values() if hasattr(each, "run"))
    if isinstance(runner, World):
        runner.run(test())
    else:
        mark = pyfuncitem.get_closest_marker("run")
        runner.run(test, **(mark.kwargs if mark else {}))
    return True
