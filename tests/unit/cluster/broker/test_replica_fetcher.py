"""A follower's session with a fake leader (`trimtab.cluster.broker.replication`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.cluster.broker.played_leader import (
    LEADER,
    OTHER,
    Leader,
    Play,
    data,
    forgotten,
    named,
    respond,
)
from tests.unit.cluster.broker.replica_stand import Stand, sent
from tests.unit.cluster.broker.replicas import until
from trimtab.cluster.broker import replication
from trimtab.cluster.metadata.image import BrokerRegistration
from trimtab.cluster.storage.log import Log
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.fetch import EpochEndOffset, FetchPartition
from trimtab.sim.world import World


@pytest.fixture
def play() -> Iterator[Play]:
    with World(seed=1) as world:
        yield Play(world)


async def test_a_fetch_has_the_replica_id_and_each_logs_end_offset(play: Play) -> None:
    stand = play.stands[0]
    stand.follow().append_replicated(memoryview(sent(0, 5, 3)), 5, 2)
    play.follow(0)
    request = await play.leader.next()
    state = request.replica_state
    assert (state.replica_id, state.replica_epoch) == (1, 11)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.topics[0].partitions == [
        FetchPartition(
            partition=0,
            current_leader_epoch=5,
            fetch_offset=5,
            last_fetched_epoch=3,
            log_start_offset=2,
            partition_max_bytes=1 << 20,
        )
    ]


@pytest.mark.kip(227)
async def test_a_fetch_in_a_session_names_changed_partitions(play: Play) -> None:
    play.follow(0, 1)
    leader = play.leader
    assert named(await leader.next(data(0, sent(0, 3, 5)), data(1))) == {0: 0, 1: 0}
    request = await leader.next()
    assert (request.session_id, request.session_epoch) == (77, 1)
    assert named(request) == {0: 3}
    request = await leader.next()
    assert (request.session_epoch, named(request)) == (2, {})
    play.follow(2)
    play.replication.leave(play.stands[0].partition)
    await leader.next()
    request = await leader.next()
    assert (named(request), forgotten(request)) == ({2: 0}, [0])
    play.follow(0)
    await leader.next()
    request = await leader.next()
    assert (named(request), forgotten(request)) == ({0: 3}, [])


def test_many_partitions_are_named_in_several_requests_without_waiting(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_MAX_PARTITIONS_PER_REQUEST", 2)

    async def scenario() -> None:
        play.follow(0, 1, 2)
        request = await play.leader.next(data(0, sent(0, 3, 5)), data(1))
        assert (list(named(request)), request.max_wait_ms) == ([0, 1], 0)
        request = await play.leader.next()
        assert (named(request), request.max_wait_ms) == ({2: 0, 0: 3}, 500)
        assert named(await play.leader.next()) == {}

    play.run(scenario)


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
@pytest.mark.kip(227)
async def test_an_expired_session_is_replaced(play: Play, code: ErrorCode) -> None:
    play.follow(0, 1)
    await play.leader.next(data(0, sent(0, 3, 5)))
    await play.leader.next(session_id=0, code=code)
    request = await play.leader.next()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == {0: 3, 1: 0}
    # The partition that received records comes last.
    assert list(named(request)) == [1, 0]


async def test_without_a_session_every_fetch_names_all_partitions(play: Play) -> None:
    play.follow(0, 1)
    for _ in range(3):
        request = await play.leader.next(data(0), session_id=0)
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert set(named(request)) == {0, 1}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_a_refused_partition_backs_off(play: Play, code: ErrorCode) -> None:
    play.follow(0, 1)
    loop = asyncio.get_running_loop()
    waits = []
    _, answer = await play.leader.fetches.get()
    for _ in range(5):
        answer.set_result(respond(data(0, error_code=code)))
        began = loop.time()
        assert forgotten(await play.leader.next()) == [0]
        _, answer = await play.leader.skip_to(named)
        waits.append(loop.time() - began)
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.1, 0.1], abs=0.005)
    answer.set_result(respond(data(0, sent(0, 1, 5))))
    began = loop.time()
    await play.leader.next(data(0, error_code=code))
    await play.leader.skip_to(named)
    assert loop.time() - began == pytest.approx(0.02, abs=0.005)


async def test_a_new_leader_epoch_ends_the_backoff(play: Play) -> None:
    play.follow(0)
    for _ in range(4):
        _, answer = await play.leader.skip_to(named)
        answer.set_result(respond(data(0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)))
    await play.leader.next()
    play.follow(0, leader_epoch=6)
    await play.leader.next()
    request, _ = await play.leader.fetches.get()
    assert request.topics[0].partitions[0].current_leader_epoch == 6


async def test_damaged_batches_are_not_stored_and_fetched_again(play: Play) -> None:
    play.follow(0, 1)
    damaged = sent(0, 1, 5)
    damaged[-1] ^= 1
    await play.leader.next(data(0, damaged), data(1, sent(0, 1, 5)))
    assert forgotten(await play.leader.next()) == [0]
    assert (play.end(0), play.end(1)) == (0, 1)
    request, answer = await play.leader.skip_to(named)
    assert named(request) == {0: 0}
    answer.set_result(respond(data(0, sent(0, 1, 5))))
    await play.leader.next()
    assert play.end(0) == 1


async def test_a_disk_that_fails_leaves_the_other_partitions_followed(play: Play) -> None:
    play.follow(0, 1)
    play.stands[0].disk.fault = lambda action, path: 5 * (action == "append")
    await play.leader.next(data(0, sent(0, 1, 5)), data(1, sent(0, 1, 5)))
    assert forgotten(await play.leader.next()) == [0]
    play.stands[0].disk.fault = None
    _, answer = await play.leader.skip_to(named)
    answer.set_result(respond(data(0, sent(0, 1, 5))))
    await play.leader.next()
    assert (play.end(0), play.end(1)) == (1, 1)


@pytest.mark.kip(595)
async def test_a_diverged_log_is_truncated_and_fetched_from_there(play: Play) -> None:
    stand = play.stands[0]
    for offset, epoch in ((0, 1), (2, 3), (4, 4)):
        stand.follow().append_replicated(memoryview(sent(offset, 2, epoch)), 0, 0)
    play.follow(0)
    await play.leader.next(data(0, diverging_epoch=EpochEndOffset(epoch=2, end_offset=5)))
    request, _ = await play.leader.fetches.get()
    (wanted,) = request.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (2, 1)


def test_other_tasks_run_between_two_truncations(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each truncation blocks on the disk, and an election may cause thousands."""
    turns: list[str] = []
    cut = Log.truncate

    def note(log: Log, offset: int) -> None:
        turns.append("cut")
        asyncio.get_running_loop().call_soon(turns.append, "another's")
        cut(log, offset)

    monkeypatch.setattr(Log, "truncate", note)

    async def scenario() -> None:
        for stand in play.stands[:2]:
            for offset, epoch in ((0, 1), (2, 3)):
                stand.follow().append_replicated(memoryview(sent(offset, 2, epoch)), 0, 0)
        play.follow(0, 1)
        parted = EpochEndOffset(epoch=2, end_offset=2)
        await play.leader.next(*(data(each, diverging_epoch=parted) for each in (0, 1)))
        assert (play.end(0), play.end(1)) == (2, 2)
        assert turns == ["cut", "another's"] * 2

    play.run(scenario)


async def test_a_follower_beyond_its_leaders_end_is_truncated_there(play: Play) -> None:
    """A log without leader epochs has no other way to find the divergence (unclean election)."""
    stand = play.stands[0]
    stand.log.restart_at(1000)
    play.leader.ends = (0, 500)
    play.follow(0)
    request = await play.leader.next(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert named(request) == {0: 1000}
    request, _ = await play.leader.skip_to(lambda request: 500 in named(request).values())
    assert play.end(0) == 500


async def test_a_follower_behind_the_leaders_log_start_restarts_there(play: Play) -> None:
    stand = play.stands[0]
    stand.follow().append_replicated(memoryview(sent(0, 5, 5)), 5, 0)
    play.leader.ends = (100, 200)
    play.follow(0)
    await play.leader.next(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    request, _ = await play.leader.fetches.get()
    assert named(request) == {0: 100}
    log = stand.log
    assert (log.log_start_offset, log.high_watermark, log.epochs.latest) == (100, 100, -1)


@pytest.mark.kip(107)
@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_log_start_offset_is_checkpointed_before_the_leader_is_told(
    play: Play, is_empty: bool
) -> None:
    log = play.stands[0].log
    if is_empty:
        log.restart_at(3)  # where the leader's begins, within a batch
    play.follow(0)
    await play.leader.next(data(0, records=bytes(sent(0, 5, 5)), high_watermark=5))
    if is_empty:
        assert log.log_start_offset == 3
    else:
        await play.leader.next(data(0, high_watermark=5, log_start_offset=3))
    request, _ = await play.leader.fetches.get()
    (partition,) = request.topics[0].partitions
    assert (partition.fetch_offset, partition.log_start_offset) == (5, 3)
    assert play.follower.noted == 1


async def test_a_response_for_a_removed_partition_is_ignored(play: Play) -> None:
    play.follow(0, 1)
    _, answer = await play.leader.fetches.get()
    play.replication.leave(play.stands[0].partition)
    answer.set_result(respond(data(0, sent(0, 1, 5)), data(1, sent(0, 1, 5))))
    await play.leader.next()
    assert (play.end(0), play.end(1)) == (0, 1)


async def test_a_response_for_an_earlier_log_of_the_partition_is_ignored(
    play: Play,
) -> None:
    """Offsets may have gaps, so only the fetch offset shows that these batches do not fit."""
    play.stands[0].follow().append_replicated(memoryview(sent(0, 5, 5)), 5, 0)
    play.follow(0, 1)
    _, answer = await play.leader.fetches.get()
    play.replication.leave(play.stands[0].partition)
    play.stands[0].log.abandon()
    play.stands[0] = Stand(0)  # removed by a reassignment, and added again by another
    play.follow(0)
    answer.set_result(respond(data(0, sent(5, 1, 5))))
    request, _ = await play.leader.fetches.get()
    assert named(request) == {0: 0}
    assert play.end(0) == 0


# -- the connection


async def test_a_lost_connection_is_replaced_with_a_new_session(play: Play) -> None:
    play.follow(0, 1)
    await play.leader.next(data(0, sent(0, 1, 5)))
    await play.leader.fetches.get()
    play.world.network.reset()
    request = await play.leader.next()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == {0: 1, 1: 0}


async def test_a_leader_that_does_not_answer_is_asked_on_another_connection(play: Play) -> None:
    play.follow(0)
    began = asyncio.get_running_loop().time()
    await play.leader.fetches.get()
    request = await play.leader.next()
    assert request.session_epoch == 0
    assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.1)
    assert play.leader.listener.counts.accepted == 2


async def test_a_leader_that_does_not_answer_list_offsets_is_asked_on_another_connection(
    play: Play,
) -> None:
    play.leader.ends = None
    play.follow(0, 1)
    await play.leader.next(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    async with asyncio.timeout(6):
        request = await play.leader.next()
    assert request.session_epoch == 0


async def test_retries_of_an_unreachable_leader_back_off(play: Play) -> None:
    play.follower.move("nowhere")
    play.follow(0)
    network = play.world.network
    asked = network.trace
    await asyncio.sleep(1)
    refused = [line for line in asked.lines if "refused" in line]
    assert 9 <= len(refused) <= 14  # after 20, 40, 80 and then every 100 ms
    play.follower.move("leader")
    await play.leader.next()


async def test_a_leader_that_moved_is_asked_at_its_new_address(play: Play) -> None:
    play.follow(0)
    await play.leader.fetches.get()
    play.follower.move("elsewhere")
    await play.leader.listener.bind("elsewhere", 9092)
    await play.leader.listener.start()
    play.replication.reconnect(LEADER)
    request = await play.leader.next()
    assert request.session_epoch == 0
    assert any("elsewhere:9092" in line for line in play.world.network.trace.lines)


async def test_a_partition_is_fetched_from_its_new_leader(play: Play) -> None:
    other = Leader(OTHER)
    await other.listen("other")
    play.follower.image.brokers[OTHER] = BrokerRegistration(
        OTHER, 13, bytes(16), "other", 9092, None
    )
    play.follow(0, 1)
    await play.leader.next(data(0), data(1))
    play.follow(0, leader=OTHER, leader_epoch=6)
    assert named(await other.next(data(0))) == {0: 0}
    await play.leader.next()
    assert forgotten(await play.leader.next()) == [0]
    await other.listener.close()


async def test_without_a_leader_nothing_is_fetched(play: Play) -> None:
    play.follow(0)
    await play.leader.fetches.get()
    play.follow(0, leader=-1, leader_epoch=6)
    await asyncio.sleep(1)
    assert play.leader.fetches.empty()
    assert play.leader.listener.counts.open == 0


async def test_nothing_is_stored_after_the_end(play: Play) -> None:
    play.follow(0)
    _, answer = await play.leader.fetches.get()
    play.replication.abort()
    answer.set_result(respond(data(0, sent(0, 1, 5))))
    await asyncio.sleep(1)
    assert play.end(0) == 0
    assert play.leader.fetches.empty()


@pytest.mark.kip(73)
async def test_a_throttled_replica_waits_while_its_broker_takes_too_much(play: Play) -> None:
    throttled = play.stands[0]
    options = {"follower_replication_throttled_replicas": "0:1"}
    throttled.partition.configure(throttled.values(**options))
    play.follow(0, 1, isr=(2, 3))
    records = sent(0, 1, 5)
    play.follower.is_too_fast = True
    assert named(await play.leader.next(data(1, sent(0, 1, 5)))) == {1: 0}
    assert play.follower.taken == 0
    play.follower.is_too_fast = False
    _, answer = await play.leader.skip_to(lambda request: 0 in named(request))
    answer.set_result(respond(data(0, records)))
    await until(lambda: play.follower.taken == len(records))


@pytest.mark.kip(73)
async def test_a_replica_in_sync_is_not_throttled(play: Play) -> None:
    throttled = play.stands[0]
    options = {"follower_replication_throttled_replicas": "*"}
    throttled.partition.configure(throttled.values(**options))
    play.follow(0)
    play.follower.is_too_fast = True
    assert named(await play.leader.next(data(0, sent(0, 1, 5)))) == {0: 0}
    await play.leader.next()
    assert play.follower.taken == 0
