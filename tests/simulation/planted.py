"""Searches runs of the simulation for one that finds a planted bug.

After a change of what the simulation does, other seeds find them, and the tests search for minutes.
`python -m tests.simulation.planted` prints a seed for each bug, for the tests to begin with.
"""

from __future__ import annotations

import importlib
import itertools

import pytest

from lab.reliability.simulation import Violation, run_seed

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


def _find_seeds() -> None:
    for kind in ("cluster", "group", "transaction"):
        faults = importlib.import_module(f"tests.simulation.test_{kind}_faults")
        for bug, (first, place, name, instead) in faults.PLANTED.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(place, name, instead)
                print(f"{kind}, first tried {first}", end=", ", flush=True)
                find_bug(bug, first)


if __name__ == "__main__":
    _find_seeds()
