"""What is wrong with a cluster's load now, each with evidence and what to do: the rules of
`balance/advice.py`, as the load report of Spark has them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from trimtab.balance import advice
from trimtab.balance.advice import Advice, Thresholds
from trimtab.balance.limits import PER_BROKER
from trimtab.cli.live.rows import WINDOW_S, Summary
from trimtab.cli.table import show_bytes, show_count
from trimtab.kafka.options import LONG_MAX

_LIMITS: Final = Thresholds()
_LOOKS: Final = 6
"""Looks at a cluster in a window."""
_MOST: Final = 20
"""Findings of one rule; the others are counted."""


class Finding(NamedTuple):
    """A broken rule.

    Attributes:
        kind: "broker", "topic", "group" or "cluster".
        name: of that one.
    """

    advice: Advice
    kind: str
    name: str
    evidence: str

    @property
    def subject(self) -> str:
        return self.name if self.kind == "topic" else f"{self.kind} {self.name}".strip()


def find(summary: Summary) -> list[Finding]:
    """The most severe first; of one rule twenty at most, of the largest."""
    found: list[Finding] = []
    for rule in (_brokers, _disks, _limits, _replicas, _topics, _groups):
        by_rule: dict[str, int] = {}
        for each in rule(summary):
            count = by_rule[each.advice.rule] = by_rule.get(each.advice.rule, 0) + 1
            if count <= _MOST:
                found.append(each)
        for name, count in by_rule.items():
            if count > _MOST:
                of_rule = next(each for each in found if each.advice.rule == name)
                more = f"{count - _MOST:,} more like {of_rule.subject}"
                found.append(Finding(of_rule.advice, "cluster", "", more))
    return sorted(found, key=lambda each: each.advice.severity)


def explain_hottest(summary: Summary) -> str:
    """Which broker is hot, and whether its load or the broker itself is the cause; "" if none."""
    slow = next((row for row in summary.brokers if row.state == "slow"), None)
    if slow is not None:
        is_loaded = slow.level is not None and slow.level > _LIMITS.leader_over_mean
        load = (
            f"It sends {slow.level:.1f} times the mean, which may be the cause."
            if is_loaded
            else "Its load is not above the others', so its disk, network or host is the cause."
        )
        return f"Broker {slow.broker} is slow: {slow.why}. {load}"
    loaded = [row for row in summary.brokers if row.why]
    if not loaded:
        return ""
    hot = max(loaded, key=lambda row: row.level or 0.0)
    others = [
        row.answer_s for row in summary.brokers if row is not hot and row.answer_s is not None
    ]
    quick = ""
    if hot.answer_s is not None and others:
        if hot.answer_s <= max(0.02, 2 * median(others)):
            quick = " It answers as quickly as the others: the load is the cause, not the broker."
        else:
            quick = (
                f" It answers in {1000 * hot.answer_s:.0f} ms, the others in "
                f"{1000 * median(others):.1f}."
            )
    return f"Broker {hot.broker} {hot.why}.{quick}"


def _brokers(summary: Summary) -> Iterator[Finding]:
    for row in summary.brokers:
        if row.state == "down" and row.replicas:
            text = f"it does not answer the controller; {show_count(row.replicas, 'replica')} wait"
            yield Finding(advice.BROKER_DOWN, "broker", str(row.broker), text)
        elif row.state == "slow":
            yield Finding(advice.SLOW_BROKER, "broker", str(row.broker), row.why)
        elif row.why and row.sent >= _LIMITS.min_bytes / WINDOW_S:
            yield Finding(advice.UNEVEN_LEADERS, "broker", str(row.broker), row.why)


def _disks(summary: Summary) -> Iterator[Finding]:
    for row in summary.brokers:
        if row.disk is None or row.disk_free is None or not row.disk:
            continue
        free = row.disk_free / row.disk
        if free < _LIMITS.free_share:
            text = f"{free:.1%} of its disks is left, {show_bytes(row.disk_free)}"
            yield Finding(advice.DISK_NEARLY_FULL, "broker", str(row.broker), text)


def _limits(summary: Summary) -> Iterator[Finding]:
    limits = summary.snapshot.limits
    if limits is None or limits.per_broker == LONG_MAX:
        return
    most = limits.per_broker
    for row in summary.brokers:
        if row.replicas >= _LIMITS.used_share * most:
            text = f"it has {row.replicas:,} of at most {most:,} partition replicas ({PER_BROKER})"
            yield Finding(advice.FEW_PARTITIONS_LEFT, "broker", str(row.broker), text)


def _replicas(summary: Summary) -> Iterator[Finding]:
    for row in summary.topics:
        if row.without_leader:
            text = f"{show_count(row.without_leader, 'partition')} without a leader"
            yield Finding(advice.NO_LEADER, "topic", row.topic, text)
        elif row.under_replicated:
            text = f"{show_count(row.under_replicated, 'partition')} with replicas out of sync"
            yield Finding(advice.UNDER_REPLICATED, "topic", row.topic, text)


def _topics(summary: Summary) -> Iterator[Finding]:
    tails = {each.topic: tail for each, tail in summary.snapshot.tails.items()}
    for row in summary.topics:
        tail = tails.get(row.topic)
        if row.is_uneven and row.skew is not None:
            text = (
                f"partition {row.largest} gets {row.skew / row.partitions:.0%} of the bytes, "
                f"{row.skew:.1f} times the mean of {row.partitions:,} partitions"
            )
            kind = advice.UNEVEN_BY_KEY
            if tail is not None:
                text += f"; {row.why}"
                top = tail.keys[0]
                if not top.name and top.share >= 0.5:
                    kind = advice.UNEVEN_WITHOUT_KEYS
                elif top.name and top.share >= 0.5:
                    kind = advice.HOT_KEY
            yield Finding(kind, "topic", row.topic, text)
        is_small = tail is not None and tail.bytes < tail.batches * _LIMITS.batch_bytes
        if tail is not None and is_small and row.bytes_in >= _LIMITS.min_bytes / WINDOW_S:
            text = (
                f"a batch has {tail.bytes / tail.batches:.0f} bytes and "
                f"{tail.records / tail.batches:.1f} records on average; 61 bytes of each are its "
                "header"
            )
            yield Finding(advice.SMALL_BATCHES, "topic", row.topic, text)


def _groups(summary: Summary) -> Iterator[Finding]:
    for group in summary.groups:
        if group.lag < _LIMITS.lag_records or group.read_per_s is None:
            continue
        if group.read_per_s == 0:
            if summary.snapshot.number < _LOOKS:
                continue  # consumers commit each five seconds: it may be the time between
            text = f"{group.lag:,} records wait, and it has committed nothing meanwhile"
            yield Finding(advice.STALLED_GROUP, "group", group.group, text)
        elif group.trend == "growing":
            text = (
                f"{group.written_per_s:,.0f} records/s are written and {group.read_per_s:,.0f} "
                f"read; {group.lag:,} wait"
            )
            yield Finding(advice.GROWING_LAG, "group", group.group, text)
