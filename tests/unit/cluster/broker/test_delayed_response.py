"""acks=all: answered when every replica in sync has the batch
(`trimtab.cluster.broker.delayed_response`).

Followers are held up by a cut before the leader's server, which its clients do not notice here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Client, Lab
from tests.unit.cluster.broker.replica_stand import SECOND, Stand
from tests.unit.cluster.broker.replicas import (
    address,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    move_leader,
    reassign,
    replica,
    send,
    until,
    values,
)
from trimtab.cluster.broker.delayed_response import DelayedResponse
from trimtab.cluster.broker.handlers.produce import await_commit
from trimtab.cluster.server.connection import MAX_PIPELINED
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import decode_correlation_id, decode_response
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
)

TWO = {"min.insync.replicas": 2}
VERSION = 9


def frames(client: Client) -> list[bytes]:
    """All responses received, including several in one read."""
    content = b"".join(client.transport.written)
    found = []
    while content:
        end = 4 + int.from_bytes(content[:4], "big")
        found.append(content[4:end])
        content = content[end:]
    return found


def answers(client: Client) -> list[tuple[int, int]]:
    """Error code and base offset of all produce responses received, in order."""
    parts = [
        decode_response(ProduceResponse, VERSION, frame).responses[0].partition_responses[0]
        for frame in frames(client)
    ]
    return [(part.error_code, part.base_offset) for part in parts]


class Held:
    """Topic t on three brokers, whose followers get nothing from the leader until `release`."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.leader = leader_of(lab)
        self.client = lab.connect(self.leader)
        lab.world.network.cut(address(self.leader))

    def send(self, value: bytes, timeout_ms: int = 20_000, acks: int = -1, **identity: Any) -> None:
        request = self.lab.produce("t", self.lab.batch(value, **identity), acks=acks)
        request.timeout_ms = timeout_ms
        self.client.send(request, VERSION)

    def release(self) -> None:
        self.lab.world.network.heal()


async def hold(lab: Lab, partitions: int = 1) -> Held:
    await lab.create_topic("t", partitions, replicas=3)
    await in_sync(lab)
    return Held(lab)


@pytest.mark.run(brokers=3)
async def test_acks_all_waits_for_every_in_sync_replica(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a")
    await asyncio.sleep(5)
    assert not held.client.responses
    assert leading(lab).high_watermark == 0
    held.release()
    await until(lambda: held.client.responses)
    assert answers(held.client) == [(0, 0)]
    for broker in range(3):
        assert values(replica(lab, broker)) == [b"a"]


@pytest.mark.run(brokers=3)
async def test_acks_1_does_not_wait(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a", acks=1)
    assert answers(held.client) == [(0, 0)]
    assert leading(lab).high_watermark == 0


@pytest.mark.run(brokers=3, config=TWO)
async def test_nothing_is_stored_while_too_few_replicas_are_in_sync(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    for broker in followers_of(lab):
        kill(lab, broker)
    await until(lambda: len(leading(lab).registration.isr) == 1)
    answer = await send(lab, b"a")
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert "min.insync.replicas=2" in answer.error_message
    assert leading(lab).log.log_end_offset == 0
    assert (await send(lab, b"a", acks=1)).error_code == ErrorCode.NONE


@pytest.mark.run(brokers=3)
async def test_a_batch_not_committed_in_time_is_answered_with_a_time_out_and_stays_stored(
    lab: Lab,
) -> None:
    held = await hold(lab)
    began = lab.world.loop.time()
    held.send(b"a", timeout_ms=500)
    await until(lambda: held.client.responses)
    assert lab.world.loop.time() - began == pytest.approx(0.5, abs=0.02)
    assert answers(held.client) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
    held.release()
    await until(lambda: leading(lab).high_watermark == 1)
    assert values(leading(lab)) == [b"a"]


@pytest.mark.run(brokers=3)
async def test_losing_leadership_answers_waiting_requests(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a")
    held.send(b"b")
    await move_leader(lab, followers_of(lab)[0])
    await until(lambda: len(frames(held.client)) == 2)
    assert answers(held.client) == [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1),
    ]


@pytest.mark.kip(951)
@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.run(brokers=3)
async def test_a_delayed_response_also_names_the_new_leader(lab: Lab, version: int) -> None:
    held = await hold(lab)
    request = lab.produce("t", lab.batch(b"a"), acks=-1)
    request.timeout_ms = 20_000
    answer = asyncio.ensure_future(held.client.ask(request, version))
    await asyncio.sleep(0)
    new = followers_of(lab)[0]
    await move_leader(lab, new)
    response = await answer
    (part,) = response.responses[0].partition_responses
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 10:
        assert (part.current_leader.leader_id, response.node_endpoints) == (-1, [])
    else:
        epoch = decided(lab).leader_epoch
        assert part.current_leader == LeaderIdAndEpoch(leader_id=new, leader_epoch=epoch)
        assert [each.node_id for each in response.node_endpoints] == [new]


@pytest.mark.run(brokers=3)
async def test_a_reelected_leader_answers_when_the_batch_is_committed(lab: Lab) -> None:
    """Removing a follower raises the leader epoch."""
    held = await hold(lab)
    held.send(b"a")
    stays, _ = followers_of(lab)
    await reassign(lab, [held.leader, stays])
    await until(lambda: leading(lab).leader_epoch == 1)
    assert leader_of(lab) == held.leader
    assert not held.client.responses
    held.release()
    await until(lambda: held.client.responses)
    assert answers(held.client) == [(0, 0)]


@pytest.mark.run(brokers=3, config=TWO)
async def test_requests_do_not_wait_for_a_follower_that_left_the_isr(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    kill(lab, followers_of(lab)[0])
    answer = await send(lab, b"a")
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert len(decided(lab).isr) == 2


@pytest.mark.run(brokers=3)
async def test_pipelined_requests_are_appended_and_answered_in_order(lab: Lab) -> None:
    held = await hold(lab)
    for value in (b"a", b"b", b"c"):
        held.send(value)
    assert leading(lab).log.log_end_offset == 3
    await asyncio.sleep(1)
    assert not held.client.responses
    held.release()
    await until(lambda: len(frames(held.client)) == 3)
    assert answers(held.client) == [(0, 0), (0, 1), (0, 2)]
    assert [decode_correlation_id(each) for each in frames(held.client)] == [1, 2, 3]
    assert values(leading(lab)) == [b"a", b"b", b"c"]


@pytest.mark.run(brokers=3, config={"message.max.bytes": 1000})
async def test_a_known_response_waits_for_earlier_ones(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a")
    held.send(b"b", acks=1)
    held.send(b"x" * 2000)  # too large
    held.send(b"c", timeout_ms=100)
    await asyncio.sleep(1)
    assert not held.client.responses
    held.release()
    await until(lambda: len(frames(held.client)) == 4)
    assert answers(held.client) == [
        (0, 0),
        (0, 1),
        (ErrorCode.MESSAGE_TOO_LARGE, -1),
        (ErrorCode.REQUEST_TIMED_OUT, 2),
    ]


@pytest.mark.run(brokers=3)
async def test_other_requests_wait_behind_produce_requests(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a")
    held.client.send(MetadataRequest(topics=None), 12)
    held.send(b"b")
    assert leading(lab).log.log_end_offset == 1
    assert not held.client.transport.reading
    held.release()
    await until(lambda: len(frames(held.client)) == 3)
    assert [decode_correlation_id(each) for each in frames(held.client)] == [1, 2, 3]
    assert held.client.transport.reading


@pytest.mark.run(brokers=3)
async def test_a_connection_pipelines_a_limited_number_of_produce_requests(lab: Lab) -> None:
    held = await hold(lab)
    for _ in range(MAX_PIPELINED + 3):
        held.send(b"v")
    await asyncio.sleep(0.1)
    assert leading(lab).log.log_end_offset == MAX_PIPELINED
    assert not held.client.transport.reading
    held.release()
    await until(lambda: len(frames(held.client)) == MAX_PIPELINED + 3)
    assert answers(held.client) == [(0, offset) for offset in range(MAX_PIPELINED + 3)]


@pytest.mark.run(brokers=3)
async def test_a_batch_stays_stored_when_its_connection_is_lost(lab: Lab) -> None:
    held = await hold(lab)
    held.send(b"a")
    held.send(b"b")
    held.client.transport.close()
    await asyncio.sleep(1)
    other = lab.connect(held.leader)
    held.release()
    await until(lambda: leading(lab).high_watermark == 2)
    assert not held.client.responses
    assert (await other.ask(lab.produce("t", lab.batch(b"c"), acks=-1), VERSION)).responses
    assert values(leading(lab)) == [b"a", b"b", b"c"]


@pytest.mark.run(brokers=3)
async def test_a_batch_that_was_sent_twice_waits_like_the_first(lab: Lab) -> None:
    held = await hold(lab)
    for sequence, value in ((0, b"a"), (1, b"b"), (0, b"a"), (1, b"b")):
        held.send(value, producer_id=7, producer_epoch=0, base_sequence=sequence)
    await asyncio.sleep(1)
    assert not held.client.responses
    held.release()
    await until(lambda: len(frames(held.client)) == 4)
    assert answers(held.client) == [(0, 0), (0, 1), (0, 0), (0, 1)]
    held.send(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    assert answers(held.client)[4:] == [(0, 0)]  # committed by now
    assert values(leading(lab)) == [b"a", b"b"]


@pytest.mark.run(brokers=3)
async def test_each_partition_of_a_request_has_its_own_outcome(lab: Lab) -> None:
    await lab.create_topic("t", 3, replicas=3)
    await lab.create_topic("alone", 3)
    await in_sync(lab)
    held = Held(lab)
    alone = next(index for index in range(3) if leader_of(lab, "alone", index) == held.leader)
    request = lab.produce("t", lab.batch(b"a"), acks=-1)
    request.timeout_ms = 300
    (topic,) = request.topic_data
    topic.partition_data.append(PartitionProduceData(index=7, records=lab.batch(b"b")))
    request.topic_data += lab.produce("alone", lab.batch(b"c"), partition=alone).topic_data
    response = await held.client.ask(request, VERSION)
    first, second = response.responses
    assert [part.error_code for part in first.partition_responses] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert second.partition_responses[0].error_code == ErrorCode.NONE


def delay() -> DelayedResponse:
    def refuse(part: PartitionProduceResponse, code: ErrorCode) -> None:
        part.error_code = code

    return DelayedResponse(ProduceResponse(responses=[], throttle_time_ms=0), refuse)


async def test_a_batch_committed_by_too_few_is_answered_with_not_enough_replicas_after_append(
    lab: Lab,
) -> None:
    stand = Stand()
    leadership = stand.lead(isr=(1, 2)).leadership
    part = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    delayed = delay()
    await_commit(delayed, stand.partition, stand.append().next_offset, part)
    delayed.start(10)
    assert leadership is not None
    leadership.configure(3)
    leadership.release(1)
    assert (await delayed.answer).responses == []
    assert part.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    stand.log.abandon()


async def test_parts_settled_after_the_time_out_change_nothing(lab: Lab) -> None:
    stand = Stand()
    stand.lead(isr=(1, 2))
    part = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    delayed = delay()
    await_commit(delayed, stand.partition, stand.append().next_offset, part)
    delayed.start(1)
    await delayed.answer
    stand.fetched(SECOND, 1)
    assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
    stand.log.abandon()


async def test_the_response_is_sent_when_the_last_part_is_settled(lab: Lab) -> None:
    """A large request is appended in steps; its first batches may be committed between two."""
    stand = Stand()
    assert stand.lead(isr=(1, 2)).leadership is not None
    parts = [PartitionProduceResponse(index=i, error_code=0, base_offset=i) for i in (0, 1)]
    delayed = delay()
    await_commit(delayed, stand.partition, stand.append().next_offset, parts[0])
    stand.fetched(SECOND, 1)
    await asyncio.sleep(0)
    assert not delayed.answer.done()
    await_commit(delayed, stand.partition, stand.append().next_offset, parts[1])
    delayed.start(10)
    await asyncio.sleep(0)
    assert not delayed.answer.done()
    stand.fetched(SECOND, 2)
    assert (await delayed.answer).responses == []
    assert [part.error_code for part in parts] == [0, 0]
    stand.log.abandon()


@pytest.mark.run(brokers=3)
async def test_an_answered_response_leaves_no_timer(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    assert (await send(lab, b"a", timeout_ms=60_000)).error_code == 0
    await asyncio.sleep(0)
    timers = [each for each in lab.world.loop.handles() if "DelayedResponse" in repr(each)]
    assert all(each.cancelled() for each in timers)
