"""Reads and checks a pipeline's TOML file: source, steps in SQL, sink, trigger. Needs no Spark.

    name = "late"                                   # the query's name; default: the file's
    trigger = "available_now"                       # or once, batch, an interval ("30 seconds")
    checkpoint = "/data/checkpoints/late"           # for streams only

    [source]
    format = "trimtab"                              # or json, csv, parquet, with path and schema
    [source.options]                                # the format's options
    kafka.bootstrap.servers = "127.0.0.1:9092"
    subscribe = "flights"
    maxBytesPerTrigger = "8m"

    [[steps]]                                       # can read `source` and all earlier steps
    name = "parsed"
    sql = "SELECT from_json(CAST(value AS STRING), 'carrier STRING, delay INT') AS f FROM source"
    [[steps]]                                       # the sink gets the last step's result
    name = "late"
    sql = "SELECT to_json(f) AS value FROM parsed WHERE f.delay > 15"

    [sink]
    format = "trimtab"                              # or json, csv, parquet, with path
    [sink.options]
    kafka.bootstrap.servers = "127.0.0.1:9092"
    topic = "late"

`${NAME}` in a path, the checkpoint or an option is the environment variable of that name.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from trimtab.kafka.errors import UsageError
from trimtab.spark.options.client import SLIP
from trimtab.spark.options.sink import read_sink_options
from trimtab.spark.options.source import read_options, read_stream_options

TRIMTAB: Final = "trimtab"
FORMATS: Final = (TRIMTAB, "json", "csv", "parquet")
SOURCE_VIEW: Final = "source"
"""The name of the source in the steps' SQL."""

BATCH: Final = "batch"
_WORDS: Final = ("available_now", "once", BATCH)
_INTERVAL: Final = re.compile(r"(\d+) *(millisecond|second|minute|hour|day)s?")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")

_MODES: Final = {
    (True, True): ("append", "complete"),
    (True, False): ("append",),
    (False, True): ("append",),
    (False, False): ("append", "overwrite", "error"),
}
"""The modes by (is a stream, sink is a topic); the first is the default."""

_FILE_OPTIONS: Final = (
    *("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter"),
    *("ignoreCorruptFiles", "ignoreMissingFiles", "mergeSchema", "compression"),
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "fileNameOnly", "maxFileAge"),
    *("cleanSource", "sourceArchiveDir", "maxCachedFiles", "mode", "encoding", "lineSep"),
    *("columnNameOfCorruptRecord", "dateFormat", "timestampFormat", "timestampNTZFormat"),
    *("timeZone", "locale", "samplingRatio", "multiLine", "primitivesAsString"),
    *("prefersDecimal", "allowComments", "allowSingleQuotes", "ignoreNullFields", "sep"),
    *("delimiter", "quote", "quoteAll", "escape", "escapeQuotes", "comment", "header"),
    *("inferSchema", "enforceSchema", "nullValue", "nanValue", "emptyValue", "maxColumns"),
    *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "maxCharsPerColumn"),
    *("datetimeRebaseMode", "int96RebaseMode", "maxRecordsPerFile"),
)
"""Spark's options for json, csv and parquet. Any other option is passed to Spark, unless it looks
like a misspelling of one of these."""


class Source(NamedTuple):
    """The `[source]` table. `path` and `schema` are empty if not given."""

    format: str
    path: str
    schema: str
    options: Mapping[str, str]


class Step(NamedTuple):
    """A query, and the name by which later steps read its result."""

    name: str
    sql: str


class Sink(NamedTuple):
    """The `[sink]` table. `path` is empty for a topic."""

    format: str
    path: str
    mode: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]


class Pipeline(NamedTuple):
    """A checked file.

    Attributes:
        file: its path, for errors.
        trigger: "available_now", "once", "batch", or an interval as Spark writes it.
        checkpoint: empty for a batch.
        unused: options of the source that have no effect.
    """

    file: str
    name: str
    trigger: str
    checkpoint: str
    source: Source
    steps: tuple[Step, ...]
    sink: Sink
    unused: tuple[str, ...]

    @property
    def is_stream(self) -> bool:
        return self.trigger != BATCH


def read_pipeline(path: str | Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Read a file, and check everything that can be checked without Spark.

    Args:
        environment: for `${NAME}`; default: this process's.

    Raises:
        UsageError: names file, key and value, and says what to write.
    """
    name = str(path)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the pipeline {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the pipeline {name} is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {error}") from error
    with _naming(name):
        return _read(name, content, os.environ if environment is None else environment)


def _read(file: str, content: Mapping[str, Any], environment: Mapping[str, str]) -> Pipeline:
    top = _Table("", content, environment)
    top.check_keys("name", "trigger", "checkpoint", "source", "steps", "sink")
    trigger = _read_trigger(top)
    is_stream = trigger != BATCH
    checkpoint = top.text("checkpoint", filled=True)
    if is_stream and not checkpoint:
        raise UsageError(
            f"checkpoint is missing: with trigger = {trigger!r} this is a stream, which stores its"
            ' progress there. Name a directory, or write trigger = "batch"'
        )
    if checkpoint and not is_stream:
        raise UsageError(
            f"checkpoint = {checkpoint!r} is for streams: leave it out, or write"
            ' trigger = "available_now"'
        )
    query = top.text("name") or Path(file).stem
    source, unused = _read_source(top.table("source"), is_stream)
    steps = _read_steps(top)
    sink = _read_sink(top.table("sink"), is_stream, checkpoint, query)
    return Pipeline(file, query, trigger, checkpoint, source, steps, sink, unused)


def _read_trigger(top: _Table) -> str:
    text = top.text("trigger")
    if text in _WORDS:
        return text
    interval = _INTERVAL.fullmatch(text)
    if interval is None:
        raise UsageError(
            f"trigger{_given(text)}: write {', '.join(_WORDS)}, or an interval such as"
            f' "30 seconds"{_nearest(text, _WORDS)}'
        )
    return f"{interval[1]} {interval[2]}s"


def _read_source(table: _Table, is_stream: bool) -> tuple[Source, tuple[str, ...]]:
    table.check_keys("format", "path", "schema", "options")
    kind = table.format()
    path, schema, options = table.path(kind), table.text("schema"), table.options()
    unused: tuple[str, ...] = ()
    if kind == TRIMTAB:
        with _naming("source.options"):
            unused = (read_stream_options if is_stream else read_options)(options).unused
    else:
        _check_file_options("source.options", options)
        if is_stream and not schema:
            raise UsageError(
                f"source.schema is missing: a stream of {kind} files needs one, such as"
                ' schema = "carrier STRING, delay INT"'
            )
    return Source(kind, path, schema, options), unused


def _read_steps(top: _Table) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number, table in enumerate(top.tables("steps"), 1):
        table.check_keys("name", "sql")
        name, sql = table.text("name"), table.text("sql")
        if not name or not sql:
            raise UsageError(
                f"step {number} has no {'sql' if name else 'name'}: each of [[steps]] needs both"
            )
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise UsageError(f"steps, name = {name!r}: write letters, digits and _, as for a table")
        if name.lower() == SOURCE_VIEW:
            raise UsageError(f"steps, name = {name!r}: that name means the source; choose another")
        if any(name.lower() == step.name.lower() for step in steps):
            raise UsageError(f"steps, name = {name!r}: two steps have this name")
        steps.append(Step(name, sql))
    return tuple(steps)


def _read_sink(table: _Table, is_stream: bool, checkpoint: str, query: str) -> Sink:
    table.check_keys("format", "path", "mode", "partition_by", "options")
    kind = table.format()
    is_topic = kind == TRIMTAB
    path, options = table.path(kind), table.options()
    modes = _MODES[is_stream, is_topic]
    mode = table.text("mode") or modes[0]
    if mode not in modes:
        raise UsageError(
            f"sink.mode = {mode!r}: a {'stream' if is_stream else 'batch'} writes "
            f"{'to a topic' if is_topic else 'files'} with {' or '.join(modes)}"
        )
    partition_by = table.words("partition_by")
    if partition_by and is_topic:
        raise UsageError("sink.partition_by is for files: in a topic, the column partition decides")
    if is_topic:
        given = {"checkpointLocation": checkpoint, "queryName": query} if is_stream else {}
        for name in options:
            if name.lower() in map(str.lower, given):
                raise UsageError(
                    f"sink.options, {name}: set checkpoint and name at the top of the file instead"
                )
        with _naming("sink.options"):
            read_sink_options(options | given)
    else:
        _check_file_options("sink.options", options)
    return Sink(kind, path, mode, partition_by, options)


def _check_file_options(where: str, options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _FILE_OPTIONS}
    for name in options:
        nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SLIP)
        if nearest and nearest[0] != name.lower():
            raise UsageError(f"{where}: unknown option {name}: did you mean {known[nearest[0]]}?")


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place in the file before the message of a UsageError."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


class _Table:
    """A table of the file, and its name."""

    def __init__(self, where: str, content: object, environment: Mapping[str, str]) -> None:
        if not isinstance(content, Mapping):
            raise UsageError(f"{where} = {content!r}: write it as a table, [{where}]")
        self._where = where
        self._content = content
        self._environment = environment

    def check_keys(self, *known: str) -> None:
        for key in self._content:
            if key not in known:
                raise UsageError(
                    f"unknown key {self._name(key)}{_nearest(key, known)}; the keys are"
                    f" {', '.join(known)}"
                )

    def text(self, key: str, *, filled: bool = False) -> str:
        """The key's string without surrounding white space; empty if it is not given."""
        value = self._content.get(key, "")
        if not isinstance(value, str):
            raise UsageError(f"{self._name(key)} = {value!r}: write a string, in quotes")
        if key in self._content and not value.strip():
            raise UsageError(f"{self._name(key)} is empty: fill it in, or leave it out")
        return (self._fill(key, value) if filled else value).strip()

    def words(self, key: str) -> tuple[str, ...]:
        value = self._content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(
                f'{self._name(key)} = {value!r}: write a list of strings, such as ["day", "topic"]'
            )
        return tuple(value)

    def table(self, key: str) -> _Table:
        if key not in self._content:
            raise UsageError(f"[{key}] is missing: it has the keys format, path and options")
        return _Table(key, self._content[key], self._environment)

    def tables(self, key: str) -> Iterator[_Table]:
        value = self._content.get(key, [])
        if not isinstance(value, list):
            raise UsageError(f"{key}: write each step under its own [[{key}]]")
        for each in value:
            yield _Table(key, each, self._environment)

    def format(self) -> str:
        kind = self.text("format")
        if kind not in FORMATS:
            raise UsageError(
                f"{self._name('format')}{_given(kind)}: write {' or '.join(FORMATS)}"
                f"{_nearest(kind, FORMATS)}"
            )
        return kind

    def path(self, kind: str) -> str:
        path = self.text("path", filled=True)
        if kind == TRIMTAB and path:
            raise UsageError(
                f"{self._name('path')} = {path!r} is for files: topics are named in"
                f" [{self._where}.options]"
            )
        if kind != TRIMTAB and not path:
            raise UsageError(f"{self._name('path')} is missing: write the path of the {kind} files")
        return path

    def options(self) -> dict[str, str]:
        """The options by dotted name, joined from the nested tables that TOML makes of dots."""
        options: dict[str, str] = {}
        given = self._content.get("options", {})
        if not isinstance(given, Mapping):
            raise UsageError(f"{self._name('options')} = {given!r}: write it as a table")
        for name, value in _flatten("", given):
            key = f"options, {name}"
            if isinstance(value, bool):
                text = str(value).lower()
            elif isinstance(value, str | int | float):
                text = str(value)
            else:
                raise UsageError(
                    f"{self._where}.{key} = {value!r}: write a string, a number, true or false"
                )
            if any(name.lower() == each.lower() for each in options):
                raise UsageError(f"{self._where}.{key} is given twice, in upper and lower case")
            options[name] = self._fill(key, text)
        return options

    def _name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def _fill(self, key: str, text: str) -> str:
        def find(variable: re.Match[str]) -> str:
            value = self._environment.get(variable[1])
            if value is None:
                raise UsageError(
                    f"{self._name(key)} = {text!r}: there is no environment variable {variable[1]}:"
                    f" set it, such as {variable[1]}=… trimtab pipeline run"
                )
            return value

        return _VARIABLE.sub(find, text)


def _flatten(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _given(text: str) -> str:
    return f" = {text!r}" if text else " is missing"


def _nearest(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""
