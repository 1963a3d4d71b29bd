"""The admin client's calls about groups, against coordinators that answer by script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, ScriptedBroker, ScriptedCluster
from trimtab.client.admin.answers import GroupListing, GroupMember, PartlyRefused
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError, CorruptData, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages import consumer_group_describe as consumer_groups
from trimtab.kafka.wire.messages import describe_groups as classic_groups
from trimtab.kafka.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from trimtab.kafka.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    encode_embedded,
)
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as Assigned
from trimtab.kafka.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from trimtab.kafka.wire.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from trimtab.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.kafka.wire.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from trimtab.kafka.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinators:
    """Which broker coordinates each group, and what the brokers answer about it.

    Attributes:
        of: the coordinator by group; changed by a test.
        codes: the error of a group; NONE if not given.
    """

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.of = {"billing": 0, "audit": 1, "new": 1}
        self.codes: dict[str, ErrorCode] = {}
        for broker in cluster.brokers.values():
            broker.answers[FindCoordinatorRequest] = self.find
            broker.answers[ListGroupsRequest] = self._at(broker, self.list)
            broker.answers[DescribeGroupsRequest] = self._at(broker, self.describe)
            broker.answers[ConsumerGroupDescribeRequest] = self._at(broker, self.describe_consumers)
            broker.answers[DeleteGroupsRequest] = self._at(broker, self.delete)

    def _at(self, broker: ScriptedBroker, answer: Callable[[int, Any], Any]) -> Callable[..., Any]:
        return lambda request: answer(broker.id, request)

    def code(self, broker: int, group: str) -> ErrorCode:
        if self.of.get(group) != broker and group in self.of:
            return ErrorCode.NOT_COORDINATOR
        return self.codes.get(group, ErrorCode.NONE)

    def find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if not request.coordinator_keys:
            at = self.of.get(request.key, 0)
            return FindCoordinatorResponse(node_id=at, host=f"broker-{at}", port=9092)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key,
                    node_id=self.of.get(key, 0),
                    host=f"broker-{self.of.get(key, 0)}",
                    port=9092,
                )
                for key in request.coordinator_keys
            ]
        )

    def list(self, broker: int, request: ListGroupsRequest) -> ListGroupsResponse:
        return ListGroupsResponse(
            error_code=self.codes.pop("list", ErrorCode.NONE),
            groups=[
                ListedGroup(
                    group_id=group,
                    protocol_type="consumer",
                    group_state="Stable",
                    group_type="Classic",
                )
                for group, at in self.of.items()
                if at == broker
            ],
        )

    def describe(self, broker: int, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        assigned = [Assigned(topic="t", partitions=[1, 0])]
        member = classic_groups.DescribedGroupMember(
            member_id="m",
            group_instance_id="static",
            client_id="c",
            client_host="/h",
            member_metadata=b"",
            member_assignment=encode_embedded(
                ConsumerProtocolAssignment(assigned_partitions=assigned), 3
            ),
        )
        return DescribeGroupsResponse(
            groups=[
                classic_groups.DescribedGroup(
                    error_code=self.code(broker, group),
                    group_id=group,
                    group_state="Stable" if group in self.of else "Dead",
                    protocol_type="consumer",
                    protocol_data="range",
                    members=[member],
                )
                for group in request.groups
            ]
        )

    def describe_consumers(
        self, broker: int, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        def assignment(*partitions: int) -> consumer_groups.Assignment:
            return consumer_groups.Assignment(
                topic_partitions=[
                    consumer_groups.TopicPartitions(
                        topic_id=bytes(16), topic_name="t", partitions=list(partitions)
                    )
                ]
            )

        member = consumer_groups.Member(
            member_id="m",
            member_epoch=6,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            assignment=assignment(0),
            target_assignment=assignment(0, 1),
            member_type=1,
        )
        return ConsumerGroupDescribeResponse(
            groups=[
                consumer_groups.DescribedGroup(
                    error_code=self.code(broker, group)
                    if group == "new"
                    else ErrorCode.GROUP_ID_NOT_FOUND,
                    group_id=group,
                    group_state="Reconciling",
                    group_epoch=7,
                    assignment_epoch=7,
                    assignor_name="uniform",
                    members=[member],
                )
                for group in request.group_ids
            ]
        )

    def delete(self, broker: int, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = [
            DeletableGroupResult(group_id=group, error_code=self.code(broker, group))
            for group in request.groups_names
        ]
        for each in results:
            if each.error_code == ErrorCode.NONE:
                self.of.pop(each.group_id)
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    cluster = ScriptedCluster(world, leaders={"t": [0, 1]})
    for node_id in range(2):
        cluster.broker(node_id)
    return cluster


@pytest.fixture
def groups(cluster: ScriptedCluster) -> Coordinators:
    return Coordinators(cluster)


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


async def test_every_broker_lists_its_groups(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    groups.codes["list"] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # of the first that is asked
    async with await admin_of(cluster) as admin:
        listed = await admin.list_groups(states=["Stable"], types=["classic"])
    assert [each.group_id for each in listed] == ["audit", "billing", "new"]
    assert listed[0] == GroupListing("audit", "consumer", "Stable", "classic")
    (request,) = cluster.brokers[1].requests(ListGroupsRequest)
    assert (request.states_filter, request.types_filter) == (["Stable"], ["classic"])


async def test_a_filter_that_a_broker_cannot_apply_is_an_error(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    for broker in cluster.brokers.values():
        broker.versions[ListGroupsRequest] = (0, 4)
    async with await admin_of(cluster) as admin:
        assert len(await admin.list_groups(states=["Stable"])) == 3
        with pytest.raises(BrokerError, match=r"UNSUPPORTED_VERSION .*types .*3\.8"):
            await admin.list_groups(types=["classic"])


async def test_groups_of_both_protocols_are_described(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    async with await admin_of(cluster) as admin:
        found = await admin.describe_groups(["new", "billing", "nobody", "new"])
    assert list(found) == ["billing", "new"]
    classic, consumer = found.values()
    assert (classic.type, classic.state, classic.assignor) == ("classic", "Stable", "range")
    assert classic.coordinator == Node(0, "broker-0", 9092)
    assert classic.members == (GroupMember("m", "static", "c", "/h", (T1, T0)),)
    assert (consumer.type, consumer.state, consumer.epoch) == ("consumer", "Reconciling", 7)
    assert consumer.members == (GroupMember("m", None, "c", "/h", (T0,), (T0, T1), 6, "consumer"),)
    assert cluster.brokers[1].requests(DescribeGroupsRequest) == []


async def test_older_brokers_are_asked_for_one_coordinator_at_a_time(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    for broker in cluster.brokers.values():
        broker.versions[FindCoordinatorRequest] = (0, 3)
        broker.versions[DescribeGroupsRequest] = (0, 5)
        del broker.versions[ConsumerGroupDescribeRequest]
    async with await admin_of(cluster) as admin:
        found = await admin.describe_groups(["audit", "billing", "nobody"])
    assert {group: each.coordinator.id for group, each in found.items()} == {
        "audit": 1,
        "billing": 0,
    }
    asked = [
        each for node in cluster.brokers.values() for each in node.requests(FindCoordinatorRequest)
    ]
    assert sorted(each.key for each in asked) == ["audit", "billing", "nobody"]


async def test_only_the_groups_of_a_moved_coordinator_are_asked_for_again(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    groups.codes["billing"] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.of["audit"] = 0
    world.loop.call_later(0.05, groups.of.update, {"billing": 1})
    world.loop.call_later(0.05, groups.codes.clear)
    async with await admin_of(cluster) as admin:
        found = await admin.describe_groups(["audit", "billing"])
    assert found["billing"].coordinator.id == 1
    asked = cluster.brokers[0].requests(DescribeGroupsRequest)
    assert asked[0].groups == ["audit", "billing"]
    assert all(each.groups == ["billing"] for each in asked[1:])
    assert [each.groups for each in cluster.brokers[1].requests(DescribeGroupsRequest)] == [
        ["billing"]
    ]


async def test_a_refused_description_is_an_error_at_once(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    groups.codes["audit"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="group audit: GROUP_AUTHORIZATION_FAILED"):
            await admin.describe_groups(["audit", "billing"])
        assert world.loop.time() < 1
        assert await admin.describe_groups([]) == {}


async def test_an_assignment_that_cannot_be_read_is_an_error(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    def garble(request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        response = groups.describe(0, request)
        response.groups[0].members[0].member_assignment = b"\0\3\0\0\0\\9"
        return response

    cluster.brokers[0].answers[DescribeGroupsRequest] = garble
    async with await admin_of(cluster) as admin:
        with pytest.raises(CorruptData):
            await admin.describe_groups(["billing"])


async def test_groups_are_deleted_and_the_refused_are_named(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    groups.codes = {
        "billing": ErrorCode.NON_EMPTY_GROUP,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused) as refused:
            await admin.delete_groups(["billing", "audit", "nobody"])
        assert {
            group: error.code for group, error in refused.value.refusals.items()
        } == groups.codes
        assert str(refused.value.refusals["billing"]).startswith("group billing: NON_EMPTY_GROUP")
        assert set(groups.of) == {"billing", "new"}
        await admin.delete_groups(["new"])
        assert set(groups.of) == {"billing"}


async def test_a_group_that_the_answer_leaves_out_is_refused(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    cluster.brokers[0].answers[DeleteGroupsRequest] = lambda request: DeleteGroupsResponse(
        throttle_time_ms=0, results=[]
    )
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused, match="group billing: UNKNOWN_SERVER_ERROR"):
            await admin.delete_groups(["billing"])


async def test_a_deletion_without_an_answer_is_not_repeated(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    cluster.brokers[0].answers[DeleteGroupsRequest] = lambda request: HANG_UP
    async with await admin_of(cluster) as admin:
        with pytest.raises(Unavailable, match=r"check with list_groups\(\)"):
            await admin.delete_groups(["billing"])
    assert len(cluster.brokers[0].requests(DeleteGroupsRequest)) == 1


async def test_offsets_are_read_and_set_with_notes_and_epochs(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    at = OffsetAndMetadata(7, "noon", 3)
    partition = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=7, committed_leader_epoch=3, metadata="noon"
    )
    none = OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, metadata=None)
    cluster.brokers[0].answers[OffsetFetchRequest] = lambda request: OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id="billing",
                topics=[OffsetFetchResponseTopics(name="t", partitions=[partition, none])],
            )
        ]
    )
    stored = OffsetCommitResponsePartition(partition_index=0, error_code=0)
    cluster.brokers[0].answers[OffsetCommitRequest] = lambda request: OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="t",
                partitions=[stored],
            )
        ]
    )
    async with await admin_of(cluster) as admin:
        assert await admin.list_group_offsets("billing") == {T0: at}
        await admin.alter_group_offsets("billing", {T0: at})
    ((topic,),) = [each.topics for each in cluster.brokers[0].requests(OffsetCommitRequest)]
    (sent,) = topic.partitions
    assert (sent.committed_offset, sent.committed_metadata) == (7, "noon")
    assert sent.committed_leader_epoch == 3


def committed(group: str, offset: int) -> OffsetFetchResponseGroup:
    at = OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset, metadata="")
    return OffsetFetchResponseGroup(
        group_id=group, topics=[OffsetFetchResponseTopics(name="t", partitions=[at])]
    )


async def test_each_coordinator_is_asked_once_for_the_offsets_of_its_groups(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    asked: list[list[str]] = []

    def answer(request: OffsetFetchRequest) -> OffsetFetchResponse:
        names = [each.group_id for each in request.groups]
        asked.append(names)
        return OffsetFetchResponse(groups=[committed(name, len(name) - 3) for name in names])

    for broker in cluster.brokers.values():
        broker.answers[OffsetFetchRequest] = answer
    async with await admin_of(cluster) as admin:
        found = await admin.list_offsets_of_groups(["billing", "new", "audit"])
        assert await admin.list_offsets_of_groups([]) == {}
    assert {name: offsets[T0].offset for name, offsets in found.items()} == {
        "audit": 2,
        "billing": 4,
        "new": 0,
    }
    assert sorted(asked) == [["billing"], ["new", "audit"]]


async def test_a_coordinator_older_than_kafka_3_is_asked_for_each_group(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    def answer(request: OffsetFetchRequest) -> OffsetFetchResponse:
        at = OffsetFetchResponsePartition(
            partition_index=0, committed_offset=len(request.group_id), metadata=""
        )
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[at])])

    cluster.brokers[1].versions[OffsetFetchRequest] = (1, 7)
    cluster.brokers[1].answers[OffsetFetchRequest] = answer
    async with await admin_of(cluster) as admin:
        found = await admin.list_offsets_of_groups(["new", "audit"])
    assert {name: offsets[T0].offset for name, offsets in found.items()} == {"audit": 5, "new": 3}


async def test_a_group_whose_offsets_are_refused_is_named(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    refused = OffsetFetchResponseGroup(
        group_id="billing", topics=[], error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    cluster.brokers[0].answers[OffsetFetchRequest] = lambda _: OffsetFetchResponse(groups=[refused])
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="group billing: GROUP_AUTHORIZATION_FAILED"):
            await admin.list_offsets_of_groups(["billing"])


def answer_deletion(whole: ErrorCode, *codes: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        error_code=whole,
        topics=[
            OffsetDeleteResponseTopic(
                name="t",
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                    for index, code in enumerate(codes)
                ],
            )
        ],
    )


async def test_offsets_are_deleted_and_the_refused_are_named(
    world: World, cluster: ScriptedCluster, groups: Coordinators
) -> None:
    answers = [
        answer_deletion(ErrorCode.NOT_COORDINATOR),
        answer_deletion(ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
        answer_deletion(ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    cluster.brokers[0].answers[OffsetDeleteRequest] = lambda request: answers.pop(0)
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused) as refused:
            await admin.delete_group_offsets("billing", [T0, T1])
        assert {each: error.code for each, error in refused.value.refusals.items()} == {
            T1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        }
        with pytest.raises(BrokerError, match="group billing: GROUP_ID_NOT_FOUND"):
            await admin.delete_group_offsets("billing", [T0])
        await admin.delete_group_offsets("billing", [])
        with pytest.raises(UsageError, match="must be a group's id"):
            await admin.delete_group_offsets("", [T0])
        with pytest.raises(UsageError, match=r"group=.*half a surrogate pair"):
            await admin.list_group_offsets("\ud800")
    first = cluster.brokers[0].requests(OffsetDeleteRequest)[0]
    assert [each.partition_index for each in first.topics[0].partitions] == [0, 1]
