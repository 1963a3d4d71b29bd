"""The admin client against brokers that answer by script, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, ScriptedBroker, ScriptedCluster, batch
from trimtab.client.admin.answers import ConfigEntry, ConfigSource, NewTopic
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.options import OptionType
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trimtab.kafka.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Two brokers that create and delete topics, broker 1 for the controller."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 1], "a": [0]}, controller=1)
    for node_id in range(2):
        broker = cluster.broker(node_id)
        broker.answers[CreateTopicsRequest] = Creator(cluster)
        broker.answers[DeleteTopicsRequest] = Deleter(cluster)
    cluster.logs[T0] = [batch(0, b"0", b"1")]
    cluster.logs[T1] = [batch(5, b"5")]
    return cluster


class Creator:
    """Creates requested topics, unless they exist or `code` refuses them."""

    def __init__(self, cluster: ScriptedCluster, code: ErrorCode = ErrorCode.NONE) -> None:
        self.cluster = cluster
        self.code = code

    def __call__(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        results = []
        for topic in request.topics:
            code = self.code
            if topic.name in self.cluster.leaders:
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            if code is ErrorCode.NONE and not request.validate_only:
                self.cluster.leaders[topic.name] = [0] * max(topic.num_partitions, 1)
            results.append(
                CreatableTopicResult(
                    name=topic.name,
                    error_code=code,
                    error_message=None if code is ErrorCode.NONE else f"said {code.name}",
                )
            )
        return CreateTopicsResponse(topics=results)


class Deleter:
    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster

    def __call__(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        names = [topic.name or "" for topic in request.topics] + request.topic_names
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=name,
                    error_code=ErrorCode.NONE
                    if self.cluster.leaders.pop(name, None)
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
                for name in names
            ]
        )


async def admin_of(cluster: ScriptedCluster, **options: Any) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"), **options)


async def test_topics_are_listed_and_described(world: World, cluster: ScriptedCluster) -> None:
    async with await admin_of(cluster) as admin:
        assert await admin.topics() == ["a", "t"]
        described = await admin.describe_topics(["t"])
        assert list(described) == ["t"]
        assert described["t"].leaders == (0, 1)
        assert set(await admin.describe_topics()) == {"a", "t"}
        assert await admin.describe_topics([]) == {}


async def test_internal_topics_are_listed_on_request(
    world: World, cluster: ScriptedCluster
) -> None:
    def answer(request: Any) -> Any:
        response = cluster.metadata(request)
        for topic in response.topics:
            topic.is_internal = topic.name == "a"
        return response

    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = answer
    async with await admin_of(cluster) as admin:
        assert await admin.topics() == ["t"]
        assert await admin.topics(include_internal=True) == ["a", "t"]


async def test_an_unknown_topic_is_an_error_at_once(world: World, cluster: ScriptedCluster) -> None:
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.describe_topics(["t", "nope"])
        assert world.loop.time() < 1


async def test_the_cluster_is_described(world: World, cluster: ScriptedCluster) -> None:
    async with await admin_of(cluster) as admin:
        described = await admin.cluster()
        assert (described.cluster_id, described.controller_id) == ("scripted", 1)
        assert described.nodes == [Node(0, "broker-0", 9092), Node(1, "broker-1", 9092)]


async def test_a_topic_is_created_by_the_controller(world: World, cluster: ScriptedCluster) -> None:
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", 3, 2, config={"retention.ms": 5, "preallocate": True})
        assert cluster.brokers[0].requests(CreateTopicsRequest) == []
        (request,) = cluster.brokers[1].requests(CreateTopicsRequest)
        (topic,) = request.topics
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 3, 2)
        assert {c.name: c.value for c in topic.configs} == {
            "retention.ms": "5",
            "preallocate": "true",
        }
        assert (await admin.describe_topics(["new"]))["new"].partition_count == 3


async def test_an_assignment_takes_the_place_of_counts(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", assignment={0: [1, 0], 1: [0]})
        (request,) = cluster.brokers[1].requests(CreateTopicsRequest)
        (topic,) = request.topics
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
        assert [(a.partition_index, a.broker_ids) for a in topic.assignments] == [
            (0, [1, 0]),
            (1, [0]),
        ]
        with pytest.raises(UsageError, match="assignment, or partitions"):
            await admin.create_topic("both", 2, assignment={0: [1]})


async def test_validation_creates_nothing_and_waits_for_nothing(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", 1, validate_only=True)
        assert "new" not in cluster.leaders
        with pytest.raises(BrokerError, match="topic t: TOPIC_ALREADY_EXISTS"):
            await admin.create_topic("t", 1, validate_only=True)


async def test_creation_waits_until_every_partition_has_a_leader(
    world: World, cluster: ScriptedCluster
) -> None:
    created = Creator(cluster)

    def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        response = created(request)
        cluster.leaders["new"] = [0, -1]
        world.loop.call_later(2.0, cluster.leaders.update, {"new": [0, 1]})
        return response

    cluster.brokers[1].answers[CreateTopicsRequest] = create
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", 2)
        assert 2.0 <= world.loop.time() <= 3.3


async def test_a_topic_without_leaders_is_reported_after_the_timeout(
    world: World, cluster: ScriptedCluster
) -> None:
    created = Creator(cluster)

    def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        response = created(request)
        cluster.leaders["new"] = [0, -1]
        return response

    cluster.brokers[1].answers[CreateTopicsRequest] = create
    async with await admin_of(cluster, default_api_timeout_ms=4_000) as admin:
        with pytest.raises(BrokerError, match=r"partitions \[1\] have no leader yet"):
            await admin.create_topic("new", 2)
        assert world.loop.time() == pytest.approx(4.0, abs=0.1)


async def test_several_topics_are_created_although_one_is_refused(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        topics = [NewTopic("x", 1), NewTopic("t", 1), NewTopic("y", 2)]
        with pytest.raises(BrokerError, match=r"topic t: .*: said TOPIC_ALREADY_EXISTS"):
            await admin.create_topics(topics)
        assert await admin.topics() == ["a", "t", "x", "y"]
        await admin.create_topics([])


async def test_another_controller_is_asked_if_it_is_another(
    world: World, cluster: ScriptedCluster
) -> None:
    refuse = Creator(cluster, ErrorCode.NOT_CONTROLLER)

    def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        cluster.controller = 0
        return refuse(request)

    cluster.brokers[1].answers[CreateTopicsRequest] = create
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", 1)
        assert len(cluster.brokers[0].requests(CreateTopicsRequest)) == 1
        assert "new" in cluster.leaders


async def test_without_a_known_controller_any_broker_is_asked(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.controller = -1
    async with await admin_of(cluster) as admin:
        await admin.create_topic("new", 1)
        assert "new" in cluster.leaders


async def test_creation_is_not_repeated_once_it_may_have_happened(
    world: World, cluster: ScriptedCluster
) -> None:
    created = Creator(cluster)

    def create_and_fall(request: CreateTopicsRequest) -> object:
        created(request)
        return HANG_UP

    cluster.brokers[1].answers[CreateTopicsRequest] = create_and_fall
    async with await admin_of(cluster) as admin:
        with pytest.raises(Unavailable, match=r"closed the connection.*topics\(\)"):
            await admin.create_topic("new", 1)
        assert len(cluster.brokers[1].requests(CreateTopicsRequest)) == 1


@pytest.mark.parametrize("newest", [1, 5, 6])
async def test_a_topic_is_deleted(world: World, cluster: ScriptedCluster, newest: int) -> None:
    cluster.brokers[1].versions[DeleteTopicsRequest] = (1, newest)
    async with await admin_of(cluster) as admin:
        await admin.delete_topic("t")
        assert await admin.topics() == ["a"]
        with pytest.raises(BrokerError, match="topic t: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_topic("t")
        assert world.loop.time() < 1


@pytest.mark.parametrize(
    ("at", "asked"), [("earliest", -2), ("latest", -1), ("max_timestamp", -3), (1_234, 1_234)]
)
async def test_each_leader_is_asked_for_the_offsets_of_its_partitions(
    world: World, cluster: ScriptedCluster, at: Any, asked: int
) -> None:
    async with await admin_of(cluster) as admin:
        found = await admin.list_offsets([T1, ("t", 0)], at, "read_committed")
        assert list(found) == [T1, T0]
        for node_id, broker in cluster.brokers.items():
            (request,) = broker.requests(ListOffsetsRequest)
            assert request.isolation_level == 1
            assert [
                (p.partition_index, p.timestamp) for t in request.topics for p in t.partitions
            ] == [(node_id, asked)]


async def test_offsets_are_looked_up_again_after_leadership_moved(
    world: World, cluster: ScriptedCluster
) -> None:
    old, new = cluster.brokers[0], cluster.brokers[1]

    def refuse(request: ListOffsetsRequest) -> ListOffsetsResponse:
        cluster.leaders["t"] = [1, 1]
        response = old.list_offsets(request)
        response.topics[0].partitions[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return response

    old.answers[ListOffsetsRequest] = refuse
    async with await admin_of(cluster) as admin:
        found = await admin.list_offsets([T0, T1])
        assert {partition: offset.offset for partition, offset in found.items()} == {
            T0: 2,
            T1: 6,
        }
        assert len(old.requests(ListOffsetsRequest)) == 1
        assert len(new.requests(ListOffsetsRequest)) == 2


async def test_invalid_arguments_for_offsets_are_refused(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[0].versions[ListOffsetsRequest] = (1, 6)
    async with await admin_of(cluster) as admin:
        with pytest.raises(UsageError, match="at='newest'"):
            await admin.list_offsets([T0], "newest")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="at=-1"):
            await admin.list_offsets([T0], -1)
        with pytest.raises(BrokerError, match=r"up to version 6; .* needs 7 \(Kafka 3\.0\)"):
            await admin.list_offsets([T0], "max_timestamp")
        assert await admin.list_offsets([]) == {}


class Describer:
    """Has one option of each kind."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code

    def __call__(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=self.code,
                    error_message="no",
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        DescribeConfigsResourceResult(
                            name="z.secret",
                            value=None,
                            read_only=True,
                            config_source=99,
                            is_sensitive=True,
                            config_type=9,
                        ),
                        DescribeConfigsResourceResult(
                            name="a.number",
                            value="5",
                            read_only=False,
                            config_source=5,
                            is_sensitive=False,
                            config_type=3,
                            documentation="How many.",
                        ),
                    ],
                )
                for resource in request.resources
            ]
        )


def describe_with(cluster: ScriptedCluster, describer: Describer) -> None:
    for broker in cluster.brokers.values():
        broker.answers[DescribeConfigsRequest] = describer


async def test_the_options_of_a_topic(world: World, cluster: ScriptedCluster) -> None:
    describe_with(cluster, Describer())
    async with await admin_of(cluster) as admin:
        entries = await admin.describe_configs("topic", "t")
        assert entries == [
            ConfigEntry(
                "a.number",
                "5",
                ConfigSource.DEFAULT_CONFIG,
                False,
                False,
                OptionType.INT,
                "How many.",
            ),
            ConfigEntry(
                "z.secret", None, ConfigSource.UNKNOWN, True, True, OptionType.PASSWORD, None
            ),
        ]
        assert [entry.is_default for entry in entries] == [True, False]


@pytest.mark.parametrize(("count", "requests"), [(0, 0), (1, 1), (200, 1), (1001, 6)])
async def test_the_options_of_many_topics_are_asked_for_200_at_a_time(
    count: int, requests: int, world: World, cluster: ScriptedCluster
) -> None:
    describe_with(cluster, Describer())
    names = [f"t{number}" for number in range(count)]
    async with await admin_of(cluster) as admin:
        found = await admin.describe_topic_configs(names)
    assert {name: [each.name for each in entries] for name, entries in found.items()} == {
        name: ["a.number", "z.secret"] for name in names
    }
    asked = [
        request
        for broker in cluster.brokers.values()
        for request in broker.requests(DescribeConfigsRequest)
    ]
    assert len(asked) == requests
    assert not any(request.include_documentation for request in asked)


async def test_some_options_of_topics_are_asked_for_by_name(
    world: World, cluster: ScriptedCluster
) -> None:
    describe_with(cluster, Describer())
    async with await admin_of(cluster) as admin:
        await admin.describe_topic_configs(["t"], ("a.number",))
        await admin.describe_topic_configs(["t"])
    asked = [
        request.resources[0].configuration_keys
        for broker in cluster.brokers.values()
        for request in broker.requests(DescribeConfigsRequest)
    ]
    assert sorted(asked, key=str) == [None, ["a.number"]]


async def test_one_unknown_topic_among_many_is_named(
    world: World, cluster: ScriptedCluster
) -> None:
    describe_with(cluster, Describer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.describe_topic_configs(["nope", "neither"])


async def test_the_options_of_a_broker_are_asked_of_itself(
    world: World, cluster: ScriptedCluster
) -> None:
    describe_with(cluster, Describer())
    for broker in cluster.brokers.values():
        broker.versions[DescribeConfigsRequest] = (1, 2)

    def requests(broker: ScriptedBroker) -> list[tuple[int, str]]:
        return [
            (resource.resource_type, resource.resource_name)
            for request in broker.requests(DescribeConfigsRequest)
            for resource in request.resources
        ]

    async with await admin_of(cluster) as admin:
        assert len(await admin.describe_configs("broker", 0)) == 2
        assert len(await admin.describe_configs("broker", "1")) == 2
        assert requests(cluster.brokers[0]) == [(4, "0")]
        assert requests(cluster.brokers[1]) == [(4, "1")]
        with pytest.raises(UsageError, match="broker 'one'"):
            await admin.describe_configs("broker", "one")
        with pytest.raises(UsageError, match="kind='group'"):
            await admin.describe_configs("group", "g")  # type: ignore[arg-type]


async def test_the_options_of_a_stopped_broker_are_asked_of_any_other(
    world: World, cluster: ScriptedCluster
) -> None:
    describe_with(cluster, Describer())
    async with await admin_of(cluster) as admin:
        assert len(await admin.describe_configs("broker", 7)) == 2
        describe_with(cluster, Describer(ErrorCode.INVALID_REQUEST))  # as Apache Kafka's brokers
        with pytest.raises(UsageError, match=r"broker 7 is not alive, .* alive are 0, 1"):
            await admin.describe_configs("broker", 7)
        with pytest.raises(BrokerError, match="INVALID_REQUEST"):
            await admin.describe_configs("broker", 1)


async def test_the_options_of_an_unknown_topic(world: World, cluster: ScriptedCluster) -> None:
    describe_with(cluster, Describer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.describe_configs("topic", "nope")
        assert world.loop.time() < 1


async def test_reading_is_repeated_at_another_broker(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        await admin.topics()
        (asked,) = [broker for broker in cluster.brokers.values() if broker.asked]
        asked.answers[MetadataRequest] = lambda request: HANG_UP
        assert await admin.topics() == ["a", "t"]


async def test_without_any_broker_all_addresses_are_named(
    world: World, cluster: ScriptedCluster
) -> None:
    admin = AsyncAdmin(cluster.bootstrap, default_api_timeout_ms=3_000)
    with pytest.raises(Unavailable, match="cannot list topics within 3 s") as caught:
        await admin.topics()
    assert world.loop.time() == pytest.approx(3.0)
    assert "broker-0:9092" in str(caught.value)
    assert "broker-1:9092" in str(caught.value)
    await admin.close()


async def test_a_closed_admin_client_says_so(world: World, cluster: ScriptedCluster) -> None:
    admin = await admin_of(cluster)
    await admin.topics()
    await admin.close()
    await admin.close()
    for call in (admin.topics, admin.cluster, lambda: admin.list_offsets([T0])):
        with pytest.raises(UsageError, match="the admin client is closed"):
            await call()
    await asyncio.sleep(1)  # the way of the end to the broker
    for broker in cluster.brokers.values():
        assert [link for link in broker.links if link.transport is not None] == []


async def test_a_leader_that_does_not_come_back_is_given_up_however_short_the_calls(
    world: World, cluster: ScriptedCluster
) -> None:
    """Each call ends before the leader may be tried again; the next one must not begin with it."""
    for broker in cluster.brokers.values():
        await broker.start()
    async with AsyncAdmin(
        cluster.bootstrap,
        random=world.random("client"),
        default_api_timeout_ms=300,
        retry_backoff_ms=1000,
        retry_backoff_max_ms=10_000,
    ) as admin:
        assert (await admin.list_offsets([T1]))[T1].offset == 6
        for broker in cluster.brokers.values():
            broker.stop()
        for _ in range(10):
            with pytest.raises(Unavailable):
                await admin.list_offsets([T1])
        await cluster.brokers[0].start()
        cluster.leaders["t"] = [0, 0]
        assert await calls_until_answered(lambda: admin.list_offsets([T1])) < 60


async def test_brokers_that_moved_are_found_by_bootstrap_however_short_the_calls(
    world: World, cluster: ScriptedCluster
) -> None:
    """Waiting for the known ones must not use up all of the time of each call."""
    seed = cluster.broker(7)
    del cluster.brokers[7]  # a name of the cluster, not one of its brokers
    known = [cluster.broker(node_id) for node_id in range(2, 7)]
    for broker in (seed, *known):
        await broker.start()
    async with AsyncAdmin(
        "broker-7:9092",
        random=world.random("client"),
        default_api_timeout_ms=300,
        retry_backoff_ms=1000,
    ) as admin:
        await admin.topics()
        for broker in (seed, *known):
            broker.stop()
        for _ in range(20):
            with pytest.raises(Unavailable):
                await admin.topics()
        await seed.start()
        assert await calls_until_answered(admin.topics) < 10


async def calls_until_answered(call: Callable[[], Awaitable[object]]) -> int:
    for count in range(100):
        try:
            await call()
        except Unavailable:
            continue
        return count
    raise AssertionError("no call was ever answered")
