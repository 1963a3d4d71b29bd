"""Learning how many bytes lie ahead of a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest

from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.broker import handlers
from trimtab.errors import BrokerError, ErrorCode, Unavailable
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.sizes import (
    Ahead,
    Exact,
    Found,
    Listing,
    Probe,
    Scan,
    Sizes,
    Source,
    Wanted,
)
from trimtab.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
PATIENCE = 20.0


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
    source: Source, wanted: Mapping[TopicPartition, Wanted]
) -> dict[TopicPartition, list[Piece]]:
    found: dict[TopicPartition, list[Piece]] = {partition: [] for partition in wanted}
    left = dict(wanted)
    while left:
        for partition, start, pieces, _ in source.look(left):
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
    found = look_for_all(source, {ZERO: Wanted(0, 40, 10**6), ONE: Wanted(1, 3, 10**6)})
    assert found[ZERO] == stored(servers, ZERO)
    assert found[ONE] == stored(servers, ONE)[1:]
    costs = sum(piece.size for pieces in found.values() for piece in pieces)
    # The scan's first read of partition 1 may begin before what is wanted; the listing reads none.
    assert source.bytes_read == (0 if source.name == "broker" else costs)


def test_brokers_that_list_no_sizes_are_scanned(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apis = {key: each for key, each in handlers.HANDLERS.items() if key != 32_001}
    monkeypatch.setattr("trimtab.broker.broker.HANDLERS", apis)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", b"x")
        source = Exact({"bootstrap.servers": cluster.bootstrap_servers})
        assert source.name == "broker"
        found = look_for_all(source, {ZERO: Wanted(0, 1, 100)})
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
    found = look_for_all(source, {partition: Wanted(0, 5, 10**6)})[partition]
    assert found[0] == Piece(3, 0)
    assert [each.next_offset for each in found] == [3, 4, 5]
    source = kind({"bootstrap.servers": servers})
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        source.look({partition: Wanted(9, 10, 100)})
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
        connections = admin._admin._session.connections
        response = admin._thread.run(connections.request(leader, request, 21))
    assert response.topics[0].partitions[0].error_code == 0


def test_small_record_batches_are_remembered_as_one() -> None:
    ahead = Ahead(0, 100)
    ahead.add([Piece(n + 1, 10, n) for n in range(10)], grain=30)
    assert ahead.pieces == [Piece(3, 30, 0), Piece(6, 30, 3), Piece(9, 30, 6), Piece(10, 10, 9)]
    ahead.add([Piece(10, 10), Piece(11, 500), Piece(12, 1)], grain=30)
    assert [piece.size for piece in ahead.pieces] == [30, 30, 30, 10, 500, 1]
    assert (ahead.size, ahead.known_to) == (601, 12)


def test_probes_estimate_and_say_by_how_much_they_may_be_wrong(servers: str) -> None:
    """Forty record batches, each a byte larger than the one before."""
    source = Probe({"bootstrap.servers": servers})
    found = look_for_all(source, {ZERO: Wanted(0, 40, 10**6)})[ZERO]
    exact = stored(servers, ZERO)
    total = sum(piece.size for piece in exact)
    size, error = sum(piece.size for piece in found), sum(piece.error for piece in found)
    assert found[-1].next_offset == 40
    assert found[0] == exact[0]
    assert 0 < error < total / 20
    assert abs(size - total) <= error
    assert 0 < source.bytes_read < total / 4
    source = Probe({"bootstrap.servers": servers})
    found = look_for_all(source, {ONE: Wanted(0, 3, 100)})[ONE]
    assert [each[:2] for each in found] == [each[:2] for each in stored(servers, ONE)]


def test_what_was_asked_for_stays_as_it_is() -> None:
    ahead = Ahead(0, 100)
    ahead.add([Piece(1, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10)]
    ahead.add([Piece(2, 10), Piece(3, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10), Piece(3, 20)]
    assert ahead.until(2) == [Piece(1, 10), Piece(2, 20)]  # all of it counts
    ahead.advance(1)
    assert (ahead.pieces, ahead.size) == ([Piece(3, 20)], 20)


class Played:
    """A source that waits until it is told what it has found."""

    name, tails, bytes_read = "played", False, 0

    def __init__(self) -> None:
        self.asked: list[Mapping[TopicPartition, Wanted]] = []
        self.answers: list[list[Found] | Exception] = []
        self.may_answer = threading.Semaphore(0)
        self.is_closed = threading.Event()

    def look(self, wanted: Mapping[TopicPartition, Wanted]) -> list[Found]:
        self.asked.append(dict(wanted))
        self.may_answer.acquire()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed.set()

    def play(self, answer: list[Found] | Exception) -> None:
        self.answers.append(answer)
        self.may_answer.release()


def test_sizes_are_learned_for_two_batches_and_no_more() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0, ONE: 0}, {ZERO: 1000, ONE: 1000})
    source.play([Found(ZERO, 0, [Piece(n, 50) for n in range(1, 11)])])
    assert not sizes.await_fair(100, 0.0)  # partition 1 may have as much
    source.play([Found(ONE, 0, [Piece(1, 60)])])
    assert sizes.await_fair(100, PATIENCE)
    source.play([Found(ONE, 1, [Piece(2, 60)])])
    assert sizes.await_known({ONE: 2}, PATIENCE)
    assert set(source.asked[0]) == {ZERO, ONE}
    assert [set(each) for each in source.asked[1:3]] == [{ONE}, {ONE}]
    assert source.asked[1][ONE] == Wanted(0, 1000, 200)
    assert source.asked[2][ONE] == Wanted(1, 1000, 140)
    # Both have more than half of two batches. As the stream goes on, more is wanted.
    sizes.follow({ZERO: 8, ONE: 0}, {ZERO: 1000, ONE: 1000})
    source.play([])
    source.play([])
    sizes.close()
    assert source.is_closed.wait(PATIENCE)


def test_a_stream_that_goes_elsewhere_is_followed() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play([Found(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_known({ZERO: 10}, PATIENCE)
    assert sizes.knows({ZERO: 0}, {ZERO: 10})
    sizes.follow({ZERO: 70}, {ZERO: 1000})
    assert not sizes.knows({ZERO: 70}, {ZERO: 71})
    source.play([Found(ZERO, 10, [Piece(75, 500)])])  # late
    source.play([Found(ZERO, 70, [Piece(80, 7)])])
    assert sizes.await_known({ZERO: 80}, PATIENCE)
    assert sizes.pieces({ZERO: 80}) == {ZERO: [Piece(80, 7)]}
    source.play([])
    sizes.close()


def test_errors_of_the_source_reach_who_waits_and_it_is_asked_again() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play(Unavailable("nobody answers"))
    with pytest.raises(Unavailable, match="nobody answers"):
        sizes.await_fair(100, PATIENCE)
    source.play([Found(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_fair(100, PATIENCE)
    sizes.close()


def test_a_source_that_cannot_be_made_is_an_error_and_is_tried_again() -> None:
    source = Played()
    made: list[Source | BrokerError] = [BrokerError(ErrorCode.REQUEST_TIMED_OUT, "late"), source]

    def make() -> Source:
        first = made.pop(0)
        if isinstance(first, BrokerError):
            raise first
        return first

    sizes = Sizes(make, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    with pytest.raises(BrokerError, match="late"):
        sizes.await_fair(100, PATIENCE)
    source.play([Found(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_fair(100, PATIENCE)
    sizes.close()


def test_a_source_that_breaks_is_an_error_whenever_sizes_are_waited_for() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play(ZeroDivisionError("a bug"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            sizes.await_fair(100, PATIENCE)
    assert source.is_closed.wait(PATIENCE)
