"""Where sizes come from: a scan, a listing, probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.broker import handlers
from trimtab.errors import BrokerError
from trimtab.records import TopicPartition
from trimtab.server.request import Handler
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.choice import Exact
from trimtab.spark.stream.size_sources.contract import SizeRequest, Source
from trimtab.spark.stream.size_sources.listing import Listing
from trimtab.spark.stream.size_sources.probe import Probe
from trimtab.spark.stream.size_sources.scan import Scan
from trimtab.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

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
    from trimtab.wire.batch_cy import read_headers

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
    source: Source, wanted: Mapping[TopicPartition, SizeRequest]
) -> dict[TopicPartition, list[Piece]]:
    found: dict[TopicPartition, list[Piece]] = {partition: [] for partition in wanted}
    left = dict(wanted)
    changed = set(wanted)
    while left:
        found_now = source.find(left, changed)
        changed = set()
        for partition, start, pieces, _ in found_now:
            changed.add(partition)
            assert start == left[partition].start
            found[partition] += pieces
            if pieces:
                left[partition] = left[partition]._replace(start=pieces[-1].next_offset)
            if left[partition].start >= left[partition].end:
                del left[partition]
    source.close()
    return found


@pytest.mark.parametrize("kind", [Scan, Listing, Exact])
def test_exact_sources_find_the_record_batches(servers: str, kind: type[Scan]) -> None:
    source = kind({"bootstrap.servers": servers})
    found = look_for_all(source, {ZERO: SizeRequest(0, 40, 10**6), ONE: SizeRequest(1, 3, 10**6)})
    assert found[ZERO] == stored(servers, ZERO)
    assert found[ONE] == stored(servers, ONE)[1:]
    costs = sum(piece.size for pieces in found.values() for piece in pieces)
    # The scan's first read of partition 1 may begin before what is wanted; the listing reads none.
    assert source.bytes_read == (0 if source.name == "broker" else costs)


def test_brokers_that_list_no_sizes_are_scanned(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_sizes(services: handlers.Services) -> dict[int, Handler]:
        apis = handlers.handlers_of(services)
        del apis[32_001]
        return apis

    monkeypatch.setattr("trimtab.broker.broker.handlers_of", without_sizes)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", b"x")
        source = Exact({"bootstrap.servers": cluster.bootstrap_servers})
        assert source.name == "broker"
        found = look_for_all(source, {ZERO: SizeRequest(0, 1, 100)})
        assert source.name == "scan"
        assert [piece.next_offset for piece in found[ZERO]] == [1]


@pytest.mark.parametrize("kind", [Scan, Listing, Probe])
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
    found = look_for_all(source, {ZERO: SizeRequest(0, 40, 10**6)})[ZERO]
    exact = stored(servers, ZERO)
    total = sum(piece.size for piece in exact)
    size, error = sum(piece.size for piece in found), sum(piece.error for piece in found)
    assert found[-1].next_offset == 40
    assert found[0] == exact[0]
    assert 0 < error < total / 20
    assert abs(size - total) <= error
    assert 0 < source.bytes_read < total / 4
    source = Probe({"bootstrap.servers": servers})
    found = look_for_all(source, {ONE: SizeRequest(0, 3, 100)})[ONE]
    assert [each[:2] for each in found] == [each[:2] for each in stored(servers, ONE)]


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


def test_probes_take_turns() -> None:
    """Each look is about one partition, whatever their number; who is done is left out."""
    partitions = [TopicPartition("t", number) for number in range(5)]
    source = Probe({"bootstrap.servers": "127.0.0.1:1"})
    asked: list[TopicPartition] = []

    def probe(partition: TopicPartition, offset: int) -> None:
        asked.append(partition)

    source._probe = probe  # type: ignore[method-assign]
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
