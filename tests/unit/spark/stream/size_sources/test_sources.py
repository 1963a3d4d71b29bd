"""Where sizes come from: a scan, probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import pytest

from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchHeader
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import SizeRequest, SizeSource
from trimtab.spark.stream.size_sources.probe import LogSizes, Probe
from trimtab.spark.stream.size_sources.scan import Scan

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Two brokers and a topic of two partitions, with 40 and 3 record batches."""
    with Cluster(brokers=2) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(servers) as producer:
            for partition, count in ((0, 40), (1, 3)):
                for number in range(count):
                    producer.send("t", bytes(100 + number), partition=partition, timestamp=number)
                    producer.flush()
        yield servers


def stored(servers: str, partition: TopicPartition) -> list[Piece]:
    """The record batches as a consumer finds them."""
    from trimtab.kafka.wire.batch_cy import read_headers

    found: list[Piece] = []
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while not found or found[-1].next_offset < end:
            batches = consumer.fetch_batches(1000)
            assert batches is not None
            found += [
                Piece(each.next_offset, each.size, each.max_timestamp)
                for each in read_headers(batches.data)
            ]
    return found


def look_for_all(
    source: SizeSource, wanted: Mapping[TopicPartition, SizeRequest]
) -> dict[TopicPartition, list[Piece]]:
    found: dict[TopicPartition, list[Piece]] = {partition: [] for partition in wanted}
    left = dict(wanted)
    changed = set(wanted)
    while left:
        found_now = source.find(left, changed)
        changed = set()
        for partition, start, pieces in found_now:
            changed.add(partition)
            assert start == left[partition].start
            found[partition] += pieces
            if pieces:
                left[partition] = left[partition]._replace(start=pieces[-1].next_offset)
            if left[partition].start >= left[partition].end:
                del left[partition]
    source.close()
    return found


def test_a_scan_finds_the_record_batches(servers: str) -> None:
    source = Scan({"bootstrap.servers": servers})
    found = look_for_all(source, {ZERO: SizeRequest(0, 40, 10**6), ONE: SizeRequest(1, 3, 10**6)})
    assert found[ZERO] == stored(servers, ZERO)
    assert found[ONE] == stored(servers, ONE)[1:]
    costs = sum(piece.size for pieces in found.values() for piece in pieces)
    # The scan's first read of partition 1 may begin before what is wanted.
    assert source.bytes_read == costs


@pytest.mark.parametrize("kind", [Scan, Probe])
def test_what_was_deleted_is_passed_over(servers: str, kind: type[Scan]) -> None:
    with Admin(servers) as admin:
        admin.create_topic(kind.name, partitions=1)
    partition = TopicPartition(kind.name, 0)
    with Producer(servers) as producer:
        for _ in range(5):
            producer.send(kind.name, b"x")
            producer.flush()
    delete_records(servers, partition, 3)
    source = kind({"bootstrap.servers": servers})
    found = look_for_all(source, {partition: SizeRequest(0, 5, 10**6)})[partition]
    assert found[0] == Piece(3, 0)
    assert [each.next_offset for each in found] == [3, 4, 5]
    source = kind({"bootstrap.servers": servers})
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        source.find({partition: SizeRequest(9, 10, 100)}, [partition])
    source.close()


def delete_records(servers: str, partition: TopicPartition, offset: int) -> None:
    """As Kafka's tools do it; none of our clients does."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=partition.topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
                ],
            )
        ],
        timeout_ms=10_000,
    )
    with Admin(servers) as admin:
        leader = admin.describe_topics([partition.topic])[partition.topic].leaders[0]
        connections = admin._client._session.connections
        response = admin._thread.run(connections.request, leader, request, 21)
    assert response.topics[0].partitions[0].error_code == 0


def test_probes_estimate_and_say_by_how_much_they_may_be_wrong(servers: str) -> None:
    """Forty record batches, each a byte larger than the one before."""
    source = Probe({"bootstrap.servers": servers})
    source._logs.size = lambda partition: 0  # type: ignore[method-assign]
    found = look_for_all(source, {ZERO: SizeRequest(0, 40, 10**6)})[ZERO]
    exact = stored(servers, ZERO)
    total = sum(piece.size for piece in exact)
    size, error = sum(piece.size for piece in found), sum(piece.error for piece in found)
    assert found[-1].next_offset == 40
    assert found[0] == exact[0]
    assert 0 < error < total / 20
    assert abs(size - total) <= error
    assert 0 < source.bytes_read < total / 2
    source = Probe({"bootstrap.servers": servers})
    found = look_for_all(source, {ONE: SizeRequest(0, 3, 100)})[ONE]
    assert [each[:2] for each in found] == [each[:2] for each in stored(servers, ONE)]


def test_the_size_of_the_whole_log_tells_what_probes_have_missed(servers: str) -> None:
    partition = TopicPartition("spikes", 0)
    with Admin(servers) as admin:
        admin.create_topic("spikes", partitions=1)
    with Producer(servers, linger_ms=10_000) as producer:
        for number in range(400):  # one record of a hundred has nearly all bytes
            producer.send("spikes", bytes(100_000 if number % 100 == 50 else 100))
            if number % 10 == 9 or number % 100 in (49, 50):
                producer.flush()
    total = sum(piece.size for piece in stored(servers, partition))
    wanted = {partition: SizeRequest(0, 400, 10**6)}
    for seed in range(5):
        source = Probe({"bootstrap.servers": servers})
        source._random = Random(seed)
        found = look_for_all(source, wanted)[partition]
        assert sum(piece.size for piece in found) > total / 2


def test_without_the_sizes_of_logs_there_is_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[BrokerError] = []

    def refuse(self: Admin) -> None:
        refusals.append(BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no", "cluster"))
        raise refusals[-1]

    monkeypatch.setattr(Admin, "describe_log_dirs", refuse)
    now = [0.0]
    sizes = LogSizes({"bootstrap.servers": "127.0.0.1:1"}, lambda: now[0])
    assert sizes.size(ZERO) == 0
    now[0] += 3600
    assert sizes.size(ZERO) == 0
    assert len(refusals) == caplog.text.count("the brokers do not tell the sizes of logs") == 1
    sizes.close()


def test_a_scan_reads_only_what_is_wanted(servers: str) -> None:
    source = Scan({"bootstrap.servers": servers})
    wanted = {ZERO: SizeRequest(0, 40, 10**6), ONE: SizeRequest(0, 3, 10**6)}
    look_for_one = {ZERO: wanted[ZERO]}
    source.find(wanted, wanted)
    source.find(look_for_one, [ONE])
    assert source._consumer.paused() == {ONE}
    source.find(wanted, [ONE])
    assert source._consumer.paused() == set()
    source.close()


def test_probes_behind_the_last_record_end_there(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Probe({"bootstrap.servers": servers})
    probe = source._probe

    def behind(partition: TopicPartition, offset: int) -> list[BatchHeader] | None:
        return [] if offset >= 3 else probe(partition, offset)

    monkeypatch.setattr(source, "_probe", behind)
    found = look_for_all(source, {ONE: SizeRequest(0, 5, 10**6)})[ONE]
    assert [each.next_offset for each in found] == [1, 2, 3, 5]
    assert found[-1].size == 0


def test_a_scan_behind_the_last_record_ends_there(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scan({"bootstrap.servers": servers})
    monkeypatch.setattr("trimtab.spark.stream.size_sources.scan.POLL_MS", 20)
    monkeypatch.setattr(Consumer, "lag", lambda self, wanted: dict.fromkeys(wanted, 2))
    found = look_for_all(source, {ONE: SizeRequest(0, 5, 10**6)})[ONE]
    assert [each.next_offset for each in found] == [1, 2, 3, 5]
    assert found[-1].size == 0


def test_probes_take_turns() -> None:
    """Each look is about one partition, whatever their number; who is done is left out."""
    partitions = [TopicPartition("t", number) for number in range(5)]
    source = Probe({"bootstrap.servers": "127.0.0.1:1"})
    asked: list[TopicPartition] = []

    def probe(partition: TopicPartition, offset: int) -> None:
        asked.append(partition)

    source._probe = probe  # type: ignore[method-assign]
    source._logs.size = lambda partition: 0  # type: ignore[method-assign]
    wanted = dict.fromkeys(partitions, SizeRequest(0, 1, 10))
    source.find(wanted, partitions)
    for _ in range(4):
        source.find(wanted, ())
    assert list(dict.fromkeys(asked)) == partitions
    asked.clear()
    del wanted[partitions[1]]
    changed = [partitions[1]]
    for _ in range(5):
        source.find(wanted, changed)
        changed = []
    assert list(dict.fromkeys(asked)) == [p for p in partitions if p != partitions[1]]
    source.close()
