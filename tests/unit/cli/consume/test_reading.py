from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trimtab import Admin, BrokerError, Cluster, Consumer, LogTruncation, Producer, TopicPartition
from trimtab.cli.consume import reading
from trimtab.cli.consume.reading import (
    Bounds,
    Source,
    Span,
    find_span,
    read_bounds,
    read_last,
    read_span,
    read_time,
)
from trimtab.cli.stopping import Stop
from trimtab.client.blocking.merged_records import merge_split
from trimtab.client.partitioner.split_records import SPLIT_HEADER, write_split
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record
from trimtab.threads.clock import monotonic_clock

NOW = 1_769_846_400_000


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW - 90_000),
        ("1h30m", NOW - 5_400_000),
        ("0.5d", NOW - 43_200_000),
        ("2w", NOW - 14 * 86_400_000),
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T08:00", 1_769_846_400_000),
        ("2026-01-31T08:00:00.5+02:00", 1_769_839_200_500),
        ("2026-01-31", 1_769_817_600_000),
    ],
)
def test_times_are_long_ago_or_dates_in_utc(text: str, at: int) -> None:
    assert read_time("--since", text, NOW) == at


@pytest.mark.parametrize("text", ["", "x", "1h x", "h", "-1h", "1y", "2026-13-01", "²"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .*: write so long ago, such as 90s"):
        read_time("--since", text, NOW)


def bounds_of(**given: Any) -> Bounds:
    options = {"last": None, "since": None, "until": None, "follow": False, **given}
    return read_bounds(argparse.Namespace(**options), NOW)


def test_times_that_contradict_each_other_are_refused() -> None:
    assert bounds_of(since="1h", until="30m") == (None, NOW - 3_600_000, NOW - 1_800_000, False)
    with pytest.raises(UsageError, match="--since 1h is not before --until 2h"):
        bounds_of(since="1h", until="2h")
    with pytest.raises(UsageError, match="--until 1h does not go with --follow"):
        bounds_of(until="1h", follow=True)


# on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def consumer(cluster: Cluster) -> Iterator[Consumer]:
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        yield consumer


Fill = Callable[..., list[TopicPartition]]


@pytest.fixture
def fill(cluster: Cluster, request: pytest.FixtureRequest) -> Fill:
    """Creates a topic of records with these partitions and timestamps."""

    def fill(*records: tuple[int, int], partitions: int = 3) -> list[TopicPartition]:
        topic = request.node.name.replace("[", "-").replace("]", "")
        with (
            Admin(cluster.bootstrap_servers) as admin,
            Producer(cluster.bootstrap_servers) as producer,
        ):
            admin.create_topic(topic, partitions=partitions)
            for number, (partition, timestamp) in enumerate(records):
                producer.send(topic, b"%d" % number, partition=partition, timestamp=timestamp)
        return [TopicPartition(topic, each) for each in range(partitions)]

    return fill


def whole(consumer: Consumer, partitions: list[TopicPartition], **bounds: Any) -> Span:
    return find_span(consumer, partitions, Bounds(**bounds))


def last(
    consumer: Consumer, span: Span, count: int, is_wanted: Callable[[Record], bool] | None = None
) -> list[int]:
    """The numbers of the records that --last finds."""
    with Stop() as stop:
        found = read_last(consumer, span, count, is_wanted or (lambda _: True), stop)
    return [int(record.value) for record in found]


def read_on(source: Source) -> None:
    while True:
        source.poll()


def test_a_span_has_the_offsets_of_the_times(consumer: Consumer, fill: Fill) -> None:
    partitions = fill(*((number % 2, 1000 + number) for number in range(10)))
    assert [*whole(consumer, partitions).values()] == [(0, 5), (0, 5), (0, 0)]
    assert [*whole(consumer, partitions, since=1004).values()] == [(2, 5), (2, 5), (0, 0)]
    assert [*whole(consumer, partitions, until=1005).values()] == [(0, 3), (0, 2), (0, 0)]
    assert [*whole(consumer, partitions, since=2000).values()] == [(5, 5), (5, 5), (0, 0)]
    assert [*whole(consumer, partitions, since=-5, until=9999).values()] == [(0, 5), (0, 5), (0, 0)]


@pytest.mark.parametrize("count", [1, 7, 50, 1000, 5000])
def test_the_newest_of_all_partitions_are_found(consumer: Consumer, fill: Fill, count: int) -> None:
    chance = random.Random(count)
    # Partition 0 has old records only, most of the new ones are in partition 2.
    records = [
        *((0, 1_000_000 + number) for number in range(500)),
        *((chance.choice([1, 2, 2, 2, 2, 3]), 2_000_000 + number) for number in range(1500)),
    ]
    span = whole(consumer, fill(*records, partitions=4))
    assert last(consumer, span, count) == [*range(2000)][-count:]


def test_the_newest_that_match_are_found_however_far_back(consumer: Consumer, fill: Fill) -> None:
    span = whole(consumer, fill(*((number % 3, 1000 + number) for number in range(3000))))
    found = last(consumer, span, 3, lambda record: int(record.value) < 300)
    assert found == [297, 298, 299]
    assert last(consumer, span, 3, lambda record: False) == []
    bounded = whole(consumer, [*span], since=1100, until=1200)
    assert last(consumer, bounded, 2) == [198, 199]


def test_times_out_of_order_within_a_window_do_not_hide_a_record(
    consumer: Consumer, fill: Fill
) -> None:
    records = [(0, 9000), *((0, 1000) for _ in range(10)), *((1, 5000) for _ in range(200))]
    span = whole(consumer, fill(*records, partitions=2))
    assert last(consumer, span, 2)[-1] == 0


def test_the_newest_records_of_a_large_topic_cost_little(consumer: Consumer, fill: Fill) -> None:
    span = whole(consumer, fill(*((number % 3, number) for number in range(60_000))))
    assert last(consumer, span, 10) == [*range(59_990, 60_000)]
    read = consumer.metrics()["consumer-fetch-manager-metrics"]["records-consumed-total"]
    assert isinstance(read, float)
    assert read < 1000


def test_markers_at_the_end_do_not_keep_reading_open(cluster: Cluster, fill: Fill) -> None:
    partitions = fill(partitions=1)
    topic = partitions[0].topic
    with Producer(cluster.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction]):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            producer.flush()
            ends()
    with (
        Consumer(
            cluster.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="none",
        ) as consumer,
        Stop() as stop,
    ):
        span = whole(consumer, partitions)
        assert span == {partitions[0]: (0, 4)}
        assert [record.value for record in read_span(consumer, span, stop)] == [b"0"]
        assert last(consumer, span, 5) == [0]


def test_records_behind_the_end_are_not_read(
    cluster: Cluster, consumer: Consumer, fill: Fill
) -> None:
    partitions = fill(*((0, number) for number in range(100)))
    span = whole(consumer, partitions, until=50)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(partitions[0].topic, b"late", partition=0)
    with Stop() as stop:
        assert len([*read_span(consumer, span, stop)]) == 50


def test_what_was_deleted_before_it_was_read_is_said(
    cluster: Cluster, consumer: Consumer, fill: Fill, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = fill(*((number % 3, number) for number in range(300)))
    span = whole(consumer, partitions)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_records({partitions[1]: 30})
    with Stop() as stop:
        assert len([*read_span(consumer, span, stop)]) == 270
    said = capsys.readouterr().err
    assert said == f"{partitions[1]}: offsets 0 to 29 were deleted before they were read\n"


def test_a_topic_that_was_deleted_or_created_again_is_an_error(
    cluster: Cluster, consumer: Consumer, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "GONE_S", 0.5)
    partitions = fill(*((0, number) for number in range(100)), partitions=1)
    source = Source(consumer, {partitions[0]: (0, 1000)})
    consumer.assign(partitions)
    source.seek(partitions[0], 0)
    assert len(source.poll(5000)) == 100
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_topic(partitions[0].topic)
        with pytest.raises(BrokerError, match="the topic was deleted meanwhile"):
            read_on(source)
        patient = Source(consumer, None, waits=True)
        ends = monotonic_clock() + 1
        while monotonic_clock() < ends:
            assert patient.poll() == []
        monkeypatch.setattr(reading, "GONE_S", 60)
        admin.create_topic(partitions[0].topic, partitions=1)
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(200):
                producer.send(partitions[0].topic, b"other")
        admin.delete_records({partitions[0]: 150})  # these are not the records that were deleted
    with pytest.raises(LogTruncation, match="deleted and created again"):
        read_on(source)


def test_an_offset_behind_the_end_is_an_error(consumer: Consumer, fill: Fill) -> None:
    partitions = fill((0, 1), partitions=1)
    source = Source(consumer, {partitions[0]: (5, 10)})
    consumer.assign(partitions)
    source.seek(partitions[0], 5)
    with pytest.raises(BrokerError, match="offset 5 is not in the log"):
        read_on(source)


def test_merged_records_are_read_up_to_the_ends(
    cluster: Cluster, consumer: Consumer, fill: Fill
) -> None:
    partitions = fill(partitions=2)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(200):
            headers = [(SPLIT_HEADER, write_split(7, number, 0))]
            where = number * number % 3 % 2
            producer.send(partitions[0].topic, b"%d" % number, partition=where, headers=headers)
    span = whole(consumer, partitions)
    source = Source(consumer, span, merge_split(consumer))
    consumer.assign(partitions)
    for partition in partitions:
        source.seek(partition, 0)
    read: list[int] = []
    while not source.is_over:
        read += [int(record.value) for record in source.poll()]
    assert read == [*range(200)]


def test_ctrl_c_ends_reading_between_two_polls(consumer: Consumer, fill: Fill) -> None:
    span = whole(consumer, fill(*((0, number) for number in range(2000))))
    with Stop() as stop:
        records = read_span(consumer, span, stop)
        next(records)
        stop.code = 130
        assert len([*records]) < 1999
        assert read_last(consumer, span, 5, bool, stop) == []
