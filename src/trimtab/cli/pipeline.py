"""Check and run a pipeline on Spark: a TOML file with a source, steps in SQL, a sink and a trigger.

`check` reads the file, checks every key and option, and lets Spark analyse the steps. It reads and
writes no data and does not connect to Kafka. `run` makes the same checks before anything starts,
then runs the pipeline until it is complete, fails, or is stopped by Ctrl-C or SIGTERM; the next run
continues at the checkpoint. A second Ctrl-C or SIGTERM ends the command at once, and so does the
first one while Spark starts.

By default Spark runs in local mode, started by this command. If spark-submit starts the command, or
SPARK_REMOTE is set, the pipeline runs on that Spark cluster.

exit codes: 0 done, 1 refused or failed, 2 invalid command line, 130 Ctrl-C, 143 SIGTERM
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import add_options
from trimtab.cli.results import print_result
from trimtab.cli.style import say_note
from trimtab.cli.table import show_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trimtab.spark.pipeline.file import Pipeline

EXAMPLES = """\
  trimtab pipeline check late.toml
  trimtab pipeline run late.toml
  trimtab pipeline run late.toml --cores 4 --memory 4g
"""

_SECRETS: Final = ("kafka.sasl.", "kafka.ssl.")
"""Options that are passwords and keys begin so."""

_SIGNALLED: Final = 128
"""A shell's exit code for a signal is this plus the signal's number."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check|run")
    for verb, summary in (
        ("check", "check the file, its options and its SQL"),
        ("run", "check the pipeline, then run it"),
    ):
        command = verbs.add_parser(
            verb, help=summary, description=__doc__, epilog=f"examples:\n{EXAMPLES}"
        )
        command.add_argument("file", metavar="FILE", help="the pipeline, in TOML")
        options = {
            "--cores N": "cores for Spark's local mode (default: all)",
            "--memory SIZE": "JVM heap for Spark's local mode (default: 1g)",
            "--json": "print one JSON object",
            "--verbose": "show Spark's own error log",
        }
        add_options(command, options)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.spark.pipeline.file import read_pipeline
    from trimtab.spark.session.local import any_session, check_local_options, end_jvm_at_once

    pipeline = read_pipeline(arguments.file)
    check_local_options(arguments.cores, arguments.memory)
    if pipeline.unused:
        names = ", ".join(pipeline.unused)
        say_note(f"{pipeline.file}: options without effect here: {names}")
    # Spark logs pages of stack traces for an error; the command prints one line.
    config = None if arguments.verbose else {"spark.log.level": "OFF"}
    arrived: list[int] = []
    is_running = threading.Event()
    memory = arguments.memory or "1g"
    try:
        with (
            _signals(arrived, is_running, end_jvm_at_once),
            any_session(pipeline.name, arguments.cores, memory, config) as session,
        ):
            if not arguments.verbose:
                _silence_queries()
            if arguments.verb == "check":
                _check(session, pipeline, arguments)
            else:
                is_running.set()
                _run(session, pipeline, arrived, arguments)
    except (KeyboardInterrupt, Exception):  # a signal may have ended the JVM, so that calls fail
        if len(arrived) <= is_running.is_set():
            raise
    return _SIGNALLED + arrived[0] if arrived else 0


def _check(session: SparkSession, pipeline: Pipeline, arguments: argparse.Namespace) -> None:
    from trimtab.spark.pipeline.run import analyse

    frame = analyse(session, pipeline)
    source, sink = pipeline.source, pipeline.sink
    columns = [(each.name, each.dataType.simpleString()) for each in frame.schema.fields]
    shown = {
        "file": str(pipeline.file),
        "source": {"format": source.format, "path": source.path},
        "steps": [step.name for step in pipeline.steps],
        "columns": dict(columns),
        "sink": {"format": sink.format, "mode": sink.mode, "path": sink.path},
        "trigger": str(pipeline.trigger),
        "checkpoint": pipeline.checkpoint or None,
    }
    lines = [
        f"{pipeline.file}: no errors found",
        f"  source   {source.format}, {_list(source.path, source.options)}",
        *(f"  step     {step.name}" for step in pipeline.steps),
        f"  result   {', '.join(f'{name} {kind}' for name, kind in columns)}",
        f"  sink     {sink.format}, {sink.mode}, {_list(sink.path, sink.options)}",
        f"  trigger  {pipeline.trigger}",
        *([f"  progress {pipeline.checkpoint}"] if pipeline.checkpoint else []),
    ]
    print_result(arguments, shown, "\n".join(lines))


def _list(path: str, options: object) -> str:
    assert isinstance(options, dict)
    words = [
        f"{name}={value}"
        for name, value in options.items()
        if not name.lower().startswith(_SECRETS)
    ]
    return ", ".join([path, *words] if path else words)


def _run(
    session: SparkSession, pipeline: Pipeline, arrived: list[int], arguments: argparse.Namespace
) -> None:
    from trimtab.spark.pipeline.run import run
    from trimtab.spark.stream.progress import ProgressLine

    line = ProgressLine()
    try:
        outcome = run(session, pipeline, is_stopping=lambda: bool(arrived), show=line)
    finally:
        line.end_line()
    shown = {
        "pipeline": pipeline.name,
        "state": "stopped" if outcome.is_stopped else "done",
        "batches": outcome.batches if pipeline.is_stream else None,
        "records": outcome.records,
    }
    text = f"{pipeline.name} {'was stopped' if outcome.is_stopped else 'is done'}"
    if pipeline.is_stream:
        batches = show_count(outcome.batches, "batch", "batches")
        text += f": {batches}, {show_count(outcome.records, 'record')} read"
    elif not outcome.is_stopped:
        text += f": {show_count(outcome.records, 'row')} written"
    print_result(arguments, shown, text)


@contextmanager
def _signals(
    arrived: list[int], is_running: threading.Event, end_at_once: Callable[[], object]
) -> Iterator[None]:
    """Record each SIGINT and SIGTERM. All but the first one while the pipeline runs interrupt."""

    def note(number: int, _: object) -> None:
        arrived.append(number)
        if len(arrived) > is_running.is_set():
            logging.disable(logging.ERROR)  # py4j would log the interrupt with a stack trace
            end_at_once()
            raise KeyboardInterrupt

    disabled = logging.root.manager.disable
    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        logging.disable(disabled)
        for number, handler in before.items():
            signal.signal(number, handler)


def _silence_queries() -> None:
    """Stop PySpark from logging errors of queries, which it also raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
