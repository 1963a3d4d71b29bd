"""The fewest bytes that any plan copies, without a solver: a knapsack for each overloaded broker.

A broker above its limit must lose the excess. What leaders can take away for nothing is subtracted.
The rest leaves it cheapest by the replicas with the fewest bytes for each unit of load, the last of
them in part. A copied replica leaves one broker, so the sum over the brokers is a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from trimtab.balance.level_choices import COUNT, DISK, IN, KINDS, OUT, LevelChoices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]


def bound_by_knapsacks(
    choices: LevelChoices, loads: Floats, limits: Floats
) -> tuple[float, Floats]:
    """The bytes, and by kind and broker the bytes that the last unit of load costs.

    Args:
        loads, limits: by kind and broker.
    """
    prices = numpy.zeros((KINDS, choices.count))
    total = 0.0
    for broker in numpy.flatnonzero((loads > limits).any(0)).tolist():
        at = choices.replicas == broker
        rows, _ = numpy.nonzero(at & choices.can_leave)
        sizes = choices.sizes[rows]
        leads = choices.leaders[rows] == broker
        # Those of which another replica can lead, perhaps one that is copied in another's place.
        others = ((choices.can_lead | choices.can_leave) & ~at).any(1)
        most = 0.0
        for kind in (IN, DISK, COUNT, OUT):
            excess = float(loads[kind, broker] - limits[kind, broker])
            if kind == COUNT:
                amounts = numpy.ones(len(rows))
            elif kind == OUT:
                led = choices.leaders == broker
                excess -= float(choices.weights[OUT, led & others].sum())
                amounts = numpy.where(leads & ~others[rows], choices.weights[OUT, rows], 0)
            else:
                amounts = choices.weights[kind, rows]
            if excess <= 0:
                continue
            useful = numpy.flatnonzero(amounts > 0)
            ratios = sizes[useful] / amounts[useful]
            order = useful[numpy.argsort(ratios, kind="stable")]
            reached = numpy.cumsum(amounts[order])
            whole = int(numpy.searchsorted(reached, excess))
            fewest = float(sizes[order[:whole]].sum())
            if whole < len(order):
                last = order[whole]
                before = reached[whole - 1] if whole else 0.0
                fewest += float(sizes[last] * (excess - before) / amounts[last])
                prices[kind, broker] = sizes[last] / amounts[last]
            most = max(most, fewest)
        total += most
    return total, prices
