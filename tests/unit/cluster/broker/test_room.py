"""What a broker remembers of groups, transactional ids and producers is counted and bounded
(`trimtab.cluster.broker.room`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.test_consumer_groups import beat
from tests.unit.cluster.broker.test_groups import QUICK, commit, find, join
from tests.unit.cluster.broker.test_transactions import Sender, run
from trimtab.cluster.broker.figures import BrokerGauge
from trimtab.cluster.broker.room import Headroom
from trimtab.cluster.coordinator.room import Usage
from trimtab.cluster.server.turns import Steps
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trimtab.kafka.wire.messages.offset_commit import OffsetCommitRequest
from trimtab.sim.world import World

FULL = ErrorCode.POLICY_VIOLATION


def test_room_counts_anew_and_adds_what_came_since(caplog: pytest.LogCaptureFixture) -> None:
    there = [Usage(2, 5, 100)]
    options = ("groups.max", "members.max", "bytes.max")

    def measure() -> Steps[Usage]:
        found = there[0]
        yield
        return found

    async def scenario() -> None:
        room = Headroom(measure, lambda: Usage(4, 10, 1000), options)
        assert room.admit(Usage(things=1)) is None
        await asyncio.sleep(0.5)  # the count is 2, with what was admitted before it
        assert room.admit(Usage(things=2)) is None
        refused = room.admit(Usage(things=1))
        assert refused is not None
        assert "groups.max of its broker is 4" in refused
        assert room.admit(Usage(members=1)) is None
        assert room.admit(Usage(size=2000)) is not None
        await asyncio.sleep(1)
        there[0] = Usage(1, 1, 1)
        room.admit(Usage(things=1))
        await asyncio.sleep(1)
        assert room.admit(Usage(things=2)) is None
        room.close()

    with caplog.at_level(logging.WARNING), World(seed=1) as world:
        world.run(scenario())
    assert len(caplog.records) == 1, "once between two counts"


async def join_group(lab: Lab, group: str, metadata: bytes = b"", member: str = "") -> Any:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    return await lab.connect().ask(request, 9)


async def beat_in(lab: Lab, group: str) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return await lab.connect().ask(request, 1)


def test_groups_are_bounded(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        for group in "abc":
            assert (await join_group(lab, group)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert (await join_group(lab, "d")).error_code == FULL
        assert (await join_group(lab, "a")).error_code == ErrorCode.MEMBER_ID_REQUIRED
        beaten = await beat_in(lab, "e")
        assert beaten.error_code == FULL
        assert "coordinator.groups.max" in beaten.error_message
        committed = await lab.connect().ask(commit(5), 8)  # of the group g
        assert committed.topics[0].partitions[0].error_code == FULL
        await asyncio.sleep(20)  # nobody has joined with the ids
        assert (await join_group(lab, "a")).error_code == FULL  # which counts now
        await asyncio.sleep(1)
        assert (await join_group(lab, "d")).error_code == ErrorCode.MEMBER_ID_REQUIRED

    lab.run(scenario, config={**QUICK, "coordinator.groups.max": 3})


def test_members_are_bounded(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        for group in ("a", "a", "b"):
            assert (await join_group(lab, group)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert (await join_group(lab, "a")).error_code == FULL
        assert (await beat(lab.connect(), member="m")).error_code == FULL

    lab.run(scenario, config={**QUICK, "coordinator.members.max": 3})


def test_the_bytes_that_members_and_offsets_take_are_bounded(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        for group in "abcd":
            given = await join_group(lab, group)
            joined = await join_group(lab, group, bytes(200_000), given.member_id)
            assert joined.error_code == 0
        refused = await join_group(lab, "e", bytes(300_000))
        assert refused.error_code == FULL
        await asyncio.sleep(2)
        # A member that tells the same again takes no more room.
        again = await join_group(lab, "d", bytes(200_000), given.member_id)
        assert again.error_code == 0
        assert (await join_group(lab, "e", bytes(300_000))).error_code == FULL
        assert (await lab.connect().ask(commit(5), 8)).topics[0].partitions[0].error_code == 0
        await asyncio.sleep(20)  # their sessions are over
        await join_group(lab, "f")
        await asyncio.sleep(1)
        given = await join_group(lab, "e", bytes(300_000))
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED

    lab.run(scenario, config={**QUICK, "coordinator.memory.max.bytes": 1_000_000})


def test_transactional_ids_are_bounded(lab: Lab) -> None:
    async def scenario() -> None:
        senders = [Sender(lab, transactional_id=each) for each in "abc"]
        assert [await each.init() for each in senders] == [0, 0, FULL]
        assert [await each.init() for each in senders[:2]] == [0, 0]

    run(lab, scenario, **{"coordinator.transactional.ids.max": 2})


def test_producers_of_a_partition_are_bounded(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")

        async def produce(producer_id: int, sequence: int = 0) -> ErrorCode:
            batch = lab.batch(
                b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )
            answer = await lab.connect().ask(lab.produce("t", batch, acks=-1), 9)
            return ErrorCode(answer.responses[0].partition_responses[0].error_code)

        assert [await produce(each) for each in (1, 2, 3)] == [0, 0, FULL]
        assert [await produce(1, 1), await produce(2, 1), await produce(2, 1)] == [0, 0, 0]
        assert len(lab.brokers[0].partitions["t", 0].log.producers) == 2
        figures = await BrokerGauge(lab.brokers[0]).measure()
        assert figures.producer_ids == 2

    lab.run(scenario, config={"producer.ids.max": 2})


def test_the_figures_of_a_coordinator(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        waiting = asyncio.ensure_future(join(lab.connect(), metadata=bytes(1000)))
        await waiting
        await beat_in(lab, "c")
        request = commit(5, note="n" * 100)
        assert isinstance(request, OffsetCommitRequest)
        request.group_id = "o"
        await lab.connect().ask(request, 8)
        figures = await BrokerGauge(lab.brokers[0]).measure()
        assert (figures.groups, figures.members, figures.transactional_ids) == (3, 2, 0)
        assert 1100 < figures.coordinator_bytes < 5000

    lab.run(scenario, config=QUICK)
