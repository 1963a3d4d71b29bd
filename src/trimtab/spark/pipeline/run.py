"""Pipelines that were read from a file, in a Spark session: checked, then run.

pipeline = read_pipeline("late.toml")
run(session, pipeline)
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as f

from trimtab.errors import KafkaError, UsageError
from trimtab.spark.options.sink import check_columns
from trimtab.spark.pipeline.file import SOURCE_VIEW, TRIMTAB, Pipeline
from trimtab.spark.stream.progress import SourceProgress, read_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SLICE_S: Final = 0.2
"""How often a run looks whether it is to stop, and how far it is; seconds."""

_CREATE: Final = "CREATE OR REPLACE TEMPORARY VIEW"


class PipelineFailed(KafkaError):
    """A pipeline was started, and Spark has ended it with an error."""


class Outcome(NamedTuple):
    """What a run did.

    Attributes:
        batches: micro-batches that read something; 1 for a batch.
        records: rows that they read, or that a batch wrote.
        is_stopped: whether it was told to end.
    """

    batches: int
    records: int
    is_stopped: bool


def analyse(session: SparkSession, pipeline: Pipeline) -> DataFrame:
    """What the pipeline would write; every part of it is checked, nothing is read or written.

    The source and the steps become temporary views of the session, in place of others by their
    names.

    Raises:
        UsageError: a path, a schema or a query that cannot be, or a result that the sink cannot
            take; names file, key and step.
    """
    with _explained(f"{pipeline.file}: source"):
        frame = _read(session, pipeline)
        frame.createOrReplaceTempView(SOURCE_VIEW)
    for number, step in enumerate(pipeline.steps, 1):
        with _explained(f"{pipeline.file}: step {number}, {step.name}", lines_before=1):
            # In a line of its own, so that Spark counts one more. As a view's query it cannot be a
            # command, which would be carried out at once.
            session.sql(f"{_CREATE} {step.name} AS\n{step.sql}")
            frame = session.table(step.name)
    with _explained(f"{pipeline.file}: sink"):
        _check_sink(session, pipeline, frame)
    return frame


def run(
    session: SparkSession,
    pipeline: Pipeline,
    is_stopping: Callable[[], bool] = lambda: False,
    show: Callable[[SourceProgress | str], object] = lambda _: None,
) -> Outcome:
    """Check the pipeline in the session, and run it to its end.

    A stream with an interval for a trigger ends when it is told to, or fails. A micro-batch that
    is running then is given up, and repeated when the pipeline is started again.

    Args:
        is_stopping: asked five times a second; true ends the run.
        show: called after every micro-batch with how far it is.

    Raises:
        UsageError: as `analyse`; nothing has been started.
        PipelineFailed: Spark says why.
    """
    try:
        frame = analyse(session, pipeline)
    except UsageError:
        if not is_stopping():  # else Spark may have ended as well
            raise
    if is_stopping():
        return Outcome(0, 0, True)
    if not pipeline.is_stream:
        return _run_batch(session, pipeline, frame, is_stopping)
    with _explained(f"{pipeline.file}: sink"):
        query = _start(pipeline, frame)
    return _follow(pipeline, query, is_stopping, show)


def _read(session: SparkSession, pipeline: Pipeline) -> DataFrame:
    source = pipeline.source
    reader: Any = session.readStream if pipeline.is_stream else session.read
    reader = reader.format(source.format).options(**source.options)
    if source.schema:
        reader = reader.schema(source.schema)
    frame: DataFrame = reader.load(source.path) if source.path else reader.load()
    return frame


def _check_sink(session: SparkSession, pipeline: Pipeline, frame: DataFrame) -> None:
    sink = pipeline.sink
    types = [(each.name, each.dataType.simpleString()) for each in frame.schema.fields]
    if sink.format == TRIMTAB:
        topics = {name.lower(): value for name, value in sink.options.items()}
        check_columns(types, topics.get("topic", ""))
    names = [name.lower() for name, _ in types]
    for name in sink.partition_by:
        if name.lower() not in names:
            raise UsageError(
                f"partition_by: the result has no column {name}; it has {', '.join(frame.columns)}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"the result has two columns {', '.join(twice)}: rename one with AS")
    if sink.format == "csv":
        for name, kind in types:
            if kind.startswith(("struct", "array", "map")):
                raise UsageError(f"column {name} is of type {kind}, which csv has not: to_json()")
    jvm = getattr(session, "_jvm", None)  # Spark Connect has none; there the start of a query tells
    if pipeline.is_stream and jvm is not None:
        mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.capitalize())()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)


def _start(pipeline: Pipeline, frame: DataFrame) -> StreamingQuery:
    sink, trigger = pipeline.sink, pipeline.trigger
    writer = (
        frame.writeStream.format(sink.format)
        .queryName(pipeline.name)
        .outputMode(sink.mode)
        .options(**sink.options)
        .option("checkpointLocation", pipeline.checkpoint)
    )
    if sink.path:
        writer = writer.option("path", sink.path)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if trigger == "available_now":
        writer = writer.trigger(availableNow=True)
    elif trigger == "once":
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(processingTime=trigger)
    return writer.start()


def _follow(
    pipeline: Pipeline,
    query: StreamingQuery,
    is_stopping: Callable[[], bool],
    show: Callable[[SourceProgress | str], object],
) -> Outcome:
    """Wait for a stream's end, and show how far it is."""
    shown, batches, records, is_stopped, is_over = -1, 0, 0, False, False
    try:
        while not is_over:
            with _failing(pipeline):
                # Seconds, also parts of one, whatever PySpark's annotation says.
                is_over = bool(query.awaitTermination(_SLICE_S))  # type: ignore[arg-type]
                # Spark keeps the last hundred.
                recent = query.recentProgress if query.lastProgress else []
            for progress in recent:
                if progress.batchId <= shown:
                    continue
                shown = progress.batchId
                batches += progress.numInputRows > 0
                records += progress.numInputRows
                plain = f"{pipeline.name}: batch {shown} read {progress.numInputRows:,} rows"
                lines: Sequence[SourceProgress | str] = read_progress(progress) or [plain]
                for line in lines:
                    show(line)
            if not is_over and is_stopping():
                is_stopped = True
                with _failing(pipeline):
                    query.stop()
    except PipelineFailed:
        # It may have failed because it was to end, or because Spark has ended, too.
        if not (is_stopped or is_stopping()):
            raise
        is_stopped = True
    except Exception:
        query.stop()
        raise
    return Outcome(batches, records, is_stopped)


def _run_batch(
    session: SparkSession, pipeline: Pipeline, frame: DataFrame, is_stopping: Callable[[], bool]
) -> Outcome:
    sink = pipeline.sink
    observation = Observation()
    observed = frame.observe(observation, f.count(f.lit(1)).alias("rows"))
    writer = observed.write.format(sink.format).mode(sink.mode).options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    tag = f"trimtab-pipeline-{uuid.uuid4()}"
    over = threading.Event()
    is_stopped = False

    def cancel() -> None:
        if context is None:
            session.interruptTag(tag)
        else:
            context.cancelJobGroup(tag)

    def watch() -> None:
        nonlocal is_stopped
        while not over.wait(_SLICE_S):
            if is_stopping():
                is_stopped = True
                cancel()  # again and again: there may be no job for a moment

    watcher = threading.Thread(target=watch, name=tag, daemon=True)
    # Tags do not reach a save in a session of one's own, groups not one of Spark Connect.
    context = getattr(session, "_sc", None)
    if context is None:
        session.addTag(tag)
    else:
        context.setJobGroup(tag, pipeline.name)
    watcher.start()
    try:
        with _failing(pipeline):
            # On this thread: Spark knows formats of Python's by a thread's session.
            if sink.path:
                writer.save(sink.path)
            else:
                writer.save()
    except PipelineFailed:
        if not (is_stopped or is_stopping()):
            raise
        return Outcome(0, 0, True)
    finally:
        over.set()
        watcher.join()
        if context is None:
            session.removeTag(tag)
        else:
            context.setLocalProperty("spark.jobGroup.id", None)
    return Outcome(1, int(observation.get["rows"]), False)


@contextmanager
def _explained(where: str, lines_before: int = 0) -> Iterator[None]:
    """Spark's objection to what a file says, as a UsageError of one line that names the place."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except Exception as error:
        raise UsageError(f"{where}: {describe(error, lines_before)}") from error


@contextmanager
def _failing(pipeline: Pipeline) -> Iterator[None]:
    """Spark's reason for an end, as a PipelineFailed."""
    try:
        yield
    except Exception as error:
        raise PipelineFailed(f"{pipeline.file}: {describe(error)}") from error


_OWN: Final = re.compile(r"^(?:pyspark\S*: )?trimtab\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"^(\w[\w.]*Error: .+)$", re.MULTILINE)
_POSITION: Final = re.compile(r"\bline (\d+),? pos (\d+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+(?:[;,.]?\s*\(?line \d+,? pos \d+\)?)?")


def describe(error: BaseException, lines_before: int = 0) -> str:
    """What an error of Spark's says, in one line: no plans, no stack traces.

    An error of trimtab's that came through Spark is said in its own words.

    Args:
        lines_before: how many lines Spark has seen before those that a person wrote.
    """
    java = getattr(error, "java_exception", None)
    text = (str(error) if java is None else str(java.getMessage())).strip()
    own = _OWN.findall(text)
    if own:
        kind, said = own[-1]
        return f"{said.strip()} ({kind})"
    said = text.partition("\n")[0]
    if said.endswith("(most recent call last):"):  # what Python raised ends its trace
        said = ([said, *_RAISED.findall(text)])[-1]
    said = _STATE.sub("", said).strip().rstrip(";.")
    position = _POSITION.search(text)
    if position is None:
        return said
    return f"{said} (line {int(position[1]) - lines_before}, position {position[2]})"
