"""Searches runs of the simulation for one that finds a planted bug."""

from __future__ import annotations

import itertools

import pytest

from trimtab.sim.reliability import Violation, run_seed

SEARCHED = 200


def find_bug(bug: str, first: int) -> None:
    """Fail unless one of 200 seeds finds the bug; `first`, which once did, is tried before."""
    for seed in itertools.chain([first], range(SEARCHED)):
        try:
            run_seed(seed)
        except Violation as violation:
            print(f"{bug}: seed {seed}: {violation}")
            return
    pytest.fail(f"{SEARCHED} seeds do not find: {bug}")
