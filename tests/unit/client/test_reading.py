"""How a consumer hands out records: one by one, in lists, as columns; and where it then stands.

Against brokers that answer by script, in virtual time.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest

from tests.unit.client.scripted_broker import ScriptedBroker, ScriptedCluster, batch
from trimtab.client.consumer import AsyncConsumer
from trimtab.kafka.errors import CorruptData, NotDeserialized, UsageError
from trimtab.kafka.records import Headers, Record, TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import restamp, stamp_append_time, stamp_crc
from trimtab.kafka.wire.messages.fetch import FetchRequest, FetchResponse
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsRequest
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
RECORDS = 6


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """A broker with two partitions of `t`, each of 6 records in 3 batches, such as `0/4`."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 0]})
    cluster.broker(0)
    for partition in (T0, T1):
        cluster.logs[partition] = [
            batch(offset, *(b"%d/%d" % (partition.partition, offset + n) for n in range(2)))
            for offset in (0, 2, 4)
        ]
    return cluster


async def consume(
    cluster: ScriptedCluster, *partitions: TopicPartition, **options: Any
) -> AsyncConsumer:
    for broker in cluster.brokers.values():
        await broker.start()
    options = {"auto_offset_reset": "earliest", **options}
    consumer = AsyncConsumer(cluster.bootstrap, random=cluster.world.random("c"), **options)
    consumer.assign(partitions or [T0])
    return consumer


async def iterate(consumer: AsyncConsumer, count: int) -> list[int]:
    """The offsets of the next records, by an iteration that is left after them."""
    seen: list[int] = []
    async for record in consumer:
        seen.append(record.offset)
        if len(seen) == count:
            break
    return seen


def malformed(base_offset: int) -> bytes:
    """A batch with a correct CRC whose only record claims more bytes than there are."""
    made = bytearray(batch(base_offset, b"damaged"))
    made[61] = 0x7E  # the record's length
    stamp_crc(made, 0, len(made))
    return bytes(made)


def broker_of(cluster: ScriptedCluster) -> ScriptedBroker:
    return cluster.brokers[0]


# -- one by one


async def test_an_iteration_goes_on_where_the_last_was_left(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        for first, count in ((0, 1), (1, 3), (4, 2)):
            assert await iterate(consumer, count) == list(range(first, first + count))
            assert await consumer.position(T0) == first + count


async def test_after_an_iteration_every_call_goes_on_behind_it(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        assert await iterate(consumer, 1) == [0]
        assert [record.offset for record in await consumer.poll(max_records=2)] == [1, 2]
        assert await iterate(consumer, 1) == [3]
        batches = await consumer.fetch_batches()
        assert batches is not None
        assert (batches.start, batches.next_offset) == (4, 6)
        assert await consumer.position(T0) == 6
        consumer.seek(T0, 0)
        assert await iterate(consumer, 2) == [0, 1]
        table = await consumer.arrow(columns=["offset"])
        assert table.column("offset").to_pylist() == [2, 3, 4, 5]


async def test_the_position_follows_an_iteration_record_by_record(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, T0, T1) as consumer:
        seen = dict.fromkeys((T0, T1), 0)
        async for record in consumer:
            partition = TopicPartition(record.topic, record.partition)
            seen[partition] = record.offset + 1
            assert {each: await consumer.position(each) for each in seen} == seen
            if sum(seen.values()) == 2 * RECORDS:
                break


async def test_seek_in_a_loop_decides_the_next_record(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(T0, 4)
            if record.offset == 5:
                break
        assert seen == [0, 1, 4, 5]


async def test_a_partition_that_is_paused_in_a_loop_waits_with_all_its_records(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, T0, T1) as consumer:
        seen = []
        async for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 2:
                consumer.pause(T0)
            if len(seen) == 2 + RECORDS:
                break
        assert seen == [(0, 0), (0, 1), *((1, offset) for offset in range(RECORDS))]
        assert await consumer.poll(100) == []
        consumer.resume(T0)
        assert [record.offset for record in await consumer.poll(2_000)] == [2, 3, 4, 5]


async def test_a_poll_in_a_loop_takes_the_records_that_follow(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 1:
                seen += [each.offset for each in await consumer.poll(max_records=3)]
            if record.offset == 5:
                break
        assert seen == list(range(RECORDS))


async def test_what_an_iteration_has_not_reached_is_not_read_once_it_is_unassigned(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        async for _ in consumer:
            consumer.assign([T1])
            break
        assert {record.partition for record in await consumer.poll(2_000)} == {1}
        assert await consumer.poll(100) == []


# -- errors


async def test_records_before_a_malformed_batch_come_before_its_error(
    world: World, cluster: ScriptedCluster
) -> None:
    good, _, last = cluster.logs[T0]
    cluster.logs[T0] = [good, malformed(2), batch(3, b"3"), last]
    async with await consume(cluster) as consumer:
        for _ in range(2):
            consumer.seek(T0, 0)
            assert [record.offset for record in await consumer.poll(2_000)] == [0, 1]
            for call in (consumer.poll, consumer.arrow):
                with pytest.raises(CorruptData, match=r"t-0 at offset 2: .*seek past it"):
                    await call(timeout_ms=2_000)
                assert await consumer.position(T0) == 2
        consumer.seek(T0, 0)
        assert (await consumer.arrow(timeout_ms=2_000)).num_rows == 2
        with pytest.raises(CorruptData):
            await consumer.arrow()
        consumer.seek(T0, 3)
        assert [record.offset for record in await consumer.poll(2_000)] == [3, 4, 5]


async def test_records_of_one_partition_are_not_lost_to_an_error_in_another(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.logs[T1] = [malformed(0)]
    async with await consume(cluster, T0, T1) as consumer:
        found: list[Record] = []

        async def read_on() -> None:
            while True:
                found.extend(await consumer.poll(2_000))

        with pytest.raises(CorruptData, match="t-1 at offset 0"):
            await read_on()
        assert [(record.partition, record.offset) for record in found] == [
            (0, offset) for offset in range(RECORDS)
        ]


class _Interrupt(BaseException):
    pass


async def test_an_interrupt_while_records_are_read_loses_none(
    world: World, cluster: ScriptedCluster
) -> None:
    calls = 0

    def interrupt(value: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise _Interrupt
        return value

    async with await consume(cluster, T0, T1, value_deserializer=interrupt) as consumer:
        with pytest.raises(_Interrupt):
            await consumer.poll(2_000)
        found: list[Record] = []
        while len(found) < 2 * RECORDS:
            found += await consumer.poll(2_000)
        assert sorted(record.value for record in found) == sorted(
            b"%d/%d" % (partition, offset) for partition in (0, 1) for offset in range(RECORDS)
        )


# -- deserializers


async def test_deserializers_make_objects_of_all_but_nulls(
    world: World, cluster: ScriptedCluster
) -> None:
    builder = BatchBuilder(1 << 20)
    for key, value in ((b"a", b"1"), (None, b"[2]"), (b"", None)):
        assert builder.append(1_000, key, value, [("h", b"v")])
    built = bytearray(builder.build())
    restamp(built, 0, 0, 0)
    cluster.logs[T0] = [bytes(built)]
    options: dict[str, Any] = {"key_deserializer": bytes.decode, "value.deserializer": json.loads}
    async with await consume(cluster, **options) as consumer:
        records = await consumer.poll()
        assert [(record.key, record.value) for record in records] == [
            ("a", 1),
            (None, [2]),
            ("", None),
        ]
        assert [record.headers for record in records] == [[("h", b"v")]] * 3
        consumer.seek(T0, 0)
        table = await consumer.arrow(columns=["key", "value"], timeout_ms=2_000)
        assert table.to_pylist()[0] == {"key": b"a", "value": b"1"}, "arrow has bytes"


async def test_a_deserializer_may_get_topic_and_headers(
    world: World, cluster: ScriptedCluster
) -> None:
    class Telling:
        def deserialize(self, topic: str, headers: Headers, data: bytes) -> object:
            return topic, list(headers), data

    builder = BatchBuilder(1 << 20)
    assert builder.append(1_000, b"k", b"1", [("h", b"v")])
    assert builder.append(1_000, None, b"2", ())
    built = bytearray(builder.build())
    restamp(built, 0, 0, 0)
    cluster.logs[T0] = [bytes(built)]
    options: dict[str, Any] = {"key_deserializer": Telling(), "value_deserializer": Telling()}
    async with await consume(cluster, **options) as consumer:
        first, second = await consumer.poll()
        assert first.key == ("t", [("h", b"v")], b"k")
        assert first.value == ("t", [("h", b"v")], b"1")
        assert (second.key, second.value) == (None, ("t", [], b"2"))


@pytest.mark.kip(334)
@pytest.mark.kip(1036)
async def test_a_record_that_is_not_deserialized_keeps_its_place(
    world: World, cluster: ScriptedCluster
) -> None:
    def refuse_three(value: bytes) -> str:
        if value == b"0/3":
            raise ZeroDivisionError("three")
        return value.decode()

    async with await consume(cluster, value_deserializer=refuse_three) as consumer:
        assert [record.value for record in await consumer.poll()] == ["0/0", "0/1", "0/2"]
        for call in (consumer.poll, consumer.poll, lambda: iterate(consumer, 1)):
            with pytest.raises(NotDeserialized, match=r"t-0 at offset 3.* value .*three") as caught:
                await call()
            assert await consumer.position(T0) == 3
        error = caught.value
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.part, error.record[:3], error.record.value) == ("value", ("t", 0, 3), b"0/3")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        consumer.seek(T0, error.record.offset + 1)
        assert await iterate(consumer, 2) == [4, 5]


async def test_a_key_that_is_not_deserialized_is_named(
    world: World, cluster: ScriptedCluster
) -> None:
    builder = BatchBuilder(1 << 20)
    assert builder.append(1_000, b"\xff", b"", ())
    cluster.logs[T0] = [bytes(builder.build())]
    async with await consume(cluster, key_deserializer=bytes.decode) as consumer:
        with pytest.raises(NotDeserialized, match="of its key raised UnicodeDecodeError"):
            await consumer.poll()


async def _coroutine(value: bytes) -> bytes:
    return value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"key_deserializer": 7}, "key_deserializer=7: is of type int; give a function from bytes"),
        ({"value_deserializer": _coroutine}, "is a coroutine function"),
        ({"value.deserializer": "org.x.StringDeserializer"}, "takes a function from bytes"),
        ({"value.deserializer": len, "value_deserializer": len}, "is given twice"),
        ({"value_serializer": len}, "value.serializer"),
    ],
    ids=["type", "coroutine", "class", "twice", "serializer"],
)
def test_what_is_no_deserializer_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        AsyncConsumer("a:1", **given)
    assert why in str(caught.value)


async def test_no_deserializer_leaves_bytes(world: World, cluster: ScriptedCluster) -> None:
    given = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    options: dict[str, Any] = {"key_deserializer": None, "value.deserializer": given}
    async with await consume(cluster, **options) as consumer:
        assert (await consumer.poll())[0].value == b"0/0"


# -- columns


async def test_a_table_has_all_fields_of_every_record(
    world: World, cluster: ScriptedCluster
) -> None:
    builder = BatchBuilder(1 << 20)
    assert builder.append(-1, b"k", None, [("h", None), ("i", b"")])
    assert builder.append(2**62, None, b"v", ())
    appended = bytearray(batch(2, b"w"))
    stamp_append_time(appended, 0, 7_000)
    cluster.logs[T0] = [bytes(builder.build()), bytes(appended)]
    async with await consume(cluster, T0, T1) as consumer:
        rows: list[tuple[object, ...]] = []
        while len(rows) < 3 + RECORDS:
            table = await consumer.arrow()
            table.validate(full=True)
            assert table.column_names == [
                *("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type"),
                "headers",
            ]
            at = table.column_names.index("timestamp")
            table = table.set_column(at, "timestamp", table.column("timestamp").cast("int64"))
            rows += [tuple(row.values()) for row in table.to_pylist()]
        consumer.seek_to_beginning()
        records: list[Record] = []
        while len(records) < len(rows):
            records += await consumer.poll(2_000)
    assert sorted(rows, key=lambda row: row[3:5]) == [
        (
            *(record.key, record.value, record.topic, record.partition, record.offset),
            *(record.timestamp, int(record.timestamp_type)),
            [{"key": key, "value": value} for key, value in record.headers] or None,
        )
        for record in sorted(records, key=lambda record: record[1:3])
    ]
    assert {row[6] for row in rows} == {0, 1}


async def test_a_table_has_the_columns_asked_for_and_decodes_no_others(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.logs[T0] = [batch(0, *[b"v" * 1_000] * 10)]
    async with await consume(cluster) as consumer:
        table = await consumer.arrow(columns=["offset", "partition"])
        assert table.schema.names == ["offset", "partition"]
        assert table.column("offset").to_pylist() == list(range(10))
        assert table.get_total_buffer_size() < 1_000
        consumer.seek(T0, 0)
        table = await consumer.arrow(columns=iter(["value"]), timeout_ms=2_000)
        assert table.schema.names == ["value"]
        assert table.get_total_buffer_size() < 11_000


async def test_a_table_is_cut_after_the_batch_that_fills_it(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.logs[T0] = [batch(offset, b"v" * 1_000) for offset in range(5)]
    cluster.logs[T1] = [batch(offset, b"w" * 1_000) for offset in range(5)]
    async with await consume(cluster, T0, T1) as consumer:
        sizes: list[int] = []
        while sum(sizes) < 10:
            table = await consumer.arrow(max_bytes=2_000)
            sizes.append(table.num_rows)
            assert await consumer.position(T0) + await consumer.position(T1) == sum(sizes)
        assert sizes == [2, 2, 2, 2, 2]
        consumer.seek(T0, 3)
        assert (await consumer.arrow(max_bytes=1, timeout_ms=2_000)).num_rows == 1
        assert [record.offset for record in await consumer.poll()] == [4]


async def test_a_table_begins_where_a_poll_ended_and_a_poll_where_a_table_did(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        assert len(await consumer.poll(max_records=1)) == 1
        table = await consumer.arrow(max_bytes=1, columns=["offset"])
        assert table.column("offset").to_pylist() == [1]
        assert [record.offset for record in await consumer.poll(max_records=1)] == [2]
        table = await consumer.arrow(columns=["offset"])
        assert table.column("offset").to_pylist() == [3, 4, 5]


async def test_without_data_a_table_is_empty_and_has_its_columns(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.seek(T0, RECORDS)
        begin = world.loop.time()
        table = await consumer.arrow(timeout_ms=1_700, columns=["value"])
        assert world.loop.time() - begin == pytest.approx(1.7)
        assert (table.num_rows, table.schema.names) == (0, ["value"])
        consumer.seek(T0, 0)
        consumer.pause(T0)
        assert (await consumer.arrow(timeout_ms=100)).num_rows == 0
        consumer.resume(T0)
        assert (await consumer.arrow(timeout_ms=2_000)).num_rows == RECORDS


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"columns": "value"}, "columns='value': give a list of names"),
        ({"columns": 7}, "columns=7: give a list of names"),
        ({"columns": ["values"]}, "there is no column 'values'; there are key, value"),
        ({"columns": [b"value"]}, "there is no column b'value'"),
        ({"columns": []}, "name at least one column"),
        ({"columns": ["key", "key"]}, "each once"),
        ({"max_bytes": 0}, "max_bytes=0: must be from 1"),
        ({"max_bytes": 1.5}, "max_bytes=1.5"),
        ({"timeout_ms": "1"}, "timeout_ms='1'"),
    ],
    ids=str,
)
async def test_wrong_arguments_of_arrow_are_refused_and_change_nothing(
    world: World, cluster: ScriptedCluster, given: dict[str, Any], why: str
) -> None:
    async with await consume(cluster) as consumer:
        with pytest.raises(UsageError) as caught:
            await consumer.arrow(**given)
        assert why in str(caught.value)
        assert (await consumer.arrow()).num_rows == RECORDS


async def test_without_pyarrow_only_arrow_is_refused(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with await consume(cluster) as consumer:
        with pytest.raises(UsageError, match=r"arrow\(\) needs pyarrow"):
            await consumer.arrow()
        assert len(await consumer.poll()) == RECORDS


async def test_a_thousand_partitions_make_few_pieces_of_a_table(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.leaders["t"] = [0] * 1_000
    partitions = [TopicPartition("t", number) for number in range(1_000)]
    cluster.logs = {each: [batch(0, b"%d" % each.partition)] for each in partitions}
    async with await consume(cluster, *partitions) as consumer:
        table = await consumer.arrow()
        assert table.num_rows == 1_000
        assert table.column("value").num_chunks <= 2
        assert table.column("value").to_pylist() == [
            b"%d" % number for number in table.column("partition").to_pylist()
        ]


# -- lag


async def test_lag_is_known_from_fetch_responses(world: World, cluster: ScriptedCluster) -> None:
    async with await consume(cluster, T0, T1, max_partition_fetch_bytes=1) as consumer:
        assert consumer.lag() == {T0: None, T1: None}
        assert len(await consumer.poll(max_records=1)) == 1
        asked = len(broker_of(cluster).requests(ListOffsetsRequest))
        assert consumer.lag([T0]) == {T0: RECORDS - await consumer.position(T0)}
        while await consumer.poll(1_000):
            pass
        assert consumer.lag() == {T0: 0, T1: 0}
        cluster.logs[T0].append(batch(RECORDS, b"more"))
        consumer.pause(T0, T1)
        consumer.seek(T0, 1)
        assert consumer.lag() == {T0: None, T1: 0}
        assert len(broker_of(cluster).requests(ListOffsetsRequest)) == asked
        with pytest.raises(UsageError, match="t-7 is not assigned"):
            consumer.lag([("t", 7)])


async def test_the_end_of_an_empty_response_counts_for_lag(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, auto_offset_reset="latest") as consumer:
        assert await consumer.poll(1_000) == []
        assert consumer.lag() == {T0: 0}


@pytest.mark.kip(98)
async def test_lag_of_committed_records_ends_at_the_first_open_transaction(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = broker_of(cluster)

    def fetch(request: FetchRequest) -> FetchResponse:
        response = broker.fetch(request)
        for topic in response.responses:
            for data in topic.partitions:
                data.last_stable_offset = 4
        return response

    broker.answers[FetchRequest] = fetch
    for level, left in (("read_committed", 3), ("read_uncommitted", 5)):
        async with await consume(cluster, isolation_level=level) as consumer:
            await consumer.poll(max_records=1)
            assert consumer.lag() == {T0: left}
        broker.stop()
