"""Helpers for tests of replication in a `Lab`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.unit.secret import SECRET
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.broker.leadership import Leadership
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.metadata.image import CONFIG_BROKER, CONFIG_TOPIC, PartitionRegistration
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

FIRST_PORT = 9092


class Gone:
    """Stands for a killed broker."""

    partitions: Mapping[Any, Any] = {}

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id

    async def close(self, hand_over: bool = True) -> None:
        """Does nothing."""


async def until(condition: Callable[[], Any], limit_s: float = 60) -> None:
    """Wait, in virtual time, until the condition holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not condition():
        assert loop.time() < end, f"still not so after {limit_s} s"
        await asyncio.sleep(0.01)


def address(broker: int) -> str:
    """A broker's server, as the virtual network calls it."""
    return f"127.0.0.1:{FIRST_PORT + broker}"


def decided(lab: Any, topic: str = "t", index: int = 0) -> PartitionRegistration:
    """The partition in the controller's image."""
    registration = lab.controller.controller.image.topics[topic].partitions[index]
    assert isinstance(registration, PartitionRegistration)
    return registration


def leader_of(lab: Any, topic: str = "t", index: int = 0) -> int:
    return decided(lab, topic, index).leader


def followers_of(lab: Any, topic: str = "t", index: int = 0) -> list[int]:
    registration = decided(lab, topic, index)
    return [each for each in registration.replicas if each != registration.leader]


def replica(lab: Any, broker: int, topic: str = "t", index: int = 0) -> Partition:
    partition = lab.brokers[broker].partitions[topic, index]
    assert isinstance(partition, Partition)
    return partition


def leading(lab: Any, topic: str = "t", index: int = 0) -> Partition:
    """The leader's replica, once that broker has become leader."""
    return replica(lab, leader_of(lab, topic, index), topic, index)


def leadership(lab: Any, topic: str = "t", index: int = 0) -> Leadership:
    """The leader's state, once that broker has become leader."""
    state = leading(lab, topic, index).leadership
    assert state is not None
    return state


def stored(partition: Partition) -> bytes:
    """All of a log's bytes, from its start to its end."""
    log = partition.log
    found = bytearray()
    for header in log.headers(log.log_start_offset):
        batch = log.read(header.base_offset, header.size)
        found += batch.read(0, header.size) if isinstance(batch, StoredRecords) else batch
    return bytes(found)


def values(partition: Partition) -> list[bytes | None]:
    content = memoryview(stored(partition))
    return [record.value for record in read_records("t", 0, content)] if content else []


async def in_sync(lab: Any, count: int = 3, topic: str = "t", index: int = 0) -> None:
    """Wait until this number of replicas is in sync, and has all of the leader's log, committed."""

    def is_so() -> bool:
        registration = decided(lab, topic, index)
        if len(registration.isr) != count or registration.leader < 0:
            return False
        replicas = [lab.brokers[each].partitions.get((topic, index)) for each in registration.isr]
        if any(each is None for each in replicas):
            return False
        leader = leading(lab, topic, index)
        ends = {each.log.log_end_offset for each in replicas} | {leader.high_watermark}
        return len(ends) == 1 and leader.is_leader

    await until(is_so)


async def send(
    lab: Any,
    *payload: bytes,
    topic: str = "t",
    index: int = 0,
    acks: int = -1,
    timeout_ms: int = 10_000,
    to: int | None = None,
    version: int = 9,
    **identity: Any,
) -> Any:
    """The partition's response to a produce request, by default from the leader."""
    request = lab.produce(topic, lab.batch(*payload, **identity), acks=acks, partition=index)
    request.timeout_ms = timeout_ms
    leader = leader_of(lab, topic, index) if to is None else to
    response = await lab.connect(leader).ask(request, version)
    return response.responses[0].partition_responses[0]


def kill(lab: Any, number: int) -> None:
    """kill -9: written data is kept."""
    lab.brokers[number].abort()
    lab.world.disk(f"broker-{number}").end_mount()
    lab.brokers[number] = Gone(number)


async def start(
    lab: Any,
    number: int,
    config: Mapping[str, object] | None = None,
    host: str = "localhost",
    port: int | None = None,
) -> Broker:
    """Restart a broker on its disk."""
    port = FIRST_PORT + number if port is None else port
    with lab.world.network.at(host):
        broker = Broker(
            number,
            "lab",
            lab.world.disk(f"broker-{number}"),
            ("controller", 9093),
            SECRET,
            {**(config or {}), "node.id": number, "broker.rack": "abc"[number % 3]},
            lab.world.now_ms,
            Random(f"{number}/{lab.world.now_ms()}"),
        )
        await broker.bind("127.0.0.1", port)
        lab.brokers[number] = broker
        await broker.start("127.0.0.1", port)
    return broker


async def move_leader(lab: Any, to: int, topic: str = "t", index: int = 0) -> None:
    """Make another replica the preferred leader, and elect it."""
    if leader_of(lab, topic, index) == to:
        return
    others = [each for each in decided(lab, topic, index).replicas if each != to]
    await reassign(lab, [to, *others], topic, index)
    response = await lab.controller.controller.elect_leaders(
        ElectLeadersRequest(
            election_type=0,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
            timeout_ms=0,
        )
    )
    (result,) = response.replica_election_results[0].partition_result
    assert result.error_code == 0, result.error_message
    await until(lambda: replica(lab, to, topic, index).is_leader)


async def reassign(
    lab: Any, replicas: list[int] | None, topic: str = "t", index: int = 0, broker: int = 0
) -> None:
    """AlterPartitionReassignments through a broker; None cancels."""
    wanted = ReassignablePartition(partition_index=index, replicas=replicas)
    response = await lab.connect(broker).ask(
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[wanted])]
        ),
        1,
    )
    (result,) = response.responses[0].partitions
    assert (response.error_code, result.error_code) == (0, 0), result.error_message


async def alter(
    lab: Any, options: Mapping[str, str | None], topic: str | None = "t", broker: str = ""
) -> None:
    """IncrementalAlterConfigs through a broker: of a topic, or (None) of one broker or all."""
    response = await lab.connect(
        next(each.id for each in lab.brokers if isinstance(each, Broker))
    ).ask(
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=CONFIG_BROKER if topic is None else CONFIG_TOPIC,
                    resource_name=broker if topic is None else topic,
                    configs=[
                        AlterableConfig(name=name, config_operation=int(value is None), value=value)
                        for name, value in options.items()
                    ],
                )
            ]
        ),
        1,
    )
    (result,) = response.responses
    assert result.error_code == 0, result.error_message
