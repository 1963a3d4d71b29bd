"""One measurement as one JSON line."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence


def report(
    stage: str,
    metric: str,
    unit: str,
    ours: Sequence[float],
    rival: str,
    theirs: Sequence[float],
    *,
    more_is_better: bool,
    note: str = "",
) -> None:
    """Print medians of both sides and their ratio.

    `ratio` is ours to theirs so that above 1 is better, also where less is better. `min` and `max`
    are of our runs.

    Args:
        ours: our runs; empty only where the load itself is the rival's, and cannot be had.
        theirs: the rival's runs; empty if it cannot be had. `note` then says why.
    """
    value = _median(ours)
    rival_value = _median(theirs)
    ratio = None
    if value and rival_value:
        ratio = _round(value / rival_value if more_is_better else rival_value / value)
    line: dict[str, object] = {
        "stage": stage,
        "metric": metric,
        "value": value,
        "unit": unit,
        "rival": rival,
        "rival_value": rival_value,
        "ratio": ratio,
        "runs": len(ours),
        "min": _round(min(ours)) if ours else None,
        "max": _round(max(ours)) if ours else None,
    }
    if theirs:
        line["rival_min"] = _round(min(theirs))
        line["rival_max"] = _round(max(theirs))
    if note:
        line["note"] = note
    print(json.dumps(line), flush=True)


def progress(text: str) -> None:
    """Say on standard error what goes on."""
    print(f"# {text}", file=sys.stderr, flush=True)


def _median(runs: Sequence[float]) -> float | None:
    return _round(statistics.median(runs)) if runs else None


def _round(value: float) -> float:
    """Four significant digits; whole numbers from a thousand on."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
