"""`python -m lab.reliability`: many runs of the reliability simulation, or one with its trace.

    --seeds 200 --first-seed 1000 --jobs 2    200 runs; prints a line for each violation
    --seed 7                                  one run; prints every line of its trace

The last line of standard output is a JSON object: seeds, virtual_hours, faults, acknowledged,
commits, violations and failed_seeds. The exit status is 1 if there was a violation.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from typing import NamedTuple

from lab.reliability.checkers import Violation
from lab.reliability.simulation import Run, Simulation, run_seed

_LAST_LINES = 40


class _Outcome(NamedTuple):
    """The results of a run; or None, and the violation that ended it."""

    seed: int
    run: Run | None
    violation: str


def main(arguments: list[str] | None = None) -> int:
    """Run the simulations; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.reliability", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the run with this seed, print its trace")
    parser.add_argument("--seeds", type=int, default=200, help="number of runs (default: 200)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default: 1)")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    if options.seed is not None:
        outcomes = [_repeat(options.seed)]
    else:
        outcomes = list(_run_all(options.first_seed, options.seeds, options.jobs))
    failed = [each.seed for each in outcomes if each.run is None]
    runs = [each.run for each in outcomes if each.run is not None]
    faults: Counter[str] = Counter()
    for run in runs:
        faults += run.faults
    print(
        json.dumps(
            {
                "seeds": len(outcomes),
                "virtual_hours": round(sum(run.virtual_s for run in runs) / 3600, 3),
                "faults": faults.total(),
                "acknowledged": sum(run.acknowledged for run in runs),
                "commits": sum(run.commits for run in runs),
                "violations": len(failed),
                "failed_seeds": failed,
                "faults_by_kind": dict(faults.most_common()),
                "seconds": round(time.monotonic() - started_s, 1),
            }
        )
    )
    return 1 if failed else 0


def _run_all(first: int, count: int, jobs: int) -> Iterator[_Outcome]:
    seeds = range(first, first + count)
    if jobs == 1:
        outcomes: Iterator[_Outcome] = map(_run, seeds)
        yield from _report(outcomes, count)
        return
    with get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from _report(pool.imap_unordered(_run, seeds, chunksize=4), count)


def _report(outcomes: Iterator[_Outcome], count: int) -> Iterator[_Outcome]:
    for number, outcome in enumerate(outcomes, 1):
        if outcome.violation:
            print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{number} of {count}", end="", file=sys.stderr, flush=True)
        yield outcome


def _run(seed: int) -> _Outcome:
    # A world lives for about a second and is full of reference cycles: collect them after the run.
    gc.disable()
    try:
        return _Outcome(seed, run_seed(seed), "")
    except Exception as error:
        return _Outcome(seed, None, _describe(error))
    finally:
        gc.enable()
        gc.collect()


def _describe(error: Exception) -> str:
    if not isinstance(error, Violation):
        return "".join(traceback.format_exception(error))
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    return "\n  ".join([str(error), *notes[-_LAST_LINES:]])


def _repeat(seed: int) -> _Outcome:
    simulation = Simulation(seed, keep_trace=True)
    run, violation = None, ""
    try:
        run = simulation.run()
    except Exception as error:
        violation = _describe(error)
    for line in simulation.describe_events():
        print(line)
    if violation:
        print(f"seed {seed}: {violation}")
    return _Outcome(seed, run, violation)
