"""The page of the plan: why, what it costs, how far it is carried out, and the buttons.

Tests: test_pages.py
"""

from __future__ import annotations

from html import escape
from typing import Final

from trimtab.balance.level_plan import LevelPlan
from trimtab.cli.page import to_table
from trimtab.cli.table import show_bytes, show_count
from trimtab.client.collector import Progress, Snapshot, Stage

_ROWS: Final = 100
_WORDS: Final = {"out": "sent by leaders", "in": "written", "disk": "stored"}


def show_plan(snapshot: Snapshot, allows_changes: bool, said: str) -> str:
    """The page's content.

    Args:
        said: what became of the last change that was asked for.
    """
    parts = ["<h1>Plan</h1>"]
    if said:
        parts.append(f'<p class="bad" role="status">{escape(said)}</p>')
    progress, view = snapshot.progress, snapshot.plan
    is_moving = progress is not None and progress.stage.is_moving
    if progress is not None:
        parts.append(_show_progress(progress))
    if is_moving and allows_changes:
        parts.append(_buttons([("pause", "Pause", ""), ("cancel", "Cancel", "danger")], 0))
    if view is None:
        return "\n".join([*parts, "<p>The first plan is being made …</p>"])
    parts.append(_show_levels(view.plan))
    if view.plan.changes and allows_changes and not is_moving:
        parts.append(_buttons([("run", "Carry out this plan", "")], view.number))
    if not allows_changes:
        parts.append(
            '<p class="faint">Nothing can be changed here. <code>trimtab balance --execute</code> '
            "carries a plan out, and so does this page with --allow-changes.</p>"
        )
    return "\n".join([*parts, _show_changes(view.plan)])


def _buttons(buttons: list[tuple[str, str, str]], number: int) -> str:
    made = "".join(
        f'<button name="action" value="{name}" class="{kind}">{text}</button>'
        for name, text, kind in buttons
    )
    return (
        f'<form method="post" action="/plan"><input type="hidden" name="plan" value="{number}">'
        f"{made}</form>"
    )


def _show_progress(progress: Progress) -> str:
    done = progress.changes - progress.unfinished
    text = {
        Stage.MOVING: "A plan is being carried out",
        Stage.PAUSING: "It is pausing: moves in progress go on",
        Stage.CANCELLING: "It is being cancelled",
        Stage.PAUSED: "A plan was paused; the plan below is for what is left",
        Stage.CANCELLED: "A plan was cancelled",
        Stage.DONE: "A plan was carried out",
        Stage.FAILED: "A plan has failed",
    }[progress.stage]
    parts = [f"<p><b>{text}: {done:,} of {show_count(progress.changes, 'change')}.</b></p>"]
    if progress.error:
        parts.append(f'<p class="bad">{escape(progress.error)}</p>')
    if progress.stage.is_moving:
        parts.append(
            f'<progress aria-label="changes that are done" max="{progress.changes}" '
            f'value="{done}"></progress>'
        )
    report = progress.report
    if report is not None:
        parts.append(
            f"<p>{show_count(len(report.elected), 'leader')} changed, "
            f"{show_count(len(report.moved), 'partition')} moved, {show_bytes(report.bytes)} "
            "copied.</p>"
        )
        lines = [f"not moved: {each}: {why}" for each, why in sorted(report.given_up.items())]
        lines += [f"left: {what}" for what in report.left]
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines[:_ROWS])
            parts.append(f'<ul class="bad">{items}</ul>')
    return "\n".join(parts)


def _show_levels(plan: LevelPlan) -> str:
    heads = ["Bytes", "Mean", "Busiest", "Max/mean", "After", "Best possible"]
    rows = [
        [
            _WORDS[name],
            show_bytes(before.mean) + ("" if name == "disk" else "/s"),
            f"broker {before.busiest}" if before.loads else "",
            f"{before.level:.2f} x",
            f"{plan.after[name].level:.2f} x",
            f"{plan.after[name].reachable:.2f} x",
        ]
        for name, before in plan.before.items()
    ]
    return to_table(heads, rows, text_columns=range(1))


def _show_changes(plan: LevelPlan) -> str:
    if not plan.reasons:
        return "<p><b>Level: nothing to do.</b></p>"
    why = "".join(f"<li>{escape(reason)}</li>" for reason in plan.reasons[:_ROWS])
    parts = [f"<h2>Why</h2><ul>{why}</ul>"]
    parts += [f"<p>Not reached: {escape(what)}.</p>" for what in plan.unmet[:_ROWS]]
    if not plan.changes:
        return "\n".join([*parts, "<p>No change that pays would make it better.</p>"])
    moves = sum(change.moves_replicas for change in plan.changes)
    cost = (
        f"{show_bytes(plan.copied)} are copied; no plan copies fewer than {show_bytes(plan.bound)}."
        if plan.copied
        else "Nothing is copied."
    )
    parts.append(
        f"<h2>What</h2><p><b>{show_count(len(plan.changes) - moves, 'leader change')} and "
        f"{show_count(moves, 'partition move')}. {cost}</b></p>"
    )
    heads = ["Partition", "Why", "Copied", "Pays after"]
    rows = [
        [
            str(change.before.partition),
            change.reason,
            show_bytes(change.copied) if change.copied else "",
            "" if change.payback_s is None else f"{change.payback_s:,.0f} s",
        ]
        for change in plan.changes[:_ROWS]
    ]
    parts.append(to_table(heads, rows, text_columns=range(2)))
    if len(plan.changes) > _ROWS:
        parts.append(f"<p>{len(plan.changes) - _ROWS:,} more changes.</p>")
    return "\n".join(parts)
