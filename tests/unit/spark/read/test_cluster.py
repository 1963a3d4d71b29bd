"""Reading offset ranges from an embedded cluster, without Spark."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.client.blocking import range_reader
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.fetcher.plan import Batches
from trimtab.client.fetcher.ranges import CONFIRMATIONS, Limits, OffsetRange
from trimtab.kafka.errors import BrokerError, DataLoss, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.source import SourceOptions, read_options
from trimtab.spark.read import cluster
from trimtab.spark.read.cluster import TopicLookup, ask_with_retries, find_ranges, read_ranges
from trimtab.spark.read.columns import arrow_schema, scan_columns
from trimtab.spark.resident import Residents

TOPIC, OTHER = "flights", "others"
COUNT = 60
"""Records in each of the topic's two partitions."""
BEGAN = 1_700_000_000_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=2) as running:
        servers = running.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(TOPIC, partitions=2)
            admin.create_topic(OTHER, partitions=1)
        with Producer(servers, batch_size=200) as producer:
            for number in range(COUNT):
                for partition in (0, 1):
                    producer.send(
                        TOPIC,
                        b"%d-%d" % (partition, number),
                        partition=partition,
                        timestamp=BEGAN + number,
                    )
            producer.send(OTHER, b"other", timestamp=BEGAN)
        yield servers


@pytest.fixture(autouse=True)
def residents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Residents[object]]]:
    """Those of this module, empty; what stays open is closed."""
    fresh: list[Residents[object]] = []
    opened: list[TopicLookup | Consumer] = []

    class Counting(Residents[object]):
        def _put_back(self, key: object, client: object) -> None:
            assert isinstance(client, TopicLookup | Consumer)
            if client not in opened:
                opened.append(client)
            super()._put_back(key, client)

    for name in ("_lookups", "_consumers"):
        close = getattr(cluster, name)._close
        fresh.append(Counting(close, start_timer=lambda seconds, call: None))
        monkeypatch.setattr(cluster, name, fresh[-1])
    yield fresh
    for client in opened:
        client.close()


def options(servers: str, **changes: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, **changes}
    return read_options({name: value for name, value in given.items() if value})


def values(wanted: SourceOptions, *ranges: OffsetRange) -> list[bytes]:
    found: list[bytes] = []
    for each in ranges:
        schema = arrow_schema([("value", True)])
        for batch in scan_columns(read_ranges(wanted, [each]), schema):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.column("value").to_pylist()
    return found


def test_ranges_by_time(servers: str) -> None:
    times = options(servers, startingTimestamp=str(BEGAN + 10), endingTimestamp=str(BEGAN + 20))
    assert find_ranges(times, Limits()).ranges == [OffsetRange(TOPIC, n, 10, 20) for n in (0, 1)]
    times = options(
        servers,
        startingOffsetsByTimestamp=f'{{"{TOPIC}":{{"0":{BEGAN + 5},"1":{BEGAN + 99}}}}}',
        startingOffsetsByTimestampStrategy="latest",
    )
    assert find_ranges(times, Limits()).ranges == [OffsetRange(TOPIC, 0, 5, COUNT)]
    with pytest.raises(UsageError, match=f"{TOPIC}-1: no record has timestamp {BEGAN + 99}"):
        find_ranges(replace(times, starting=replace(times.starting, or_latest=False)), Limits())  # type: ignore[type-var]


def test_pushed_filters_narrow_the_ranges(servers: str) -> None:
    limits = Limits(partitions=[1], since=BEGAN + 30)
    assert find_ranges(options(servers), limits).ranges == [OffsetRange(TOPIC, 1, 30, COUNT)]


def test_clients_stay_open_and_read_what_fresh_ones_read(servers: str) -> None:
    wanted = options(servers)
    ranges = find_ranges(wanted, Limits()).ranges
    assert find_ranges(wanted, Limits()).ranges == ranges
    pieces = [
        OffsetRange(TOPIC, partition, start, start + 7)
        for start in (0, 49, 7, 50, 0)
        for partition in (1, 0)
    ]
    expected = [
        b"%d-%d" % (each.partition, offset)
        for each in pieces
        for offset in range(each.start, each.end)
    ]
    assert values(wanted, *pieces) == expected
    lookups, consumers = cluster._lookups, cluster._consumers
    assert [len(idle) for idle in lookups._idle.values()] == [1]
    assert [len(idle) for idle in consumers._idle.values()] == [1]


EVERY = [
    OffsetRange(OTHER, 0, 0, 1),
    OffsetRange(TOPIC, 0, 3, COUNT),
    OffsetRange(TOPIC, 1, 0, 50),
]


def offsets(wanted: SourceOptions, *ranges: OffsetRange) -> dict[tuple[str, int], list[int]]:
    """What one task reads of each partition, in its order."""
    schema = arrow_schema([("topic", True), ("partition", True), ("offset", True)])
    found: dict[tuple[str, int], list[int]] = {}
    for batch in scan_columns(read_ranges(wanted, ranges), schema):
        for row in batch.to_pylist():
            found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return found


def covered(*ranges: OffsetRange) -> dict[tuple[str, int], list[int]]:
    return {(each.topic, each.partition): [*range(each.start, each.end)] for each in ranges}


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"kafka.fetch.max.bytes": "1"},  # one record batch in each answer
        {"kafka.max.partition.fetch.bytes": "1"},  # one of each partition
    ],
)
def test_a_task_reads_several_ranges_each_in_order(servers: str, limits: dict[str, str]) -> None:
    assert offsets(options(servers, **limits), *EVERY) == covered(*EVERY)
    (consumers,) = cluster._consumers._idle.values()
    assert len(consumers) == 1


def test_a_task_fetches_from_so_many_partitions_at_a_time(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_RANGES_AT_ONCE", 2)
    assigned: list[int] = []
    assign = Consumer.assign

    def count(self: Consumer, partitions: Collection[TopicPartition]) -> None:
        assigned.append(len(partitions))
        assign(self, partitions)

    monkeypatch.setattr(Consumer, "assign", count)
    assert offsets(options(servers), *EVERY) == covered(*EVERY)
    assert assigned == [2, 1]


@pytest.mark.parametrize("gone", [OffsetRange(OTHER, 0, 7, 9), OffsetRange("nowhere", 0, 0, 1)])
def test_data_loss_of_one_range_leaves_the_others(
    servers: str,
    gone: OffsetRange,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(range_reader, "_SLICE_MS", 50)
    monkeypatch.setattr(range_reader, "GONE_SECONDS", 0.15)
    ranges = [gone, *EVERY[1:]]
    found = offsets(options(servers, failOnDataLoss="false"), *ranges)
    assert found == covered(*EVERY[1:])
    assert f"{gone.topic}-0: offset" in caplog.text
    with pytest.raises(DataLoss, match=f"{gone.topic}-0: offset"):
        offsets(options(servers), *ranges)


@pytest.mark.parametrize(("earliest", "first_left"), [(10, 10), (COUNT, None)])
def test_a_range_whose_beginning_is_deleted_goes_on_where_the_log_begins(
    servers: str, earliest: int, first_left: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone", f"{TOPIC}-0")
    errors = [gone]
    fetch = Consumer.fetch_batches

    def fetch_batches(self: Consumer, timeout_ms: float) -> Batches | None:
        if errors:
            raise errors.pop()
        return fetch(self, timeout_ms)

    monkeypatch.setattr(Consumer, "fetch_batches", fetch_batches)
    monkeypatch.setattr(Consumer, "beginning_offsets", lambda self, asked: {asked[0]: earliest})
    left = [] if first_left is None else [OffsetRange(TOPIC, 0, first_left, COUNT)]
    found = offsets(options(servers, failOnDataLoss="false"), *EVERY)
    assert found == covered(EVERY[0], *left, EVERY[2])


def test_silence_of_several_partitions_counts_them(servers: str) -> None:
    beyond = [OffsetRange(OTHER, 0, 1, 2), OffsetRange(TOPIC, 0, COUNT, COUNT + 1)]
    quick = options(servers, **{"kafkaConsumer.pollTimeoutMs": "1"})
    with pytest.raises(
        Unavailable, match=r"no data came for offsets 1 to 2, nor from 1 others, within"
    ):
        list(read_ranges(quick, beyond))


def test_leaders_of_partitions_that_are_there(servers: str) -> None:
    found = find_ranges(options(servers), Limits()).leaders
    assert found.keys() == {TOPIC}
    assert sorted(found[TOPIC]) == [0, 1]


def test_nothing_is_fetched_beyond_the_range(servers: str) -> None:
    # A fetch at the end of the log would keep the next task waiting for fetch.max.wait.ms.
    wanted = options(servers)
    assert values(wanted, OffsetRange(OTHER, 0, 0, 1)) == [b"other"]
    (consumer,) = next(iter(cluster._consumers._idle.values()))
    assert isinstance(consumer, Consumer)

    async def let_it_fetch() -> set[int]:
        for _ in range(10):  # turns of the loop: what was taken is noted, then the next fetch sent
            await asyncio.sleep(0)
        return set(consumer._client._fetcher._busy)

    assert consumer._thread.run(let_it_fetch) == set()


def test_one_that_fails_or_is_left_early_is_not_used_again(servers: str) -> None:
    wanted = options(servers)
    buffers = read_ranges(wanted, [OffsetRange(TOPIC, 0, 0, COUNT)])
    next(buffers)
    buffers.close()  # type: ignore[attr-defined]
    with pytest.raises(DataLoss):
        list(read_ranges(wanted, [OffsetRange(OTHER, 0, 7, 9)]))
    assert not any(cluster._consumers._idle.values())


def test_offsets_that_go_while_reading(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    # Planned when the topic still had it, such as before it was deleted and created again.
    gone = OffsetRange(OTHER, 0, 7, 9)
    with pytest.raises(DataLoss, match="others-0: offset 7 is gone, the first one left is 0"):
        list(read_ranges(options(servers), [gone]))
    assert list(read_ranges(options(servers, failOnDataLoss="false"), [gone])) == []
    assert "offset 7 is gone" in caplog.text


def test_a_topic_that_is_hidden_for_a_while_is_not_lost(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not here", f"{OTHER}-0")] * 20
    slices: list[float] = []
    fetch = Consumer.fetch_batches

    def fetch_batches(self: Consumer, timeout_ms: float = 500) -> Batches | None:
        slices.append(timeout_ms)
        return None if len(slices) < len(hidden) else fetch(self, timeout_ms)

    monkeypatch.setattr(Consumer, "fetch_batches", fetch_batches)
    monkeypatch.setattr(Consumer, "problem", lambda self, partition: hidden.pop())
    for fails in ("true", "false"):
        slices.clear()
        wanted = options(servers, failOnDataLoss=fails)
        assert values(wanted, OffsetRange(OTHER, 0, 0, 1)) == [b"other"]
        hidden.extend([BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "nor here", f"{OTHER}-0")] * 19)


@pytest.mark.parametrize("last", ["a record", "an aborted one", "nothing"])
def test_a_range_that_ends_behind_the_last_record_ends_there(
    servers: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, is_slow = TopicPartition(OTHER, 0), last != "nothing"
    monkeypatch.setattr(Consumer, "end_offsets", lambda self, asked: dict.fromkeys(asked, 5))
    seeks: list[tuple[int, int]] = []
    seek, fetch = Consumer.seek, Consumer.fetch_batches
    kept: list[Batches] = []

    def note(self: Consumer, to: object, start: int, end: int, topic_id: bytes) -> None:
        seeks.append((start, end))
        seek(self, zero, start, end)

    def fetch_batches(self: Consumer, timeout_ms: float = 500) -> Batches | None:
        if not kept:
            kept.append(fetch(self, 10_000))  # type: ignore[arg-type]
            return kept[0]
        match seeks[-1]:
            case (4, 5):  # the last offset of the log
                data = kept[0].data if last == "a record" else memoryview(b"")
                return Batches(zero, 4, 5, 5, data, ((4, 0),) if is_slow else ())
            case (1, 3) if len(seeks) > 2:
                return Batches(zero, 1, 3, 5, kept[0].data)
        return None

    monkeypatch.setattr(Consumer, "seek", note)
    monkeypatch.setattr(Consumer, "fetch_batches", fetch_batches)
    monkeypatch.setattr(range_reader, "_QUIET_MS", 2)
    monkeypatch.setattr(range_reader, "_SLICE_MS", 1)
    given = options(servers)
    read = [each for each, _ in read_ranges(given, [OffsetRange(OTHER, 0, 0, 3)])]
    again = [OffsetRange(OTHER, 0, 1, 3)] * is_slow
    assert read == [OffsetRange(OTHER, 0, 0, 3), *again]
    assert seeks == [(0, 3), (4, 5), *([(1, 3)] * is_slow)]


def test_ranges_of_a_topic_that_was_created_again_are_not_read(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = find_ranges(options(servers), Limits())
    assert found.ids.keys() == {TOPIC}
    ((first, _), *_) = read_ranges(options(servers), found.ranges, found.ids)
    assert first in found.ranges
    ids = {TOPIC: b"\x11" * 16}
    again = r"flights-\d: offsets 0 to 60 are gone: .* its id was EREREREREREREREREREREQ and is "
    pauses: list[float] = []
    with pytest.raises(DataLoss, match=again):
        list(read_ranges(options(servers), found.ranges, ids, pauses.append))
    assert len(pauses) >= CONFIRMATIONS, "a broker may have old metadata"
    bold = options(servers, failOnDataLoss="false")
    assert list(read_ranges(bold, found.ranges, ids, pauses.append)) == []
    assert caplog.text.count("was EREREREREREREREREREREQ and is ") == len(found.ranges)


def test_silence_ends_in_an_error_that_says_where(servers: str) -> None:
    beyond = OffsetRange(OTHER, 0, 1, 2)  # the next record, which never comes
    with pytest.raises(Unavailable, match=r"others-0: .* offsets 1 to .*kafkaConsumer.pollTimeout"):
        list(read_ranges(options(servers, **{"kafkaConsumer.pollTimeoutMs": "1"}), [beyond]))


def test_a_partition_that_is_gone_is_data_loss_within_seconds(
    servers: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(range_reader, "_SLICE_MS", 50)
    monkeypatch.setattr(range_reader, "GONE_SECONDS", 0.15)
    for gone in (OffsetRange(OTHER, 9, 0, 1), OffsetRange("nowhere", 0, 0, 1)):
        with pytest.raises(DataLoss, match=rf"{gone.topic}-{gone.partition}: offsets 0 to 1 are"):
            list(read_ranges(options(servers), [gone]))
    assert list(read_ranges(options(servers, failOnDataLoss="false"), [gone])) == []
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subscribe": "nowhere"}, "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
        (
            {"subscribe": "", "assign": f'{{"{TOPIC}":[0,2]}}'},
            f"{TOPIC}-2: UNKNOWN_TOPIC_OR_PARTITION .* has only 2 partitions, numbered from 0",
        ),
    ],
)
def test_what_does_not_exist_is_said_after_the_attempts(
    servers: str, changes: dict[str, str], message: str
) -> None:
    wanted = options(servers, **{**changes, "fetchOffset.numRetries": "2"})
    pauses: list[float] = []
    with pytest.raises(BrokerError, match=message):
        ask_with_retries(wanted, lambda lookup: lookup.find_partitions(wanted), pauses.append)
    assert pauses == [1.0]


def test_a_listener_that_accepts_and_is_mute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONTACT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        wanted = options(address, **{"fetchOffset.numRetries": "1"})
        named = rf"{address}\) did not answer \(does its listener speak security.protocol=PLAINTEXT"
        with pytest.raises(Unavailable, match=named):
            find_ranges(wanted, Limits())


def test_a_dead_address_is_said_after_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONTACT_SECONDS", 0.5)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    wanted = options(dead, **{"fetchOffset.retryIntervalMs": "20"})
    pauses: list[float] = []
    with pytest.raises(Unavailable, match=dead):
        ask_with_retries(wanted, lambda lookup: lookup.find_partitions(wanted), pauses.append)
    assert pauses == [0.02, 0.02]


def test_a_question_that_the_client_repeated_for_long_is_not_asked_again(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))

    def question(lookup: TopicLookup) -> None:
        raise Unavailable("no leader within 60 s")

    with pytest.raises(Unavailable, match="no leader"):
        ask_with_retries(
            options(servers), question, lambda seconds: pytest.fail(f"waits for {seconds} s")
        )


def test_the_rack_is_resolved_where_the_task_runs(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = options(servers, clientRack="env:ZONE_OF_THIS_HOST")
    assert find_ranges(wanted, Limits()).ranges  # the driver has no rack
    with pytest.raises(UsageError, match="ZONE_OF_THIS_HOST"):
        values(wanted, OffsetRange(OTHER, 0, 0, 1))
    monkeypatch.setenv("ZONE_OF_THIS_HOST", "b")
    assert values(wanted, OffsetRange(OTHER, 0, 0, 1)) == [b"other"]
    ((key, (consumer,)),) = cluster._consumers._idle.items()
    assert ("client.rack", "b") in key  # type: ignore[operator]
    assert isinstance(consumer, Consumer)
    assert consumer._client.options.text("client.rack") == "b"


def test_bounds_are_those_of_the_partitions(servers: str) -> None:
    wanted = options(servers, subscribe="", subscribePattern="^(fl|oth)")
    found = ask_with_retries(
        wanted, lambda lookup: lookup.find_bounds(lookup.find_partitions(wanted)[0])
    )
    assert found == {
        TopicPartition(TOPIC, 0): (0, COUNT),
        TopicPartition(TOPIC, 1): (0, COUNT),
        TopicPartition(OTHER, 0): (0, 1),
    }
