"""Proposals of ISRs (`trimtab.cluster.broker.isr_proposals`), sent to a fake controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from tests.unit.cluster.broker.replica_stand import SECOND, THIRD, TOPIC_ID, Stand
from trimtab.cluster.broker.isr_proposals import IsrProposals
from trimtab.cluster.broker.link import Link
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from trimtab.sim.world import World


class FakeLink:
    """The requests received, each with the future of its response."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[
            tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]
        ] = asyncio.Queue()

    async def ask(self, request: AlterPartitionRequest, timeout_s: float) -> Any:
        answer: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer


class ProposalCase:
    """Partitions 0, 1 and 2 of t; broker 1 leads them and is alone in the ISR."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stands = [Stand(index) for index in range(3)]

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            self.link = FakeLink()
            self.proposals = IsrProposals(1, lambda: 11, cast(Link, self.link))
            for stand in self.stands:
                stand.host.propose_isr = self.proposals.submit  # type: ignore[method-assign]
                stand.lead(isr=(1,))
            async with asyncio.timeout(10):
                await scenario()
            self.proposals.abort()

        self.world.run(run())
        for stand in self.stands:
            stand.log.abandon()

    async def next(self) -> tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]:
        asked = await self.link.asked.get()
        await asyncio.sleep(0)
        return asked

    def proposed(self, index: int) -> tuple[int, ...] | None:
        leadership = self.stands[index].partition.leadership
        assert leadership is not None
        return None if leadership.proposal is None else leadership.proposal.isr


def partitions(request: AlterPartitionRequest) -> dict[int, list[int]]:
    """The proposed ISR, by partition."""
    return {
        each.partition_index: [member.broker_id for member in each.new_isr_with_epochs]
        for topic in request.topics
        for each in topic.partitions
    }


def respond(*parts: PartitionDataResponse, code: int = 0) -> AlterPartitionResponse:
    topic = TopicDataResponse(topic_id=TOPIC_ID, partitions=list(parts))
    return AlterPartitionResponse(error_code=code, topics=[topic])


def part(index: int, isr: list[int], epoch: int = 8, leader_epoch: int = 5) -> Any:
    return PartitionDataResponse(
        partition_index=index,
        leader_id=1,
        leader_epoch=leader_epoch,
        isr=isr,
        partition_epoch=epoch,
    )


def refused(index: int, code: ErrorCode) -> PartitionDataResponse:
    return PartitionDataResponse(partition_index=index, error_code=code)


@pytest.fixture
def case() -> Iterator[ProposalCase]:
    with World(seed=1) as world:
        yield ProposalCase(world)


@pytest.mark.kip(903)
async def test_a_proposal_has_every_members_broker_epoch(case: ProposalCase) -> None:
    case.stands[0].lead(leader_epoch=6, isr=(1, 2))
    case.stands[0].fetched(THIRD, 0)
    request, _ = await case.next()
    assert (request.broker_id, request.broker_epoch) == (1, 11)
    (topic,) = request.topics
    (asked,) = topic.partitions
    assert (topic.topic_id, asked.partition_index) == (TOPIC_ID, 0)
    assert (asked.leader_epoch, asked.partition_epoch) == (6, 7)
    members = [(each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs]
    assert members == [(1, 11), (2, -1), (3, 11)]  # 2 has not fetched in this epoch


@pytest.mark.kip(966)
async def test_a_granted_isr_applies_when_the_metadata_is_replayed(case: ProposalCase) -> None:
    """The controller may have replayed a `min.insync.replicas` by which 3 joins the ELR."""
    stand = case.stands[0]
    stand.partition.configure(stand.values(min_insync_replicas="2"))
    stand.lead(leader_epoch=6, isr=(1, 2, 3))
    stand.fetched(SECOND, 0)
    stand.fetched(THIRD, 0)
    stand.append()
    stand.host.now_s += 31
    stand.fetched(SECOND, 1)
    stand.partition.review_isr()
    _, answer = await case.next()
    answer.set_result(respond(part(0, [1, 2], leader_epoch=6)))
    await asyncio.sleep(1)
    assert case.proposed(0) == (1, 2)
    assert stand.partition.high_watermark == 0
    stand.partition.configure(stand.values(min_insync_replicas="3"))
    stand.decide(isr=(1, 2))
    assert case.proposed(0) is None
    assert stand.partition.high_watermark == 0
    stand.partition.configure(stand.values(min_insync_replicas="2"))
    assert stand.partition.high_watermark == 1


@pytest.mark.kip(497)
async def test_proposals_made_during_a_request_are_sent_together_in_the_next(
    case: ProposalCase,
) -> None:
    case.stands[0].fetched(SECOND, 0)
    request, answer = await case.next()
    assert partitions(request) == {0: [1, 2]}
    case.stands[2].fetched(SECOND, 0)
    case.stands[1].fetched(THIRD, 0)
    await asyncio.sleep(1)
    assert case.link.asked.empty()
    answer.set_result(respond(part(0, [1, 2])))
    request, _ = await case.next()
    assert partitions(request) == {2: [1, 2], 1: [1, 3]}


@pytest.mark.parametrize("end", ["lost", "stale"])
async def test_an_unanswered_proposal_is_sent_again(case: ProposalCase, end: str) -> None:
    case.stands[0].fetched(SECOND, 0)
    began = case.world.loop.time()
    for number in range(5):
        request, answer = await case.next()
        assert case.world.loop.time() - began == pytest.approx(0.05 * number)
        assert partitions(request) == {0: [1, 2]}
        if end == "lost":
            answer.set_exception(PeerLost("gone"))
        else:
            answer.set_result(respond(code=ErrorCode.STALE_BROKER_EPOCH))
    assert case.proposed(0) == (1, 2)


@pytest.mark.parametrize(
    "answer",
    [
        respond(refused(0, ErrorCode.INELIGIBLE_REPLICA)),
        respond(refused(0, ErrorCode.OPERATION_NOT_ATTEMPTED)),
        respond(),
    ],
    ids=["ineligible", "not attempted", "not answered"],
)
async def test_a_proposal_that_was_not_applied_is_dropped(
    case: ProposalCase, answer: AlterPartitionResponse
) -> None:
    case.stands[0].fetched(SECOND, 0)
    (await case.next())[1].set_result(answer)
    await asyncio.sleep(1)
    assert case.proposed(0) is None
    assert case.stands[0].partition.registration.isr == (1,)
    assert case.link.asked.empty()
    case.stands[0].fetched(SECOND, 0)  # and so it is proposed again
    assert partitions((await case.next())[0]) == {0: [1, 2]}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
async def test_a_proposal_that_may_have_been_applied_is_kept_until_the_metadata_is_replayed(
    case: ProposalCase, code: ErrorCode
) -> None:
    stand = case.stands[0]
    stand.fetched(SECOND, 0)
    stand.append(5)
    (await case.next())[1].set_result(respond(refused(0, code)))
    await asyncio.sleep(1)
    assert case.proposed(0) == (1, 2)
    assert stand.partition.high_watermark == 0  # 2 may be in sync
    assert case.link.asked.empty()
    stand.lead(partition_epoch=9, isr=(1,))
    assert case.proposed(0) is None


async def test_each_partition_of_a_response_has_its_own_outcome(case: ProposalCase) -> None:
    case.stands[0].fetched(SECOND, 0)
    _, first = await case.next()
    for stand in case.stands[1:]:
        stand.fetched(SECOND, 0)
    first.set_result(respond(part(0, [1, 2])))
    _, second = await case.next()
    second.set_result(respond(refused(2, ErrorCode.INELIGIBLE_REPLICA), part(1, [1, 2])))
    await asyncio.sleep(1)
    assert [case.proposed(index) for index in range(3)] == [(1, 2), (1, 2), None]


@pytest.mark.kip(903)
async def test_a_follower_that_restarts_does_not_join_by_what_it_had_before(
    case: ProposalCase,
) -> None:
    """The proposal is sent again with the epoch it was made for: the controller refuses it."""
    case.stands[0].fetched(SECOND, 0, epoch=11)
    _, answer = await case.next()
    case.stands[0].fetched(SECOND, 0, epoch=12)
    answer.set_exception(PeerLost("gone"))
    request, _ = await case.next()
    members = request.topics[0].partitions[0].new_isr_with_epochs
    assert [(each.broker_id, each.broker_epoch) for each in members] == [(1, 11), (2, 11)]


async def test_a_deposed_leader_sends_no_proposal(case: ProposalCase) -> None:
    case.stands[0].fetched(SECOND, 0)
    _, answer = await case.next()
    case.stands[1].fetched(SECOND, 0)
    case.stands[1].follow(leader_epoch=6)
    answer.set_exception(PeerLost("gone"))
    request, _ = await case.next()
    assert partitions(request) == {0: [1, 2]}


async def test_a_refusal_does_not_drop_a_later_proposal(case: ProposalCase) -> None:
    stand = case.stands[0]
    stand.fetched(SECOND, 0)
    _, answer = await case.next()
    stand.lead(partition_epoch=8, isr=(1,))
    stand.fetched(THIRD, 0)
    answer.set_result(respond(refused(0, ErrorCode.INELIGIBLE_REPLICA)))
    request, _ = await case.next()
    assert partitions(request) == {0: [1, 3]}
    assert case.proposed(0) == (1, 3)


async def test_nothing_is_sent_after_abort(case: ProposalCase) -> None:
    case.stands[0].fetched(SECOND, 0)
    await case.next()
    case.stands[1].fetched(SECOND, 0)
    case.proposals.abort()
    await asyncio.sleep(1)
    assert case.link.asked.empty()


async def test_proposals_go_on_after_an_error(
    case: ProposalCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.stands[0].fetched(SECOND, 0)
    request, answer = await case.next()
    with monkeypatch.context() as patch:
        patch.setattr(IsrProposals, "_handle_response", lambda *_: [][0])
        answer.set_result(respond(part(0, [1, 2])))
        again, _ = await case.next()
    assert partitions(again) == partitions(request)
