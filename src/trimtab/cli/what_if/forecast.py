"""A forecast with its back-test, and whether what came is inside it.

    measured ─▶ back-test: the first half forecasts the second ─▶ errors ─┐
        └─────▶ changes, with several seeds ─▶ ranges over windows ───────┴─▶ intervals

An interval reaches from the least to the most of all windows and seeds, and at least as far as the
back-test was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy

from trimtab.balance.answer_fit import Answered, AnswerFit
from trimtab.balance.cluster_load import DISK, IN, OUT
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.balance.what_if import Floats, LoadWindows
    from trimtab.cli.what_if.changes import Change
    from trimtab.cli.what_if.measured import Measured

VERSION: Final = 1
NAMES: Final = {IN: "written", OUT: "sent", DISK: "stored"}
P99: Final = "p99_s"
WORST_P99: Final = 0.5
"""A p99 is refused if its back-test was further off than this."""
_SEEDS, _SEEDS_OF_PLANS = 20, 3
_ROUNDED: Final = 1e-9
_SMALL: Final = 0.1
"""Errors of brokers with less than this part of the mean are judged as if they had that."""


def make_forecast(measured: Measured, changes: Sequence[Change], has_plan: bool) -> dict[str, Any]:
    """A forecast, for JSON: see docs/what-if.md.

    Raises:
        UsageError: a change cannot be made.
        LimitExceeded: there is no room for replicas.
    """
    errors = back_test(measured.windows, measured.earlier, measured.later)
    base = measured.windows.select(measured.base)
    is_drawn = any(each.is_drawn for each in changes)
    count = (_SEEDS_OF_PLANS if has_plan else _SEEDS) if is_drawn else 1
    sums: list[dict[str, dict[int, Floats]]] = []
    spread = _PartitionSpread()
    for seed in range(count):
        random, windows = Random(seed), base
        for change in changes:
            windows = change.make(windows, random)
        sums.append(windows.sum_by_broker())
        spread.add(windows)
    before = base.sum_by_broker()
    fit, error, refusal = _fit_answers(measured.answered)
    answers: dict[int, list[float]] = {}
    if fit is not None:
        try:
            for broker in sums[0][IN]:
                loads = numpy.concatenate([each[IN][broker] + each[OUT][broker] for each in sums])
                low, mid, high = fit.predict(broker, loads)
                answers[broker] = _widen(mid, low, high, error or 0.0)
        except UsageError as reason:
            answers, refusal = {}, str(reason)
    brokers = []
    for broker in before[IN]:
        state = base.load.brokers[broker]
        measured_s = [
            each.p99_s for window in measured.answered for each in window if each.broker == broker
        ]
        row: dict[str, Any] = {"broker": broker, "rack": state.rack, "before": {}, "after": None}
        for name, word in NAMES.items():
            row["before"][word] = float(before[name][broker].mean())
        row["before"][P99] = sum(measured_s) / len(measured_s) if measured_s else None
        if broker in sums[0][IN]:
            row["after"] = {
                word: _band(numpy.concatenate([each[name][broker] for each in sums]), errors[word])
                for name, word in NAMES.items()
            } | {P99: answers.get(broker)}
        brokers.append(row)
    return {
        "what_if": VERSION,
        "source": measured.source,
        "windows": len(base.bytes_in),
        "changes": [each.text for each in changes],
        "back_test": errors | {P99: error},
        "no_p99": refusal,
        "notes": _note(base, windows),
        "brokers": brokers,
        "partitions": spread.show(errors),
    }


def back_test(windows: LoadWindows, earlier: slice, later: slice) -> dict[str, float]:
    """How far some windows were off when they forecast others: of nine in ten brokers at most, as a
    part of what those had."""
    said, came = (windows.select(each).sum_by_broker() for each in (earlier, later))
    return {
        word: _find_error(
            {broker: float(each.mean()) for broker, each in said[name].items()},
            {broker: float(each.mean()) for broker, each in came[name].items()},
        )
        for name, word in NAMES.items()
    }


def _find_error(said: Mapping[int, float], came: Mapping[int, float]) -> float:
    both = sorted(said.keys() & came.keys())
    if not both:
        return 0.0
    pairs = numpy.array([(said[each], came[each]) for each in both])
    least = max(_SMALL * float(pairs[:, 1].mean()), 1e-9)
    errors = abs(pairs[:, 0] - pairs[:, 1]) / numpy.maximum(pairs[:, 1], least)
    return float(numpy.quantile(errors, 0.9))


def _fit_answers(
    answered: Sequence[Sequence[Answered]],
) -> tuple[AnswerFit | None, float | None, str | None]:
    """The fit, the error of its back-test, and why there is no fit."""
    if not answered:
        return None, None, "no probes were measured: record with trimtab dashboard --probe --record"
    half = len(answered) // 2
    first, second = (
        [each for window in part for each in window] for part in (answered[:half], answered[half:])
    )
    try:
        fit = AnswerFit(first)
        loads = _group({each.broker: [] for each in first}, first)
        said = {
            broker: float(fit.predict(broker, numpy.array([each.bytes_s for each in own]))[1])
            for broker, own in loads.items()
        }
        came = {
            broker: float(numpy.mean([each.p99_s for each in own]))
            for broker, own in _group({}, second).items()
        }
        error = _find_error(said, came)
        if error > WORST_P99:
            return (
                None,
                error,
                (
                    f"the back-test was off by {error:.0%}, and above {WORST_P99:.0%} nothing is "
                    "said: measure for longer, or when the cluster is quieter"
                ),
            )
        return AnswerFit([*first, *second]), error, None
    except UsageError as reason:
        return None, None, str(reason)


def _group(
    groups: dict[int, list[Answered]], answered: Sequence[Answered]
) -> dict[int, list[Answered]]:
    for each in answered:
        groups.setdefault(each.broker, []).append(each)
    return groups


def _band(values: Floats, error: float) -> list[float]:
    return _widen(float(values.mean()), float(values.min()), float(values.max()), error)


def _widen(mid: float, low: float, high: float, error: float) -> list[float]:
    """The interval, at least as wide as the error: least, mean, most."""
    return [max(0.0, min(low, mid * (1 - error))), mid, max(high, mid * (1 + error))]


class _PartitionSpread:
    """The least, the mean and the most of each partition, over windows and seeds."""

    def __init__(self) -> None:
        self._count = 0
        self._ranges: list[tuple[Floats, Floats, Floats]] = []
        self._windows: LoadWindows | None = None

    def add(self, windows: LoadWindows) -> None:
        found = [(e.min(axis=0), e.mean(axis=0), e.max(axis=0)) for e in windows[1:]]
        self._count += 1
        if self._windows is None:
            self._windows, self._ranges = windows, found
            return
        self._ranges = [
            (numpy.minimum(low, a), mid + (b - mid) / self._count, numpy.maximum(high, c))
            for (low, mid, high), (a, b, c) in zip(self._ranges, found, strict=True)
        ]

    def show(self, errors: Mapping[str, float]) -> list[dict[str, Any]]:
        """For JSON; leaders and replicas as with the first seed."""
        assert self._windows is not None
        bands = {
            word: [
                _widen(mid, low, high, errors["sent" if word == "read" else word])
                for low, mid, high in zip(*(part.tolist() for part in ranges), strict=True)
            ]
            for word, ranges in zip(("written", "read", "stored"), self._ranges, strict=True)
        }
        return [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "leader": each.leader,
                "replicas": [*each.replicas],
            }
            | {word: found[at] for word, found in bands.items()}
            for at, each in enumerate(self._windows.load.partitions)
        ]


def _note(before: LoadWindows, after: LoadWindows) -> list[str]:
    notes = []
    if not before.bytes_out.any():
        notes.append(
            "No consumer commits offsets to Kafka: what leaders send is what followers read."
        )
    lost = sum(each.leader < 0 for each in after.load.partitions)
    if lost:
        notes.append(f"{lost} partitions have no leader then, and are not written.")
    return notes


def compare(forecast: Mapping[str, Any], measured: Measured) -> list[dict[str, Any]]:
    """What was forecast of each broker and what came, for JSON. What came is the mean over all
    windows.

    Raises:
        UsageError: a broker was not measured.
    """
    came = measured.windows.sum_by_broker()
    answers = _group({}, [each for window in measured.answered for each in window])
    rows = []
    for broker in forecast["brokers"]:
        if broker["after"] is None:
            continue
        id = broker["broker"]
        if id not in came[IN]:
            raise UsageError(f"broker {id} was forecast, and {measured.source} does not have it")
        outcomes = {word: float(came[name][id].mean()) for name, word in NAMES.items()}
        if broker["after"][P99] is not None and id in answers:
            outcomes[P99] = float(numpy.mean([each.p99_s for each in answers[id]]))
        for word, outcome in outcomes.items():
            low, mid, high = broker["after"][word]
            rows.append(
                {
                    "broker": id,
                    "what": word,
                    "forecast": [low, mid, high],
                    "outcome": outcome,
                    "error": abs(mid - outcome) / outcome if outcome else None,
                    "is_inside": low * (1 - _ROUNDED) <= outcome <= high * (1 + _ROUNDED),
                }
            )
    return rows
