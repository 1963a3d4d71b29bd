"""Followers copy their leader's log, across changes of leader
(`trimtab.cluster.broker.replication`)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    address,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    move_leader,
    replica,
    send,
    start,
    stored,
    until,
    values,
)
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.storage.leader_epochs import LeaderEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.fetch import FetchRequest

TWO = {"min.insync.replicas": 2}


async def topic_in_sync(lab: Lab, partitions: int = 1, **config: str) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    await lab.create_topic("t", partitions, options, replicas=3)
    for index in range(partitions):
        await in_sync(lab, index=index)


def epochs(partition: Partition) -> list[LeaderEpoch]:
    """Those that have a record."""
    log = partition.log
    return [each for each in log.epochs.entries if each.start_offset < log.log_end_offset]


def same_everywhere(lab: Lab) -> bool:
    replicas = [replica(lab, broker) for broker in range(3)]
    (first, *others) = [(stored(each), epochs(each)) for each in replicas]
    return all(each == first for each in others)


@pytest.mark.run(brokers=3)
async def test_followers_copy_the_leaders_bytes_and_high_watermark(lab: Lab) -> None:
    await topic_in_sync(lab)
    for number, codec in enumerate(Compression):
        payload = [b"%d of %d" % (each, number) * 20 for each in range(number + 1)]
        batch = lab.batch(*payload, compression=codec)
        response = await lab.connect(leader_of(lab)).ask(lab.produce("t", batch), 9)
        assert response.responses[0].partition_responses[0].error_code == 0
    await send(lab, b"last", producer_id=7, producer_epoch=0, base_sequence=0)
    await in_sync(lab)
    assert same_everywhere(lab)
    total = 1 + sum(range(len(Compression) + 1))
    await until(lambda: all(replica(lab, each).high_watermark == total for each in range(3)))


@pytest.mark.run(brokers=3)
async def test_followers_fill_segments_of_their_own(lab: Lab) -> None:
    await topic_in_sync(lab, segment_bytes="1048576")
    for number in range(8):
        await send(lab, bytes([number]) * 300_000)
    await in_sync(lab)
    assert same_everywhere(lab)
    assert {replica(lab, each).log.segment_count for each in range(3)} == {3}


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_restarted_follower_catches_up_and_rejoins_the_isr(lab: Lab) -> None:
    await topic_in_sync(lab)
    await send(lab, b"before")
    away = followers_of(lab)[0]
    kill(lab, away)
    await until(lambda: away not in decided(lab).isr)
    for number in range(20):
        await send(lab, b"meanwhile %d" % number * 100)
    await start(lab, away)
    await in_sync(lab)
    assert decided(lab).isr[-1] == away
    assert same_everywhere(lab)


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_follower_that_lost_its_disk_copies_everything(lab: Lab) -> None:
    await topic_in_sync(lab)
    for number in range(20):
        await send(lab, b"%d" % number * 100)
    away = followers_of(lab)[0]
    kill(lab, away)
    lab.world.disk(f"broker-{away}").delete("t-0")
    await start(lab, away)
    await in_sync(lab)
    assert same_everywhere(lab)


@pytest.mark.kip(966)
@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.run(brokers=3, config=TWO)
async def test_a_killed_broker_whose_log_is_damaged_is_not_elected(
    lab: Lab, is_damaged: bool
) -> None:
    await topic_in_sync(lab)
    for number in range(5):
        await send(lab, b"%d" % number)
    await in_sync(lab)
    one, other = followers_of(lab)
    last = leader_of(lab)
    for each in (other, one, last):
        kill(lab, each)
        await until(partial(lambda each: each not in decided(lab).isr, each))
    assert one in decided(lab).elr
    if is_damaged:
        disk = lab.world.disk(f"broker-{one}")
        path = f"t-0/{0:020}.log"
        disk.flip(path, disk.open(path).size // 2, 0, lasts=True)
    await start(lab, one)
    assert (leader_of(lab) == one) != is_damaged
    await start(lab, last)
    await until(lambda: leader_of(lab) >= 0 and leading(lab).is_leader)
    assert values(leading(lab)) == [b"%d" % number for number in range(5)]


@pytest.mark.run(brokers=3, config={"replica.lag.time.max.ms": 10_000})
async def test_a_disconnected_follower_leaves_the_isr_and_rejoins(lab: Lab) -> None:
    await topic_in_sync(lab)
    slow = followers_of(lab)[0]
    kill(lab, slow)
    await start(lab, slow, host="far")
    await in_sync(lab)
    lab.world.network.cut("far", address(leader_of(lab)))
    began = lab.world.loop.time()
    answer = await send(lab, b"a", timeout_ms=60_000)
    assert answer.error_code == 0
    assert 10 < lab.world.loop.time() - began < 15.1
    assert slow not in decided(lab).isr
    lab.world.network.heal()
    await in_sync(lab)
    assert same_everywhere(lab)


@pytest.mark.run(brokers=3, config=TWO)
async def test_when_the_leader_is_killed_another_replica_continues(lab: Lab) -> None:
    await topic_in_sync(lab)
    await send(lab, b"a")
    await in_sync(lab)
    for number in range(2):
        old = leader_of(lab)
        kill(lab, old)
        await until(partial(lambda old: leader_of(lab) not in (old, -1), old))
        assert decided(lab).leader_epoch == 2 * number + 1
        await until(lambda: leading(lab).is_leader)
        assert (await send(lab, b"b%d" % number)).error_code == ErrorCode.NONE
        await start(lab, old)
        await in_sync(lab)
        await move_leader(lab, decided(lab).replicas[0])
    assert values(leading(lab)) == [b"a", b"b0", b"b1"]
    await in_sync(lab)
    assert same_everywhere(lab)


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_deposed_leaders_uncommitted_tail_is_truncated(lab: Lab) -> None:
    await topic_in_sync(lab)
    await send(lab, b"a")
    await in_sync(lab)
    old = leader_of(lab)
    lab.world.network.cut(address(old))
    await send(lab, b"lost 1", b"lost 2", acks=1)
    await send(lab, b"lost 3", acks=1)
    kill(lab, old)
    lab.world.network.heal()
    await until(lambda: leader_of(lab) not in (old, -1))
    await until(lambda: leading(lab).is_leader)
    await send(lab, b"b")
    await start(lab, old)
    await in_sync(lab)
    assert values(replica(lab, old)) == [b"a", b"b"]
    assert epochs(replica(lab, old)) == [LeaderEpoch(0, 0), LeaderEpoch(1, 1)]
    assert same_everywhere(lab)


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_deposed_leader_without_news_of_it_commits_nothing(lab: Lab) -> None:
    """The leader is disconnected from all but one client."""
    await topic_in_sync(lab)
    old = leader_of(lab)
    for broker in (old, *followers_of(lab)):
        kill(lab, broker)
        await start(lab, broker, host=f"host-{broker}")
        await in_sync(lab)
    await move_leader(lab, old)
    await in_sync(lab)
    await send(lab, b"a")
    lab.world.network.cut(f"host-{old}")
    lab.world.network.cut(address(old))
    lost = await send(lab, b"lost", to=old, timeout_ms=20_000)
    assert lost.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert replica(lab, old).is_leader
    assert replica(lab, old).high_watermark == 1
    assert leader_of(lab) != old
    assert (await send(lab, b"b")).error_code == ErrorCode.NONE
    lab.world.network.heal()
    await in_sync(lab)
    assert values(replica(lab, old)) == [b"a", b"b"]
    assert same_everywhere(lab)


@pytest.mark.kip(101)
@pytest.mark.kip(595)
@pytest.mark.run(brokers=3)
async def test_logs_that_diverged_over_several_epochs_become_one(lab: Lab) -> None:
    """Each broker in turn is elected uncleanly and leads alone, so all logs diverge."""
    await topic_in_sync(lab, unclean_leader_election_enable="true")
    await send(lab, b"common")
    await in_sync(lab)
    for number in range(6):
        alone = number % 3
        for broker in range(3):
            if lab.brokers[broker].partitions:
                kill(lab, broker)
        await start(lab, alone)
        await until(partial(lambda alone: leader_of(lab) == alone, alone))
        await until(lambda: leading(lab).is_leader)
        for each in range(number + 1):
            answer = await send(lab, b"%d of %d" % (each, number), acks=1)
            assert answer.error_code == 0
    for broker in (0, 1):
        await start(lab, broker)
    await in_sync(lab)
    assert same_everywhere(lab)
    assert values(leading(lab))[-6:] == [b"%d of 5" % each for each in range(6)]


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_follower_before_the_leaders_log_start_restarts_there(lab: Lab) -> None:
    await topic_in_sync(lab)
    await send(lab, b"0", b"1")
    away = followers_of(lab)[0]
    kill(lab, away)
    await until(lambda: away not in decided(lab).isr)
    for number in range(2, 10):
        await send(lab, b"%d" % number)
    assert leading(lab).delete_records_before(6) == 6
    await start(lab, away)
    await in_sync(lab)
    assert replica(lab, away).log.log_start_offset == 6
    assert replica(lab, away).log.first_base_offset == 6
    assert values(replica(lab, away)) == [b"6", b"7", b"8", b"9"]
    assert (await send(lab, b"10")).base_offset == 10
    await in_sync(lab)
    assert values(replica(lab, away))[-1] == b"10"


@pytest.mark.kip(98)
@pytest.mark.run(brokers=3, config=TWO)
async def test_sequences_of_producers_survive_leader_changes_and_restarts(lab: Lab) -> None:
    await topic_in_sync(lab)

    async def sent(sequence: int, epoch: int = 0) -> tuple[int, int]:
        answer = await send(
            lab,
            b"%d" % sequence,
            b"v",
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return answer.error_code, answer.base_offset

    assert [await sent(0), await sent(2), await sent(4)] == [(0, 0), (0, 2), (0, 4)]
    await in_sync(lab)
    old = leader_of(lab)
    kill(lab, old)
    await until(lambda: leader_of(lab) not in (old, -1))
    await until(lambda: leading(lab).is_leader)
    assert [await sent(4), await sent(2)] == [(0, 4), (0, 2)]
    assert await sent(8) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await sent(6) == (0, 6)
    await start(lab, old)
    await in_sync(lab)
    await move_leader(lab, old)
    assert [await sent(6), await sent(4)] == [(0, 6), (0, 4)]
    assert await sent(8) == (0, 8)
    assert await sent(0, epoch=1) == (0, 10)
    assert await sent(10) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


@pytest.mark.run(brokers=3, config=TWO)
async def test_truncation_removes_sequences(lab: Lab) -> None:
    await topic_in_sync(lab)
    who: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    await send(lab, b"a", base_sequence=0, **who)
    await in_sync(lab)
    old = leader_of(lab)
    lab.world.network.cut(address(old))
    await send(lab, b"lost", acks=1, base_sequence=1, **who)
    kill(lab, old)
    lab.world.network.heal()
    await until(lambda: leader_of(lab) not in (old, -1))
    await until(lambda: leading(lab).is_leader)
    await start(lab, old)
    await in_sync(lab)
    await move_leader(lab, old)
    answer = await send(lab, b"b", base_sequence=1, **who)
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert values(leading(lab)) == [b"a", b"b"]


@pytest.mark.kip(74)
def test_with_small_responses_every_partition_makes_progress(lab: Lab) -> None:
    async def scenario() -> None:
        await topic_in_sync(lab, partitions=50)
        behind = 2
        kill(lab, behind)
        await until(lambda: all(behind not in decided(lab, "t", each).isr for each in range(50)))
        for index in range(50):
            for _ in range(4):
                await send(lab, b"v" * 900, index=index, acks=1)
        broker = await start(lab, behind, config=small)
        done_s: dict[int, float] = {}

        def all_there() -> bool:
            for index in range(50):
                if replica(lab, behind, "t", index).log.log_end_offset == 4:
                    done_s.setdefault(index, lab.world.loop.time())
            # No partition is four batches ahead of one without any.
            ends = [broker.partitions["t", each].log.log_end_offset for each in range(50)]
            spread.append(max(ends) - min(ends))
            return len(done_s) == 50

        spread: list[int] = []
        await until(all_there)
        assert max(spread) <= 2
        for index in range(50):
            await in_sync(lab, index=index)

    small = {"replica.fetch.response.max.bytes": 1000, "replica.fetch.max.bytes": 1000}
    lab.run(scenario, brokers=3)


@pytest.mark.run(brokers=3)
async def test_a_new_leader_does_not_fetch_its_own_partitions(lab: Lab) -> None:
    await topic_in_sync(lab, partitions=3)
    old, new = leader_of(lab), followers_of(lab)[0]
    asked: list[tuple[int, int]] = []
    listener = lab.brokers[old].listener
    handle = listener.handlers[FetchRequest.api_key]

    def note(header: Any, request: Any) -> Any:
        asked.extend(
            (request.replica_state.replica_id, each.partition)
            for topic in request.topics
            for each in topic.partitions
        )
        return handle(header, request)

    listener.handlers[FetchRequest.api_key] = note
    await move_leader(lab, new)
    asked.clear()
    await send(lab, b"a")
    await asyncio.sleep(5)
    assert [each for each in asked if each == (new, 0)] == []


@pytest.mark.run(brokers=3)
async def test_an_idle_partition_is_not_fetched(lab: Lab) -> None:
    """A fetch in a session names only changed partitions (KIP-227)."""
    await topic_in_sync(lab, partitions=3)
    leader = leader_of(lab, index=0)
    await asyncio.sleep(1)
    named: list[int] = []
    listener = lab.brokers[leader].listener
    handle = listener.handlers[FetchRequest.api_key]

    def note(header: Any, request: Any) -> Any:
        if request.replica_state.replica_id >= 0:
            named.append(sum(len(topic.partitions) for topic in request.topics))
        return handle(header, request)

    listener.handlers[FetchRequest.api_key] = note
    await asyncio.sleep(5)
    assert len(named) >= 16  # two followers, each every 500 ms
    assert not any(named)
    await send(lab, b"a")
    assert sum(named) == 2


@pytest.mark.run(brokers=3)
async def test_a_new_partition_joins_the_existing_session(lab: Lab) -> None:
    await topic_in_sync(lab)
    await lab.create_topic("u", 3, replicas=3)
    for index in range(3):
        await send(lab, b"a", topic="u", index=index)
    await send(lab, b"b")
    for broker in range(3):
        assert len(lab.brokers[broker].services.fetch_sessions) == 2


@pytest.mark.run(brokers=3)
async def test_a_deleted_topic_leaves_the_other_partitions_followed(lab: Lab) -> None:
    await topic_in_sync(lab)
    topic_id = await lab.create_topic("u", 3, replicas=3)
    for index in range(3):
        await in_sync(lab, topic="u", index=index)
    await lab.controller.controller.delete_topics(
        DeleteTopicsRequest(topics=[], topic_names=["u"], timeout_ms=1000)
    )
    await until(lambda: all(("u", 0) not in each.partitions for each in lab.brokers))
    await send(lab, b"a")
    assert await lab.create_topic("u", 3, replicas=3) != topic_id
    for index in range(3):
        answer = await send(lab, b"b", topic="u", index=index)
        assert (answer.error_code, answer.base_offset) == (0, 0)
    await send(lab, b"c")
