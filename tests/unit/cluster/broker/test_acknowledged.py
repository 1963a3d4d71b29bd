"""What is acknowledged is on every replica that may be elected: nothing is answered early, by no
way that leads to a log, and nothing is written below `min.insync.replicas`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Client, Lab
from tests.unit.cluster.broker.replicas import (
    address,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    start,
    until,
)
from tests.unit.cluster.broker.test_groups import become_stable, commit, find
from tests.unit.cluster.broker.test_transactions import Sender, markers, write
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, TRANSACTIONS_TOPIC, partition_of
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.write_txn_markers import WriteTxnMarkersRequest

CONFIG: dict[str, object] = {
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 2,
    "min.insync.replicas": 1,
    "replica.lag.time.max.ms": 600_000,
    "group.initial.rebalance.delay.ms": 0,
}


def cut(lab: Lab, topic: str = "t", index: int = 0) -> int:
    """Nobody reaches the leader, so that its follower, which stays in sync, gets no records;
    tests' clients use no network. Returns the leader."""
    leader = leader_of(lab, topic, index)
    lab.world.network.cut(address(leader))
    return leader


async def unanswered(*asked: asyncio.Future[Any]) -> None:
    """Virtual time passes, and nobody is answered."""
    done, _ = await asyncio.wait(asked, timeout=5)
    assert not done, [each.result() for each in done]


def run(lab: Lab, scenario: Any, **config: object) -> None:
    lab.run(scenario, brokers=2, config={**CONFIG, **config})


@pytest.mark.kip(98)
def test_a_duplicate_is_acknowledged_with_the_batch_that_is_stored(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", replicas=2)
        await in_sync(lab, 2)
        leader = cut(lab)
        identity: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}

        def produce(sequence: int) -> asyncio.Future[Any]:
            batch = lab.batch(b"v", base_sequence=sequence, **identity)
            request = lab.produce("t", batch, acks=-1)
            request.timeout_ms = 60_000
            return asyncio.ensure_future(lab.connect(leader).ask(request, 9))

        asked = [produce(0), produce(1), produce(0), produce(1)]
        await unanswered(*asked)
        lab.world.network.heal()
        parts = [
            answer.responses[0].partition_responses[0] for answer in await asyncio.gather(*asked)
        ]
        assert [(each.error_code, each.base_offset) for each in parts] == [(0, 0), (0, 1)] * 2
        assert leading(lab).log.log_end_offset == 2
        cut(lab)
        late = (await produce(1)).responses[0].partition_responses[0]
        assert (late.error_code, late.base_offset) == (0, 1), "it is committed"
        lab.world.network.heal()

    run(lab, scenario)


@pytest.mark.kip(98)
@pytest.mark.parametrize("topic", ["t", GROUPS_TOPIC])
def test_write_txn_markers_is_answered_once_they_are_committed(lab: Lab, topic: str) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", replicas=2)
        await find(lab)  # creates the groups' topic
        await in_sync(lab, 2, topic=topic)
        leader = cut(lab, topic)
        groups: Any = lab.brokers[leader].groups
        await until(lambda: topic == "t" or groups.find_partition(0).shard)
        marker = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
        request = write(marker, topic)
        asked = [
            asyncio.ensure_future(lab.connect(leader, is_node=True).ask(request, 1))
            for _ in range(2)
        ]
        await unanswered(*asked)
        assert leading(lab, topic).high_watermark == 0
        lab.world.network.heal()
        for answer in await asyncio.gather(*asked):
            assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert leading(lab, topic).high_watermark > 0

    run(lab, scenario)


@pytest.mark.kip(98)
def test_a_transaction_is_complete_once_its_markers_are_committed(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", partitions=2, replicas=2)
        sender = Sender(lab)
        await sender.init()
        index = next(each for each in (0, 1) if leader_of(lab, "t", each) == sender.coordinator)
        await in_sync(lab, 2, index=index)
        await in_sync(lab, 2, topic=TRANSACTIONS_TOPIC, index=partition_of("x", 4))
        assert await sender.send(index=index) is ErrorCode.NONE
        partition = leading(lab, "t", index)
        append = Partition.append_marker

        def append_and_cut(self: Partition, *args: Any) -> Any:
            if self is partition:
                cut(lab, "t", index)
            return append(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "append_marker", append_and_cut)
            assert await sender.end() is ErrorCode.NONE
            await until(lambda: markers(lab, index=index) == [1])
            await asyncio.sleep(5)
            assert await sender.state() == "PrepareCommit"
        lab.world.network.heal()
        await sender.until("CompleteCommit")

    run(lab, scenario)


@pytest.mark.kip(98)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_marker_that_is_refused_is_sent_again(lab: Lab, code: ErrorCode) -> None:
    """And only that one, until it is written."""

    async def scenario() -> None:
        await lab.create_topic("t", partitions=3)
        sender = Sender(lab)
        await sender.init()
        leaders = [leader_of(lab, "t", index) for index in range(3)]
        one, other = (index for index in range(3) if leaders.count(leaders[index]) == 2)
        for index in (one, other):
            assert await sender.send(index=index) is ErrorCode.NONE
        asked: Counter[int] = Counter()
        append = Partition.append_marker

        def refuse(self: Partition, *args: Any) -> Any:
            asked[self.index] += 1
            if self.index == one and asked[one] <= 3:
                raise Refused(code)
            return append(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "append_marker", refuse)
            assert await sender.end() is ErrorCode.NONE
            await until(lambda: asked[one] == 3)
            assert await sender.state() == "PrepareCommit"
            await sender.until("CompleteCommit")
        assert asked == {one: 4, other: 1}
        assert [markers(lab, index=index) for index in (one, other)] == [[1], [1]]

    run(lab, scenario)


@pytest.mark.kip(98)
def test_markers_whose_leader_is_lost_are_sent_again(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        assert await sender.send() is ErrorCode.NONE
        peers: Any = lab.brokers[sender.coordinator].transactions._markers._peers
        ask, lost = peers.ask, 0

        async def lose(node: int, request: WriteTxnMarkersRequest, timeout_s: float) -> Any:
            nonlocal lost
            lost += 1
            if lost <= 3:
                raise PeerLost("cut")
            return await ask(node, request, timeout_s)

        peers.ask = lose
        assert await sender.end() is ErrorCode.NONE
        await sender.until("CompleteCommit")
        assert lost == 4
        assert markers(lab) == [1]

    run(lab, scenario)


async def lose_follower(lab: Lab, topic: str, index: int) -> tuple[Partition, int]:
    """Only the leader stays in sync; returns its replica, and the one that is down."""
    await in_sync(lab, 2, topic=topic, index=index)
    (follower,) = followers_of(lab, topic, index)
    kill(lab, follower)
    await in_sync(lab, 1, topic=topic, index=index)
    return leading(lab, topic, index), follower


def test_a_coordinator_of_transactions_writes_nothing_below_min_insync_replicas(lab: Lab) -> None:
    async def scenario() -> None:
        sender = Sender(lab)
        await sender.init()
        index = partition_of("x", 4)
        partition, down = await lose_follower(lab, TRANSACTIONS_TOPIC, index)
        end = partition.log.log_end_offset
        client = lab.connect(sender.coordinator)

        async def ask() -> ErrorCode:
            await until(sender._is_loaded)
            request = EndTxnRequest(
                transactional_id="x",
                producer_id=sender.producer_id,
                producer_epoch=sender.epoch,
                committed=False,
            )
            return ErrorCode((await client.ask(request, 5)).error_code)

        for _ in range(2):
            assert await ask() is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert partition.log.log_end_offset == end
        await start(lab, down, CONFIG)
        await in_sync(lab, 2, topic=TRANSACTIONS_TOPIC, index=index)
        assert await ask() is ErrorCode.NONE
        assert partition.log.log_end_offset > end

    run(lab, scenario)


def test_a_coordinator_of_groups_writes_nothing_below_min_insync_replicas(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        client: Client = lab.connect((await find(lab)).node_id)
        member = await become_stable(client)
        index = partition_of("g", 4)
        partition, down = await lose_follower(lab, GROUPS_TOPIC, index)
        end = partition.log.log_end_offset
        groups: Any = lab.brokers[leader_of(lab, GROUPS_TOPIC, index)].groups

        async def ask() -> ErrorCode:
            await until(lambda: groups.find("g").shard is not None)
            answer = await client.ask(commit(5, member, 1), 8)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        for _ in range(2):
            assert await ask() is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert partition.log.log_end_offset == end
        await start(lab, down, CONFIG)
        await in_sync(lab, 2, topic=GROUPS_TOPIC, index=index)
        assert await ask() is ErrorCode.NONE
        assert partition.log.log_end_offset > end

    run(lab, scenario, **{"min.insync.replicas": 2})


def test_markers_are_not_written_below_min_insync_replicas(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", replicas=2, config={"min.insync.replicas": "2"})
        partition, down = await lose_follower(lab, "t", 0)
        marker = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
        client = lab.connect(leader_of(lab), is_node=True)

        async def ask() -> ErrorCode:
            answer = await client.ask(write(marker), 1)
            return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

        assert await ask() is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0
        await start(lab, down, CONFIG)
        await in_sync(lab, 2)
        assert await ask() is ErrorCode.NONE

    run(lab, scenario)
