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
    """Print the medians of both sides and their ratio.

    `ratio` is above 1 if trimtab is better, also for metrics where less is better. `min` and `max`
    are of trimtab's runs.

    Args:
        ours: trimtab's runs; empty only if the load comes from a rival that is not available.
        theirs: the rival's runs; empty if it is not available. `note` then has the reason.
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
    """Print progress on standard error."""
    print(f"# {text}", file=sys.stderr, flush=True)


def _median(runs: Sequence[float]) -> float | None:
    return _round(statistics.median(runs)) if runs else None


def _round(value: float) -> float:
    """Round to four significant digits; from a thousand on to whole numbers."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
