"""Requests about very many things (`trimtab.controller.large_requests`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tests.steps import count_steps
from tests.unit.broker.conftest import Lab
from trimtab.controller.large_requests import AT_ONCE, Parts, decide_in_parts
from trimtab.errors import ErrorCode
from trimtab.sim.world import World
from trimtab.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from trimtab.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

DELETION = Parts("topics", "responses")
ELECTION = Parts("topic_partitions", "replica_election_results", "partitions", "partition_result")


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


class Decider:
    """Answers each part as it comes.

    Attributes:
        sizes: of the parts.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def delete(self, request: DeleteTopicsRequest) -> Coroutine[Any, Any, DeleteTopicsResponse]:
        self.sizes.append(len(request.topics))

        async def answer() -> DeleteTopicsResponse:
            await asyncio.sleep(1)
            return DeleteTopicsResponse(
                responses=[DeletableTopicResult(name=each.name) for each in request.topics]
            )

        return answer()

    def elect(self, request: ElectLeadersRequest) -> Coroutine[Any, Any, ElectLeadersResponse]:
        topics = request.topic_partitions or []
        self.sizes.append(sum(len(each.partitions) for each in topics))

        async def answer() -> ElectLeadersResponse:
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

        return answer()


def deletion(topics: int) -> DeleteTopicsRequest:
    names = [DeleteTopicState(name=f"t{n}") for n in range(topics)]
    return DeleteTopicsRequest(topics=names, timeout_ms=1000)


def test_a_hundred_are_decided_at_once(world: World) -> None:
    decider = Decider()

    async def scenario() -> None:
        answer = decide_in_parts(decider.delete, DELETION, deletion(AT_ONCE))
        assert isinstance(answer, Coroutine)
        assert len((await answer).responses) == AT_ONCE

    world.run(scenario())
    assert decider.sizes == [AT_ONCE]


def test_more_are_decided_in_turns_and_awaited_together(world: World) -> None:
    decider = Decider()

    async def scenario() -> None:
        steps = decide_in_parts(decider.delete, DELETION, deletion(1050))
        assert not isinstance(steps, Coroutine)
        turns, answer = count_steps(steps)
        assert turns == len(decider.sizes) == 11
        began = asyncio.get_running_loop().time()
        response = await answer
        assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.1)
        assert [each.name for each in response.responses] == [f"t{n}" for n in range(1050)]

    world.run(scenario())
    assert max(decider.sizes) == AT_ONCE


def test_a_topic_of_very_many_partitions_is_cut_too_and_answered_as_one(world: World) -> None:
    decider = Decider()
    request = ElectLeadersRequest(
        topic_partitions=[
            TopicPartitions(topic="a", partitions=[1, 2]),
            TopicPartitions(topic="b", partitions=list(range(1000))),
        ]
    )

    async def scenario() -> ElectLeadersResponse:
        steps = decide_in_parts(decider.elect, ELECTION, request)
        assert not isinstance(steps, Coroutine)
        response: ElectLeadersResponse = await count_steps(steps)[1]
        return response

    response = world.run(scenario())
    assert max(decider.sizes) <= AT_ONCE + 2
    assert [each.topic for each in response.replica_election_results] == ["a", "b"]
    found = [each.partition_id for each in response.replica_election_results[1].partition_result]
    assert found == list(range(1000))
    assert response.error_code == ErrorCode.NOT_CONTROLLER, "what one part says is said of all"


def test_a_request_that_nobody_waits_for_any_more_ends_between_two_parts(world: World) -> None:
    decider = Decider()

    async def scenario() -> None:
        steps = decide_in_parts(decider.delete, DELETION, deletion(1000))
        assert not isinstance(steps, Coroutine)
        next(steps)
        steps.close()

    world.run(scenario())
    assert decider.sizes == [AT_ONCE]


def test_very_many_topics_are_created_through_a_broker() -> None:
    """The request, and its answer, go to the controller and back in turns."""
    with World(seed=1) as world:
        lab = Lab(world)

        async def scenario() -> None:
            request = CreateTopicsRequest(
                topics=[
                    CreatableTopic(name=f"t{n}", num_partitions=1, replication_factor=1)
                    for n in range(1500)
                ]
            )
            response = await lab.connect().ask(request, 7)
            assert [topic.name for topic in response.topics] == [f"t{n}" for n in range(1500)]
            assert {topic.error_code for topic in response.topics} == {0}
            assert len(lab.controller.controller.image.topics) == 1500

        lab.run(scenario)
