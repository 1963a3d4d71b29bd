"""Checks and runs a pipeline in a Spark session.

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

from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.spark.options.sink import check_columns
from trimtab.spark.pipeline.file import SOURCE_VIEW, TRIMTAB, Pipeline
from trimtab.spark.stream.progress import SourceProgress, read_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SLICE_S: Final = 0.2
"""Seconds between two checks of a run for its progress and for a request to stop."""

_CREATE: Final = "CREATE OR REPLACE TEMPORARY VIEW"


class PipelineFailed(KafkaError):
    """Spark ended a running pipeline with an error."""


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        batches: micro-batches that read something; 1 for a batch.
        records: rows that the micro-batches read, or that a batch wrote.
        is_stopped: whether the caller stopped it.
    """

    batches: int
    records: int
    is_stopped: bool


def analyse(session: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Check every part of a pipeline without reading or writing data; returns its result, unread.

    The source and the steps become temporary views of the session, and replace views of the same
    names.

    Raises:
        UsageError: an invalid path, schema or query, or a result that the sink cannot write; names
            file, key and step.
    """
    with _explained(f"{pipeline.file}: source"):
        frame = _read(session, pipeline)
        frame.createOrReplaceTempView(SOURCE_VIEW)
    for number, step in enumerate(pipeline.steps, 1):
        with _explained(f"{pipeline.file}: step {number}, {step.name}", lines_before=1):
            # The query begins on the second line that Spark counts. Spark would execute a command
            # (such as DROP) at once; within CREATE VIEW it refuses one.
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

    A stream whose trigger is an interval runs until `is_stopping` returns true, or until it fails.
    A micro-batch that is running then is cancelled, and repeated at the next start.

    Args:
        is_stopping: called five times a second; true stops the run.
        show: called after every micro-batch with its progress.

    Raises:
        UsageError: as `analyse`; nothing was started.
        PipelineFailed: the pipeline failed; has Spark's reason.
    """
    try:
        frame = analyse(session, pipeline)
    except UsageError:
        if not is_stopping():  # if it is, Spark may have ended, too
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
                raise UsageError(
                    f"column {name} is of type {kind}, which csv cannot store: use to_json({name})"
                )
    jvm = getattr(session, "_jvm", None)  # with Spark Connect, the query's start checks it
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
    """Wait for a stream's end, and show its progress."""
    shown, batches, records, is_stopped, is_over = -1, 0, 0, False, False
    try:
        while not is_over:
            with _explained(pipeline.file, kind=PipelineFailed):
                # Fractions of a second work, though PySpark's annotation says int.
                is_over = bool(query.awaitTermination(_SLICE_S))  # type: ignore[arg-type]
                # Spark keeps the last hundred micro-batches.
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
                with _explained(pipeline.file, kind=PipelineFailed):
                    query.stop()
    except PipelineFailed:
        # A stop may make the query fail, and the signal may have ended Spark, too.
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
                cancel()  # repeatedly: no job may be running at the moment

    watcher = threading.Thread(target=watch, name=tag, daemon=True)
    # In a classic session only job groups cancel a save, with Spark Connect only tags.
    context = getattr(session, "_sc", None)
    if context is None:
        session.addTag(tag)
    else:
        context.setJobGroup(tag, pipeline.name)
    watcher.start()
    try:
        with _explained(pipeline.file, kind=PipelineFailed):
            # On this thread: Spark finds Python data sources through the thread's session.
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
def _explained(
    where: str, lines_before: int = 0, kind: type[KafkaError] = UsageError
) -> Iterator[None]:
    """Turn Spark's error into one of this kind, of one line that names the place."""
    try:
        yield
    except UsageError as error:
        raise kind(f"{where}: {error}") from error
    except Exception as error:
        raise kind(f"{where}: {describe(error, lines_before)}") from error


_OWN: Final = re.compile(r"^(?:pyspark\S*: )?trimtab\.kafka\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"^(\w[\w.]*Error: .+)$", re.MULTILINE)
_POSITION: Final = re.compile(r"\bline (\d+),? pos (\d+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+(?:[;,.]?\s*\(?line \d+,? pos \d+\)?)?")


def describe(error: BaseException, lines_before: int = 0) -> str:
    """The message of Spark's error in one line, without query plans and stack traces.

    If the cause is an error of trimtab, its message and its type.

    Args:
        lines_before: the number of lines that were put before the user's SQL.
    """
    java = getattr(error, "java_exception", None)
    text = (str(error) if java is None else str(java.getMessage())).strip()
    own = _OWN.findall(text)
    if own:
        kind, said = own[-1]
        return f"{said.strip()} ({kind})"
    said = text.partition("\n")[0]
    if said.endswith("(most recent call last):"):  # the error is at the end of the trace
        said = ([said, *_RAISED.findall(text)])[-1]
    said = _STATE.sub("", said).strip().rstrip(";.")
    position = _POSITION.search(text)
    if position is None:
        return said
    return f"{said} (line {int(position[1]) - lines_before}, position {position[2]})"
