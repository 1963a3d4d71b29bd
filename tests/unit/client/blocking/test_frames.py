"""A scan for Polars and DuckDB: they get the rows that they ask for, and fetch little else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from trimtab import Admin, Cluster, Producer, TopicScan, read
from trimtab.client.blocking.scan import TopicScan as Scan
from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.ranges import Limits

PARTITIONS, EACH, RECORD_BYTES = 4, 3_000, 1_000
FETCH_BYTES = 64 * 1024
BEGAN = datetime(2026, 1, 31, 8, tzinfo=UTC)
"""The time of the first record of each partition; one comes each millisecond."""
PARTITION, OFFSET, TIMESTAMP = map(pl.col, ("partition", "offset", "timestamp"))


@pytest.fixture(scope="module")
def scan() -> Iterator[TopicScan]:
    numbers = pa.array(range(EACH * PARTITIONS), pa.int64())
    began = int(BEGAN.timestamp() * 1000)
    records = pa.table(
        {
            "value": pa.array([b"%0*d" % (RECORD_BYTES, n) for n in range(len(numbers))]),
            "partition": pa.array([n % PARTITIONS for n in range(len(numbers))], pa.int32()),
            "timestamp": pa.array([began + n // PARTITIONS for n in range(len(numbers))]),
        }
    )
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("flights", PARTITIONS)
        with Producer(cluster.bootstrap_servers) as producer:
            columns = {"partition": "partition", "timestamp": "timestamp"}
            producer.send_table("flights", records, **columns).result()
        # Many small fetches: how many more are under way when Polars stops is a matter of time.
        servers, fetch_bytes = cluster.bootstrap_servers, FETCH_BYTES
        yield read("flights", servers, max_partition_fetch_bytes=fetch_bytes)


@pytest.fixture(scope="module")
def everything(scan: TopicScan) -> pl.DataFrame:
    return pl.DataFrame(scan)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the responses to all fetches, in bytes."""
    sizes: list[int] = []
    count = ConsumerMetrics.fetched

    def note(self: ConsumerMetrics, node: int, size: int, *times: float) -> None:
        sizes.append(size)
        count(self, node, size, *times)

    monkeypatch.setattr(ConsumerMetrics, "fetched", note)
    return sizes


Asked = list[tuple[list[str], Limits, int | None]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The columns, limits and counts of the streams."""
    calls: Asked = []
    stream = Scan._stream

    def note(self: Scan, columns: Any, limits: Limits = Limits(), count: Any = None) -> Any:  # noqa: B008
        calls.append((list(columns), limits, count))
        return stream(self, columns, limits, count)

    monkeypatch.setattr(Scan, "_stream", note)
    return calls


def limits_of(asked: Asked) -> Limits:
    ((_, limits, _),) = asked
    return limits


SOME = EACH * RECORD_BYTES // 3
"""A part of a partition; it takes 15 fetches, and 100 records take two."""


def at(ms: float) -> datetime:
    return BEGAN + timedelta(milliseconds=ms)


def since(ms: int) -> int:
    return int(BEGAN.timestamp() * 1000) + ms


# what is fetched


def test_a_filter_with_a_head_fetches_only_that(scan: TopicScan, fetched: list[int]) -> None:
    frame = scan.to_polars().filter(PARTITION == 3).head(100).collect()
    assert frame.height == 100
    assert set(frame["partition"]) == {3}
    assert 0 < sum(fetched) < SOME


def test_a_head_fetches_only_that(scan: TopicScan, fetched: list[int], asked: Asked) -> None:
    frame = scan.to_polars().head(100).select("offset", "value").collect()
    assert frame["offset"].to_list() == list(range(100))
    assert sum(fetched) < SOME
    assert asked == [(["value", "offset"], Limits(), 100)]


def test_a_head_of_more_than_a_partition_has_goes_on_in_the_next(scan: TopicScan) -> None:
    frame = scan.to_polars().head(EACH + 10).collect()
    assert frame.height == EACH + 10
    assert frame.group_by("partition").len().sort("partition").rows() == [(0, EACH), (1, 10)]
    assert scan.to_polars().head(10 * EACH).collect().height == PARTITIONS * EACH


def test_duckdb_stops_a_stream_that_it_needs_no_more(scan: TopicScan, fetched: list[int]) -> None:
    flights = scan.to_duckdb()
    assert flights is not None
    rows = duckdb.execute('SELECT "offset" FROM flights WHERE partition = 3 LIMIT 100').fetchall()
    assert len(rows) == 100
    assert 0 < sum(fetched) < SOME


def test_a_filter_that_nothing_passes_fetches_nothing(scan: TopicScan, fetched: list[int]) -> None:
    assert scan.to_polars().filter(PARTITION == 7).collect().height == 0
    assert scan.to_polars().filter(OFFSET >= EACH).collect().height == 0
    assert scan.to_polars().filter(at(EACH) < TIMESTAMP).collect().height == 0
    assert scan.to_polars().head(0).collect().height == 0
    assert fetched == []


# filters


@pytest.mark.parametrize(
    ("predicate", "partitions", "offsets", "first_ms"),
    [
        (PARTITION == 3, {3}, None, None),
        (pl.lit(3) == PARTITION, {3}, None, None),
        (PARTITION != 3, {0, 1, 2}, None, None),
        (PARTITION >= 2, {2, 3}, None, None),
        (PARTITION < 1, {0}, None, None),
        (PARTITION.is_in([1, 3, 9]), {1, 3}, None, None),
        (PARTITION == PARTITION, None, None, None),
        (PARTITION == 2**40, None, None, None),
        (~(PARTITION == 3), {0, 1, 2}, None, None),
        (OFFSET > 9, {0, 1, 2, 3}, (10, None), None),
        (OFFSET <= 9, {0, 1, 2, 3}, (None, 10), None),
        (OFFSET == 9, {0, 1, 2, 3}, (9, 10), None),
        (OFFSET == EACH - 1, {0, 1, 2, 3}, (EACH - 1, EACH), None),
        (OFFSET < 1, {0, 1, 2, 3}, (None, 1), None),
        (OFFSET.is_between(5, 9), {0, 1, 2, 3}, (5, 10), None),
        (OFFSET.is_between(5, 9, closed="left"), {0, 1, 2, 3}, (5, 9), None),
        (OFFSET.is_between(5, 9, closed="right"), {0, 1, 2, 3}, (6, 10), None),
        (OFFSET.is_between(5, 9, closed="none"), {0, 1, 2, 3}, (6, 9), None),
        ((OFFSET > 9) & (OFFSET < 20) & (PARTITION == 1), {1}, (10, 20), None),
        ((PARTITION == 1) | (PARTITION == 2), {1, 2}, None, None),
        (((PARTITION == 1) & (OFFSET < 7)) | (OFFSET == 9), {0, 1, 2, 3}, (None, 10), None),
        ((PARTITION == 1) & (pl.col("value") == b"x"), {1}, None, None),
        ((PARTITION == 1) | (pl.col("value") == b"x"), None, None, None),
        ((PARTITION + 1 == 2), None, None, None),
        (OFFSET >= 5.5, None, None, None),
        (at(30) <= TIMESTAMP, {0, 1, 2, 3}, None, 30),
        (at(30) < TIMESTAMP, {0, 1, 2, 3}, None, 31),
        (at(30) == TIMESTAMP, {0, 1, 2, 3}, None, 30),
        (at(30) > TIMESTAMP, {0, 1, 2, 3}, None, None),  # times need not increase with offsets
        (at(30.5) <= TIMESTAMP, {0, 1, 2, 3}, None, 30),  # Polars compares milliseconds
        (TIMESTAMP.is_between(at(30), at(40)), {0, 1, 2, 3}, None, 30),
        ((at(30) < TIMESTAMP) & (PARTITION == 0), {0}, None, 31),
        (pl.col("value").is_not_null(), None, None, None),
    ],
)
def test_a_filter_of_polars_becomes_limits_and_is_applied(
    scan: TopicScan,
    everything: pl.DataFrame,
    asked: Asked,
    predicate: pl.Expr,
    partitions: set[int] | None,
    offsets: tuple[int | None, int | None] | None,
    first_ms: int | None,
) -> None:
    frame = scan.to_polars().filter(predicate).select("partition", "offset", "timestamp").collect()
    limits = limits_of(asked)
    assert (None if limits.partitions is None else set(limits.partitions)) == partitions
    first, end = offsets or (None, None)
    assert limits.first_offset == first or (first is None and limits.first_offset < 0)
    assert limits.end_offset == end or (end is None and limits.end_offset > EACH)
    assert limits.since == (since(first_ms) if first_ms is not None else limits.since)
    assert first_ms is not None or limits.since < 0
    right = everything.filter(predicate).select("partition", "offset", "timestamp")
    assert frame.sort("partition", "offset").equals(right.sort("partition", "offset"))


@pytest.mark.parametrize(
    ("condition", "partitions", "offsets", "first_ms"),
    [
        ("partition = 3", {3}, None, None),
        ("partition IN (1, 3)", {1, 3}, None, None),
        ("NOT partition = 3", {0, 1, 2}, None, None),
        ('partition = 1 OR "offset" < 10', {0, 1, 2, 3}, None, None),
        ('partition = 1 AND "offset" BETWEEN 5 AND 9', {1}, (5, 10), None),
        ('"offset" + 1 = 5', {0, 1, 2, 3}, (4, 5), None),
        ("timestamp >= TIMESTAMPTZ '2026-01-31 08:00:00.030Z'", {0, 1, 2, 3}, None, 30),
        ("timestamp < TIMESTAMPTZ '2026-01-31 08:00:00.030Z'", {0, 1, 2, 3}, None, None),
        ("value IS NOT NULL AND partition > 2", {3}, None, None),
        ("octet_length(value) > 5", None, None, None),
    ],
)
def test_a_filter_of_duckdb_becomes_limits_and_is_applied(
    scan: TopicScan,
    everything: pl.DataFrame,
    asked: Asked,
    condition: str,
    partitions: set[int] | None,
    offsets: tuple[int, int] | None,
    first_ms: int | None,
) -> None:
    with duckdb.connect() as connection:
        flights = scan.to_duckdb(connection)
        assert flights is not None
        query = f'SELECT partition, "offset" FROM flights WHERE {condition} ORDER BY ALL'
        rows = connection.sql(query).fetchall()
        limits = limits_of(asked)
        assert everything.height == EACH * PARTITIONS
        assert rows == connection.sql(query.replace("flights", "everything")).fetchall()
    assert (None if limits.partitions is None else set(limits.partitions)) == partitions
    if offsets is not None:
        assert (limits.first_offset, limits.end_offset) == offsets
    assert limits.since == since(first_ms) if first_ms is not None else limits.since < 0


def test_only_the_columns_that_are_needed_are_decoded(scan: TopicScan, asked: Asked) -> None:
    scan.to_polars().select("offset").head(1).collect()
    scan.to_polars().filter(PARTITION == 3, OFFSET < 5).select("timestamp").collect()
    with duckdb.connect() as connection:
        flights = scan.to_duckdb(connection)
        flights.filter('partition = 3 AND "offset" < 5').select("timestamp").fetchall()
    needed = ["partition", "offset", "timestamp"]
    assert [columns for columns, _, _ in asked] == [["offset"], needed, needed]


def test_a_filter_may_have_any_number_of_terms(scan: TopicScan, asked: Asked) -> None:
    """One of more levels than are looked at limits nothing, and is applied."""
    predicate = OFFSET.is_in([])
    for number in range(0, 400, 2):
        predicate |= number == OFFSET
    frame = scan.to_polars().filter(predicate, PARTITION == 2).select("offset").collect()
    assert frame["offset"].to_list() == list(range(0, 400, 2))
    many = scan.to_polars().filter(OFFSET.is_in(range(0, 10_000, 2)), PARTITION == 2)
    assert many.select(pl.len()).collect().item() == EACH // 2
    assert [set(limits.partitions or ()) for _, limits, _ in asked] == [{2}, {2}]


def test_the_schema_is_known_before_it_is_read(scan: TopicScan, fetched: list[int]) -> None:
    schema = scan.to_polars().collect_schema()
    assert schema["timestamp"] == pl.Datetime("ms", "UTC")
    assert schema.names() == list(scan.columns)
    with duckdb.connect() as connection:
        assert scan.to_duckdb(connection).columns == list(scan.columns)
    assert fetched == []


def test_a_frame_and_a_view_read_the_scan_each_time(scan: TopicScan, asked: Asked) -> None:
    lazy = scan.to_polars().filter(PARTITION == 1, OFFSET < 3).select("offset")
    for _ in range(2):
        assert lazy.collect()["offset"].to_list() == [0, 1, 2]
    both = pl.concat([lazy, lazy]).collect()
    assert both.height == 6
    assert len(asked) == 3, "Polars knows that both are the same"
    with duckdb.connect() as connection:
        scan.to_duckdb(connection).create_view("flights")
        for _ in range(2):
            query = 'SELECT count(*) FROM flights WHERE partition = 1 AND "offset" < 3'
            assert connection.sql(query).fetchall() == [(3,)]


def test_everything_is_read_without_a_filter(scan: TopicScan) -> None:
    assert scan.to_polars().select(pl.len()).collect().item() == EACH * PARTITIONS
    with duckdb.connect() as connection:
        flights = scan.to_duckdb(connection)
        assert flights.aggregate('count(*), sum("offset")').fetchall() == [
            (EACH * PARTITIONS, PARTITIONS * sum(range(EACH)))
        ]
    # Without to_duckdb, DuckDB finds the variable, and reads all of the stream.
    assert duckdb.execute('SELECT max("offset") FROM scan').fetchall() == [(EACH - 1,)]


def test_a_count_is_of_rows_that_pass_the_filter(
    scan: TopicScan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should Polars ever give both: what is read is not counted, but what the filter leaves."""
    sources: list[Any] = []
    monkeypatch.setattr("polars.io.plugins.register_io_source", lambda io, **_: sources.append(io))
    scan.to_polars()
    frames = sources[0](["offset"], OFFSET >= EACH - 3, 2, None)
    assert sum(frame.height for frame in frames) == 3 * PARTITIONS
