"""`trimtab pipeline`: files to a topic to files, what Spark objects to, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from trimtab import Admin, Cluster, TopicPartition
from trimtab.cli import main
from trimtab.kafka.errors import UsageError
from trimtab.spark.pipeline.file import Pipeline, read_pipeline
from trimtab.spark.pipeline.run import PipelineFailed, analyse, run
from trimtab.spark.session.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [{"carrier": f"C{n % 7}", "delay": n % 60, "note": "n" * 400} for n in range(3000)]
LIMIT = 300_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("flights", partitions=3)
        yield cluster.bootstrap_servers


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("in")
    for part in range(3):
        lines = (json.dumps(row) + "\n" for row in ROWS[part::3])
        (directory / f"{part}.json").write_text("".join(lines))
    return directory


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def copy_files(tmp_path: Path, files: Path, *, sql: str = "SELECT * FROM source") -> Pipeline:
    """A stream of files, one in each micro-batch, to files."""
    text = f"""
        trigger = "available_now"
        checkpoint = "{tmp_path}/checkpoint"
        [source]
        format = "json"
        path = "{files}"
        schema = "carrier STRING, delay INT"
        options.maxFilesPerTrigger = 1
        [[steps]]
        name = "result"
        sql = '''{sql}'''
        [sink]
        format = "parquet"
        path = "{tmp_path}/out"
    """
    return read_pipeline(write(tmp_path / "copy.toml", text))


def test_files_go_through_a_topic_and_a_bounded_stream_to_files(
    spark: SparkSession,
    servers: str,
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill = f"""
        trigger = "batch"
        [source]
        format = "json"
        path = "{files}"
        [[steps]]
        name = "records"
        sql = "SELECT carrier AS key, to_json(struct(*)) AS value FROM source"
        [sink]
        format = "trimtab"
        options = {{ kafka.bootstrap.servers = "{servers}", topic = "flights" }}
    """
    drain = f"""
        name = "late"
        trigger = "available_now"
        checkpoint = "{tmp_path}/checkpoint"
        [source]
        format = "trimtab"
        [source.options]
        kafka.bootstrap.servers = "{servers}"
        subscribe = "flights"
        startingOffsets = "earliest"
        maxBytesPerTrigger = {LIMIT}
        [[steps]]
        name = "parsed"
        sql = '''SELECT from_json(CAST(value AS STRING), 'carrier STRING, delay INT') AS flight
                 FROM source'''
        [[steps]]
        name = "delays"
        sql = "SELECT flight.* FROM parsed WHERE flight.delay >= 15"
        [sink]
        format = "parquet"
        path = "{tmp_path}/out"
        partition_by = ["carrier"]
    """
    assert main(["pipeline", "run", str(write(tmp_path / "fill.toml", fill))]) == 0
    assert capsys.readouterr().out == "fill is done: 3,000 rows written\n"
    path = str(write(tmp_path / "drain.toml", drain))
    assert main(["pipeline", "check", path]) == 0
    checked = capsys.readouterr().out
    assert "result   carrier string, delay int" in checked
    assert not (tmp_path / "checkpoint").exists()
    assert main(["pipeline", "run", path]) == 0
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("late: batch ")]
    assert len(lines) >= 3  # 1.4 MB, at most 0.3 MB at a time
    assert lines[-1].endswith("nothing is left")
    assert out == f"late is done: {len(lines)} batches, 3,000 records read\n"
    expected = [row for row in ROWS if int(str(row["delay"])) >= 15]
    written = spark.read.parquet(f"{tmp_path}/out")
    assert written.selectExpr("count(*)", "sum(delay)").first() == (
        len(expected),
        sum(int(str(row["delay"])) for row in expected),
    )
    assert main(["pipeline", "run", path]) == 0  # continues at its checkpoint, with no new records
    assert capsys.readouterr().out == "late is done: 0 batches, 0 records read\n"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT delay\nFORM source", "step 1, result: [PARSE_SYNTAX_ERROR] Syntax error at or"),
        ("SELECT delay,\n dellay FROM source", "`dellay` cannot be resolved"),
        ("SELECT delay,\n dellay FROM source", "(line 2, position 1)"),
        ("SELECT * FROM sauce", "The table or view `sauce` cannot be found"),
        ("DROP VIEW source", "step 1, result: [PARSE_SYNTAX_ERROR] Syntax error at or near 'DROP'"),
        ("SELECT count(*) AS n FROM source", "sink: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]"),
    ],
)
def test_spark_objects_before_anything_starts(
    spark: SparkSession, files: Path, tmp_path: Path, sql: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        analyse(spark, copy_files(tmp_path, files, sql=sql))
    assert str(caught.value).startswith(f"{tmp_path}/copy.toml: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "checkpoint").exists()


def test_what_the_sink_cannot_take_is_said_before_anything_starts(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    pipeline = copy_files(tmp_path, files, sql="SELECT struct(delay) AS d FROM source")
    servers = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    for sink, why in [
        (pipeline.sink._replace(format="trimtab", options=servers), "sink: the column value is m"),
        (pipeline.sink._replace(format="csv"), "sink: column d is of type struct<delay:int>"),
        (pipeline.sink._replace(partition_by=("day",)), "sink: partition_by: the result has no"),
    ]:
        with pytest.raises(UsageError, match=why):
            analyse(spark, pipeline._replace(sink=sink))


@pytest.mark.parametrize("trigger", ["batch", "available_now"])
def test_a_failure_says_why_in_a_line(
    spark: SparkSession, files: Path, tmp_path: Path, trigger: str
) -> None:
    sql = "SELECT assert_true(delay < 30, 'too late') AS a FROM source"
    pipeline = copy_files(tmp_path, files, sql=sql)._replace(trigger=trigger)
    with pytest.raises(PipelineFailed, match=r"copy.toml: .*too late$"):
        run(spark, pipeline)


@pytest.mark.parametrize("trigger", ["batch", "0 seconds"])
def test_a_run_ends_when_it_is_told_to(
    spark: SparkSession, files: Path, tmp_path: Path, trigger: str
) -> None:
    """A stream that would go on for ever, and a batch that would take hours."""
    endless = "SELECT count(*) AS n FROM source CROSS JOIN range(1000000000000)"
    sql = endless if trigger == "batch" else "SELECT * FROM source"
    pipeline = copy_files(tmp_path, files, sql=sql)._replace(trigger=trigger)
    if trigger == "batch":
        tracker = spark.sparkContext.statusTracker()
        outcome = run(spark, pipeline, is_stopping=lambda: bool(tracker.getActiveJobsIds()))
        assert outcome == (0, 0, True)
        return
    shown: list[object] = []
    outcome = run(spark, pipeline, is_stopping=lambda: len(shown) >= 3, show=shown.append)
    assert outcome == (3, 3000, True)
    assert shown[-1] == "copy: batch 2 read 1,000 rows"
    assert spark.streams.active == []


def to_topic(pipeline: Pipeline, servers: str, topic: str, **options: str) -> Pipeline:
    options = {"kafka.bootstrap.servers": servers, "topic": topic, **options}
    sink = pipeline.sink._replace(format="trimtab", path="", options=options)
    return pipeline._replace(sink=sink)


def test_exactly_once(spark: SparkSession, servers: str, files: Path, tmp_path: Path) -> None:
    with Admin(servers) as admin:
        admin.create_topic("once", partitions=1)
        pipeline = copy_files(tmp_path, files, sql="SELECT carrier AS value FROM source")
        pipeline = to_topic(pipeline, servers, "once", delivery="exactly_once")
        assert run(spark, pipeline) == (3, 3000, False)
        once = TopicPartition("once", 0)
        assert admin.list_offsets([once])[once].offset == 3000 + 3  # and a marker for each batch


def test_complete_mode_writes_the_whole_result_each_time(
    spark: SparkSession, servers: str, files: Path, tmp_path: Path
) -> None:
    with Admin(servers) as admin:
        admin.create_topic("counts", partitions=1)
        sql = "SELECT carrier AS key, string(count(*)) AS value FROM source GROUP BY carrier"
        pipeline = to_topic(copy_files(tmp_path, files, sql=sql), servers, "counts")
        pipeline = pipeline._replace(sink=pipeline.sink._replace(mode="complete"))
        assert run(spark, pipeline) == (3, 3000, False)
        counts = TopicPartition("counts", 0)
        assert admin.list_offsets([counts])[counts].offset == 3 * 7


def test_a_file_that_cannot_be_read_is_named(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.parquet").write_bytes(b"PAR1 and no more")
    pipeline = copy_files(tmp_path, files)
    source = pipeline.source._replace(format="parquet", path=f"{tmp_path}/bad", options={})
    for trigger in ("batch", "available_now"):
        with pytest.raises(PipelineFailed, match=r"copy\.toml: .*broken\.parquet"):
            run(spark, pipeline._replace(source=source, trigger=trigger))


def test_where_nothing_can_be_written_is_said(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    write(tmp_path / "file", "not a directory")
    pipeline = copy_files(tmp_path, files)
    sink = pipeline.sink._replace(path=f"{tmp_path}/file/out")
    for changed in (
        pipeline._replace(checkpoint=f"{tmp_path}/file/checkpoint"),
        pipeline._replace(sink=sink),
        pipeline._replace(sink=sink, trigger="batch"),
    ):
        with pytest.raises((PipelineFailed, UsageError), match=r"copy\.toml: .*file"):
            run(spark, changed)
    existing = pipeline._replace(
        trigger="batch", sink=pipeline.sink._replace(path=str(tmp_path), mode="error")
    )
    with pytest.raises(PipelineFailed, match="PATH_ALREADY_EXISTS"):
        run(spark, existing)


def test_a_checkpoint_of_another_pipeline_is_refused(
    spark: SparkSession, servers: str, files: Path, tmp_path: Path
) -> None:
    pipeline = copy_files(tmp_path, files)
    assert run(spark, pipeline) == (3, 3000, False)
    options = {"kafka.bootstrap.servers": servers, "subscribe": "flights"}
    topic = pipeline.source._replace(format="trimtab", path="", schema="", options=options)
    with pytest.raises(PipelineFailed, match=r"neither this source's.*another checkpointLocation"):
        run(spark, pipeline._replace(source=topic))


def test_spark_submit_runs_a_pipeline_and_ctrl_c_ends_it(files: Path, tmp_path: Path) -> None:
    """Ctrl-C goes to all processes of a terminal: to Spark's, too."""
    pipeline = copy_files(tmp_path, files)
    path = Path(pipeline.file)
    program = write(
        tmp_path / "run_trimtab.py", "import sys, trimtab.cli; sys.exit(trimtab.cli.main())"
    )
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    command += [str(program), "pipeline", "run", str(path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("copy is done: 3 batches, 3,000 records read\n")
    write(path, path.read_text().replace("available_now", "1 second").replace("/out", "/again"))
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    errors = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            errors.append(line)
            if "Streaming query made no progress" in line or "copy: " in line:
                break
            if "MicroBatchExecution: Starting" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        errors += process.communicate(timeout=120)[1].splitlines(keepends=True)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in "".join(errors)


def test_sigterm_ends_a_process_in_good_order(files: Path, tmp_path: Path) -> None:
    pipeline = copy_files(tmp_path, files)
    path = Path(pipeline.file)
    write(path, path.read_text().replace("available_now", "1 second"))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "trimtab", "pipeline", "run", str(path), "--cores", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("copy: batch 2 "):
                break
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert out == "copy was stopped: 3 batches, 3,000 records read\n"
