"""Groups on brokers: found, coordinated, made durable, and loaded by the next coordinator."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, partition_of
from trimtab.cluster.broker.handlers import group_offsets
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.delete_groups import DeleteGroupsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trimtab.kafka.wire.messages.leave_group import LeaveGroupRequest
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from trimtab.kafka.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

NO_TOPICS = b"\0\0\0\0\0\0\xff\xff\xff\xff"
"""A subscription of a consumer to nothing."""
QUICK = {
    "group.consumer.assignment.interval.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
}


@pytest.mark.parametrize(
    ("group", "partition"),
    # By Java: Utils.abs("...".hashCode()) % 50
    [
        ("g", 3),
        ("console-consumer-1", 24),
        ("grüße", 23),
        ("\U0001f600", 49),
        ("polygenelubricants", 0),
    ],
)
def test_groups_are_where_java_has_them(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


async def find(lab: Any, group: str = "g", broker: int = 0) -> Any:
    """The coordinator, once there is one."""
    while True:
        found = await lab.connect(broker).ask(FindCoordinatorRequest(key=group), 3)
        if found.error_code == 0:
            return found
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(0.05)


async def join(client: Any, member: str = "", metadata: bytes = NO_TOPICS) -> Any:
    """The response to JoinGroup, asked again while the groups are loaded."""
    while True:
        response = await client.ask(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=member,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            ),
            3,
        )
        if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return response
        await asyncio.sleep(0.01)


async def become_stable(client: Any) -> str:
    """Join alone and synchronize; returns the member id."""
    member: str = (await join(client)).member_id
    synced = await client.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member,
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"all")],
        ),
        3,
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return member


def commit(
    offset: int, member: str = "", generation: int = -1, note: str = "note", **topic: Any
) -> Any:
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                **(topic or {"name": "t"}),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=2,
                        committed_metadata=note,
                    )
                    for index in (0, 9)
                ],
            )
        ],
    )


def test_the_first_search_creates_the_topic_as_kafka_configures_it(lab: Any) -> None:
    async def scenario() -> None:
        found = await find(lab)
        topic = lab.brokers[0].image.topics[GROUPS_TOPIC]
        assert len(topic.partitions) == 4
        assert {len(each.replicas) for each in topic.partitions} == {2}, "as many as brokers"
        leader = topic.partitions[partition_of("g", 4)].leader
        assert found.node_id == leader
        batched = await lab.connect().ask(
            FindCoordinatorRequest(key_type=0, coordinator_keys=["g", ""]), 6
        )
        assert [(each.node_id, each.error_code) for each in batched.coordinators] == [
            (leader, 0),
            (-1, ErrorCode.INVALID_GROUP_ID),
        ]
        partition = lab.brokers[0].partitions[GROUPS_TOPIC, 0]
        assert partition.log.config.compacts

    lab.run(scenario, brokers=2, config=QUICK)


def test_a_factor_that_is_set_is_not_lowered(lab: Any) -> None:
    async def scenario() -> None:
        found = await lab.connect().ask(FindCoordinatorRequest(key="g"), 3)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert GROUPS_TOPIC not in lab.brokers[0].image.topics

    lab.run(scenario, config={**QUICK, "offsets.topic.replication.factor": 2})


def test_members_offsets_and_groups_over_the_wire(lab: Any) -> None:
    async def scenario() -> None:
        topic_id = await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert (await client.ask(beat, 4)).error_code == 0

        stored = await client.ask(commit(5, member, 1), 8)
        assert [each.error_code for each in stored.topics[0].partitions] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        by_id = await client.ask(commit(6, member, 1, topic_id=topic_id), 10)
        assert by_id.topics[0].partitions[0].error_code == 0
        unknown = await client.ask(commit(7, member, 1, topic_id=b"u" * 16), 10)
        assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

        wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        for version in (1, 7):
            fetched = await client.ask(OffsetFetchRequest(group_id="g", topics=wanted), version)
            (topic,) = fetched.topics
            assert [(each.committed_offset, each.error_code) for each in topic.partitions] == [
                (6, 0),
                (-1, 0),
            ]
        assert topic.partitions[0].committed_leader_epoch == 2
        assert topic.partitions[0].metadata == "note"
        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=None),
            OffsetFetchRequestGroup(
                group_id="g",
                topics=[OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])],
            ),
        ]
        fetched = await client.ask(OffsetFetchRequest(groups=groups), 10)
        for group in fetched.groups:
            (found,) = group.topics
            assert (found.topic_id, found.partitions[0].committed_offset) == (topic_id, 6)

        described = await client.ask(DescribeGroupsRequest(groups=["g", "other"]), 6)
        assert [each.group_state for each in described.groups] == ["Stable", "Dead"]
        assert described.groups[0].members[0].client_host == "/192.0.2.1"
        assert described.groups[0].members[0].client_id == "t"
        assert described.groups[0].authorized_operations == -(2**31)
        both = DescribeGroupsRequest(groups=["g", "other"], include_authorized_operations=True)
        described = await client.ask(both, 6)
        # AclEntry.supportedOperations(GROUP); nothing of what does not exist
        assert [each.authorized_operations for each in described.groups] == [
            1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11,
            -(2**31),
        ]
        listed = await client.ask(ListGroupsRequest(), 5)
        assert [(each.group_id, each.group_state) for each in listed.groups] == [("g", "Stable")]

        kept = await client.ask(
            OffsetDeleteRequest(
                group_id="g",
                topics=[
                    OffsetDeleteRequestTopic(
                        name="t",
                        partitions=[
                            OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)
                        ],
                    )
                ],
            ),
            0,
        )
        assert [each.error_code for each in kept.topics[0].partitions] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        refused = await client.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        left = await client.ask(LeaveGroupRequest(group_id="g", member_id=member), 2)
        assert left.error_code == 0
        deleted = await client.ask(DeleteGroupsRequest(groups_names=["g", "other"]), 2)
        assert [each.error_code for each in deleted.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]

    lab.run(scenario, config=QUICK)


@pytest.mark.kip(516)
def test_offsets_of_a_topic_go_with_it(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        kept_id = await lab.create_topic("kept")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        for name in ("t", "kept"):
            stored = await client.ask(commit(5, member, 1, name=name), 8)
            assert stored.topics[0].partitions[0].error_code == 0
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        assert (await client.ask(request, 6)).responses[0].error_code == 0
        await lab.create_topic("t")
        everything = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        for version in (9, 10):
            fetched = await client.ask(OffsetFetchRequest(groups=everything), version)
            (found,) = fetched.groups[0].topics
            name, topic_id = ("kept", bytes(16)) if version == 9 else ("", kept_id)
            assert (found.name, found.topic_id) == (name, topic_id)
            assert found.partitions[0].committed_offset == 5

    lab.run(scenario, config=QUICK)


def test_another_broker_refuses_the_group(lab: Any) -> None:
    async def scenario() -> None:
        found = await find(lab)
        other = lab.connect(1 - found.node_id)
        assert (await join(other)).error_code == ErrorCode.NOT_COORDINATOR
        listed = await other.ask(ListGroupsRequest(), 5)
        assert listed.groups == []

    lab.run(scenario, brokers=2, config=QUICK)


def test_the_next_coordinator_has_what_was_acknowledged(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", replicas=3)
        first = (await find(lab)).node_id
        client = lab.connect(first)
        member = await become_stable(client)
        assert (await client.ask(commit(5, member, 1), 8)).topics[0].partitions[0].error_code == 0
        await lab.brokers[first].close()
        second = first
        while second == first:
            second = (await find(lab, broker=(first + 1) % 3)).node_id
            await asyncio.sleep(0.05)
        client = lab.connect(second)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        while (code := (await client.ask(beat, 4)).error_code) != 0:
            assert code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            await asyncio.sleep(0.01)
        wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        fetched = await client.ask(OffsetFetchRequest(group_id="g", topics=wanted), 7)
        assert fetched.topics[0].partitions[0].committed_offset == 5

    lab.run(scenario, brokers=3, config=QUICK)


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_that_cannot_be_told_are_errors_of_their_partitions_too(
    lab: Any, version: int
) -> None:
    """aiokafka looks at no other code, and would begin at the start."""

    async def scenario() -> None:
        coordinator = (await find(lab)).node_id
        wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        request = OffsetFetchRequest(group_id="g", topics=wanted)
        fetched = await lab.connect(1 - coordinator).ask(request, version)
        codes = [each.error_code for each in fetched.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2
        assert fetched.error_code == (ErrorCode.NOT_COORDINATOR if version >= 2 else 0)

    lab.run(scenario, brokers=2, config=QUICK)


def test_who_waits_is_sent_to_the_next_coordinator(lab: Any) -> None:
    async def scenario() -> None:
        first = (await find(lab)).node_id
        await become_stable(lab.connect(first))
        waits = asyncio.ensure_future(join(lab.connect(first)))
        await asyncio.sleep(1.0)
        assert not waits.done(), "the other member has not joined again"
        await lab.brokers[first].lifecycle.shut_down(5.0)
        assert (await waits).error_code == ErrorCode.NOT_COORDINATOR

    lab.run(scenario, brokers=2, config=QUICK)


def test_a_session_ends_by_the_clock(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        await become_stable(client)
        await asyncio.sleep(9.9)
        request = DescribeGroupsRequest(groups=["g"])
        assert (await client.ask(request, 5)).groups[0].group_state == "Stable"
        await asyncio.sleep(0.2)
        assert (await client.ask(request, 5)).groups[0].group_state == "Empty"

    lab.run(scenario, config=QUICK)


def test_others_run_while_the_offsets_of_many_groups_are_told(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def know(*_: object) -> OffsetFetchResponseGroup:
        return OffsetFetchResponseGroup(group_id="g", topics=[])

    async def scenario() -> None:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 1000
        )
        asked = group_offsets.fetch_offsets(Mock(), Mock(api_version=10), request)
        told = asyncio.ensure_future(asked)
        passes = 0
        while not told.done():
            passes += 1
            await asyncio.sleep(0)
        assert len(told.result().groups) == 1000
        assert passes > 4

    monkeypatch.setattr(group_offsets, "_fetch_group", know)
    lab.run(scenario)
