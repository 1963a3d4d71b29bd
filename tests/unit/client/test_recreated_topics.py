"""Topics that are deleted and created again while a consumer reads them, against trimtab's brokers.

The new topic has more records than the old one had, so that every old position is in its log.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from tests.unit.client.group.test_group_consumer import (
    PROTOCOLS,
    QUICK,
    consumer,
    fill,
    numbers,
    read,
)
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.group import committed
from trimtab.kafka.errors import BrokerError, ErrorCode, LogTruncation, TopicRecreated, UsageError
from trimtab.kafka.records import TopicPartition

__all__ = ["lab"]

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NEW = [*range(100, 115), *range(200, 215)]

pytestmark = pytest.mark.kip(516)
groups = pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=["range", "cooperative", "sticky", "consumer"]
)


async def create_again(lab: Lab) -> None:
    """With the records `NEW` instead of 0 to 19."""
    await delete(lab)
    await lab.create_topic("t", 2)
    for partition in range(2):
        await lab.append("t", *(b"%d" % n for n in NEW[15 * partition :][:15]), partition=partition)


async def delete(lab: Lab) -> None:
    async with AsyncAdmin("127.0.0.1:9092", random=lab.world.random("admin")) as admin:
        await admin.delete_topic("t")


async def offsets(lab: Lab) -> list[int | None]:
    """Those that the group has committed."""
    async with consumer(lab, "other") as other:
        return [each and each.offset for each in (await other.committed([P0, P1])).values()]


@pytest.mark.parametrize("group", [None, "g"])
def test_assigned_partitions_begin_again(lab: Lab, group: str | None) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_id=group) as reader:
            reader.assign([P0, P1])
            assert await read(reader, 20) == list(range(20))
            await create_again(lab)
            begun = numbers(await reader.poll(60_000))
            assert begun, "one call goes back and reads on"
            assert sorted(begun + await read(reader, 30 - len(begun))) == NEW
            assert await reader.position(P0) == 15

    lab.run(scenario, config=QUICK)


@groups
def test_a_member_reads_the_new_topic_from_its_beginning(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, **protocol, auto_commit_interval_ms=500) as reader:
            reader.subscribe(["t"])
            assert await read(reader, 20) == list(range(20))
            await create_again(lab)
            assert await read(reader, 30) == NEW
            await reader.commit()
        assert await offsets(lab) == [15, 15]

    lab.run(scenario, config=QUICK)


@groups
def test_a_member_begins_again_although_the_topic_was_away_for_long(
    lab: Lab, protocol: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, **protocol) as reader:
            reader.subscribe(["t"])
            assert await read(reader, 20) == list(range(20))
            await delete(lab)
            for _ in range(20):
                assert await reader.poll(1000) == []
            await lab.create_topic("t", 2)
            await lab.append("t", b"7", partition=1)
            assert await read(reader, 1) == [7]

    lab.run(scenario, config=QUICK)


def test_who_reads_from_the_end_commits_no_position_of_the_old_topic(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab) as reader:
            reader.assign([P0, P1])
            assert await read(reader, 20) == list(range(20))
        assert await offsets(lab) == [10, 10]
        async with consumer(
            lab, "latest", auto_offset_reset="latest", auto_commit_interval_ms=100
        ) as reader:
            reader.assign([P0, P1])
            assert await reader.poll(1000) == []
            await delete(lab)
            await lab.create_topic("t", 2)
            for _ in range(20):
                assert await reader.poll(1000) == []
            assert [await reader.position(each) for each in (P0, P1)] == [0, 0]
        assert await offsets(lab) == [0, 0]

    lab.run(scenario, config=QUICK)


def test_without_a_reset_it_is_an_error_until_the_reader_seeks(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_id=None, auto_offset_reset="none") as reader:
            reader.assign([P0])
            reader.seek(P0, 0)
            assert await read(reader, 10) == list(range(10))
            await create_again(lab)
            for _ in range(2):
                with pytest.raises(LogTruncation, match=r"t-0: .*created again.* 10 is of the old"):
                    await reader.poll(60_000)
            reader.seek(P0, 10)
            assert await read(reader, 5) == NEW[10:15], "what the reader seeks is of the new topic"

    lab.run(scenario, config=QUICK)


def test_a_position_of_a_topic_that_is_gone_is_not_read_of_the_present_one(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_id=None, auto_offset_reset="none") as reader:
            reader.assign([P0])
            reader.seek(P0, 0, topic_id=b"\x11" * 16)
            with pytest.raises(TopicRecreated, match="its id was EREREREREREREREREREREQ and is "):
                await reader.poll(60_000)
            with pytest.raises(UsageError, match="topic_id=b'x': give the id's 16 bytes"):
                reader.seek(P0, 0, topic_id=b"x")

    lab.run(scenario, config=QUICK)


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(TopicRecreated("t-0", 10, bytes(16), b"\x11" * 16)))
    assert str(error) == str(TopicRecreated("t-0", 10, bytes(16), b"\x11" * 16))
    assert "was AAAAAAAAAAAAAAAAAAAAAA and is EREREREREREREREREREREQ now" in str(error)
    assert (error.position, error.divergence) == (10, -1)


def test_records_of_the_old_topic_that_are_fetched_come_first(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_id=None) as reader:
            reader.assign([P0])
            assert len(await reader.poll(60_000, max_records=3)) == 3
            await create_again(lab)
            assert await read(reader, 22) == [*range(3, 10), *NEW[:15]]

    lab.run(scenario, config=QUICK)


def test_a_paused_partition_begins_again_when_it_is_resumed(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_id=None) as reader:
            reader.assign([P0, P1])
            assert await read(reader, 20) == list(range(20))
            reader.pause(P1)
            await create_again(lab)
            assert await read(reader, 15) == NEW[:15]
            assert await reader.poll(1000) == []
            reader.resume(P1)
            assert await read(reader, 15) == NEW[15:]

    lab.run(scenario, config=QUICK)


def test_offsets_of_the_old_topic_are_refused_at_once(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        await lab.create_topic("other")
        async with consumer(lab, enable_auto_commit=False) as reader:
            reader.assign([P0, P1, ("other", 0)])
            assert await read(reader, 20) == list(range(20))
            await create_again(lab)
            async with asyncio.timeout(5):
                with pytest.raises(BrokerError, match=r"group g, t-.: .*was deleted") as raised:
                    await reader.commit({P0: 10, P1: 10, ("other", 0): 3})
            assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_ID
            found = await reader.committed([P0, P1, ("other", 0)])
            assert [each and each.offset for each in found.values()] == [None, None, 3]

    lab.run(scenario, config=QUICK)


@pytest.mark.parametrize("newest", [9, 10])
def test_a_member_that_gives_up_a_deleted_topic_does_not_wait_for_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    """Also before version 10, which has no ids."""
    monkeypatch.setattr(committed, "_newest", lambda ids: newest)

    async def scenario() -> None:
        await fill(lab, 2)
        async with consumer(lab, group_protocol="consumer") as reader:
            reader.subscribe(["t"])
            assert await read(reader, 20) == list(range(20))
            await delete(lab)
            async with asyncio.timeout(10):  # an automatic commit takes up to 30 s
                while reader.assignment():
                    await reader.poll(100)

    lab.run(scenario, config=QUICK)


def test_the_listener_of_the_consumer_protocol_hears_that_partitions_were_replaced(
    lab: Lab,
) -> None:
    events: list[tuple[str, int]] = []

    async def scenario() -> None:
        await fill(lab, 2)
        reader: AsyncConsumer
        async with consumer(lab, group_protocol="consumer") as reader:
            reader.subscribe(
                ["t"],
                on_assigned=lambda those: events.append(("assigned", len(those))),
                on_revoked=lambda those: events.append(("revoked", len(those))),
            )
            assert await read(reader, 20) == list(range(20))
            await create_again(lab)
            assert await read(reader, 30) == NEW
            member = reader.group_metadata()
            async with asyncio.timeout(10):
                while ("revoked", 2) not in events or events[-1] != ("assigned", 2):
                    await reader.poll(100)
            assert reader.group_metadata().member_id == member.member_id, "it was not removed"

    lab.run(scenario, config=QUICK)
