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
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trimtab.cli.table import show_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trimtab.spark.pipeline.file import Pipeline

EXAMPLES = """\
  trimtab pipeline check late.toml
  trimtab pipeline run late.toml
  trimtab pipeline run late.toml --cores 4 --memory 4g
"""

_SIGNALLED: Final = 128
"""A shell's exit code for a signal is this plus the signal's number."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check|run")
    for verb, summary in (
        ("check", "check the file, its options and its SQL"),
        ("run", "check the pipeline, then run it"),
    ):
        command = verbs.add_parser(
            verb,
            help=summary,
            description=__doc__,
            epilog=f"examples:\n{EXAMPLES}",
        )
        command.add_argument("file", metavar="FILE", help="the pipeline, in TOML")
        command.add_argument(
            "--cores", type=int, metavar="N", help="cores for Spark's local mode (default: all)"
        )
        command.add_argument(
            "--memory", metavar="SIZE", help="JVM heap for Spark's local mode (default: 1g)"
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_argument("--verbose", action="store_true", help="show Spark's own error log")


def run(arguments: argparse.Namespace) -> int:
    from trimtab.spark.pipeline.file import read_pipeline
    from trimtab.spark.session.local import any_session, check_local_options, end_jvm_at_once

    pipeline = read_pipeline(arguments.file)
    check_local_options(arguments.cores, arguments.memory)
    if pipeline.unused:
        names = ", ".join(pipeline.unused)
        print(f"{pipeline.file}: options without effect here: {names}", file=sys.stderr)
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
                _check(session, pipeline, arguments.json)
            else:
                is_running.set()
                _run(session, pipeline, arrived, arguments.json)
    except (KeyboardInterrupt, Exception):  # a signal may have ended the JVM, so that calls fail
        if len(arrived) <= is_running.is_set():
            raise
    return _SIGNALLED + arrived[0] if arrived else 0


def _check(session: SparkSession, pipeline: Pipeline, is_json: bool) -> None:
    from trimtab.spark.pipeline.run import analyse

    frame = analyse(session, pipeline)
    source, sink = pipeline.source, pipeline.sink
    if is_json:
        shown = {
            "file": str(pipeline.file),
            "source": {"format": source.format, "path": source.path},
            "steps": [step.name for step in pipeline.steps],
            "columns": {each.name: each.dataType.simpleString() for each in frame.schema.fields},
            "sink": {"format": sink.format, "mode": sink.mode, "path": sink.path},
            "trigger": str(pipeline.trigger),
            "checkpoint": pipeline.checkpoint or None,
        }
        print(json.dumps(shown))
        return
    columns = (f"{each.name} {each.dataType.simpleString()}" for each in frame.schema.fields)
    print(f"{pipeline.file}: no errors found")
    print(f"  source   {source.format}, {_list(source.path, source.options)}")
    for step in pipeline.steps:
        print(f"  step     {step.name}")
    print(f"  result   {', '.join(columns)}")
    print(f"  sink     {sink.format}, {sink.mode}, {_list(sink.path, sink.options)}")
    print(f"  trigger  {pipeline.trigger}")
    if pipeline.checkpoint:
        print(f"  progress {pipeline.checkpoint}")


def _list(path: str, options: object) -> str:
    assert isinstance(options, dict)
    # Some options are passwords and keys.
    words = [f"{name}={value}" for name, value in options.items() if not _is_secret(name)]
    return ", ".join([path, *words] if path else words)


def _is_secret(name: str) -> bool:
    return name.lower().startswith(("kafka.sasl.", "kafka.ssl."))


def _run(session: SparkSession, pipeline: Pipeline, arrived: list[int], is_json: bool) -> None:
    from trimtab.spark.pipeline.run import run
    from trimtab.spark.stream.progress import ProgressLine

    line = ProgressLine()
    try:
        outcome = run(session, pipeline, is_stopping=lambda: bool(arrived), show=line)
    finally:
        line.end()
    if is_json:
        shown = {
            "pipeline": pipeline.name,
            "state": "stopped" if outcome.is_stopped else "done",
            "batches": outcome.batches if pipeline.is_stream else None,
            "records": outcome.records,
        }
        print(json.dumps(shown))
        return
    end = "was stopped" if outcome.is_stopped else "is done"
    if pipeline.is_stream:
        batches = show_count(outcome.batches, "batch", "batches")
        print(f"{pipeline.name} {end}: {batches}, {show_count(outcome.records, 'record')} read")
    elif outcome.is_stopped:
        print(f"{pipeline.name} was stopped")
    else:
        print(f"{pipeline.name} is done: {show_count(outcome.records, 'row')} written")


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
