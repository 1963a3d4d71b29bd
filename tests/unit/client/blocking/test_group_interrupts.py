"""Ctrl-C at every line of a call of a consumer in a group: it goes on, or is closed, as ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import CodeType

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.group.handover import Change, Kind
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.records import Record, TopicPartition

PARTITIONS = 2
RECORDS = 20

protocols = pytest.mark.parametrize(
    "protocol",
    [
        {"group_protocol": "classic", "heartbeat_interval_ms": 100},
        {"group_protocol": "consumer"},
    ],
    ids=["classic", "consumer"],
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1, config={"group.consumer.heartbeat.interval.ms": 100}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", PARTITIONS)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


def is_ours(code: CodeType) -> bool:
    return code.co_filename.endswith(
        ("/consumer.py", "/reader.py", "/subscriber.py", "/consumer_metrics.py", "/handover.py")
    )


def member(cluster: Cluster, group: str, protocol: dict[str, object]) -> Consumer:
    options = {"auto_offset_reset": "earliest", "group_id": group, **protocol}
    return Consumer({"bootstrap_servers": cluster.bootstrap_servers, **options})


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = consumer.poll(10_000)
        assert records, f"{len(found)} of {count} records, then nothing for 10 s"
        found += numbers(records)
    return found


def sweep(step: Callable[[int, Callable[[Callable[[], object]], None]], None]) -> int:
    """Repeat a scene, with Ctrl-C at one line later each time, until the call ends before.

    Args:
        step: one scene; makes the call with the function that it is given.
    """
    number = 0
    place: str | None = ""
    while place is not None:
        number += 1

        def call(function: Callable[[], object]) -> None:
            nonlocal place
            place = interrupt_at(number, function, is_ours)  # noqa: B023

        try:
            step(number, call)
        except BaseException as error:
            error.add_note(f"interrupted at step {number}: {place}")
            raise
    return number - 1


@protocols
def test_a_poll_that_joins(cluster: Cluster, admin: Admin, protocol: dict[str, object]) -> None:
    """Afterwards it reads every record once, and commits them at its end."""
    name = f"joins-{'-'.join(map(str, protocol.values()))}"

    def scene(number: int, call: Callable[[Callable[[], object]], None]) -> None:
        assigned: list[int] = []
        group = f"{name}-{number}"
        with member(cluster, group, protocol) as consumer:
            consumer.subscribe(
                ["t"], on_assigned=lambda those: assigned.extend(p.partition for p in those)
            )
            found: list[int] = []
            call(lambda: found.extend(numbers(consumer.poll(10_000, max_records=3))))
            found += read(consumer, RECORDS - len(found))
            assert sorted(found) == list(range(RECORDS))
            assert consumer.poll(0) == []
            assert set(assigned) == set(range(PARTITIONS))
        committed = admin.list_group_offsets(group)
        assert [at.offset for at in committed.values()] == [RECORDS // PARTITIONS] * PARTITIONS

    assert sweep(scene) > 50


@protocols
def test_a_close(cluster: Cluster, admin: Admin, protocol: dict[str, object]) -> None:
    """Closing once more leaves the group, and what was read is committed, or read again."""
    name = f"closes-{'-'.join(map(str, protocol.values()))}"

    def scene(number: int, call: Callable[[Callable[[], object]], None]) -> None:
        group = f"{name}-{number}"
        consumer = member(cluster, group, protocol)
        consumer.subscribe(["t"])
        assert sorted(read(consumer, RECORDS)) == list(range(RECORDS))
        call(consumer.close)
        consumer.close()
        assert admin.describe_groups([group])[group].state == "Empty"
        offsets = [at.offset for at in admin.list_group_offsets(group).values()]
        assert offsets in ([], [RECORDS // PARTITIONS] * PARTITIONS)

    assert sweep(scene) > 10


@protocols
def test_a_close_that_ctrl_c_interrupts_at_once_commits_in_the_background(
    cluster: Cluster,
    admin: Admin,
    protocol: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = f"closes-at-once-{'-'.join(map(str, protocol.values()))}"
    consumer = member(cluster, group, protocol)
    consumer.subscribe(["t"])
    assert len(read(consumer, RECORDS)) == RECORDS

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer, "_run_here", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    consumer.close()
    assert admin.describe_groups([group])[group].state == "Empty"
    offsets = [at.offset for at in admin.list_group_offsets(group).values()]
    assert offsets == [RECORDS // PARTITIONS] * PARTITIONS


def test_a_poll_that_hands_over(cluster: Cluster) -> None:
    """The next poll hands over: what was read is committed, and the partition let go of."""
    gone = TopicPartition("t", 0)
    revoked: list[list[TopicPartition]] = []
    with member(cluster, "hands-over", {"group_protocol": "classic"}) as consumer:
        consumer.subscribe(["t"], on_revoked=revoked.append)
        assert len(read(consumer, RECORDS)) == RECORDS
        group = consumer._client._group
        assert group is not None

        async def offer(kind: Kind) -> asyncio.Task[None]:
            return asyncio.create_task(group.handover.offer(Change(kind, frozenset([gone]))))

        def scene(number: int, call: Callable[[Callable[[], object]], None]) -> None:
            revoked.clear()
            offering = consumer._thread.run(offer, Kind.REVOKED)
            call(lambda: consumer.poll(0))
            consumer.poll(0)
            consumer._thread.run(asyncio.wait_for, offering, 10)
            assert consumer.assignment() == {TopicPartition("t", 1)}
            assert revoked
            assert set(map(tuple, revoked)) == {(gone,)}
            at = consumer.committed([gone])[gone]
            assert at is not None
            assert at.offset == RECORDS // PARTITIONS
            offering = consumer._thread.run(offer, Kind.ASSIGNED)
            consumer.poll(0)
            consumer._thread.run(asyncio.wait_for, offering, 10)
            assert consumer.position(gone) == RECORDS // PARTITIONS

        assert sweep(scene) > 30
