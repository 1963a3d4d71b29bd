"""A broker whose log directory fails acknowledges nothing more, loses leadership, and stops."""

from __future__ import annotations

import asyncio
from errno import EBADF, EDQUOT, EIO, EISDIR, EMFILE, ENFILE, ENOENT, ENOSPC, EROFS
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    replica,
    send,
    start,
    until,
    values,
)
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.sim.disk import Fault, VirtualDisk

TWO = {"min.insync.replicas": 2}
SOON_S = 1.0


def disk_of(lab: Lab, broker: int) -> VirtualDisk:
    return lab.world.disk(f"broker-{broker}")


def failing(errno: int, *actions: str) -> Fault:
    return lambda action, path: errno if action in actions else 0


async def send_to_the_end(lab: Lab, *payload: bytes) -> None:
    """Produce to a leader that cannot store the batch, and stops."""
    leader = leader_of(lab)
    for _ in range(2):
        answer = await send(lab, *payload, to=leader)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk_of(lab, leader).fault = None  # it is too late


async def led_by_another(lab: Lab, than: int) -> None:
    began = lab.world.loop.time()
    await until(lambda: leader_of(lab) not in (than, -1))
    await until(lambda: leading(lab).is_leader)
    assert lab.world.loop.time() - began < SOON_S


async def ended(lab: Lab, broker: int) -> None:
    await until(lab.brokers[broker].failed.is_set)
    await lab.brokers[broker].close()
    kill(lab, broker)


@pytest.mark.parametrize("errno", [ENOSPC, EDQUOT, EIO, EROFS, ENOENT, EBADF])
@pytest.mark.run(brokers=3, config=TWO)
async def test_when_a_leader_cannot_append_another_leads_at_once(
    lab: Lab, errno: int, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"a")
    leader = leader_of(lab)
    disk_of(lab, leader).fault = failing(errno, "append")
    await send_to_the_end(lab, b"b")
    await led_by_another(lab, leader)
    assert (await send(lab, b"c")).error_code == 0
    assert values(leading(lab)) == [b"a", b"c"]
    assert leader not in decided(lab).isr
    assert caplog.text.count("the log directory has failed; this broker stops") == 1
    await ended(lab, leader)


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_follower_that_cannot_append_leaves_the_isr(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    one = followers_of(lab)[0]
    disk_of(lab, one).fault = failing(ENOSPC, "append", "write")
    began = lab.world.loop.time()
    assert (await send(lab, b"a")).error_code == 0
    assert lab.world.loop.time() - began < SOON_S
    assert one not in decided(lab).isr
    await ended(lab, one)


@pytest.mark.parametrize("action", ["flush", "write"])
@pytest.mark.run(brokers=3)
async def test_a_disk_failure_during_maintenance_is_noticed_without_a_produce_request(
    lab: Lab, action: str
) -> None:
    await lab.create_topic("t", replicas=3, config={"segment.bytes": "100"})
    await in_sync(lab)
    for value in (b"a", b"b", b"c"):
        await send(lab, value)
    leader = leader_of(lab)
    disk_of(lab, leader).fault = failing(EIO, action)
    await until(lambda: leader_of(lab) not in (leader, -1), limit_s=70)
    await ended(lab, leader)


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_failed_read_moves_the_leader_too(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"a")
    one = followers_of(lab)[0]
    kill(lab, one)
    await until(lambda: one not in decided(lab).isr)
    await send(lab, b"b")
    leader = leader_of(lab)
    disk_of(lab, leader).fault = failing(EIO, "read")
    await start(lab, one)
    await led_by_another(lab, leader)
    assert values(leading(lab)) == [b"a", b"b"]
    await ended(lab, leader)


@pytest.mark.parametrize("errno", [EMFILE, ENFILE])
async def test_a_broker_out_of_file_descriptors_refuses_requests_and_continues(
    lab: Lab, errno: int
) -> None:
    await lab.create_topic("t")
    disk_of(lab, 0).fault = failing(errno, "append", "write")
    assert (await send(lab, b"a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk_of(lab, 0).fault = None
    assert (await send(lab, b"b")).error_code == 0
    assert not lab.brokers[0].failed.is_set()


@pytest.mark.run(brokers=3)
async def test_a_log_whose_path_is_not_a_directory_is_offline_and_the_others_are_served(
    lab: Lab,
) -> None:
    for name in ("t", "u"):
        await lab.create_topic(name, replicas=3)
        await in_sync(lab, topic=name)
        await send(lab, b"v", topic=name)
    one = followers_of(lab)[0]
    kill(lab, one)
    disk_of(lab, one).fault = lambda action, path: EISDIR if path.startswith("t-0/") else 0
    broker = await start(lab, one)
    disk_of(lab, one).fault = None
    await in_sync(lab, topic="u")
    assert ("t", 0) not in broker.partitions
    answer = await send(lab, b"v", to=one)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert one not in decided(lab).isr
    kill(lab, followers_of(lab)[1])
    await in_sync(lab, 2)
    assert one in decided(lab).isr


@pytest.mark.run(brokers=3, config=TWO)
async def test_a_log_directory_deleted_below_a_leader_is_noticed_at_the_next_append(
    lab: Lab,
) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"a")
    leader = leader_of(lab)
    disk_of(lab, leader).delete("t-0")
    await send_to_the_end(lab, b"b")
    await led_by_another(lab, leader)
    assert (await send(lab, b"c")).error_code == 0
    assert values(leading(lab)) == [b"a", b"c"]
    await ended(lab, leader)


@pytest.mark.kip(966)
@pytest.mark.parametrize(("errno", "eligible"), [(ENOSPC, True), (EIO, False)])
@pytest.mark.run(brokers=2, config=TWO)
async def test_a_broker_with_a_full_disk_stays_eligible_and_one_that_may_have_lost_records_does_not(
    lab: Lab, errno: int, eligible: bool
) -> None:
    await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    await send(lab, b"a")
    one = followers_of(lab)[0]
    leader = leader_of(lab)
    disk_of(lab, one).fault = failing(errno, "append", "flush", "write")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await send(lab, b"b", timeout_ms=60_000)
    await ended(lab, one)
    assert decided(lab).isr == (leader,)
    assert decided(lab).elr == ((one,) if eligible else ())
    disk_of(lab, one).fault = None
    broker = await start(lab, one)
    assert (broker.replicas.logs.previous_epoch >= 0) is eligible
    await in_sync(lab, 2)


async def test_a_failed_broker_stops_without_a_controller_too(lab: Lab) -> None:
    await lab.create_topic("t")
    lab.world.network.cut("localhost", "controller")
    disk_of(lab, 0).fault = failing(EIO, "append")
    await send_to_the_end(lab, b"a")
    await until(lab.brokers[0].failed.is_set, limit_s=3)
    lab.world.network.heal()
    await ended(lab, 0)


async def test_a_broker_does_not_start_on_a_full_disk_and_serves_again_when_there_is_room(
    lab: Lab,
) -> None:
    await lab.create_topic("t")
    await send(lab, b"a")
    disk = disk_of(lab, 0)
    disk.capacity = disk.used + 100
    await send_to_the_end(lab, b"v" * 500)
    await ended(lab, 0)
    used = disk.used
    with pytest.raises(StorageError, match="free space on the data directory's disk"):
        await start(lab, 0)
    assert disk.used == used
    disk.capacity = None
    await start(lab, 0)
    await until(lambda: ("t", 0) in lab.brokers[0].partitions and leading(lab).is_leader)
    assert values(leading(lab)) == [b"a"]
    assert (await send(lab, b"b")).error_code == 0
    assert values(leading(lab)) == [b"a", b"b"]


@pytest.mark.parametrize("path", ["t-0/", ".trimtab_life"])
@pytest.mark.run(brokers=3)
async def test_a_disk_that_fails_while_a_broker_starts_keeps_it_from_starting(
    lab: Lab, path: str
) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"a")
    one = followers_of(lab)[0]
    kill(lab, one)
    disk_of(lab, one).fault = lambda action, at: EIO * at.startswith(path)
    with pytest.raises(StorageError, match=path):
        await start(lab, one)
    await lab.brokers[one].close()
    disk_of(lab, one).fault = None
    await start(lab, one)
    await in_sync(lab)
    assert values(replica(lab, one)) == [b"a"]


@pytest.mark.run(brokers=3)
async def test_logs_that_were_not_opened_before_the_disk_failed_are_no_strays(lab: Lab) -> None:
    await lab.create_topic("t", 2, replicas=3)
    for index in range(2):
        await in_sync(lab, index=index)
        await send(lab, b"a", index=index)
    kill(lab, 0)
    disk_of(lab, 0).fault = lambda action, at: ENOSPC * at.startswith("t-0/")
    with pytest.raises(StorageError, match="t-0/"):
        await start(lab, 0)
    await lab.brokers[0].close()
    assert {"t-0", "t-1"} <= {*disk_of(lab, 0).list("")}


@pytest.mark.run(brokers=3, config=TWO)
async def test_nothing_is_acknowledged_that_was_sent_to_a_disk_that_had_failed(lab: Lab) -> None:
    """Not even acks=all batches that were appended before the failure and waited for followers."""
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    leader = leader_of(lab)
    for one in followers_of(lab):
        lab.world.network.cut(f"127.0.0.1:{9092 + one}", f"127.0.0.1:{9092 + leader}")
    answers: list[Any] = []
    waiting = lab.connect(leader)
    waiting.send(lab.produce("t", lab.batch(b"a"), acks=-1), 9)
    disk_of(lab, leader).fault = failing(EIO, "append")
    await send_to_the_end(lab, b"b")
    assert waiting.responses == answers
    lab.world.network.heal()
    await ended(lab, leader)
