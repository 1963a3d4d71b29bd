"""The plan that levels a cluster, as data: `trimtab.plan_balance`.

Tests: tests/unit/cli/test_balance.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import Unpack

from trimtab.balance.level_plan import Goal, LevelPlan, find_level_plan
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.balancer import Balancer, Measured
from trimtab.client.network.option_types import AdminOptions
from trimtab.client.options import gather_options
from trimtab.kafka.arguments import checked_brokers, checked_flag
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.threads.loop_thread import shared


def plan_balance(
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
    *,
    window_s: float = 30.0,
    act_above: float = 1.15,
    plan_to: float = 1.05,
    payback_s: float = 6 * 3600.0,
    drain: Iterable[int] = (),
    relieve: Iterable[int] = (),
    leaders_only: bool = False,
    probes: bool = False,
    **options: Unpack[AdminOptions],
) -> LevelPlan:
    """Measure a cluster's load, and plan the fewest bytes that level it; nothing is changed. What
    `trimtab balance` prints, as data.

    Args:
        bootstrap_servers: `host:port, …` of the cluster, or a dictionary of options.
        window_s: seconds of measuring; at least 2.
        act_above: plan if a broker has more than this many times the mean.
        plan_to: plan until no broker has more than this many times the mean; above 1.
        payback_s: a replica moves only if in so many seconds it takes as many bytes away from its
            broker as are copied.
        drain: ids of brokers from which all replicas go.
        relieve: ids of brokers; leaders and replicas leave only these, if there are any.
        leaders_only: whether no replica moves.
        probes: find slow brokers, which are to lead nothing, with small records to a topic of its
            own, `__trimtab_probe`, which is removed at the end.
        options: Kafka's admin options, dotted or in snake case.

    Raises:
        UsageError: a value is out of range, or there is no such broker.
        Unavailable: the cluster does not answer, or more than a tenth of its partitions could not
            be measured.
        BrokerError: a broker refuses.
    """
    numbers = {
        "window_s": window_s,
        "act_above": act_above,
        "plan_to": plan_to,
        "payback_s": payback_s,
    }
    for what, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{what}={value!r}: must be a number")
    if not payback_s > 0:
        raise UsageError(f"payback_s={payback_s}: must be seconds above 0")
    if not 1 < plan_to <= act_above < math.inf:
        raise UsageError(
            f"plan_to={plan_to!r}, act_above={act_above!r}: must be 1 < plan_to <= act_above"
        )
    goal = Goal(
        act_above,
        plan_to,
        payback_s,
        frozenset(checked_brokers("drain", drain)),
        frozenset(checked_brokers("relieve", relieve)),
        leaders_only=checked_flag("leaders_only", leaders_only),
    )
    checked_flag("probes", probes)
    if goal.drain and (goal.relieve or leaders_only):
        raise UsageError("drain: give neither relieve nor leaders_only beside it")
    given = gather_options("admin", bootstrap_servers, options)

    async def measure() -> Measured:
        async with (
            AsyncAdmin(given, random=Random()) as admin,
            Balancer(admin, goal, window_s=window_s, probes=probes) as balancer,
        ):
            return await balancer.measure()

    measured = shared().run(measure)
    metered = measured.metered
    if metered.is_partial:
        partition, why = next(iter(metered.left_out.items()))
        raise Unavailable(
            f"{len(metered.left_out)} partitions could not be measured, such as {partition}: {why}"
        )
    return find_level_plan(
        metered.load, goal._replace(without_leaders=frozenset(measured.slow.slow))
    )
