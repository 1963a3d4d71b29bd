"""A forecast, and what came of it, as text for people.

Tests: test_forecast.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trimtab.cli.table import align, show_bytes, show_count

WORDS: Final = {
    "written": "written",
    "sent": "sent by leaders",
    "stored": "stored",
    "p99_s": "p99 of answers",
}
_PRECISE: Final = 0.095


def write_check(rows: Sequence[Mapping[str, Any]], inside: int) -> Iterator[str]:
    lines = [("", "", "forecast", "interval", "outcome", "error", "")]
    for row in rows:
        low, mid, high = (show(row["what"], each) for each in row["forecast"])
        error = "" if row["error"] is None else show_part(row["error"])
        mark = "" if row["is_inside"] else "outside"
        name, outcome = f"broker {row['broker']}", show(row["what"], row["outcome"])
        words = WORDS[row["what"]]
        lines.append((name, words, mid, f"{low} to {high}", outcome, error, mark))
    yield from align(lines, right=range(2, 6))
    yield f"{inside} of {show_count(len(rows), 'outcome')} inside their intervals"


def show(word: str, value: float) -> str:
    """An amount of this kind, for people."""
    if word == "p99_s":
        return f"{1000 * value:.1f} ms"
    return show_bytes(value) + ("" if word == "stored" else "/s")


def write_text(forecast: Mapping[str, Any]) -> Iterator[str]:
    """A forecast for people."""
    yield f"From {forecast['source']}, {show_count(forecast['windows'], 'window')}"
    yield f"What if: {'; '.join(forecast['changes'])}"
    yield f"Back-test: {say_errors(forecast['back_test'])}"
    for word, title in WORDS.items():
        if word == "p99_s" and forecast["no_p99"]:
            yield f"\np99 of answers: not forecast: {forecast['no_p99']}"
            continue
        error = forecast["back_test"][word]
        rows = [(f"{title} ±{show_part(error)}", "before", "after", "at least", "at most")]
        for broker in forecast["brokers"]:
            before, after = broker["before"][word], broker["after"]
            cells = ["-"] * 3
            if after is not None:
                cells = [show(word, each) for each in after[word]]
            shown = "-" if before is None else show(word, before)
            rows.append((f"  broker {broker['broker']}", shown, cells[1], cells[0], cells[2]))
        yield ""
        yield from align(rows, right=range(1, 5))
    if forecast["notes"]:
        yield ""
        yield from forecast["notes"]


def say_errors(errors: Mapping[str, float | None]) -> str:
    """What a back-test has shown, for people."""
    named = {WORDS.get(word, word): error for word, error in errors.items() if error is not None}
    return ", ".join(f"{word} ±{show_part(error)}" for word, error in named.items())


def show_part(part: float) -> str:
    """A part of a whole as per cent."""
    return f"{part:.1%}" if part < _PRECISE else f"{part:.0%}"
