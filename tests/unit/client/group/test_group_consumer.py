"""Consumers in groups, of both protocols, against trimtab's brokers, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.cluster.broker.coordinator_topic import partition_of
from trimtab.kafka.errors import BrokerError, UsageError
from trimtab.kafka.records import Record, TopicPartition

__all__ = ["lab"]

QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
}
PROTOCOLS = [
    {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "classic", "partition_assignment_strategy": "sticky"},
    {"group_protocol": "consumer"},
]
both = pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=["range", "cooperative", "sticky", "consumer"]
)


def consumer(lab: Lab, name: str = "c", **options: Any) -> AsyncConsumer:
    options = {"auto_offset_reset": "earliest", "group_id": "g", **options}
    return AsyncConsumer("127.0.0.1:9092", random=lab.world.random(name), **options)


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


async def read(reader: AsyncConsumer, count: int) -> list[int]:
    found: list[Record] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            found += await reader.poll(1000)
    return numbers(found)


async def fill(lab: Lab, partitions: int = 4, topic: str = "t") -> None:
    await lab.create_topic(topic, partitions)
    for partition in range(partitions):
        await lab.append(
            topic, *(b"%d" % (10 * partition + n) for n in range(10)), partition=partition
        )


def partitions(*indexes: int, topic: str = "t") -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in indexes}


@both
def test_a_member_reads_everything_and_its_successor_goes_on_behind_it(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, **protocol) as first:
            first.subscribe(["t"])
            assert await read(first, 40) == list(range(40))
            assert first.assignment() == partitions(0, 1, 2, 3)
        await lab.append("t", b"40", partition=2)
        async with consumer(lab, **protocol) as second:
            second.subscribe(["t"])
            assert await read(second, 1) == [40]
            committed = await second.committed(partitions(0, 2))
            assert {p.partition: c and c.offset for p, c in committed.items()} == {0: 10, 2: 10}
            assert {c and c.leader_epoch for c in committed.values()} == {0}
            await second.commit()  # also of partitions that it has read nothing of
            committed = await second.committed(partitions(0, 2))
            assert {p.partition: c and c.offset for p, c in committed.items()} == {0: 10, 2: 11}
            assert {c and c.leader_epoch for c in committed.values()} == {0}

    lab.run(scenario, config=QUICK)


@pytest.mark.kip(320)
def test_offsets_are_committed_with_the_leader_epochs_of_what_was_read(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        await lab.create_topic("u")
        async with consumer(lab) as first:
            first.subscribe(["t"])
            await read(first, 40)
            wanted: dict[TopicPartition, int | OffsetAndMetadata] = {
                TopicPartition("t", 0): 10,
                TopicPartition("t", 1): 11,  # not read
                TopicPartition("t", 2): OffsetAndMetadata(5, leader_epoch=3),
                TopicPartition("u", 0): 1,
            }
            await first.commit(wanted)
            committed = await first.committed(wanted)
            assert [c and (c.offset, c.leader_epoch) for c in committed.values()] == [
                (10, 0),
                (11, -1),
                (5, 3),
                (1, -1),
            ]

    lab.run(scenario, config=QUICK)


@both
def test_two_members_share_the_partitions_until_one_leaves(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await fill(lab)
        events: list[tuple[str, str, list[int]]] = []

        def note(name: str, what: str) -> Any:
            return lambda those: events.append((name, what, [p.partition for p in those]))

        def member(name: str) -> AsyncConsumer:
            made = consumer(lab, name, **protocol)
            made.subscribe(
                ["t"],
                on_assigned=note(name, "assigned"),
                on_revoked=note(name, "revoked"),
                on_lost=note(name, "lost"),
            )
            return made

        one, two = member("one"), member("two")
        seen = await read(one, 40)
        stop, changed = asyncio.Event(), asyncio.Event()

        async def poll(reader: AsyncConsumer) -> None:
            while not stop.is_set():
                seen.extend(numbers(await reader.poll(200)))
                changed.set()

        async def until(condition: Any) -> None:
            async with asyncio.timeout(100):
                while not condition():
                    changed.clear()
                    await changed.wait()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poll(one))
            tasks.create_task(poll(two))
            await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
            assert one.assignment() | two.assignment() == partitions(0, 1, 2, 3)
            stop.set()
        await one.close()
        stop.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poll(two))
            await until(lambda: len(two.assignment()) == 4)
            stop.set()
        await two.close()
        assert sorted(seen) == list(range(40)), "nothing is read twice: offsets were committed"
        assert not [event for event in events if event[1] == "lost"]
        owned: dict[str, set[int]] = {"one": set(), "two": set()}
        for name, what, those in events:
            if what == "assigned":
                owned[name] |= set(those)
                assert not owned["one"] & owned["two"], events
            else:
                owned[name] -= set(those)
        assert owned == {"one": set(), "two": set()}

    lab.run(scenario, config=QUICK)


def test_what_an_iteration_has_not_reached_is_not_committed(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 1)
        async with consumer(lab) as first:
            first.subscribe(["t"])
            async for record in first:
                if record.offset == 3:
                    break
        async with consumer(lab) as second:
            second.subscribe(["t"])
            assert await read(second, 6) == [4, 5, 6, 7, 8, 9]

    lab.run(scenario, config=QUICK)


def test_after_an_error_the_records_of_the_last_poll_are_read_again(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 1)

        async def fail_after_polls() -> None:
            async with consumer(lab) as first:
                first.subscribe(["t"])
                assert len(await first.poll(10_000, max_records=4)) == 4
                assert len(await first.poll(10_000, max_records=4)) == 4
                raise ZeroDivisionError

        async def fail_in_an_iteration() -> None:
            async with consumer(lab) as second:
                second.subscribe(["t"])
                async for record in second:
                    if record.offset == 6:
                        raise ZeroDivisionError

        for fail in (fail_after_polls, fail_in_an_iteration):
            with pytest.raises(ZeroDivisionError):
                await fail()
        async with consumer(lab) as third:
            third.subscribe(["t"])
            assert await read(third, 4) == [6, 7, 8, 9]

    lab.run(scenario, config=QUICK)


def test_an_iteration_that_is_left_and_taken_up_again_commits_what_it_has_reached(
    lab: Lab,
) -> None:
    async def scenario() -> None:
        await fill(lab, 1)
        async with consumer(lab) as first:
            first.subscribe(["t"])
            for last in (2, 5):
                async for record in first:
                    if record.offset == last:
                        break
                await first.commit()
                committed = await first.committed([("t", 0)])
                assert [c and c.offset for c in committed.values()] == [last + 1]
        async with consumer(lab) as second:
            second.subscribe(["t"])
            assert await read(second, 4) == [6, 7, 8, 9]

    lab.run(scenario, config=QUICK)


@both
def test_exactly_what_tables_held_is_committed(lab: Lab, protocol: dict[str, Any]) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, **protocol, auto_commit_interval_ms=0) as first:
            first.subscribe(["t"])
            ends: dict[TopicPartition, int] = {}
            while not ends:
                table = await first.arrow(1, 10_000)
                for row in table.select(["partition", "offset"]).to_pylist():
                    ends[TopicPartition("t", row["partition"])] = row["offset"] + 1
            await first.arrow(1, 10_000)  # commits the first table
            await asyncio.sleep(1)
            committed = await first.committed(list(ends))
            assert {p: c and c.offset for p, c in committed.items()} == ends
            assert {await first.position(each) for each in partitions(0, 1)} == {10}

    lab.run(scenario, config=QUICK)


def test_after_an_error_the_last_table_is_read_again(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 1)

        async def fail() -> None:
            async with consumer(lab) as first:
                first.subscribe(["t"])
                assert await read(first, 10) == list(range(10))
                await lab.append("t", b"10", b"11")
                assert (await first.arrow(timeout_ms=10_000)).num_rows == 2
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with consumer(lab) as second:
            second.subscribe(["t"])
            assert await read(second, 2) == [10, 11]

    lab.run(scenario, config=QUICK)


def test_commit_says_what_was_processed(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, enable_auto_commit=False) as first:
            first.subscribe(["t"])
            async for record in first:
                if record.partition == 0 and record.offset == 3:
                    await first.commit()
                    break
            await first.commit({("t", 1): 7})
        async with consumer(lab, enable_auto_commit=False) as second:
            committed = await second.committed([("t", 0), ("t", 1)])
            assert [c and c.offset for c in committed.values()] == [4, 7]
            second.assign([("t", 1)])
            assert await read(second, 3) == [17, 18, 19], "assign, too, begins there"

    lab.run(scenario, config=QUICK)


@both
def test_a_pattern_finds_topics_that_come_later(lab: Lab, protocol: dict[str, Any]) -> None:
    async def scenario() -> None:
        await fill(lab, 1, "a-1")
        await fill(lab, 1, "b-1")
        async with consumer(lab, **protocol, metadata_max_age_ms=2000) as reader:
            reader.subscribe(re.compile("a-[0-9]"))
            assert await read(reader, 10) == list(range(10))
            await fill(lab, 1, "a-2")
            assert await read(reader, 10) == list(range(10))
            assert reader.assignment() == {TopicPartition("a-1", 0), TopicPartition("a-2", 0)}

    lab.run(scenario, config=QUICK)


@both
def test_added_partitions_are_read(lab: Lab, protocol: dict[str, Any]) -> None:
    async def scenario() -> None:
        await fill(lab, 1)
        async with consumer(lab, **protocol, metadata_max_age_ms=2000) as reader:
            reader.subscribe(["t"])
            assert await read(reader, 10) == list(range(10))
            async with AsyncAdmin("127.0.0.1:9092") as admin:
                await admin.create_partitions("t", 2)
            await lab.append("t", b"77", partition=1)
            assert await read(reader, 1) == [77]

    lab.run(scenario, config=QUICK)


@both
def test_a_member_that_does_not_poll_loses_its_partitions(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        lost: list[TopicPartition] = []
        async with consumer(lab, **protocol, max_poll_interval_ms=9000) as slow:
            slow.subscribe(["t"], on_lost=lost.extend)
            assert await read(slow, 20) == list(range(20))
            await asyncio.sleep(30)
            async with consumer(lab, "other", **protocol) as other:
                other.subscribe(["t"])
                async with asyncio.timeout(60):
                    while len(other.assignment()) < 2:
                        await other.poll(100)
            await slow.poll(1000)
            assert set(lost) == partitions(0, 1)
            async with asyncio.timeout(60):
                while len(slow.assignment()) < 2:
                    await slow.poll(100)

    lab.run(scenario, config=QUICK)


@both
def test_groups_survive_their_coordinator(lab: Lab, protocol: dict[str, Any]) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", 2, replicas=2)
        for partition in range(2):
            await lab.append(
                "t", *(b"%d" % (10 * partition + n) for n in range(10)), partition=partition
            )
        async with AsyncConsumer(
            "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094",
            random=lab.world.random("c"),
            group_id="g",
            auto_offset_reset="earliest",
            **protocol,
        ) as reader:
            reader.subscribe(["t"])
            assert await read(reader, 20) == list(range(20))
            await reader.commit()
            leader = lab.controller.controller.image.topics["__consumer_offsets"]
            coordinator = leader.partitions[partition_of("g", 4)].leader
            await lab.brokers[coordinator].close(hand_over=False)
            await reader.commit({("t", 0): 5})
            committed = await reader.committed([("t", 0), ("t", 1)])
            assert [c and c.offset for c in committed.values()] == [5, 10]

    lab.run(scenario, brokers=3, config={**QUICK, "default.replication.factor": 2})


def test_members_of_load_share_bytes_not_partitions(lab: Lab) -> None:
    """Partition 0 is written as much as the three others together."""

    async def scenario() -> None:
        await lab.create_topic("t", 4)
        strategy = {"partition_assignment_strategy": "load"}
        async with consumer(lab, "one", **strategy) as one, consumer(lab, "two", **strategy) as two:
            one.subscribe(["t"])
            for _ in range(20):
                for partition, size in enumerate((3000, 1000, 1000, 1000)):
                    await lab.append("t", b"x" * size, partition=partition)
                await one.poll(1000)
                await asyncio.sleep(0.5)
            two.subscribe(["t"])
            async with asyncio.timeout(60):
                while not (one.assignment() and two.assignment()):
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(one.poll(100))
                        tasks.create_task(two.poll(100))
            shares = sorted((one.assignment(), two.assignment()), key=len)
            assert shares == [partitions(0), partitions(1, 2, 3)]

    lab.run(scenario, config=QUICK)


def test_wrong_uses_are_refused(lab: Lab) -> None:
    async def scenario() -> None:
        async with consumer(lab) as reader:
            reader.subscribe(["t"])
            with pytest.raises(UsageError, match="unsubscribe"):
                reader.assign([("t", 0)])
            await reader.unsubscribe()
            assert reader.subscription() == frozenset()
            reader.assign([("t", 0)])
            with pytest.raises(UsageError, match=r"assign\(\[\]\)"):
                reader.subscribe(["t"])
            for topics in ([], "", [1], re.compile(b"a"), None, 7):
                with pytest.raises(UsageError):
                    reader.subscribe(topics)  # type: ignore[arg-type]
            reader.assign([])
            with pytest.raises(UsageError, match=r"topics=\['\^t\.\*'\]: .* give re\.compile"):
                reader.subscribe(["^t.*"])
            with pytest.raises(UsageError, match=r"on_lost=3: .*, the list of partitions"):
                reader.subscribe(["t"], on_lost=3)  # type: ignore[arg-type]
        async with AsyncConsumer("127.0.0.1:9092") as alone:
            with pytest.raises(UsageError, match="group_id"):
                alone.subscribe(["t"])
            with pytest.raises(UsageError, match="group_id"):
                await alone.commit()

    lab.run(scenario)


@both
def test_a_poll_that_is_cancelled_in_a_callback_leaves_the_change_to_the_next(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    calls: list[list[TopicPartition]] = []

    async def on_assigned(those: list[TopicPartition]) -> None:
        calls.append(those)
        if len(calls) == 1:
            await asyncio.sleep(3600)

    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, **protocol) as reader:
            reader.subscribe(["t"], on_assigned=on_assigned)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await reader.poll(60_000)
            assert await read(reader, 40) == list(range(40))
        assert len(calls) == 2
        assert set(calls[0]) == set(calls[1]) == partitions(0, 1, 2, 3)

    lab.run(scenario, config=QUICK)


async def no_records(reader: AsyncConsumer, seconds: float) -> None:
    assert await reader.poll(1000 * seconds) == []


def warnings_of(caplog: pytest.LogCaptureFixture, since: int = 0) -> list[str]:
    return [r.getMessage() for r in caplog.records[since:] if r.levelno == logging.WARNING]


@both
def test_a_missing_topic_is_a_warning_and_a_problem_until_it_is_there_or_not_wanted(
    lab: Lab, protocol: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", 1)
        async with consumer(lab, **protocol) as reader:
            assert reader.problem() is None
            reader.subscribe(["typo"])
            await no_records(reader, 2.5)
            assert "typo" in str(reader.problem())
            await no_records(reader, 3)
            assert any("me: topic typo" in line for line in warnings_of(caplog))
            reader.subscribe(["t"])
            await no_records(reader, 5)
            assert reader.problem() is None
            count = len(caplog.records)
            await no_records(reader, 250)
            assert not warnings_of(caplog, count), "of a topic that nobody wants"

    protocol = {"client_id": "me", **protocol}
    lab.run(scenario, config=QUICK)


def test_an_expression_that_matches_no_topic_is_a_warning_and_a_problem(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t-1", 1)
        async with consumer(lab, metadata_max_age_ms=5_000) as reader:
            reader.subscribe(re.compile("t"))
            await no_records(reader, 30)
            (warning,) = warnings_of(caplog)
            assert "no topic's name matches 't'; the whole name must match" in warning
            assert str(reader.problem()) == warning
            reader.subscribe(re.compile("t.*"))
            await no_records(reader, 10)
            assert reader.problem() is None

    lab.run(scenario, config=QUICK)


def test_a_member_that_has_no_strategy_in_common_says_which_it_offers(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with (
            consumer(lab, partition_assignment_strategy="range") as one,
            consumer(lab, "two", partition_assignment_strategy="roundrobin") as two,
        ):
            one.subscribe(["t"])
            await read(one, 40)
            two.subscribe(["t"])
            with pytest.raises(BrokerError, match=r"strategy=roundrobin, .* one in common"):
                await two.poll(10_000)

    lab.run(scenario, config=QUICK)
