"""Brokers whose files were changed while they were down: they catch up, and are not elected for
records they have lost."""

from __future__ import annotations

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
from trimtab.cluster.broker.broker import Broker
from trimtab.sim.disk import VirtualDisk

TWO = {"min.insync.replicas": 2}
LOG = f"t-0/{0:020d}.log"


def disk_of(lab: Lab, broker: int) -> VirtualDisk:
    return lab.world.disk(f"broker-{broker}")


def change(disk: VirtualDisk, at: int) -> None:
    content = bytearray(disk.read_file(LOG) or b"")
    content[at] ^= 0x40
    disk.write_file(LOG, content)


def cut(disk: VirtualDisk) -> None:
    change(disk, 100)


def move(disk: VirtualDisk) -> None:
    change(disk, 0)


def empty(disk: VirtualDisk) -> None:
    disk.write_file(LOG, b"")


def lose(disk: VirtualDisk) -> None:
    disk.delete("t-0")


def rename(disk: VirtualDisk) -> None:
    metadata = (disk.read_file("t-0/partition.metadata") or b"").replace(
        b"topic_id: ", b"topic_id: A"
    )
    disk.write_file("t-0/partition.metadata", metadata[:-1])


async def end(lab: Lab, broker: int, cleanly: bool) -> None:
    if cleanly:
        await lab.brokers[broker].close()
    kill(lab, broker)


@pytest.mark.kip(966)
@pytest.mark.parametrize(
    ("harm", "cleanly"),
    [
        (cut, False),  # of a log closed cleanly no CRC is checked, as in Kafka
        *((harm, cleanly) for harm in (move, empty, lose, rename) for cleanly in (True, False)),
    ],
)
def test_a_replica_that_lost_records_is_not_elected_and_catches_up(
    lab: Lab, harm: object, cleanly: bool
) -> None:
    """Both brokers stop. The one with the damaged log restarts first, and must not be elected."""
    assert callable(harm)

    async def scenario() -> None:
        await lab.create_topic("t", replicas=2)
        await in_sync(lab, 2)
        for value in (b"a", b"b", b"c"):
            await send(lab, value)
        for broker in lab.brokers:
            broker.replicas.logs.checkpoint_high_watermarks()
        leader, follower = leader_of(lab), followers_of(lab)[0]
        await end(lab, leader, cleanly)
        await until(lambda: decided(lab).leader == follower)
        await end(lab, follower, cleanly)
        await until(lambda: decided(lab).leader == -1)
        disk = disk_of(lab, leader)
        harm(disk)
        await start(lab, leader)
        assert decided(lab).leader == -1
        assert leader not in decided(lab).elr
        await start(lab, follower)
        await in_sync(lab, 2)
        assert leader_of(lab) == follower
        assert values(replica(lab, leader)) == [b"a", b"b", b"c"]
        assert values(replica(lab, follower)) == [b"a", b"b", b"c"]

    lab.run(scenario, brokers=2, config=TWO)


@pytest.mark.kip(966)
@pytest.mark.parametrize("cleanly", [True, False], ids=["closed", "killed"])
@pytest.mark.run(brokers=2, config=TWO)
async def test_a_replica_that_lost_nothing_is_elected(lab: Lab, cleanly: bool) -> None:
    await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    await send(lab, b"a")
    leader, follower = leader_of(lab), followers_of(lab)[0]
    await end(lab, leader, cleanly)
    await until(lambda: decided(lab).leader == follower)
    await end(lab, follower, cleanly)
    await start(lab, leader)
    await until(lambda: decided(lab).leader == leader)
    assert values(leading(lab)) == [b"a"]


@pytest.mark.kip(966)
@pytest.mark.run(brokers=2, config=TWO)
async def test_a_loss_that_the_controller_knows_of_is_not_another_after_a_kill(lab: Lab) -> None:
    await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    for value in (b"a", b"b"):
        await send(lab, value)
    follower = followers_of(lab)[0]
    replica(lab, follower).log.flush()
    kill(lab, follower)
    disk_of(lab, follower).crash()  # the machine boots again
    cut(disk_of(lab, follower))
    assert (await start(lab, follower)).replicas.logs.has_lost
    await in_sync(lab, 2)
    epoch = lab.brokers[follower].epoch
    kill(lab, follower)
    assert (await start(lab, follower)).replicas.logs.previous_epoch == epoch


async def test_the_only_replica_serves_its_undamaged_records(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.create_topic("u")
    for value in (b"a", b"b", b"c"):
        await send(lab, value)
        await send(lab, value, topic="u")
    size = len(disk_of(lab, 0).read_file(LOG) or b"")
    kill(lab, 0)
    change(disk_of(lab, 0), size // 3 + 62)
    broker: Broker = await start(lab, 0)
    await until(lambda: ("t", 0) in broker.partitions and leading(lab).is_leader)
    assert values(leading(lab)) == [b"a"]
    assert values(leading(lab, "u")) == [b"a", b"b", b"c"]
    assert (await send(lab, b"d")).base_offset == 1


@pytest.mark.parametrize("cleanly", [True, False], ids=["closed", "killed"])
async def test_an_impossible_leader_epoch_in_a_batch_does_not_keep_a_broker_from_serving(
    lab: Lab, cleanly: bool
) -> None:
    """A batch's CRC does not cover its leader epoch."""
    await lab.create_topic("t")
    for value in (b"a", b"b"):
        await send(lab, value)
    size = len(disk_of(lab, 0).read_file(LOG) or b"")
    await end(lab, 0, cleanly)
    change(disk_of(lab, 0), size // 2 + 13)
    broker: Broker = await start(lab, 0)
    await until(lambda: ("t", 0) in broker.partitions and leading(lab).is_leader)
    assert (await send(lab, b"c")).base_offset == 2
    assert values(leading(lab)) == [b"a", b"b", b"c"]
    assert leading(lab).log.epochs.latest == decided(lab).leader_epoch


@pytest.mark.run(brokers=2)
async def test_a_follower_does_not_append_a_batch_damaged_at_the_leader(lab: Lab) -> None:
    await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    await send(lab, b"a")
    one = followers_of(lab)[0]
    kill(lab, one)
    await until(lambda: one not in decided(lab).isr)
    await send(lab, b"b", acks=1)
    disk = disk_of(lab, leader_of(lab))
    whole = disk.read_file(LOG) or b""
    change(disk, len(whole) - 5)
    await start(lab, one)
    await until(lambda: ("t", 0) in lab.brokers[one].partitions)
    loop = lab.world.loop
    end_s = loop.time() + 5
    await until(lambda: loop.time() > end_s)
    assert values(replica(lab, one)) == [b"a"]
    assert one not in decided(lab).isr
    disk.write_file(LOG, whole)
    await in_sync(lab, 2)
    assert values(replica(lab, one)) == [b"a", b"b"]
