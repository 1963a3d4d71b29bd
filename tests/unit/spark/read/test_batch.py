"""The batch reader without Spark's JVM: which columns it takes, and what its copies are."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.types import StructType

from trimtab.client.fetcher.ranges import Limits, OffsetRange
from trimtab.kafka.errors import UsageError
from trimtab.spark.options.source import SourceOptions, read_options
from trimtab.spark.read import cluster
from trimtab.spark.read.batch import FilteringTopicReader, TopicBatchReader, check_columns
from trimtab.spark.read.cluster import Found
from trimtab.spark.read.packing import AUTO_TASKS, Task, TaskInput
from trimtab.spark.source import TrimtabDataSource

GIVEN = {"kafka.bootstrap.servers": "here:9092", "subscribe": "flights"}
IDS = {"flights": b"\x11" * 16}


def test_columns_keep_their_order_and_nullability() -> None:
    schema = StructType().add("offset", "long", False).add("value", "binary")
    assert check_columns(schema) == [("offset", False), ("value", True)]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("valu", "binary", "did you mean value"),
        ("carrier", "string", "known are key, value"),
        ("offset", "integer", "column offset as int, but it is bigint"),
    ],
)
def test_a_column_that_no_record_has_is_refused(name: str, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_columns(StructType().add(name, kind))


def test_only_with_pushdown_does_a_reader_take_filters() -> None:
    # Spark fails a reader that has the method while pushing filters down is off.
    schema = StructType().add("offset", "long")
    plain = TrimtabDataSource(GIVEN).reader(schema)
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    filtering = TrimtabDataSource({**GIVEN, "pushdown": "true"}).reader(schema)
    filters = [EqualTo(("partition",), 1)]
    assert filtering.pushFilters(filters) == filters  # type: ignore[arg-type]


def test_a_plan_is_cut_as_the_options_say_and_filters_reach_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Limits] = []

    def find_ranges(options: SourceOptions, limits: Limits) -> Found:
        asked.append(limits)
        return Found([OffsetRange("flights", 0, 0, 10)], IDS, {})

    monkeypatch.setattr(cluster, "find_ranges", find_ranges)
    given = {**GIVEN, "maxRecordsPerPartition": "6", "kafka.group.id": "g"}
    reader = FilteringTopicReader(read_options(given), [("offset", True)])
    reader.pushFilters([EqualTo(("partition",), 0)])
    copy = pickle.loads(pickle.dumps(reader))
    assert [each.value for each in copy.partitions()] == [
        TaskInput((OffsetRange("flights", 0, 0, 5),), IDS),
        TaskInput((OffsetRange("flights", 0, 5, 10),), IDS),
    ]
    assert asked == [Limits(partitions={0}, first_partition=0, end_partition=1)]
    assert caplog.text.count("kafka.group.id") == 1


def test_small_partitions_share_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [OffsetRange("flights", number, 0, 20) for number in range(1000)]
    found = Found(ranges, IDS, {"flights": [number % 3 for number in range(1000)]})
    monkeypatch.setattr(cluster, "find_ranges", lambda options, limits: found)

    def tasks(**options: str) -> list[Task]:
        reader = TopicBatchReader(read_options({**GIVEN, **options}), [("offset", True)])
        return [each.value.ranges for each in reader.partitions()]

    assert len(tasks()) == AUTO_TASKS
    assert len(tasks(minPartitions="200")) == 200
    assert len(tasks(maxPartitions="12")) <= 12
    assert all(sum(r.size for r in task) <= 60 for task in tasks(maxRecordsPerPartition="60"))
    assert tasks(maxPartitions="unlimited") == [(each,) for each in ranges]
    mixed = [task for task in tasks() if len({each.partition % 3 for each in task}) > 1]
    assert len(mixed) <= 2


def test_the_task_of_a_plan_without_partitions_reads_nothing() -> None:
    reader = TopicBatchReader(read_options(GIVEN), [("offset", True)])
    assert list(reader.read(InputPartition(None))) == []
