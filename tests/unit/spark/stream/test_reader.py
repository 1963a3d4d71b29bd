"""The stream reader, driven as Spark drives it, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from trimtab import Admin, Cluster, Producer
from trimtab.cluster.storage.properties import encode_uuid
from trimtab.kafka.errors import DataLoss
from trimtab.spark.options.source import read_stream_options
from trimtab.spark.stream.offsets import STATE
from trimtab.spark.stream.reader import TopicStreamReader

COLUMNS = [("partition", True), ("offset", True), ("batchBaseOffset", True), ("batchBytes", True)]
SKEWED = "skewed"
LIMIT = 100_000
PATIENCE = 100
"""Looks for a batch before a test gives up."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Two brokers and a topic of four partitions, most of whose bytes are in one."""
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(SKEWED, partitions=4)
        fill(cluster.bootstrap_servers, SKEWED, 400)
        yield cluster.bootstrap_servers


def fill(servers: str, topic: str, records: int) -> None:
    with Producer(servers, linger_ms=0, batch_size=4096) as producer:
        for number in range(records):
            partition = number % 4 if number % 10 == 9 else 0
            producer.send(topic, bytes(20_000 if number % 7 == 0 else 100), partition=partition)


def reader(servers: str, **options: str) -> TopicStreamReader:
    given = {"kafka.bootstrap.servers": servers, "subscribe": SKEWED, "startingOffsets": "earliest"}
    return TopicStreamReader(read_stream_options(given | options), COLUMNS)


class Query:
    """What Spark's engine does with a reader: offsets pass through JSON, and a copy reads."""

    def __init__(self, made: TopicStreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = made
        self._copy = pickle.loads(pickle.dumps(made))
        self.start = made.initialOffset() if start is None else start
        self.batches: list[list[tuple[int, ...]]] = []
        self.tasks: list[list[int]] = []
        self.states: list[dict[str, Any]] = []

    def step(self, takes_all: bool = False) -> bool:
        """Whether there was a batch."""
        limit = ReadAllAvailable() if takes_all else self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.start, limit)))
        latest = self.reader.reportLatestOffset()
        if json.dumps(end) == json.dumps(self.start):
            return False
        assert latest is not None
        self.states.append(latest[STATE])
        rows, tasks = [], []
        for partition in self.reader.partitions(self.start, end):
            found = [
                tuple(row.values())
                for batch in self._copy.read(partition)
                for row in batch.to_pylist()
            ]
            tasks.append(size_of(found))
            rows += found
        self.batches.append(rows)
        self.tasks.append(tasks)
        self.start = end
        return True

    @property
    def read(self) -> list[tuple[int, int]]:
        return sorted((row[0], row[1]) for rows in self.batches for row in rows)


def size_of(rows: list[tuple[int, ...]]) -> int:
    """Bytes of the record batches that the rows come from."""
    return sum({(p, base): size for p, _, base, size in rows}.values())


def there(servers: str, topic: str = SKEWED) -> list[tuple[int, int]]:
    with Admin(servers) as admin:
        ends = admin.list_offsets([(topic, n) for n in range(4)])
    return sorted((p.partition, n) for p, end in ends.items() for n in range(end.offset))


def test_batches_are_bounded_in_bytes_and_every_record_is_read_once(servers: str) -> None:
    """Available now, restarted in the middle; the driver's second life knows only the offsets."""
    options = {"maxBytesPerTrigger": str(LIMIT), "maxBytesPerPartition": "30000"}
    first = reader(servers, **options)
    first.prepareForTriggerAvailableNow()
    query = Query(first)
    expected = there(servers)
    for _ in range(3):
        assert query.step()
    first.stop()
    second = reader(servers, **options)
    second.prepareForTriggerAvailableNow()
    rest = Query(second, query.start)
    while rest.step():
        pass
    second.stop()
    assert sorted(query.read + rest.read) == expected
    sizes_read = [size_of(rows) for rows in query.batches + rest.batches]
    assert max(sizes_read) <= LIMIT
    assert min(sizes_read[:-1]) > LIMIT - 21_000  # one more record batch has no room
    states = query.states + rest.states
    assert [state["batchBytes"] for state in states] == sizes_read
    assert {state["sizeSource"] for state in states} == {"scan"}
    assert states[-1]["lagRecords"] == states[-1]["lagBytes"] == 0
    assert states[0]["lagRecords"] == len(expected) - len(query.batches[0])
    assert states[-1]["lagBytesIsEstimate"] is False
    for tasks in query.tasks + rest.tasks:
        assert max(tasks) <= 30_000
        assert tasks == sorted(tasks, reverse=True)


def test_a_stream_goes_on_as_records_come(servers: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic("growing", partitions=4)
    made = reader(servers, subscribe="growing", maxBytesPerTrigger=str(LIMIT))
    query = Query(made)
    assert not query.step()
    for _ in range(3):
        fill(servers, "growing", 30)
        while query.read != there(servers, "growing"):
            query.step()
    made.stop()


def test_a_topic_that_is_made_again_is_noticed(servers: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic("again", partitions=4)
        fill(servers, "again", 10)
        query = Query(reader(servers, subscribe="again"))
        assert query.step()
        query.reader.stop()
        admin.delete_topic("again")
        admin.create_topic("again", partitions=4)
    fill(servers, "again", 50)
    careful = Query(reader(servers, subscribe="again"), query.start)
    with pytest.raises(DataLoss, match="topic again was deleted and created again"):
        careful.step()
    careful.reader.stop()
    bold = Query(reader(servers, subscribe="again", failOnDataLoss="false"), query.start)
    assert bold.step()
    assert bold.read == there(servers, "again")
    bold.reader.stop()


def test_available_now_reads_no_record_of_a_topic_that_is_made_again_in_the_middle(
    servers: str,
) -> None:
    with Admin(servers) as admin:
        admin.create_topic("middle", partitions=4)
        was = encode_uuid(admin.describe_topics(["middle"])["middle"].topic_id)
        fill(servers, "middle", 100)
        query = Query(reader(servers, subscribe="middle", maxOffsetsPerTrigger="50"))
        query.reader.prepareForTriggerAvailableNow()
        assert query.step()
        end = query.reader.latestOffset(query.start, query.reader.getDefaultReadLimit())
        planned = query.reader.partitions(query.start, end)
        admin.delete_topic("middle")
        admin.create_topic("middle", partitions=4)
        now = encode_uuid(admin.describe_topics(["middle"])["middle"].topic_id)
    fill(servers, "middle", 100)
    both = f"its id was {was} and is {now} now"
    with pytest.raises(DataLoss, match=both):
        list(query.reader.read(planned[0]))
    with pytest.raises(DataLoss, match=both):
        query.reader.latestOffset(end, query.reader.getDefaultReadLimit())
    query.reader.stop()
    # The driver is started again, and Spark has it plan the unfinished batch again.
    again = reader(servers, subscribe="middle")
    with pytest.raises(DataLoss, match=both):
        list(again.read(again.partitions(query.start, end)[0]))
    again.stop()


def test_limits_in_offsets_alone_count_no_bytes(servers: str) -> None:
    query = Query(reader(servers, maxOffsetsPerTrigger="100"))
    assert query.step()
    assert query.step(takes_all=True)
    assert 100 <= len(query.batches[0]) <= 104
    assert query.read == there(servers)
    assert "batchBytes" not in query.states[0]
    query.reader.stop()


def test_one_task_reads_all_partitions_of_a_batch(servers: str) -> None:
    query = Query(reader(servers, maxPartitions="1", maxBytesPerTrigger=str(LIMIT)))
    assert query.step()
    assert query.step(takes_all=True)
    query.reader.stop()
    assert [len(tasks) for tasks in query.tasks] == [1, 1]
    assert len({row[0] for row in query.batches[1]}) > 1
    assert query.read == there(servers)
    assert query.states[0]["batchBytes"] == size_of(query.batches[0]) <= LIMIT


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(2**20)),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows(7)),
        ({"minBytesPerTrigger": "7"}, ReadMinRows(1)),
    ],
)
def test_spark_learns_whether_there_is_a_limit(options: dict[str, str], limit: object) -> None:
    assert reader("x:1", **options).getDefaultReadLimit() == limit


def test_brokers_that_go_away_are_ridden_out_and_the_bytes_stay_bounded() -> None:
    with Cluster(brokers=2) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("carried", partitions=4, replication_factor=2)
        fill(servers, "carried", 100)
        expected = there(servers, "carried")
        options = {"kafka.default.api.timeout.ms": "3000", "maxBytesPerTrigger": str(LIMIT)}
        query = Query(reader(servers, subscribe="carried", **options))
        for _ in range(2):
            assert any(query.step() for _ in range(PATIENCE))  # a request may time out
        cluster.stop_broker(0)
        # The other one leads, as soon as all have learned of it.
        assert any(query.step() for _ in range(PATIENCE))
        cluster.stop_broker(1)
        assert not query.step()
        cluster.start_broker(1)
        cluster.start_broker(0)
        for _ in range(PATIENCE):
            if query.read != expected:
                query.step()
        assert query.read == expected
        assert max(map(size_of, query.batches)) <= LIMIT
        query.reader.stop()
