"""One bit changes in the log of a coordinator: it loads what was written, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.cluster.broker.replicas import in_sync, kill, replica, start, until
from tests.unit.cluster.broker.test_groups import commit, find
from tests.unit.cluster.broker.test_transactions import FEW, Sender, run
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from trimtab.cluster.storage.log import Log
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition

T = TopicPartition("t", 0)


def log_of(lab: Any, coordinator: CoordinatorPartition[Any], topic: str) -> tuple[Log, str]:
    """A coordinator's log, and the path of its only segment."""
    key = coordinator.partition_key
    assert key.topic == topic
    return lab.brokers[0].partitions[key].log, f"{key}/{0:020d}.log"


async def load(coordinator: CoordinatorPartition[Any]) -> Any:
    """Load the partition again; returns the shard, None if it cannot be loaded."""
    coordinator._start_again(ErrorCode.NOT_COORDINATOR)
    await until(lambda: not coordinator.is_loading)
    return coordinator.shard


async def flip_bits(
    lab: Any, coordinator: CoordinatorPartition[Any], topic: str, look: Callable[[Any], object]
) -> list[int]:
    """Flip every third bit of the log in turn, and load it; returns those with which it loads."""
    log, path = log_of(lab, coordinator, topic)
    disk = lab.world.disk("broker-0")
    expected = look(await load(coordinator))
    undetected = []
    for bit in range(0, 8 * log.size, 3):
        disk.flip(path, *divmod(bit, 8), lasts=False)
        shard = await load(coordinator)
        if shard is not None:
            assert look(shard) == expected, f"bit {bit % 8} of byte {bit // 8}"
            undetected.append(bit)
        disk.flip(path, *divmod(bit, 8), lasts=False)
    assert look(await load(coordinator)) == expected
    return undetected


def epoch_bits(log: Log) -> list[int]:
    """Of these, the bits of the leader epochs: no CRC covers them, and no coordinator uses them."""
    at = 0
    found: list[int] = []
    for header in log.headers(0):
        found += range(8 * (at + 12), 8 * (at + 16))
        at += header.size
    return [bit for bit in found if bit % 3 == 0]


def test_committed_offsets_are_those_that_were_written(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        client = lab.connect()
        groups = lab.brokers[0].groups.find("g")
        await until(lambda: not groups.is_loading)
        sender = Sender(lab)
        await sender.init()
        assert (await client.ask(commit(1), 8)).topics[0].partitions[0].error_code == 0
        for offset, is_commit in ((3, True), (1, False)):
            assert await sender.commit_offset(offset) is ErrorCode.NONE
            assert await sender.end(is_commit) is ErrorCode.NONE
            await sender.until("CompleteCommit" if is_commit else "CompleteAbort")
        log, _ = log_of(lab, groups, GROUPS_TOPIC)
        assert sum(header.is_control for header in log.headers(0)) == 2

        def look(shard: Any) -> object:
            return {key: each.offset for key, each in shard.offsets("g").items()}

        assert look(groups.shard)[T] == 3  # type: ignore[index]
        assert await flip_bits(lab, groups, GROUPS_TOPIC, look) == epoch_bits(log)

    run(lab, scenario)


def test_transactions_are_those_that_were_written(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        await sender.add()
        await sender.send()
        await sender.end()
        await sender.until("CompleteCommit")
        transactions = lab.brokers[0].transactions.find("x")

        def look(shard: Any) -> object:
            each = shard.transactions["x"]
            return each.status, each.producer, each.partitions

        log, _ = log_of(lab, transactions, TRANSACTIONS_TOPIC)
        bits = await flip_bits(lab, transactions, TRANSACTIONS_TOPIC, look)
        assert bits == epoch_bits(log)

    run(lab, scenario)


def test_an_operator_is_told_which_partition_is_damaged_and_where_the_way_back_is(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        await find(lab)
        groups = lab.brokers[0].groups.find("g")
        await until(lambda: not groups.is_loading)
        await lab.connect().ask(commit(1), 8)
        _, path = log_of(lab, groups, GROUPS_TOPIC)
        lab.world.disk("broker-0").flip(path, 70, 1, lasts=False)
        assert await load(groups) is None
        (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        for words in (str(groups.partition_key), path, "position 0", "docs/recovery.md"):
            assert words in line

    run(lab, scenario)


async def damage(lab: Any, offsets: Sequence[int]) -> tuple[int, TopicPartition]:
    """Commit these offsets, and damage the last commit but one in the coordinator's log; returns
    the coordinator's broker and the partition."""
    await lab.create_topic("t")
    found = await find(lab)
    groups = lab.brokers[found.node_id].groups.find("g")
    await until(lambda: not groups.is_loading)
    for offset in offsets:
        answer = await lab.connect(found.node_id).ask(commit(offset), 8)
        assert answer.topics[0].partitions[0].error_code == 0
    key = groups.partition_key
    sizes = [header.size for header in groups.partition.log.headers(0)]
    lab.world.disk(f"broker-{found.node_id}").flip(
        f"{key}/{0:020d}.log", sum(sizes[:-2]) + 70, 1, lasts=True
    )
    assert await load(groups) is None
    return found.node_id, key


async def committed(lab: Any) -> int:
    """The group's committed offset, by its present coordinator."""

    def find_shard() -> Any:
        each = [broker.groups.find("g") for broker in lab.brokers if isinstance(broker, Broker)]
        return next((led.shard for led in each if led is not None and led.shard), None)

    await until(lambda: find_shard() is not None)
    offset: int = find_shard().offsets("g")[T].offset
    return offset


def test_the_way_back_with_other_replicas_is_to_move_the_log_away(lab: Any) -> None:
    """As docs/recovery.md says."""

    async def scenario() -> None:
        broker, key = await damage(lab, [1, 2, 3])
        await in_sync(lab, 2, *key)
        await lab.brokers[broker].close()
        kill(lab, broker)
        assert await committed(lab) == 3, "another replica coordinates the group"
        disk = lab.world.disk(f"broker-{broker}")
        disk.rename(str(key), f"moved-{key}")
        await start(lab, broker)
        await in_sync(lab, 2, *key)
        assert [header.next_offset for header in replica(lab, broker, *key).log.headers(0)]
        assert await committed(lab) == 3

    lab.run(scenario, brokers=2, config={**FEW, "offsets.topic.replication.factor": 2})


def test_the_way_back_of_the_only_replica_is_to_have_the_log_checked(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/recovery.md says."""

    async def scenario() -> None:
        broker, key = await damage(lab, [1, 2, 3])
        await lab.brokers[broker].close()
        kill(lab, broker)
        disk = lab.world.disk(f"broker-{broker}")
        disk.delete(".kafka_cleanshutdown")
        disk.delete("recovery-point-offset-checkpoint")
        await start(lab, broker)
        assert await committed(lab) == 1
        assert f"truncated {key} to offset" in caplog.text

    run(lab, scenario)
