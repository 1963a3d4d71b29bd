"""Level the load of a cluster: measure it, plan the fewest bytes, and move them.

Measures bytes/s of every partition from outside, on any Kafka, for --window seconds. Prints how
level the brokers are, and the plan: which leaders change, which copies nothing, and which replicas
move, each with the reason and the bytes, and the fewest bytes that any plan would copy. Nothing
changes without --execute or --watch.

Reassignments of others are respected: their partitions do not move. Ctrl-C and SIGTERM cancel the
moves in progress within 10 s, and leave no throttle; a second one changes nothing.

exit codes: 0 level, or the moves are done, or --watch was ended; 1 out of level, refused, or not
all was moved; 2 misspelt command line; 130 Ctrl-C, 143 SIGTERM
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.options import (
    add_client_options,
    add_options,
    add_verbs,
    read_client_options,
    refuse_misplaced,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import TableColumn, write_columns
from trimtab.cli.selection import ADMIN_TIMEOUT_MS
from trimtab.cli.style import say_note, say_warning
from trimtab.cli.table import show_bytes, show_count
from trimtab.kafka.errors import KafkaError, UsageError

if TYPE_CHECKING:
    from trimtab.balance.cluster_load import ClusterLoad
    from trimtab.balance.level_plan import Change, Goal, LevelPlan
    from trimtab.balance.observed import Observed
    from trimtab.balance.steps import Decided, MoveRules
    from trimtab.client.balancer import Balancer, Event, Measured
    from trimtab.client.moves.executor import MoveReport
    from trimtab.kafka.records import TopicPartition

EXAMPLES = """\
  trimtab balance --bootstrap-server kafka:9092
  trimtab balance --window 300 --json > plan.json
  trimtab balance --execute --throttle 50000000
  trimtab balance --execute --drain 3
  trimtab balance --from /data/partition_load
  trimtab balance --watch --probe
"""

_PROGRESS_S: Final = 30.0
_WORDS: Final = {"out": "sent by leaders", "in": "written", "disk": "stored"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_verbs(
        parser,
        {
            "plan": "print how level the cluster is, and a plan; the default",
            "execute": "carry out the plan",
            "watch": "level the cluster whenever that is needed, until Ctrl-C or SIGTERM",
        },
        required=False,
    )
    options = {
        "--window SECONDS=30": "measure for so long; several times the interval at which consumers "
        "commit",
        "--act-above RATIO=1.15": "plan if a broker has more than this many times the mean",
        "--plan-to RATIO=1.05": "plan until no broker has more than this many times the mean",
        "--payback SECONDS=21600": "move a replica only if in so long it takes as many bytes away "
        "from its broker as are copied",
        "--from TABLE": "plan for the peak of the coming day, by a load table of Spark's (Parquet "
        "files of partition_load with a window), and not for what is measured",
        "--leaders-only": "change leaders only: nothing is copied",
        "--drain ID,…": "move all replicas away from these brokers",
        "--relieve ID,…": "move away from these brokers only, until they are level",
        "--throttle BYTES": "limit what each broker sends, and receives, for moves, in bytes per "
        "second (default: no limit)",
        "--probe": "find slow brokers with small records to a topic of its own, __trimtab_probe, "
        "which is removed at the end; leaders leave them",
        "--metrics-port PORT": "with --watch: serve Prometheus metrics at /metrics on this port; "
        "0: any free one",
        "--metrics-host HOST=127.0.0.1": "the address of that port",
        "--json": "print one JSON object, with --watch a line for whatever happens",
    }
    numbers = ("--window", "--act-above", "--plan-to", "--payback")
    add_options(parser, options, types=dict.fromkeys(numbers, float))
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    verb = f"--{arguments.verb or 'plan'}"
    refuse_misplaced(arguments, {"throttle": ("--execute", "--watch")}, verb)
    refuse_misplaced(arguments, {"from": ("--plan", "--execute")}, verb)
    refuse_misplaced(arguments, {"metrics_port": ("--watch",)}, verb)
    arguments.expected = _read_expected(getattr(arguments, "from"))
    goal, rules = read_goal(arguments), read_rules(arguments)
    options = {"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **read_client_options(arguments)}
    with report_unreachable(options), asyncio.Runner() as runner:
        return runner.run(_run(arguments, options, goal, rules))


def read_goal(arguments: argparse.Namespace) -> Goal:
    """Raises:
    UsageError: a value is out of range, or two options contradict each other.
    """
    from trimtab.balance.level_plan import Goal

    if not 1 < arguments.plan_to <= arguments.act_above:
        raise UsageError(
            f"--plan-to {arguments.plan_to:g} --act-above {arguments.act_above:g}: write 1 < "
            "plan-to <= act-above, such as 1.05 and 1.15"
        )
    for name in ("window", "payback"):
        value = getattr(arguments, name)
        if not 2 <= value < float("inf"):
            raise UsageError(f"--{name} {value:g}: write 2 seconds or more")
    drain, relieve = (
        _read_brokers(name, getattr(arguments, name)) for name in ("drain", "relieve")
    )
    if drain and relieve:
        raise UsageError("--drain and --relieve: give one of them")
    if drain and arguments.leaders_only:
        raise UsageError("--drain moves replicas: leave --leaders-only out")
    return Goal(
        arguments.act_above,
        arguments.plan_to,
        arguments.payback,
        drain,
        relieve,
        leaders_only=arguments.leaders_only,
    )


def _read_brokers(name: str, text: str | None) -> frozenset[int]:
    try:
        return frozenset() if text is None else frozenset(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--{name} {text!r}: write broker ids, such as 1,2") from None


def _read_expected(table: str | None) -> dict[TopicPartition, float] | None:
    """Raises:
    UsageError: it is no load table with windows.
    """
    if table is None:
        return None
    from trimtab.cli.balance_history import read_history

    return read_history(table)


def _expect(measured: Measured, rates: Mapping[TopicPartition, float]) -> Measured:
    from trimtab.cli.balance_history import expect

    metered = measured.metered
    known = sum(each.partition in rates for each in metered.load.partitions)
    say_note(f"The table has {known} of {show_count(len(metered.load.partitions), 'partition')}.")
    return measured._replace(metered=metered._replace(load=expect(metered.load, rates)))


def read_rules(arguments: argparse.Namespace) -> MoveRules:
    """Raises:
    UsageError: the throttle is not above 0.
    """
    from trimtab.balance.steps import MoveRules

    if arguments.throttle is not None and arguments.throttle <= 0:
        raise UsageError(
            f"--throttle {arguments.throttle}: write bytes per second, such as 50000000 for 50 MB/s"
        )
    return MoveRules(rate=arguments.throttle)


async def _run(
    arguments: argparse.Namespace, options: dict[str, Any], goal: Goal, rules: MoveRules
) -> int:
    from trimtab.client.admin import AsyncAdmin
    from trimtab.client.balancer import Balancer, BalancerStopped

    async with AsyncAdmin(options) as admin:
        balancer = Balancer(admin, goal, window_s=arguments.window, probes=arguments.probe)
        signals: list[int] = []

        def stop(number: int) -> None:
            signals.append(number)
            balancer.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        code = 0
        try:
            async with balancer:
                if arguments.verb == "watch":
                    await _watch(arguments, balancer, goal, rules)
                    return 0
                code = await _once(arguments, balancer, goal, rules)
        except KafkaError as error:
            for note in getattr(error, "__notes__", ()):
                say_warning(note)
            if not isinstance(error, BalancerStopped):
                raise
    return 128 + signals[0] if signals else code


async def _watch(
    arguments: argparse.Namespace, balancer: Balancer, goal: Goal, rules: MoveRules
) -> None:
    """Watch, and serve metrics if a port is given.

    Raises:
        UsageError: prometheus_client is missing, or the port is in use.
    """
    port = arguments.metrics_port
    if port is None:
        await balancer.watch(rules, lambda event: _tell(arguments, event))
        return
    try:
        from trimtab.cli.balance_metrics import BalanceMetrics
        from trimtab.cluster.config.node import format_address
        from trimtab.cluster.processes.metrics_server import MetricsServer
    except ImportError as error:
        raise UsageError(
            f"--metrics-port needs prometheus_client: pip install prometheus_client ({error})"
        ) from None
    metrics = BalanceMetrics(goal)
    server = MetricsServer(metrics)
    try:
        await server.listen(arguments.metrics_host, port)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--metrics-port {port}: {error}; name another one, or 0 for any free one"
        ) from None
    address = format_address(arguments.metrics_host, server.port)
    say_note(f"Serving metrics at http://{address}/metrics")

    def tell(event: Event) -> None:
        metrics.note(event)
        _tell(arguments, event)

    try:
        await balancer.watch(rules, tell)
    finally:
        server.close()


async def _once(
    arguments: argparse.Namespace, balancer: Balancer, goal: Goal, rules: MoveRules
) -> int:
    say_note(f"Measuring for {arguments.window:g} s …")
    measured = await balancer.measure()
    if arguments.expected is not None:
        measured = _expect(measured, arguments.expected)
    plan = balancer.plan(measured)
    executes = arguments.verb == "execute" and bool(plan.changes)
    if executes and measured.metered.is_partial:
        say_warning("more than a tenth of the partitions could not be measured: nothing is moved")
        executes = False
    if not arguments.json:
        print(describe_plan(plan), flush=True)
    _warn(measured)
    kept = find_kept(goal, measured.metered.load, plan)
    if kept:
        say_warning(
            f"{show_count(len(kept), 'partition')} cannot leave the brokers to drain, such as "
            f"{kept[0]}: it needs as many other brokers as it has replicas"
        )
    report: MoveReport | None = None
    if executes:
        report = await balancer.move(plan, rules, _show_progress(len(plan.changes)))
        if not arguments.json:
            print("\n" + describe_report(report))
    elif arguments.verb == "execute":
        for line in (await balancer.clean()).left:
            say_warning(f"left: {line}")
    if arguments.json:
        shown = show_plan(plan, measured) | {"kept": [*map(str, kept)]}
        print(json.dumps(shown | ({"report": show_report(report)} if report else {})))
    if report is not None:
        undrained = kept or (goal.drain and measured.metered.left_out)
        return 1 if report.given_up or report.left or undrained else 0
    return 1 if plan.reasons else 0


def find_kept(goal: Goal, load: ClusterLoad, plan: LevelPlan) -> list[TopicPartition]:
    """The partitions that a plan leaves on the brokers that are to be drained."""
    after = plan.assignment
    return [
        each.partition
        for each in load.partitions
        if not goal.drain.isdisjoint(after.get(each.partition, each.replicas))
    ]


def _show_progress(count: int) -> Callable[[Observed, Decided], None]:
    """A note on standard error each half minute."""
    last_s: float | None = None

    def show(observed: Observed, decided: Decided) -> None:
        nonlocal last_s
        if decided.unfinished and (last_s is None or observed.now_s - last_s >= _PROGRESS_S):
            last_s = observed.now_s
            say_note(f"Moving: {decided.unfinished} of {show_count(count, 'partition')} to go …")

    return show


def _warn(measured: Measured) -> None:
    for line in measured.metered.unknown:
        say_warning(f"not measured: {line}")
    left_out = measured.metered.left_out
    if left_out:
        partition, why = next(iter(left_out.items()))
        say_warning(
            f"{show_count(len(left_out), 'partition')} left out, such as {partition}: {why}"
        )
    for broker, why in {**measured.slow.slow, **measured.slow.alarm}.items():
        say_warning(f"broker {broker} is slow: {why}")


def _tell(arguments: argparse.Namespace, event: Event) -> None:
    from trimtab.balance.level_plan import LevelPlan
    from trimtab.client.balancer import Measured
    from trimtab.client.moves.executor import MoveReport

    if isinstance(event, Measured):
        return
    if isinstance(event, LevelPlan):
        shown, text = show_plan(event), describe_plan(event)
    elif isinstance(event, MoveReport):
        shown, text = {"report": show_report(event)}, describe_report(event)
    elif isinstance(event, str):
        shown, text = {"note": event}, event
    else:
        shown = {"slow": {**event.slow}, "alarm": {**event.alarm}}
        named = {**event.slow, **event.alarm}
        lines = [f"broker {broker} is slow: {why}" for broker, why in named.items()]
        text = "\n".join(lines) or "no broker is slow"
    print(json.dumps(shown) if arguments.json else text, flush=True)


def describe_plan(plan: LevelPlan) -> str:
    """The levels, then the changes, for people."""
    rows = [
        {
            "resource": _WORDS[name],
            "mean": show_bytes(before.mean) + ("" if name == "disk" else "/s"),
            "busiest": before.busiest if before.loads else None,
            "level": before.level,
            "after": plan.after[name].level,
            "reachable": plan.after[name].reachable,
        }
        for name, before in plan.before.items()
    ]
    columns = [
        TableColumn("bytes", "resource", fits=True),
        TableColumn("mean", "mean", fits=True),
        TableColumn("busiest", "busiest", fits=True),
        TableColumn("level", "level", fits=True, show=lambda value: f"{value:.2f} x"),
        TableColumn("after", "after", fits=True, show=lambda value: f"{value:.2f} x"),
        TableColumn("best", "reachable", fits=True, show=lambda value: f"{value:.2f} x"),
    ]
    lines = [line.rstrip() for line in write_columns(columns, rows)]
    if not plan.reasons:
        return "\n".join([*lines, "", "Level: nothing to do."])
    lines += ["", *(f"Why: {reason}." for reason in plan.reasons)]
    lines += [f"Not reached: {what}." for what in plan.unmet]
    if not plan.changes:
        return "\n".join([*lines, "No change that pays would make it better."])
    moves = sum(change.moves_replicas for change in plan.changes)
    lines.append(
        f"Plan: {show_count(len(plan.changes) - moves, 'leader change')}, "
        f"{show_count(moves, 'partition move')}; "
        + (
            f"{show_bytes(plan.copied)} copied, no plan copies fewer than {show_bytes(plan.bound)}."
            if plan.copied
            else "nothing is copied."
        )
    )
    return "\n".join([*lines, "", *map(_describe_change, plan.changes)])


def _describe_change(change: Change) -> str:
    payback = "" if change.payback_s is None else f"; pays after {change.payback_s:,.0f} s"
    return f"{change.before.partition}: {change.reason}{payback}"


def show_plan(plan: LevelPlan, measured: Measured | None = None) -> dict[str, Any]:
    """For JSON."""
    found: dict[str, Any] = {}
    if measured is not None:
        found = {
            "unknown": [*measured.metered.unknown],
            "left_out": {str(each): why for each, why in measured.metered.left_out.items()},
            "slow": {**measured.slow.slow},
        }
    return found | {
        "levels": {
            name: {
                "mean": before.mean,
                "level": before.level,
                "after": plan.after[name].level,
                "reachable": plan.after[name].reachable,
                "brokers": {str(broker): load for broker, load in before.loads.items()},
            }
            for name, before in plan.before.items()
        },
        "reasons": [*plan.reasons],
        "unmet": [*plan.unmet],
        "copied": plan.copied,
        "bound": plan.bound,
        "changes": [
            {
                "topic": change.before.partition.topic,
                "partition": change.before.partition.partition,
                "before": [*change.before.replicas],
                "leader": change.before.leader,
                "replicas": [*change.replicas],
                "copied": change.copied,
                "payback_s": change.payback_s,
                "reason": change.reason,
            }
            for change in plan.changes
        ],
    }


def describe_report(report: MoveReport) -> str:
    """What was moved, for people."""
    lines = [
        f"{show_count(len(report.elected), 'leader')} changed, "
        f"{show_count(len(report.moved), 'partition')} moved, {show_bytes(report.bytes)} copied"
    ]
    lines += [f"not moved: {each}: {why}" for each, why in sorted(report.given_up.items())]
    lines += [f"left: {what}" for what in report.left]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def show_report(report: MoveReport) -> dict[str, Any]:
    """For JSON."""
    return {
        "moved": [*map(str, report.moved)],
        "elected": [*map(str, report.elected)],
        "given_up": {str(each): why for each, why in report.given_up.items()},
        "bytes": report.bytes,
        "left": [*report.left],
        "notes": [*report.notes],
    }
