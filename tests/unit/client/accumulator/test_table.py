"""Tables become records: columns of every layout, what is refused, and what becomes of the rows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from trimtab.client.accumulator.table import (
    SLICE_ROWS,
    PartitionSummary,
    TableDelivery,
    TableError,
    TableSummary,
    append_table,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.wire.batch_cy import BatchBuilder

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Sent(NamedTuple):
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Collector:
    """Stands in for the accumulator: takes rows as they come, `room` of them at a time."""

    def __init__(self, room: int = 1 << 60) -> None:
        self.sent: list[Sent] = []
        self.slices: list[int] = []
        self.room = room
        self.settle: Callable[[Any], None] | None = None

    def append_rows(self, topic: str, rows: Any, first: int) -> int:
        assert topic == "t"
        rows.now = NOW
        self.settle = rows.settle
        if first == 0:
            self.slices.append(rows.length)
        taken: int = min(self.room, rows.length - first)
        self.room -= taken
        partitions = []
        builder = BatchBuilder(1 << 30)
        for row in range(first, first + taken):
            rows.seek(row)
            builder.append_row(rows)
            partitions.append(rows.partition)
        if taken:
            self.sent += [
                Sent(partition, record.timestamp, record.key, record.value, list(record.headers))
                for partition, record in zip(partitions, builder.records(), strict=True)
            ]
        return first + taken


def append(
    collector: Collector, delivery: TableDelivery, data: Any, **columns: Any
) -> Iterator[tuple[int, int | None]]:
    """As a producer sends a table: yields where it waits for memory, and ends the delivery."""
    rows = yield from append_table(
        collector.append_rows, delivery.topic, delivery.settle, data, **columns
    )
    delivery.end(rows)


def send(data: Any, **columns: Any) -> list[Sent]:
    collector = Collector()
    delivery = TableDelivery("t")
    assert list(append(collector, delivery, data, **columns)) == []
    return collector.sent


def values(data: Any, **columns: Any) -> list[bytes | None]:
    return [sent.value for sent in send(data, **columns)]


def share(partition: int, base_offset: int, first: int, last: int, error: Any = None) -> Any:
    """Rows of a batch of 10 records and 1,005 bytes."""
    batch = SimpleNamespace(
        queue=SimpleNamespace(partition=partition),
        base_offset=base_offset,
        error=error,
        size=1005,
        count=10,
    )
    return SimpleNamespace(batch=batch, first=first, last=last, count=last - first + 1)


# -- Columns


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_binary()),
        pa.dictionary(pa.uint32(), pa.string_view()),
    ],
    ids=str,
)
@pytest.mark.parametrize("begin", [0, 1, 11])
def test_keys_and_values_of_every_layout(kind: Any, begin: int) -> None:
    texts = ["größe", None, "", "x" * 300, *(str(n) for n in range(20))]
    encoded = [None if text is None else text.encode() for text in texts]
    plain = pa.array(encoded, pa.binary())
    if pa.types.is_dictionary(kind):
        distinct = plain.dictionary_encode()
        column = pa.DictionaryArray.from_arrays(
            distinct.indices.cast(kind.index_type), distinct.dictionary.cast(kind.value_type)
        )
    else:
        column = plain.cast(kind)
    table = pa.table({"k": column, "value": column}).slice(begin)
    found = send(table, key="k")
    assert [(sent.key, sent.value) for sent in found] == [(e, e) for e in encoded[begin:]]


def test_values_of_one_width() -> None:
    column = pa.array([b"abc", None, b"xyz", b"123"], pa.binary(3))
    assert values(pa.table({"value": column}).slice(1)) == [None, b"xyz", b"123"]


def test_an_extension_type_is_sent_as_it_is_stored() -> None:
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    assert values(pa.table({"value": column})) == [b"0" * 16]


def test_null_keys_and_values() -> None:
    table = pa.table({"value": pa.nulls(2), "k": ["a", None]})
    assert [(sent.key, sent.value) for sent in send(table, key="k")] == [(b"a", None), (None, None)]
    tombstones = send(pa.table({"k": ["a", "b"]}), key="k", value=None)
    assert [(sent.key, sent.value) for sent in tombstones] == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize("begin", [0, 1, 3])
def test_headers_as_lists_and_as_maps(begin: int) -> None:
    rows: list[Any] = [
        [("h", b"1"), ("größe", None)],
        None,
        [],
        [("x", b"")],
        [("a", b"b"), ("a", b"c")],
    ]
    lists = [row and [{"key": name, "value": value} for name, value in row] for row in rows]
    swapped = pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    for column in (
        pa.array(lists, HEADERS),
        pa.array(lists, swapped),
        pa.array(rows, pa.map_(pa.string(), pa.binary())),
    ):
        table = pa.table({"value": ["v"] * 5, "h": column}).slice(begin)
        found = [sent.headers for sent in send(table, headers="h")]
        assert found == [row or [] for row in rows][begin:]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()])
def test_partitions_of_any_integer_type(kind: Any) -> None:
    table = pa.table({"value": ["v"] * 4, "p": pa.array([9, 5, None, 0], kind)}).slice(1)
    assert [sent.partition for sent in send(table, partition="p")] == [5, -1, 0]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, 2], pa.timestamp("s")), [1000, NOW, 2000]),
        (pa.array([1, None, 2], pa.timestamp("ms", "Europe/Paris")), [1, NOW, 2]),
        (pa.array([1999, None, 2_000_000], pa.timestamp("us", "UTC")), [1, NOW, 2000]),
        (pa.array([1_999_999, None, 2_000_000], pa.timestamp("ns")), [1, NOW, 2]),
        (pa.array([86_400_000, None, 0], pa.date64()), [86_400_000, NOW, 0]),
        (pa.array([NOW + 5, None, -1], pa.int64()), [NOW + 5, NOW, -1]),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_timestamps(column: Any, expected: list[int]) -> None:
    table = pa.table({"value": ["v"] * 3, "ts": column})
    assert [sent.timestamp for sent in send(table, timestamp="ts")] == expected
    assert [sent.timestamp for sent in send(table.slice(2), timestamp="ts")] == expected[2:]


def test_a_timestamp_of_python_is_that_instant() -> None:
    instant = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)
    (sent,) = send(pa.table({"value": ["v"], "ts": [instant]}), timestamp="ts")
    assert sent.timestamp == int(instant.timestamp() * 1000)


# -- Tables


class Streams:
    """What polars, DuckDB and pandas are to us."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class OneArray:
    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def generated(table: Any) -> Iterator[Any]:
    yield from table.to_batches(max_chunksize=2)


@pytest.mark.parametrize(
    "give",
    [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        lambda table: table.to_reader(),
        Streams,
        lambda table: OneArray(table.combine_chunks().to_batches()[0]),
        lambda table: [table.slice(0, 1), table.slice(1)],
        generated,
    ],
    ids=["table", "batch", "reader", "stream", "array", "list", "generator"],
)
def test_tables_of_every_kind(give: Callable[[Any], Any]) -> None:
    chunks = pa.chunked_array([["a"], ["b", "c", None], ["d"]])
    expected = [b"a", b"b", b"c", None, b"d"]
    assert values(give(pa.table({"other": range(5), "value": chunks}))) == expected


@pytest.mark.parametrize("give", [lambda table: table, Streams])
def test_columns_may_be_arrays(give: Callable[[Any], Any]) -> None:
    table = pa.table({"value": ["a", "b", "c"], "n": [1, 2, 3]})
    found = send(
        give(table),
        key=table["n"].cast("string"),
        value=pa.array(["x", "y", "z"]),
        partition=pc.add(table["n"], 10),
    )
    assert [(sent.partition, sent.key, sent.value) for sent in found] == [
        (11, b"1", b"x"),
        (12, b"2", b"y"),
        (13, b"3", b"z"),
    ]


def test_a_large_table_is_handed_over_in_slices() -> None:
    collector = Collector()
    numbers = pa.array(range(SLICE_ROWS + 100)).cast("string")
    delivery = TableDelivery("t")
    table = pa.table({"value": numbers})
    assert list(append(collector, delivery, table)) == []
    assert collector.slices == [SLICE_ROWS, 100]
    assert [sent.value for sent in collector.sent] == [
        str(n).encode() for n in range(SLICE_ROWS + 100)
    ]


def test_what_finds_no_room_waits_for_the_bytes_of_its_next_row() -> None:
    collector = Collector(room=2)
    delivery = TableDelivery("t")
    table = pa.table({"value": ["a", "b", "x" * 1000, "c"]})
    waits = append(collector, delivery, table)
    needed, _ = next(waits)
    assert 1000 < needed < 1200
    assert len(collector.sent) == 2
    assert not delivery.done()
    collector.room = 1
    assert next(waits)[0] < 200
    assert len(collector.sent) == 3
    collector.room = 1
    assert list(waits) == []
    assert [len(sent.value or b"") for sent in collector.sent] == [1, 1, 1000, 1]


def test_a_table_without_rows_is_delivered_at_once() -> None:
    collector = Collector()
    tables: tuple[Any, ...] = (pa.table({"value": pa.array([], "string")}), [])
    for data in tables:
        delivery = TableDelivery("t")
        assert list(append(collector, delivery, data)) == []
        assert delivery.result(0) == TableSummary("t", 0, {})
    with pytest.raises(UsageError, match="no column 'value'"):
        send(Streams(pa.table({"v": pa.array([], "string")})))


# -- What is refused

V = {"value": ["v"]}


@pytest.mark.parametrize(
    ("data", "columns", "complaint"),
    [
        ({"valeu": ["v"]}, {}, "no column 'value' .value.: did you mean 'valeu'"),
        ({"a": ["v"], "b": ["v"]}, {"value": "zzz"}, "no column 'zzz' .value.: it has a, b"),
        (V, {"key": "kee"}, r"no column 'kee' \(key\): it has value"),
        (V, {"value": None}, "a table without value and key makes empty records"),
        ({"value": [1]}, {}, "value column is of type int64.*cast it to string or binary"),
        (
            {"value": pa.array([1]).dictionary_encode()},
            {},
            "value column is of type dictionary<values=int64.*cast it to string",
        ),
        ({"value": [1.5]}, {}, "value column is of type double.*cast it to string or binary"),
        ({"value": [["a"]]}, {}, "value column is of type list.*encode each row to bytes"),
        (V | {"k": [1]}, {"key": "k"}, "key column is of type int64, and a record's key is bytes"),
        (V | {"p": ["1"]}, {"partition": "p"}, "partition column is of type string: give integers"),
        (V | {"p": [-1]}, {"partition": "p"}, "partition column holds -1: it must be from 0"),
        (V | {"p": [2**31]}, {"partition": "p"}, "partition column holds 2147483648"),
        (V | {"t": ["1"]}, {"timestamp": "t"}, "timestamp column is of type string: give a times"),
        (V | {"t": [-2]}, {"timestamp": "t"}, "timestamp column holds -2: it must be from -1"),
        (
            V | {"t": pa.array([2**62], pa.timestamp("s"))},
            {"timestamp": "t"},
            "does not fit milliseconds",
        ),
        (V | {"h": ["x"]}, {"headers": "h"}, "headers column is of type string: give list<struct"),
        (V | {"h": [[{"a": "x", "b": b""}]]}, {"headers": "h"}, "headers column is of type list"),
        (
            V | {"h": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            {"headers": "h"},
            "header whose name is null",
        ),
        (
            V | {"h": pa.array([[(b"k", b"v")]], pa.map_(pa.binary(), pa.binary()))},
            {"headers": "h"},
            "names of the headers are of type binary: cast them to string",
        ),
        (
            V | {"h": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))},
            {"headers": "h"},
            "the header's value column is of type int8",
        ),
        (V, {"key": 5}, "key is of type int: give a column's name, a pyarrow array, or None"),
        (V, {"key": pa.array(["a", "b"])}, "array given for key has 2 rows, the table 1"),
    ],
)
def test_what_cannot_be_sent_says_why(
    data: dict[str, Any], columns: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        send(pa.table(data), **columns)


@pytest.mark.parametrize("data", [None, 5, "table", b"table", {"value": ["v"]}, ["v"]])
def test_what_is_no_table_says_so(data: Any) -> None:
    with pytest.raises(UsageError, match=r"a table cannot be of type .*__arrow_c_stream__"):
        send(data)


def test_ambiguous_columns_are_refused() -> None:
    twice = pa.table([["a"], ["b"]], names=["value", "value"])
    with pytest.raises(UsageError, match="2 columns 'value': rename"):
        send(twice)
    with pytest.raises(UsageError, match="go with one table, and not with several"):
        send([pa.table(V)], key=pa.array(["k"]))


def test_rows_before_a_faulty_batch_are_sent_and_the_error_says_so() -> None:
    collector = Collector()
    tables = [pa.table(V), pa.table({"value": [1]})]
    sending = append(collector, TableDelivery("t"), tables)
    with pytest.raises(UsageError) as raised:
        list(sending)
    assert [sent.value for sent in collector.sent] == [b"v"]
    assert "first 1 rows are on their way" in "".join(raised.value.__notes__)


def test_without_pyarrow_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install -U pyarrow"):
        send(object())


# -- Delivery


def test_a_delivery_ends_when_every_batch_has() -> None:
    delivery = TableDelivery("t")
    calls: list[Any] = []
    delivery.add_done_callback(calls.append)
    delivery.settle(share(2, 100, 5, 9))
    delivery.settle(share(0, 7, 0, 0))
    delivery.end(9)
    assert not delivery.done()
    with pytest.raises(TimeoutError):
        delivery.result(0)
    delivery.settle(share(2, 40, 0, 2))
    assert calls == [delivery]
    assert delivery.done()
    assert delivery.exception() is None
    assert delivery.result() == TableSummary(
        "t", 9, {0: PartitionSummary(1, 7, 7, 100), 2: PartitionSummary(8, 40, 109, 804)}
    )


def test_the_shares_of_a_batch_come_to_all_of_its_bytes() -> None:
    delivery = TableDelivery("t")
    delivery.end(10)
    for first, last in ((0, 2), (3, 3), (4, 9)):
        delivery.settle(share(0, 7, first, last))
    assert delivery.result().partitions == {0: PartitionSummary(10, 7, 16, 1005)}


def test_without_acknowledgements_no_offset_is_known() -> None:
    delivery = TableDelivery("t")
    delivery.end(3)
    delivery.settle(share(0, -1, 0, 2))
    assert delivery.result(0).partitions == {0: PartitionSummary(3, -1, -1, 301)}


def test_a_failed_delivery_names_the_first_partition_and_counts() -> None:
    delivery = TableDelivery("t")
    delivery.end(10)
    first = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "raise max.message.bytes", "t-4")
    delivery.settle(share(4, -1, 0, 1, first))
    delivery.settle(share(1, -1, 0, 2, Unavailable("later")))
    delivery.settle(share(4, 9, 0, 2))
    delivery.settle(share(4, -1, 0, 1, Unavailable("later")))
    with pytest.raises(TableError) as raised:
        delivery.result(0)
    error = raised.value
    assert "7 of 10 records" in str(error)
    assert "2 partitions, the first of them t-4: t-4: MESSAGE_TOO_LARGE" in str(error)
    assert error.__cause__ is first
    assert error.failed == {4: 4, 1: 3}
    assert error.delivered == TableSummary("t", 3, {4: PartitionSummary(3, 9, 11, 301)})
    assert delivery.exception() is error


def test_a_failure_is_known_before_the_end() -> None:
    delivery = TableDelivery("t")
    delivery.settle(share(1, 40, 0, 2))
    delivery.raise_failed()
    delivery.settle(share(4, -1, 0, 1, Unavailable("no leader")))
    with pytest.raises(TableError, match=r"2 of 5 records .* t-4: no leader") as raised:
        delivery.raise_failed()
    assert raised.value.delivered == TableSummary("t", 3, {1: PartitionSummary(3, 40, 42, 301)})
    assert not delivery.done()


def test_the_last_batch_and_the_end_may_come_at_once_on_two_threads() -> None:
    with ThreadPoolExecutor(2) as threads:
        for _ in range(300):
            delivery = TableDelivery("t")
            calls: list[Any] = []
            delivery.add_done_callback(calls.append)
            both = [
                threads.submit(delivery.settle, share(0, 0, 0, 0)),
                threads.submit(delivery.end, 1),
            ]
            for each in both:
                each.result(10)
            assert calls == [delivery]


def test_a_delivery_is_awaited_and_outlives_who_stops_waiting() -> None:
    async def wait() -> TableSummary:
        delivery = TableDelivery("t")
        delivery.end(1)
        impatient = asyncio.ensure_future(asyncio.wait_for(delivery, 0))
        with pytest.raises(TimeoutError):
            await impatient
        asyncio.get_running_loop().call_soon(delivery.settle, share(0, 5, 0, 0))
        return await delivery

    assert asyncio.run(wait()).partitions == {0: PartitionSummary(1, 5, 5, 100)}
