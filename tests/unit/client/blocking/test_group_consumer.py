"""The consumer for threads in a group: callbacks on the thread that polls, commits, and the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number, partition=number % 2)
        yield cluster


def member(cluster: Cluster, group: str, **options: object) -> Consumer:
    options = {"auto_offset_reset": "earliest", "group_id": group, **options}
    return Consumer({"bootstrap_servers": cluster.bootstrap_servers, **options})


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(record.value or b"") for record in consumer.poll(1000)]
    return sorted(found)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_in_turn_and_callbacks_that_call_the_consumer(
    cluster: Cluster, protocol: str
) -> None:
    threads: list[threading.Thread] = []
    revoked: list[list[TopicPartition]] = []

    with member(cluster, f"turns-{protocol}", group_protocol=protocol) as consumer:

        def on_assigned(partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            if TopicPartition("t", 1) in partitions:
                consumer.seek(("t", 1), 7)
                assert consumer.position(("t", 1)) == 7

        def on_revoked(partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            consumer.commit({("t", 0): 4})
            revoked.append(partitions)

        consumer.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
        assert read(consumer, 13) == sorted([*range(0, 20, 2), 15, 17, 19])
        assert consumer.group_metadata().group_id == f"turns-{protocol}"
        assert consumer.group_metadata().member_id
    assert revoked == [[TopicPartition("t", 0), TopicPartition("t", 1)]]
    assert set(threads) == {threading.current_thread()}
    with member(cluster, f"turns-{protocol}") as successor:
        committed = successor.committed([("t", 0), ("t", 1)])
        assert [given and given.offset for given in committed.values()] == [4, 10]


def test_an_iteration_commits_what_it_has_reached(cluster: Cluster) -> None:
    with member(cluster, "iteration") as consumer:
        consumer.subscribe(["t"])
        for count, _ in enumerate(consumer, 1):
            if count == 5:
                break
    with member(cluster, "iteration") as consumer:
        committed = consumer.committed([("t", 0), ("t", 1)])
        assert sum(given.offset for given in committed.values() if given) == 5


def test_an_error_in_a_callback_is_raised_and_the_consumer_goes_on(cluster: Cluster) -> None:
    def fail(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    async def wait(partitions: list[TopicPartition]) -> None:
        pass

    with member(cluster, "errors") as consumer:
        consumer.subscribe(["t"], on_assigned=fail)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(20_000)
        assert len(read(consumer, 20)) == 20
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.subscribe(["t"], on_assigned=wait)
        with pytest.raises(UsageError, match="AsyncConsumer"):
            consumer.poll(20_000)


def test_callbacks_that_poll_or_close_their_consumer(cluster: Cluster) -> None:
    errors: list[str] = []
    calls: list[str] = []

    def poll(partitions: list[TopicPartition]) -> None:
        try:
            consumer.poll()
        except UsageError as error:
            errors.append(str(error))

    def close(partitions: list[TopicPartition]) -> None:
        calls.append("close")
        consumer.close()

    with member(cluster, "nested") as consumer:
        consumer.subscribe(["t"], on_assigned=poll, on_revoked=poll)
        assert len(read(consumer, 20)) == 20
        consumer.unsubscribe()
        assert [error.partition(":")[0] for error in errors] == [
            "poll() in a callback of subscribe(), which poll() waits for"
        ] * 2
        consumer.assign([("t", 0)])  # whose end calls nobody back
        consumer.assign([])
        consumer.subscribe(["t"], on_assigned=close, on_revoked=close)
        with pytest.raises(UsageError, match="closed"):
            consumer.poll(20_000)
    assert calls == ["close"]


def test_a_member_that_nobody_closes_leaves_its_group(cluster: Cluster) -> None:
    consumer = member(cluster, "dropped")
    consumer.subscribe(["t"])
    assert len(read(consumer, 20)) == 20
    with pytest.warns(ResourceWarning):
        del consumer
    with member(cluster, "dropped") as successor:
        successor.subscribe(["t"])
        assert len(read(successor, 20)) == 20, "it has committed nothing, and its session is 45 s"
