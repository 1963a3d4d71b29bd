"""Requests about very many topics or resources (`trimtab.cluster.controller.large_requests`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from operator import attrgetter
from typing import Any

import pytest

from tests.steps import count_steps, finish
from tests.unit.cluster.broker.conftest import Lab
from trimtab.cluster.controller.decision import WholeRequest
from trimtab.cluster.controller.large_requests import AT_ONCE, Parts, decide_in_parts
from trimtab.cluster.server.turns import Steps
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from trimtab.kafka.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.sim.world import World

HEADER = RequestHeader(CreateTopicsRequest.api_key, 7, 1, None, 0)
DELETION = Parts("topics", "responses", name=attrgetter("name"), answers_once=True)
ELECTION = Parts("topic_partitions", "replica_election_results", "partitions", "partition_result")


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


class Decider:
    """Answers each part as it comes.

    Attributes:
        sizes: of the parts.
        wholes: what they share.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.wholes: set[int] = set()

    def delete(self, request: DeleteTopicsRequest, whole: WholeRequest) -> Any:
        self.sizes.append(len(request.topics))
        self.wholes.add(id(whole))
        response = DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=each.name, error_code=whole.name_counts[each.name] > 1)
                for each in request.topics
            ]
        )
        return response if whole.is_in_parts else self.reach(response, whole)

    def elect(self, request: ElectLeadersRequest, whole: WholeRequest) -> Any:
        topics = request.topic_partitions or []
        self.sizes.append(sum(len(each.partitions) for each in topics))
        return ElectLeadersResponse(
            error_code=ErrorCode.NONE if len(self.sizes) < 2 else ErrorCode.NOT_CONTROLLER,
            replica_election_results=[
                ReplicaElectionResult(
                    topic=each.topic,
                    partition_result=[PartitionResult(partition_id=n) for n in each.partitions],
                )
                for each in topics
            ],
        )

    async def reach(self, response: Any, whole: WholeRequest) -> Any:
        await asyncio.sleep(1)
        return response


def deletion(*names: str) -> DeleteTopicsRequest:
    topics = [DeleteTopicState(name=name) for name in names]
    return DeleteTopicsRequest(topics=topics, timeout_ms=1000)


def numbered(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def cut(decide: Any, reach: Any, parts: Parts, request: Any) -> Steps[Any]:
    steps = decide_in_parts(decide, reach, parts, request)
    assert not isinstance(steps, Coroutine)
    return steps


def test_a_small_request_is_decided_at_once(world: World) -> None:
    decider = Decider()

    async def scenario() -> None:
        request = deletion(*numbered(AT_ONCE))
        answer = decide_in_parts(decider.delete, decider.reach, DELETION, request)
        assert isinstance(answer, Coroutine)
        assert len((await answer).responses) == AT_ONCE

    world.run(scenario())
    assert decider.sizes == [AT_ONCE]


def test_a_large_request_is_decided_in_steps_and_answered_once(world: World) -> None:
    decider = Decider()

    async def scenario() -> None:
        names = numbered(1050)
        turns, answer = count_steps(cut(decider.delete, decider.reach, DELETION, deletion(*names)))
        assert turns == 1 + len(decider.sizes) == 1 + 1050 / AT_ONCE
        began = asyncio.get_running_loop().time()
        response = await answer
        assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.1)
        assert [each.name for each in response.responses] == names

    world.run(scenario())
    assert max(decider.sizes) == AT_ONCE
    assert len(decider.wholes) == 1


def test_duplicates_are_known_in_each_part_and_answered_once(world: World) -> None:
    decider = Decider()
    names = ["twice", *numbered(500), "twice", "last"]

    async def scenario() -> Any:
        return await finish(cut(decider.delete, decider.reach, DELETION, deletion(*names)))

    response = world.run(scenario())
    assert {each.name for each in response.responses if each.error_code} == {"twice"}
    assert [each.name for each in response.responses] == ["twice", *numbered(500), "last"]


def test_other_tasks_run_while_very_many_duplicates_are_skipped(world: World) -> None:
    decider = Decider()
    steps = cut(decider.delete, decider.reach, DELETION, deletion(*["t"] * 40_000))
    turns, answer = count_steps(steps)
    answer.close()
    assert turns > 15
    assert decider.sizes == [1]


def test_a_topic_of_very_many_partitions_is_cut_too_and_answered_as_one(world: World) -> None:
    decider = Decider()
    request = ElectLeadersRequest(
        topic_partitions=[
            TopicPartitions(topic="a", partitions=[1, 2]),
            TopicPartitions(topic="b", partitions=list(range(1000))),
        ]
    )

    async def scenario() -> ElectLeadersResponse:
        steps = cut(decider.elect, decider.reach, ELECTION, request)
        response: ElectLeadersResponse = await finish(steps)
        return response

    response = world.run(scenario())
    assert max(decider.sizes) <= AT_ONCE + 2
    assert [each.topic for each in response.replica_election_results] == ["a", "b"]
    found = [each.partition_id for each in response.replica_election_results[1].partition_result]
    assert found == list(range(1000))
    assert response.error_code == ErrorCode.NOT_CONTROLLER, "what one part says is said of all"


def test_a_cancelled_request_ends_between_two_parts(world: World) -> None:
    decider = Decider()
    steps = cut(decider.delete, decider.reach, DELETION, deletion(*numbered(1000)))
    next(steps)  # has counted
    next(steps)
    steps.close()
    assert decider.sizes == [AT_ONCE]


# -- through a broker, and back


def topics(*names: str, partitions: int = 1) -> list[CreatableTopic]:
    return [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]


@pytest.fixture
def lab(world: World) -> Lab:
    return Lab(world)


async def test_very_many_topics_are_created_and_deleted(lab: Lab) -> None:
    names = numbered(220)
    client = lab.connect()
    image = lab.controller.controller.image
    response = await client.ask(CreateTopicsRequest(topics=topics(*names)), 7)
    assert [topic.name for topic in response.topics] == names
    assert {topic.error_code for topic in response.topics} == {0}
    assert len(image.topics) == len(lab.brokers[0].image.topics) == 220
    for version, gone in ((5, names[:110]), (6, names[110:])):
        by_name = {"topic_names": gone} if version < 6 else {"topics": deletion(*gone).topics}
        deleted = await client.ask(DeleteTopicsRequest(timeout_ms=1000, **by_name), version)
        assert [topic.name for topic in deleted.responses] == gone
        assert {topic.error_code for topic in deleted.responses} == {0}
    assert image.topics == {}


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_topic_named_twice_is_refused_wherever_it_stands(
    lab: Lab, validate_only: bool
) -> None:
    names = ["twice", *numbered(150), "twice"]
    client = lab.connect()
    request = CreateTopicsRequest(topics=topics(*names), validate_only=validate_only)
    response = await client.ask(request, 7)
    assert [topic.name for topic in response.topics] == names[:-1]
    assert {topic.name for topic in response.topics if topic.error_code} == {"twice"}
    assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST
    assert "twice" not in lab.controller.controller.image.topics
    assert len(lab.controller.controller.image.topics) == (0 if validate_only else 150)


async def test_resources_named_twice_are_refused_at_both_places(lab: Lab) -> None:
    names = numbered(120)
    client = lab.connect()
    await client.ask(CreateTopicsRequest(topics=topics(*names)), 7)
    change = [AlterableConfig(name="retention.ms", config_operation=0, value="1000")]
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=2, resource_name=name, configs=change)
            for name in (*names, "t0")
        ]
    )
    response = await client.ask(request, 1)
    refused = [each.resource_name for each in response.responses if each.error_code]
    assert refused == ["t0", "t0"]
    image = lab.controller.controller.image
    assert [name for name in names if not image.configs(2, name)] == ["t0"]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.run(config={"max.partitions": 130})
async def test_limits_count_over_the_whole_request(lab: Lab, validate_only: bool) -> None:
    request = CreateTopicsRequest(topics=topics(*numbered(200)), validate_only=validate_only)
    client = lab.connect()
    response = await client.ask(request, 7)
    codes = [topic.error_code for topic in response.topics]
    assert codes == [0] * 130 + [ErrorCode.POLICY_VIOLATION] * 70


@pytest.mark.parametrize("validate_only", [False, True])
async def test_colliding_names_are_refused_wherever_they_are(lab: Lab, validate_only: bool) -> None:
    names = ["a.b", *numbered(200), "a_b"]
    request = CreateTopicsRequest(topics=topics(*names), validate_only=validate_only)
    response = await lab.connect().ask(request, 7)
    refused = {topic.name: topic.error_code for topic in response.topics if topic.error_code}
    assert refused == {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}


async def test_the_records_of_all_parts_are_counted(lab: Lab) -> None:
    """60 topics of 100 partitions create 6,060 records; of 166 partitions, 10,020."""
    client = lab.connect()
    for partitions, created in ((100, 60), (166, 59)):
        request = CreateTopicsRequest(
            topics=topics(*numbered(60), partitions=partitions), validate_only=True
        )
        response = await client.ask(request, 7)
        codes = [topic.error_code for topic in response.topics]
        assert codes == [0] * created + [ErrorCode.POLICY_VIOLATION] * (60 - created)


@pytest.mark.run(config={"max.broker.partitions": 230})
async def test_partitions_are_added_within_limits_over_the_whole_request(lab: Lab) -> None:
    names = numbered(120)
    client = lab.connect()
    await client.ask(CreateTopicsRequest(topics=topics(*names)), 7)
    wanted = [
        CreatePartitionsTopic(name=name, count=2, assignments=None) for name in (*names, "t0")
    ]
    for validate_only in (True, False):
        request = CreatePartitionsRequest(
            topics=wanted, timeout_ms=1000, validate_only=validate_only
        )
        response = await client.ask(request, 3)
        codes = [result.error_code for result in response.results]
        assert [result.name for result in response.results] == names
        assert codes[0] == ErrorCode.INVALID_REQUEST
        assert codes[1:] == [0] * 110 + [ErrorCode.POLICY_VIOLATION] * 9


async def test_few_topics_of_many_partitions_are_many(lab: Lab) -> None:
    node = lab.controller
    few = CreateTopicsRequest(topics=topics("a", "b", partitions=100))
    many = CreateTopicsRequest(topics=topics(*"cdefg", partitions=900))
    handle = node.listener.handlers[HEADER.api_key]
    answers = [handle(HEADER, request) for request in (few, many)]
    assert isinstance(answers[0], Coroutine)
    await answers[0]
    assert isinstance(answers[1], Generator)
    turns, answer = count_steps(answers[1])
    response = await answer
    assert turns > 3
    assert {topic.error_code for topic in response.topics} == {0}
    assert {topic.num_partitions for topic in response.topics} == {900}


async def test_leaders_of_the_whole_cluster_are_elected_in_parts(lab: Lab) -> None:
    await lab.create_topic("t", 2)
    request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
    response = await lab.connect().ask(request, 2)
    assert response.error_code == 0
    (result,) = response.replica_election_results
    assert (result.topic, result.partition_result) == ("t", [])
