"""Samples of a cluster in virtual time, and of brokers that refuse or do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.scripted_broker import NO_ANSWER, ScriptedCluster
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.rates import LoadMeter
from trimtab.client.measure.sample import take_offsets, take_sample
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from trimtab.kafka.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from trimtab.kafka.wire.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World

P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)


async def test_a_sample_has_what_is_where_and_who_has_read_how_far(
    world: World, kafka: VirtualKafka
) -> None:
    servers = kafka.bootstrap_servers
    async with (
        AsyncAdmin(servers, random=kafka.random("admin")) as admin,
        AsyncProducer(
            servers, random=kafka.random("p"), wall_clock=world.wall_clock, linger_ms=0
        ) as producer,
    ):
        await admin.create_topic("t", assignment={0: [0, 1], 1: [1, 2]})
        await admin.create_topic(
            "c", assignment={0: [2]}, config={"cleanup.policy": ["compact", "delete"]}
        )
        for _ in range(10):
            await (await producer.send("t", bytes(1000), partition=1))
        await admin.delete_records({Q: 4})
        await admin.alter_group_offsets("g", {Q: 7})
        sample = await take_sample(admin, wall=world.wall_clock)
        again = await take_sample(admin, sample, wall=world.wall_clock)
    assert set(sample.nodes) == {0, 1, 2}
    assert sample.fenced == {}
    view = sample.topics.value["t"]
    assert view.leaders == (0, 1)
    assert view.partitions[1].replicas == view.partitions[1].in_sync_replicas == (1, 2)
    for broker in (1, 2):
        assert 10_000 < sample.logs[broker].value.sizes[Q] < 12_000
    assert Q not in sample.logs[0].value.sizes
    assert sample.logs[0].value.sizes[P] == 0
    assert sample.logs[0].value.takes_replicas
    assert (sample.starts[1].value[Q], sample.ends[1].value[Q]) == (4, 10)
    assert P not in sample.ends[1].value
    assert sample.groups["g"].value == {Q: 7}
    assert sample.moving is not None
    assert sample.moving.value == frozenset()
    assert sample.limits is not None
    assert {name: is_ for (name, _), is_ in sample.compacted.items() if name in "tc"} == {
        "t": False,
        "c": True,
    }
    assert sample.fetch_ages is not None
    assert set(sample.fetch_ages.value) == {0, 1, 2}
    assert max(sample.fetch_ages.value.values()) < 2
    assert (sample.silent, sample.refused, sample.missing_rights) == ({}, {}, ())
    assert sample.began < sample.logs[1].at <= sample.ended
    assert world.wall_clock() - 1 < sample.measured_s < world.wall_clock()
    assert again.compacted == sample.compacted
    assert again.policies_read == sample.policies_read < again.began


async def test_a_broker_that_hangs_leaves_its_parts_unknown_and_is_named(
    world: World, kafka: VirtualKafka
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await admin.create_topic("t", assignment={0: [0, 1], 1: [1, 2]})
        meter = LoadMeter()
        meter.add(await take_sample(admin, timeout_s=1))
        world.loop.pause("broker-1")
        await asyncio.sleep(5)
        began = world.loop.time()
        sample = await take_sample(admin, timeout_s=1)
        assert world.loop.time() - began < 4
        assert list(sample.silent) == [1]
        assert sample.fetch_ages is not None
        assert sample.fetch_ages.value[1] > 2 > sample.fetch_ages.value[0]
        assert "sizes of logs: no answer within 1 s" in sample.silent[1]
        assert set(sample.logs) == set(sample.ends) == {0, 2}
        assert sample.round_trips[1] > 0.99 > sample.round_trips[0]
        meter.add(sample)
        measured = meter.measure()
        assert "broker 1, has not answered" in measured.left_out[Q]
        assert P in [each.partition for each in measured.load.partitions]
        world.loop.resume("broker-1")


async def test_a_broker_that_is_down_is_not_alive(world: World, kafka: VirtualKafka) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await admin.create_topic("t", assignment={0: [0, 1]})
        await kafka.stop(1)
        meter = LoadMeter()
        sample = await take_sample(admin)
        meter.add(sample)
        meter.add(await take_sample(admin, sample))
        assert set(sample.nodes) == {0, 2}
        assert sample.fenced is not None
        assert set(sample.fenced) == {1}
        state = meter.measure().load.brokers[1]
        assert (state.is_alive, state.takes_replicas, state.disk) == (False, False, None)
        await kafka.start(1)


async def test_a_reassignment_is_seen_while_it_lasts(world: World, kafka: VirtualKafka) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await admin.create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
        world.network.cut("broker-2", "broker-0")  # the new replica gets no records
        await admin.alter_reassignments({Q: [0, 2]})
        sample = await take_sample(admin)
        world.network.heal()
    assert sample.moving is not None
    assert sample.moving.value == {Q}


async def test_a_time_out_that_is_not_above_zero_is_refused(
    world: World, kafka: VirtualKafka
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        with pytest.raises(UsageError, match="timeout_s=0"):
            await take_sample(admin, timeout_s=0)


# Brokers that refuse


def of(value: object) -> Callable[[Any], object]:
    return lambda request: value


def refuse_configs(request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        is_topic = resource.resource_type == 2
        code = ErrorCode.NONE
        if not is_topic:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        elif resource.resource_name == "a":
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        results.append(
            DescribeConfigsResult(
                error_code=code,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    DescribeConfigsResourceResult(
                        name="cleanup.policy", value="compact", read_only=False, is_sensitive=False
                    )
                ]
                if code is ErrorCode.NONE
                else [],
            )
        )
    return DescribeConfigsResponse(results=results)


def refuse_offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        if topic.name == "a"
                        else ErrorCode.NOT_LEADER_OR_FOLLOWER
                        if each.partition_index
                        else ErrorCode.NONE,
                        offset=5,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def answer_offset_fetch(request: OffsetFetchRequest) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id=each.group_id,
                error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
                if each.group_id == "secret"
                else ErrorCode.NONE,
                topics=[
                    OffsetFetchResponseTopics(
                        name="t",
                        partitions=[
                            OffsetFetchResponsePartitions(
                                partition_index=index, committed_offset=offset, metadata=""
                            )
                            for index, offset in ((0, 3), (1, -1))
                        ],
                    )
                ],
            )
            for each in request.groups
        ]
    )


def directory(path: str, is_cordoned: bool = False, **fields: Any) -> DescribeLogDirsResult:
    replica = DescribeLogDirsPartition(
        partition_index=0, partition_size=100, offset_lag=0, is_future_key=path == "/new"
    )
    return DescribeLogDirsResult(
        log_dir=path,
        topics=[DescribeLogDirsTopic(name=path[1:], partitions=[replica])],
        is_cordoned=is_cordoned,
        **fields,
    )


@pytest.fixture
def scripted(world: World) -> ScriptedCluster:
    """Two brokers that answer everything; `t` has two partitions, `a` one."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 1], "a": [0]})
    for node_id in range(2):
        cluster.broker(node_id).answers.update(
            {
                DescribeLogDirsRequest: of(
                    DescribeLogDirsResponse(
                        results=[directory("/t", total_bytes=9, usable_bytes=4)]
                    )
                ),
                DescribeConfigsRequest: refuse_configs,
                ListGroupsRequest: of(ListGroupsResponse(error_code=0, groups=[])),
                OffsetFetchRequest: answer_offset_fetch,
                ListPartitionReassignmentsRequest: of(
                    ListPartitionReassignmentsResponse(topics=[])
                ),
                DescribeQuorumRequest: of(
                    DescribeQuorumResponse(
                        topics=[
                            TopicDataResponse(
                                topic_name="__cluster_metadata",
                                partitions=[PartitionDataResponse(partition_index=0)],
                            )
                        ]
                    )
                ),
                DescribeClusterRequest: of(
                    DescribeClusterResponse(cluster_id="scripted", controller_id=0, brokers=[])
                ),
            }
        )
    return cluster


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


async def test_missing_rights_are_collected_and_named_one_by_one(
    world: World, scripted: ScriptedCluster
) -> None:
    for broker in scripted.brokers.values():
        broker.answers[DescribeLogDirsRequest] = of(
            DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        )
        broker.answers[ListOffsetsRequest] = refuse_offsets
        broker.answers[ListPartitionReassignmentsRequest] = of(
            ListPartitionReassignmentsResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=[]
            )
        )
        broker.answers[DescribeQuorumRequest] = of(
            DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        )
    scripted.brokers[0].answers[ListGroupsRequest] = of(
        ListGroupsResponse(
            error_code=0,
            groups=[
                ListedGroup(group_id="open", protocol_type="consumer", group_type="Classic"),
                ListedGroup(group_id="secret", protocol_type="consumer", group_type="consumer"),
                ListedGroup(group_id="shared", protocol_type="share", group_type="share"),
            ],
        )
    )
    async with await admin_of(scripted) as admin:
        sample = await take_sample(admin)
    assert list(map(str, sample.missing_rights)) == [
        "allow Describe on group secret, for its committed offsets",
        "allow Describe on the cluster, for last fetches",
        "allow Describe on the cluster, for reassignments",
        "allow Describe on the cluster, for sizes of logs",
        "allow DescribeConfigs on the cluster, for limits",
        "allow Describe on topic a, for ends of logs",
        "allow Describe on topic a, for starts of logs",
        "allow DescribeConfigs on topic a, for its cleanup policy",
    ]
    assert sample.logs == {}
    assert sample.moving is None
    assert sample.limits is None
    assert sample.ends[0].value == {P: 5}
    assert {name: is_ for (name, _), is_ in sample.compacted.items()} == {"t": True}
    assert {group: told.value for group, told in sample.groups.items()} == {"open": {P: 3}}
    assert list(sample.refused_groups) == ["secret"]
    assert sample.silent == {}
    assert sample.refused["ends of logs of topic t"].startswith("topic t: NOT_LEADER_OR_FOLLOWER")
    assert "committed offsets: group secret: GROUP_AUTHORIZATION_FAILED (30)" in sample.unknown
    assert len(sample.unknown) == 2 + 1 + 8


# Offsets alone


async def test_offsets_are_asked_of_each_broker_once(
    world: World, scripted: ScriptedCluster
) -> None:
    """Ends only of the partitions in which a group has an offset, after that is known."""
    listed = [
        ListedGroup(group_id=name, protocol_type="consumer", group_type="classic")
        for name in ("g", "h", "secret")
    ]
    for broker in scripted.brokers.values():
        broker.answers[ListOffsetsRequest] = refuse_offsets
    scripted.brokers[1].answers[ListGroupsRequest] = of(
        ListGroupsResponse(error_code=0, groups=listed)
    )
    async with await admin_of(scripted) as admin:
        sample = await take_offsets(admin)
        assert {group: told.value for group, told in sample.groups.items()} == {
            "g": {P: 3},
            "h": {P: 3},
        }
        assert {broker: told.value for broker, told in sample.ends.items()} == {0: {P: 5}}
        assert sample.ends[0].at >= max(told.at for told in sample.groups.values())
        assert list(sample.refused_groups) == ["secret"]
        assert (sample.logs, sample.starts) == ({}, {})
        asked = [
            [
                each.api
                for each in broker.asked
                if each.api not in (ApiVersionsRequest, MetadataRequest)
            ]
            for broker in scripted.brokers.values()
        ]
        assert asked == [
            [ListGroupsRequest, ListOffsetsRequest],
            [ListGroupsRequest, OffsetFetchRequest],
        ]
        sample = await take_offsets(admin, ["h", "none"])
        assert list(sample.groups) == ["h"]
        (request,) = scripted.brokers[1].requests(OffsetFetchRequest)[1:]
        assert [each.group_id for each in request.groups] == ["h"]
        assert len(scripted.brokers[0].requests(ListOffsetsRequest)) == 2


async def test_a_broker_that_hangs_costs_the_others_offsets_nothing(
    world: World, kafka: VirtualKafka
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await admin.create_topic("t", assignment={0: [0, 1], 1: [1, 2]})
        groups = [f"g{number}" for number in range(12)]
        for group in groups:
            await admin.alter_group_offsets(group, {P: 0, Q: 0})
        found = await take_offsets(admin)
        assert sorted(found.groups) == sorted(groups)
        assert {broker: told.value for broker, told in found.ends.items()} == {0: {P: 0}, 1: {Q: 0}}
        world.loop.pause("broker-1")
        began = world.loop.time()
        sample = await take_offsets(admin, timeout_s=1)
        assert world.loop.time() - began <= 3.75
        assert list(sample.silent) == [1]
        assert "groups: no answer within 1 s" in sample.silent[1]
        assert set(sample.ends) == {0}
        assert 0 < len(sample.groups) <= 12
        world.loop.resume("broker-1")
        with pytest.raises(UsageError, match="timeout_s=0"):
            await take_offsets(admin, timeout_s=0)


async def test_a_topic_that_is_deleted_has_no_end(world: World, kafka: VirtualKafka) -> None:
    """Until the coordinator has dropped its offsets."""
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await admin.create_topic("t", assignment={0: [0]})
        await admin.alter_group_offsets("g", {P: 0})
        views = await admin.describe_topics()
        described = admin.describe_topics

        async def without() -> object:
            return {name: view for name, view in views.items() if name != "t"}

        admin.describe_topics = without  # type: ignore[assignment]
        sample = await take_offsets(admin)
        admin.describe_topics = described  # type: ignore[method-assign]
    assert sample.groups["g"].value == {P: 0}
    assert sample.ends == {}
    assert sample.unknown == []


# Older brokers


async def test_older_brokers_tell_neither_fenced_brokers_nor_a_quorum(
    world: World, scripted: ScriptedCluster
) -> None:
    for broker in scripted.brokers.values():
        broker.versions[DescribeClusterRequest] = (0, 1)
        del broker.versions[DescribeQuorumRequest]
    async with await admin_of(scripted) as admin:
        sample = await take_sample(admin)
    assert (sample.fenced, sample.fetch_ages) == (None, None)
    assert sample.refused == {}


async def test_volumes_are_counted_once_and_cordoned_directories_take_nothing(
    world: World, scripted: ScriptedCluster
) -> None:
    same = {"total_bytes": 100, "usable_bytes": 40}
    scripted.brokers[0].answers[DescribeLogDirsRequest] = of(
        DescribeLogDirsResponse(
            results=[
                directory("/t", is_cordoned=True, **same),
                directory("/a", is_cordoned=True, **same),
                directory("/new", is_cordoned=True, total_bytes=70, usable_bytes=7),
                directory("/broken", error_code=ErrorCode.KAFKA_STORAGE_ERROR),
            ]
        )
    )
    scripted.brokers[1].answers[DescribeLogDirsRequest] = of(
        DescribeLogDirsResponse(results=[directory("/t")])
    )
    async with await admin_of(scripted) as admin:
        sample = await take_sample(admin)
    first, second = sample.logs[0].value, sample.logs[1].value
    assert first.sizes == {P: 100, TopicPartition("a", 0): 100}
    assert (first.total, first.usable, first.takes_replicas) == (170, 47, False)
    assert (second.total, second.usable, second.takes_replicas) == (None, None, True)


async def test_a_broker_before_kafka_2_7_that_lists_no_directory_refuses(
    world: World, scripted: ScriptedCluster
) -> None:
    scripted.brokers[0].versions[DescribeLogDirsRequest] = (1, 2)
    scripted.brokers[0].answers[DescribeLogDirsRequest] = of(DescribeLogDirsResponse(results=[]))
    async with await admin_of(scripted) as admin:
        sample = await take_sample(admin)
    assert "allow Describe on the cluster, for sizes of logs" in map(str, sample.missing_rights)
    assert list(sample.logs) == [1]


async def test_if_no_broker_describes_the_topics_the_silent_ones_are_named(
    world: World, scripted: ScriptedCluster
) -> None:
    for broker in scripted.brokers.values():
        broker.answers[MetadataRequest] = of(NO_ANSWER)
    began = world.loop.time()
    async with await admin_of(scripted) as admin:
        with pytest.raises(Unavailable, match=r"cannot describe the topics .* did not answer"):
            await take_sample(admin, timeout_s=2)
        assert world.loop.time() - began < 4


async def test_brokers_are_asked_at_once(world: World, kafka: VirtualKafka) -> None:
    """Two that hang cost no more than one."""
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("admin")) as admin:
        await take_sample(admin)
        for broker in (1, 2):
            world.loop.pause(f"broker-{broker}")
        began = world.loop.time()
        sample = await take_sample(admin, timeout_s=1)
        assert world.loop.time() - began < 4
        assert set(sample.silent) == {1, 2}
        for broker in (1, 2):
            world.loop.resume(f"broker-{broker}")
        await asyncio.sleep(1)
