"""What an older PySpark lacks is refused by name, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql.types import StringType, StructField, StructType

import trimtab.spark
from trimtab.kafka.errors import UsageError
from trimtab.spark.read.batch import FilteringTopicReader, TopicBatchReader, read_partition
from trimtab.spark.schema_registry import decode, encode
from trimtab.spark.session.local import start_session
from trimtab.spark.source import TrimtabDataSource
from trimtab.spark.versions import require_pyspark
from trimtab.spark.write.sink import TopicWriter

VALUE = StructType([StructField("value", StringType())])
SOURCE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
REGISTRY = {"url": "http://127.0.0.1:1"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


def source(options: dict[str, str]) -> TrimtabDataSource:
    return TrimtabDataSource(options)


READ_STREAM: Callable[[], object] = lambda: source(SOURCE).streamReader(StructType())  # noqa: E731
WRITE_STREAM: Callable[[], object] = lambda: source(SINK).streamWriter(VALUE, False)  # noqa: E731
PUSHDOWN: Callable[[], object] = lambda: source(  # noqa: E731
    {**SOURCE, "pushdown": "true"}
).reader(StructType())


@pytest.mark.parametrize(
    ("version", "use", "why"),
    [
        ("3.5.7", lambda: trimtab.spark.register(None), r"format\('trimtab'\) needs PySpark 4\.0"),  # type: ignore[arg-type]
        ("3.5.7", lambda: start_session("tour"), r"format\('trimtab'\) needs PySpark 4\.0"),
        ("4.0.1", WRITE_STREAM, r"df\.writeStream\.format\('trimtab'\) needs PySpark 4\.1"),
        ("4.0.1", PUSHDOWN, r"option pushdown needs PySpark 4\.1"),
        ("4.0.1", lambda: decode("v", "a int", "t", REGISTRY), r"schema_registry needs PySpark 4"),
        ("4.0.1", lambda: encode("v", "{}", "t", REGISTRY), r"schema_registry needs PySpark 4"),
        ("4.0.1", READ_STREAM, r"spark\.readStream\.format\('trimtab'\) needs PySpark 4\.2"),
        ("4.1.1", READ_STREAM, r"spark\.readStream\.format\('trimtab'\) needs PySpark 4\.2"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, use: Callable[[], object], why: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(UsageError, match=rf"{why}.*this is PySpark {version}: pip install"):
        use()


def test_what_an_older_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    assert type(source(SOURCE).reader(StructType())) is TopicBatchReader
    assert isinstance(source(SINK).writer(VALUE, False), TopicWriter)
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    source(SINK).streamWriter(VALUE, False)
    assert isinstance(PUSHDOWN(), FilteringTopicReader)


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev3", "4.10.0", "5.0"])
def test_newer_ones_have_all(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    require_pyspark("all", "4.2")


def test_a_batch_is_written_without_the_class_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in PySpark 4.0, which has no `DataSourceStreamArrowWriter`."""
    import importlib

    from pyspark.sql import datasource

    import trimtab.spark.source
    import trimtab.spark.write.sink

    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    for module in (trimtab.spark.source, trimtab.spark.write.sink):
        spec = importlib.util.find_spec(module.__name__)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_task_without_a_partition_reads_nothing() -> None:
    """PySpark before 4.2 hands None to the one task of a plan without partitions."""
    options: Any = None
    assert list(read_partition(options, [], None)) == []


class Registry:
    """A session whose `dataSource.register` fails."""

    def __init__(self, text: str) -> None:
        self.dataSource = self
        self.text = text

    def register(self, kind: type) -> None:
        raise AnalysisException(self.text)


def test_what_spark_4_0_has_found_by_itself_is_registered() -> None:
    session: Any = Registry("[DATA_SOURCE_ALREADY_EXISTS] Data source 'trimtab' already exists.")
    trimtab.spark.register(session)
    other: Any = Registry("[OTHER]")
    with pytest.raises(AnalysisException, match="OTHER"):
        trimtab.spark.register(other)
