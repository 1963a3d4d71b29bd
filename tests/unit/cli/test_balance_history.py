from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trimtab.balance.cluster_load import BrokerState, ClusterLoad, PartitionLoad
from trimtab.cli.balance_history import expect, read_history
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BEGIN = datetime(2026, 11, 2, tzinfo=UTC)
Row = tuple[int, TopicPartition, int]
"""The number of a window, a partition, bytes."""


def write(path: Path, rows: Iterable[Row], minutes: int = 60) -> str:
    table = [
        {
            "window": {
                "start": BEGIN + timedelta(minutes=minutes * number),
                "end": BEGIN + timedelta(minutes=minutes * (number + 1)),
            },
            "topic": partition.topic,
            "partition": partition.partition,
            "TotalBytes": size,
            "TotalRecords": 1,
        }
        for number, partition, size in rows
    ]
    file = path / "part-0.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(table), file)
    (path / "_SUCCESS").touch()
    return str(path)


def test_of_a_week_the_highest_hour_of_the_median_day(tmp_path: Path) -> None:
    """t-0 has a peak each morning, t-1 had one once, u-0 is quiet on one day."""
    hours = [
        row
        for hour in range(7 * 24 + 1)
        for row in (
            (hour, T0, 36_000_000 if hour % 24 == 9 else 3_600),
            (hour, T1, 720_000_000 if hour == 40 else 7_200),
            (hour, U0, 0 if hour // 24 == 3 else 360_000),
        )
    ]
    rates = read_history(write(tmp_path, hours))
    assert rates == pytest.approx({T0: 10_000, T1: 2, U0: 100})


def test_of_less_than_three_days_the_95th_percentile(tmp_path: Path) -> None:
    """Windows without records have no rows; the last window may not be over."""
    rows = [(number, T0, 3_600 * number) for number in range(42)] + [(3, U0, 3_600)]
    rates = read_history(write(tmp_path, rows))
    assert rates == pytest.approx({T0: 38, U0: 0})


def test_parts_of_a_window_in_several_rows_are_summed(tmp_path: Path) -> None:
    rates = read_history(write(tmp_path, [(0, T0, 600), (0, T0, 1200)], minutes=1))
    assert rates == {T0: 30}


def test_a_load_is_replaced_by_what_is_expected() -> None:
    def partition(each: TopicPartition, bytes_in: float) -> PartitionLoad:
        return PartitionLoad(each, (0, 1), 0, frozenset({0, 1}), bytes_in, 2 * bytes_in, 100)

    brokers = {each: BrokerState(each, None, 10) for each in range(2)}
    load = ClusterLoad(brokers, [partition(T0, 10), partition(T1, 0), partition(U0, 5)])
    found = expect(load, {T0: 30.0, T1: 7.0})
    assert [(each.bytes_in, each.bytes_out) for each in found.partitions] == [
        (30, 60),
        (7, 0),
        (5, 10),
    ]


def test_a_table_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file or directory"):
        read_history(str(tmp_path / "missing"))
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        read_history(str(tmp_path))
    file = tmp_path / "other.parquet"
    parquet.write_table(pyarrow.table({"topic": ["t"], "partition": [0]}), file)
    with pytest.raises(UsageError, match="has no column window, TotalBytes: give a load table"):
        read_history(str(file))
    empty: dict[str, list[object]] = {"window": [], "topic": [], "partition": [], "TotalBytes": []}
    window = pyarrow.struct([("start", pyarrow.timestamp("us")), ("end", pyarrow.timestamp("us"))])
    schema = pyarrow.schema(
        [
            ("window", window),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("TotalBytes", pyarrow.int64()),
        ]
    )
    parquet.write_table(pyarrow.table(empty, schema=schema), file)
    with pytest.raises(UsageError, match="has no rows"):
        read_history(str(file))


def test_windows_of_several_lengths_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [(0, T0, 600)], minutes=1)
    (tmp_path / "part-0.parquet").rename(tmp_path / "part-1.parquet")
    with pytest.raises(UsageError, match="its windows have several lengths"):
        read_history(write(tmp_path, [(0, T0, 600)], minutes=10))
