"""A partition of `__consumer_offsets`: loaded in pieces, and loaded again if its log refuses."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.cluster.broker.replicas import until
from tests.unit.cluster.broker.test_groups import QUICK, become_stable, commit, find, join
from trimtab.cluster.broker.coordinator_partition import (
    CoordinatorPartition,
    _build_batches,
    _group_records,
)
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, partition_of
from trimtab.cluster.broker.leadership import Leadership
from trimtab.cluster.coordinator.effects import Effects
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.cluster.storage.segment import LARGE_READ_BYTES
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from trimtab.kafka.wire.messages.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


def groups_of(lab: Any, broker: int = 0) -> CoordinatorPartition[GroupShard]:
    found: CoordinatorPartition[GroupShard] = lab.brokers[broker].groups.find("g")
    return found


async def until_loaded(groups: CoordinatorPartition[GroupShard]) -> Any:
    await until(lambda: groups.shard is not None)
    return groups.shard


def test_a_log_of_many_reads_is_loaded_whole(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.cluster.broker.coordinator_partition._LOAD_BYTES", 200)

    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        for offset in range(20):
            await client.ask(commit(offset, member, 1), 8)
        groups = groups_of(lab)
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        shard = await until_loaded(groups)
        assert shard.offsets("g")[TopicPartition("t", 0)].offset == 19
        assert shard.describe(5, "g").group_state == "Stable"

    lab.run(scenario, config=QUICK)


def test_a_log_that_is_too_large_to_be_read_at_once_is_loaded(lab: Any) -> None:
    """Large reads stay on disk until they are sent, if they are not sent."""

    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        log = lab.brokers[0].partitions[GROUPS_TOPIC, partition_of("g", 4)].log
        offset = 0
        while log.size <= 2 * LARGE_READ_BYTES:
            offset += 1
            await client.ask(commit(offset, member, 1, name="t", note="n" * 4000), 8)
        groups = groups_of(lab)
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        shard = await until_loaded(groups)
        assert shard.offsets("g")[TopicPartition("t", 0)].offset == offset

    lab.run(scenario, config=QUICK)


def test_a_load_that_fails_in_any_way_is_told_to_the_operator(
    lab: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        await become_stable(client)
        groups = groups_of(lab)
        monkeypatch.setattr(GroupShard, "replay", fail)
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        await until(lambda: "out of luck" in caplog.text)
        described = await client.ask(DescribeGroupsRequest(groups=["g"]), 5)
        assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR

    with caplog.at_level(logging.ERROR):
        lab.run(scenario, config=QUICK)


def test_a_damaged_log_is_loaded_once_it_is_repaired(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CorruptData("flipped")

    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        await client.ask(commit(5, member, 1), 8)
        groups = groups_of(lab)
        with monkeypatch.context() as damage:
            damage.setattr(groups, "_load_batch", fail)
            groups._start_again(ErrorCode.NOT_COORDINATOR)
            await asyncio.sleep(25)
            assert groups.shard is None
            assert not groups.is_loading
        await asyncio.sleep(10)
        assert groups.shard is not None
        assert groups.shard.offsets("g")[TopicPartition("t", 0)].offset == 5

    lab.run(scenario, config=QUICK)


def test_what_the_log_refuses_is_forgotten_and_the_client_may_ask_again(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        broker = (await find(lab)).node_id
        client = lab.connect(broker)
        member = await become_stable(client)
        assert (await client.ask(commit(5, member, 1), 8)).topics[0].partitions[0].error_code == 0
        partition = lab.brokers[broker].partitions[GROUPS_TOPIC, partition_of("g", 4)]
        in_sync, partition.leadership.isr = partition.leadership.isr, (broker,)
        partition.leadership.configure(2)
        refused = await client.ask(commit(6, member, 1), 8)
        code = refused.topics[0].partitions[0].error_code
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition.leadership.isr = in_sync
        shard = await until_loaded(groups_of(lab, broker))
        assert shard.offsets("g")[TopicPartition("t", 0)].offset == 5
        assert (await client.ask(commit(7, member, 1), 8)).topics[0].partitions[0].error_code == 0
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert (await client.ask(beat, 4)).error_code == 0

    with caplog.at_level(logging.WARNING):
        lab.run(scenario, brokers=2, config=QUICK)
    assert "records were refused" in caplog.text
    assert "NOT_ENOUGH_REPLICAS" in caplog.text


def test_while_groups_are_loaded_clients_are_told_so(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        await become_stable(client)
        groups = groups_of(lab)
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        described = await client.ask(DescribeGroupsRequest(groups=["g"]), 5)
        assert described.groups[0].error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await until_loaded(groups)
        described = await client.ask(DescribeGroupsRequest(groups=["g"]), 5)
        assert described.groups[0].group_state == "Stable"

    lab.run(scenario, config=QUICK)


def test_groups_that_are_too_large_are_refused_without_a_reload(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        member = await become_stable(client)
        groups = groups_of(lab)
        shard = groups.shard
        waiting = asyncio.ensure_future(join(lab.connect(), metadata=bytes(600_000)))
        for _ in range(3):
            refused = await join(client, member, metadata=bytes(2_000_000))
            assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        await asyncio.sleep(0.05)  # until the other has joined
        assert (await client.ask(beat, 4)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        again = await join(client, member)
        assert (again.error_code, (await waiting).error_code) == (0, 0)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=again.generation_id,
            member_id=member,
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=bytes(500_000))],
        )
        for _ in range(3):
            synced = await client.ask(request, 3)
            assert synced.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        request.assignments[0].assignment = b"less"
        assert (await client.ask(request, 3)).assignment == b"less"
        assert groups.shard is shard

    with caplog.at_level(logging.WARNING):
        lab.run(scenario, config=QUICK)
    assert caplog.text.count("max.message.bytes") == 6
    assert "records were refused" not in caplog.text


def test_a_response_is_not_sent_if_its_records_are_lost(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader learns that another one begins without them."""

    async def scenario() -> None:
        await lab.create_topic("t")
        broker = (await find(lab)).node_id
        client = lab.connect(broker)
        member = await become_stable(client)
        monkeypatch.setattr(Leadership, "wait", lambda self, end, told: told(False))
        waiting = asyncio.ensure_future(client.ask(commit(5, member, 1), 8))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        groups_of(lab, broker).resign()
        answer = (await waiting).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.NOT_COORDINATOR

    lab.run(scenario, brokers=2, config=QUICK)


def test_members_that_are_silent_since_the_load_are_removed(lab: Any) -> None:
    """Nobody asks the coordinator for anything."""

    async def scenario() -> None:
        await find(lab)
        await become_stable(lab.connect())
        groups = groups_of(lab)
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        shard = await until_loaded(groups)
        await asyncio.sleep(9)
        assert shard.describe(5, "g").group_state == "Stable"
        await asyncio.sleep(2)
        assert shard.describe(5, "g").group_state == "Empty"

    lab.run(scenario, config=QUICK)


def test_offsets_expire_in_all_steps(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.cluster.coordinator.group_shard._EXPIRED_PER_TURN", 1)

    async def scenario() -> None:
        for name in ("t", "u", "v"):
            await lab.create_topic(name)
        await find(lab)
        client = lab.connect()
        for name in ("t", "u", "v"):
            await client.ask(commit(5, name=name), 8)
        groups = groups_of(lab)
        assert groups.shard is not None
        await asyncio.sleep(59)
        await groups.work(lambda shard, now: shard.expire(now))
        assert len(groups.shard.offsets("g")) == 3
        await asyncio.sleep(2)
        await groups.work(lambda shard, now: shard.expire(now))
        assert groups.shard.offsets("g") == {}

    lab.run(scenario, config={**QUICK, "offsets.retention.minutes": 1})


def test_records_of_many_decisions_are_in_several_batches(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        groups = groups_of(lab)
        log = lab.brokers[0].partitions[GROUPS_TOPIC, partition_of("g", 4)].log
        effects = Effects(lambda: 1 << 20)
        for number in range(40):
            value = OffsetCommitValue(offset=number, metadata="n" * 30_000, commit_timestamp=1)
            effects.append_group_record(
                OffsetCommitKey(group="g", topic="t", partition=number), value
            )
            effects.cut()
        for batch in _build_batches(effects, groups.partition.rules, 0):
            groups.partition.append_own(memoryview(batch))
        assert [each.record_count for each in log.headers(0)] == [17, 17, 6]
        groups._start_again(ErrorCode.NOT_COORDINATOR)
        offsets = (await until_loaded(groups)).offsets("g")
        assert [offsets["t", number].offset for number in range(40)] == list(range(40))

    lab.run(scenario, config=QUICK)


def test_records_of_a_decision_are_in_one_batch() -> None:
    effects = Effects(lambda: 1000)
    for number in range(12):
        effects.append_group_record(GroupMetadataKey(group=f"{number:0100}"), None)
        if number in (2, 3):
            effects.cut()
    sizes = [len(each) for each in _group_records(effects, 1000)]
    assert sizes == [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [len(each) for each in _group_records(effects, 2000)] == [3, 1, 8]


def test_expiry_goes_on_after_an_error(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        await lab.connect().ask(commit(5), 8)
        groups = groups_of(lab)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupShard, "expire", fail)
            await asyncio.sleep(61)
        assert groups.shard is not None
        assert len(groups.shard.offsets("g")) == 1
        await asyncio.sleep(61)
        assert groups.shard.offsets("g") == {}

    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    options = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 60_000}
    with caplog.at_level(logging.ERROR):
        lab.run(scenario, config={**QUICK, **options})
    assert "expiry in __consumer_offsets failed" in caplog.text


def test_a_deadline_before_that_of_the_timer_is_kept(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        for session_s in (60, 10, 30):
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=session_s * 1000,
                rebalance_timeout_ms=1000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            given = await lab.connect().ask(request, 9)
            assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        shard = await until_loaded(groups_of(lab))
        left = []
        for _ in range(4):
            left.append(len(shard._groups["g"].expected))
            await asyncio.sleep(11)
        assert left == [3, 2, 2, 1]

    lab.run(scenario, config=QUICK)
