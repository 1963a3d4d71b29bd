"""How a stream is followed to its end, and what Spark says of it, in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.spark.pipeline.run import PipelineFailed, _follow, describe

TRACE = """[STREAM_FAILED] Query failed: Traceback (most recent call last):
  File "reader.py", line 75, in read_partition
{}
 SQLSTATE: 38000
\tat org.apache.spark.Thing

=== Streaming Query ===
Identifier: late [id = f9ef965d, runId = 70119a97]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACE.format("TypeError: no such thing"), "TypeError: no such thing"),
        (
            TRACE.format("trimtab.kafka.errors.Unavailable: nobody is there"),
            "nobody is there (Unavailab",
        ),
        (
            "\n[PARSE] Syntax error. SQLSTATE: 42601 (line 2, pos 14)\n\n== SQL ==\nCREATE\n",
            "[PARS",
        ),
    ],
)
def test_an_error_is_said_without_traces(text: str, said: str) -> None:
    described = describe(RuntimeError(text))
    assert described.startswith(said)
    assert "\n" not in described


def test_lines_are_counted_from_the_first_that_a_person_wrote() -> None:
    text = "\n[PARSE] Syntax error. SQLSTATE: 42601 (line 2, pos 14)\n\n== SQL ==\nCREATE\n"
    assert describe(RuntimeError(text), 1) == "[PARSE] Syntax error (line 1, position 14)"


class Query:
    """A stream that runs until it is stopped, or fails at the given call of `awaitTermination`."""

    def __init__(self, fails_after: int = 1000, is_stoppable: bool = True) -> None:
        self.fails_after = fails_after
        self.is_stoppable = is_stoppable
        self.waits = self.stops = 0
        self.isActive = True

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress[-1]

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        return [
            SimpleNamespace(batchId=number, numInputRows=10, sources=[])
            for number in range(self.waits)
        ]

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        self.waits += 1
        if self.waits > self.fails_after:
            self.isActive = False
            raise RuntimeError("nobody answers")
        return not self.isActive

    def stop(self) -> None:
        self.stops += 1
        if not self.is_stoppable:
            raise ConnectionError("nobody answers")
        self.isActive = False


PIPELINE: Any = SimpleNamespace(file="late.toml", name="late")


def follow(query: Query, is_stopping: Any = lambda: False, show: Any = lambda line: None) -> Any:
    return _follow(PIPELINE, query, is_stopping, show)  # type: ignore[arg-type]


def test_each_micro_batch_is_shown_once() -> None:
    query = Query()
    shown: list[str] = []
    outcome = follow(query, lambda: len(shown) >= 3, shown.append)
    assert shown[:3] == [f"late: batch {number} read 10 rows" for number in range(3)]
    assert len(shown) == len(set(shown)) == outcome.batches
    assert (outcome.is_stopped, query.stops) == (True, 1)


def test_a_stream_that_fails_says_why() -> None:
    with pytest.raises(PipelineFailed, match=r"late\.toml: nobody answers"):
        follow(Query(fails_after=2))


def test_an_error_after_a_signal_is_an_end_as_it_was_to_be() -> None:
    """Ctrl-C reaches Spark as well where spark-submit has started this process."""
    query = Query(fails_after=2)
    assert follow(query, lambda: query.waits > 2).is_stopped
    query = Query(is_stoppable=False)
    assert follow(query, lambda: query.waits > 2).is_stopped


def test_an_interrupt_waits_for_nothing() -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    query = Query()
    with pytest.raises(KeyboardInterrupt):
        follow(query, interrupt)
    assert query.stops == 0


def test_an_error_of_who_shows_progress_stops_the_stream() -> None:
    def show(line: str) -> None:
        raise BrokenPipeError

    query = Query()
    with pytest.raises(BrokenPipeError):
        follow(query, show=show)
    assert query.stops == 1
