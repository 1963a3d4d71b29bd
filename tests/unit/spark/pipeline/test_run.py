"""What Spark says of a pipeline's end, in one line."""

from __future__ import annotations

import pytest

from trimtab.spark.pipeline.run import describe

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
        (TRACE.format("trimtab.errors.Unavailable: nobody is there"), "nobody is there (Unavailab"),
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
