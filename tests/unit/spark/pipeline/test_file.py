"""Pipelines as TOML files: what is read from them, and what is wrong with them. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.spark.pipeline.file import Pipeline, Sink, Source, Step, read_pipeline

WHOLE = """
name = "late flights"
trigger = "30 second"
checkpoint = "${BASE}/checkpoint"

[source]
format = "trimtab"
schema = "value binary"
[source.options]
kafka.bootstrap.servers = "127.0.0.1:9092"
"kafka.sasl.password" = "${PASSWORD}"
subscribe = "flights"
maxBytesPerTrigger = 8_000_000
failOnDataLoss = false

[[steps]]
name = "parsed"
sql = "SELECT from_json(CAST(value AS STRING), 'delay INT') AS f FROM source"
[[steps]]
name = "late"
sql = "SELECT f.* FROM parsed WHERE f.delay > ${not filled}"

[sink]
format = "parquet"
path = "${BASE}/late"
partition_by = ["carrier"]
options = { compression = "zstd" }
"""

BATCH = """
trigger = "batch"
[source]
format = "json"
path = "/in"
[[steps]]
name = "a"
sql = "SELECT * FROM source"
[sink]
format = "trimtab"
[sink.options]
kafka.bootstrap.servers = "127.0.0.1:9092"
topic = "flights"
"""


def read(tmp_path: Path, text: str, **environment: str) -> Pipeline:
    path = tmp_path / "flights.toml"
    path.write_text(text, encoding="utf-8")
    return read_pipeline(path, environment)


def test_a_file_is_read_with_dotted_options_numbers_and_variables(tmp_path: Path) -> None:
    pipeline = read(tmp_path, WHOLE, BASE="/data", PASSWORD="secret")
    assert pipeline == Pipeline(
        file=str(tmp_path / "flights.toml"),
        name="late flights",
        trigger="30 seconds",
        checkpoint="/data/checkpoint",
        source=Source(
            "trimtab",
            "",
            "value binary",
            {
                "kafka.bootstrap.servers": "127.0.0.1:9092",
                "kafka.sasl.password": "secret",
                "subscribe": "flights",
                "maxBytesPerTrigger": "8000000",
                "failOnDataLoss": "false",
            },
        ),
        steps=(
            Step("parsed", "SELECT from_json(CAST(value AS STRING), 'delay INT') AS f FROM source"),
            Step("late", "SELECT f.* FROM parsed WHERE f.delay > ${not filled}"),
        ),
        sink=Sink("parquet", "/data/late", "append", ("carrier",), {"compression": "zstd"}),
        unused=(),
    )
    assert pipeline.is_stream


def test_a_batch_needs_no_checkpoint_and_takes_its_name_from_the_file(tmp_path: Path) -> None:
    pipeline = read(tmp_path, BATCH)
    assert (pipeline.name, pipeline.is_stream, pipeline.checkpoint) == ("flights", False, "")
    assert pipeline.sink.mode == "append"


def test_options_that_change_nothing_are_named(tmp_path: Path) -> None:
    text = BATCH.replace('format = "json"\npath = "/in"', 'format = "trimtab"')
    options = '[source.options]\nkafka.bootstrap.servers = "x:1"\nsubscribe = "t"\n'
    text = text.replace("[[steps]]", options + 'maxBytesPerTrigger = "1m"\n[[steps]]')
    assert read(tmp_path, text).unused == ("maxBytesPerTrigger",)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('trigger = "batch"', "trigger =", "is not TOML: Invalid value (at line 2"),
        ('trigger = "batch"', 'triger = "batch"', "unknown key triger (did you mean trigger?)"),
        ('trigger = "batch"', "", "trigger is missing: write available_now, once, batch"),
        ('"batch"', '"availablenow"', "'availablenow': write available_now, once, batch, or an"),
        ('"batch"', '"availablenow"', "(did you mean available_now?)"),
        ('"batch"', '"30 parsecs"', "trigger = '30 parsecs': write"),
        ('"batch"', '"once"', "checkpoint is missing: with trigger = 'once' this is a stream"),
        ('"batch"', '"batch"\ncheckpoint = "/c"', "checkpoint = '/c' is for streams"),
        ('"batch"', '"once"\ncheckpoint = "/c"', "source.schema is missing: a stream of json"),
        ('"batch"', "3", "trigger = 3: write a string, in quotes"),
        ('"batch"', '"batch"\nname = ""', "name is empty: fill it in, or leave it out"),
        ("[source]", "[sauce]", "unknown key sauce (did you mean source?)"),
        ("[source]", "[[source]]", "write it as a table, [source]"),
        ('path = "/in"', "", "source.path is missing: write the path of the json files"),
        ('path = "/in"', 'pathe = "/in"', "unknown key source.pathe (did you mean path?)"),
        ('"/in"', '"${NOWHERE}/in"', "there is no environment variable NOWHERE"),
        ('"json"', '"jason"', "source.format = 'jason': write trimtab or json or csv or parquet"),
        ('"json"', '"trimtab"', "source.path = '/in' is for files: topics are named in [source."),
        ('"/in"', '"/in"\noptions.multiline = true', ""),
        ('"/in"', '"/in"\noptions.multiLines = true', "did you mean multiLine?"),
        ('"/in"', '"/in"\noptions.sep = [","]', "source.options, sep = [',']: write a string, a"),
        ('"/in"', '"/in"\noptions = "sep"', "source.options = 'sep': write it as a table"),
        ('"/in"', '"/in"\noptions = {sep=1, SEP=2}', "source.options, SEP is given twice"),
        ('name = "a"', "", "step 1 has no name"),
        ('name = "a"', 'name = "a b"', "steps, name = 'a b': write letters, digits and _"),
        ('name = "a"', 'name = "Source"', "steps, name = 'Source': that name means the source"),
        ('name = "a"', 'name = "a"\nquery = ""', "unknown key steps.query; the keys are name, sql"),
        ("[sink]", '[[steps]]\nname = "A"\nsql = "s"\n[sink]', "'A': two steps have this name"),
        ("[[steps]]", "[steps]", "steps: write each step under its own [[steps]]"),
        ('topic = "flights"', 'topics = "flights"', "sink.options: unknown option topics of a"),
        ('topic = "flights"', 'delivery = "twice"', "sink.options: option delivery='twice': write"),
        ('topic = "flights"', 'kafka.linger.ms = "soon"', "linger.ms='soon'"),
        ('format = "trimtab"', 'format = "trimtab"\nmode = "overwrite"', "mode = 'overwrite': a b"),
        ('format = "trimtab"', 'format = "trimtab"\npartition_by = ["a"]', "is for files"),
        (
            'format = "trimtab"',
            'format = "csv"',
            "sink.path is missing: write the path of",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_place_and_remedy(
    tmp_path: Path, before: str, after: str, why: str
) -> None:
    assert before in BATCH
    text = BATCH.replace(before, after, 1)
    if not why:
        read(tmp_path, text)
        return
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "flights.toml"))
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("maxBytesPerTrigger = 8_000_000", 'maxBytesPerTrigger = "8 apples"', "'8 apples': write"),
        ("maxBytesPerTrigger", "maxBytsPerTrigger", "did you mean maxBytesPerTrigger?"),
        ('subscribe = "flights"', "", "source.options: give exactly one of the options subscribe"),
        ('subscribe = "flights"', 'subscribe = "f"\nendingOffsets = "latest"', "is for batches"),
        ('format = "parquet"', 'format = "parquet"\nmode = "complete"', "sink.mode = 'complete'"),
        ("${PASSWORD}", "${PASS}", "sasl.password = '${PASS}': there is no environment variable"),
    ],
)
def test_a_stream_is_checked_by_its_own_rules(
    tmp_path: Path, before: str, after: str, why: str
) -> None:
    assert before in WHOLE
    with pytest.raises(UsageError) as caught:
        read(tmp_path, WHOLE.replace(before, after, 1), BASE="/data", PASSWORD="p")
    assert why in str(caught.value)


def test_where_a_stream_keeps_its_place_is_said_on_top(tmp_path: Path) -> None:
    text = WHOLE.replace('format = "parquet"\npath = "${BASE}/late"', 'format = "trimtab"')
    text = text.replace('partition_by = ["carrier"]\n', "").replace('compression = "zstd"', "{}")
    options = 'kafka.bootstrap.servers = "x:1", topic = "t"'
    for name in ("checkpointLocation", "queryName"):
        with pytest.raises(UsageError, match=f"{name}: set checkpoint and name at the top"):
            read(tmp_path, text.replace("{}", f'{options}, {name} = "c"'), BASE="/d", PASSWORD="p")
    assert read(tmp_path, text.replace("{}", options), BASE="/d", PASSWORD="p").sink.path == ""


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the pipeline .*nowhere.toml: No such file"):
        read_pipeline(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(UsageError, match=r"latin.toml is not UTF-8 text"):
        read_pipeline(tmp_path / "latin.toml")
