"""A transactional producer's request that arrives late, by a connection that it has given up.

    request ─▶ cut ······················· heal ─▶ it arrives
    no answer in request.timeout.ms: again, by another connection ─▶ the next transaction …

This is how Jepsen lost, tore and uncovered transactions of Apache Kafka (KAFKA-17754), and how
transactions hang that nobody ends (KAFKA-14402). In version 2 of transactions nothing may come of
such a request. In version 1, which prepared transactions use too, the next transaction would have
the same epoch: a late EndTxn would end it, and a late TxnOffsetCommit become part of it. So the
producer takes another epoch after a request without an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.network.connection import Connection
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.metadata.features import TRANSACTION_VERSION
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from trimtab.sim.network import ANY
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

pytestmark = pytest.mark.kip(890)

OPTIONS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 1,
}
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 1_000


class Protocol(NamedTuple):
    """The level of `transaction.version`, and whether transactions are prepared (KIP-939)."""

    version: int
    prepares: bool = False

    def __str__(self) -> str:
        return f"version-{self.version}" + "-prepared" * self.prepares


NEW, OLD, PREPARED = Protocol(2), Protocol(1), Protocol(2, True)


class Late:
    """Cuts the connection, towards the broker, by which a request of this kind is first sent."""

    def __init__(self, world: World, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._network = world.network
        self._end = ""
        send = Connection.send

        def watch(connection: Connection, request: Any, *more: Any, **named: Any) -> None:
            if isinstance(request, kind) and not self._end:
                assert connection.transport is not None
                host, port = connection.transport.get_extra_info("sockname")
                self._end = f"{host}:{port}"
                self._network.cut(self._end, ANY, one_way=True)
            send(connection, request, *more, **named)

        monkeypatch.setattr(Connection, "send", watch)

    async def arrive(self) -> None:
        """Let the request arrive."""
        assert self._end, "no such request was sent"
        self._network.heal(self._end, ANY)
        await asyncio.sleep(1)


async def read_committed(world: World, servers: str) -> list[str]:
    """All records up to the ends of the partitions, beyond which no transaction may be open, and
    the group's offset."""
    partitions = [FIRST, SECOND]
    async with AsyncAdmin(servers, random=world.random("last admin")) as admin:
        ends = await admin.list_offsets(partitions, "latest")
        offsets = await admin.list_group_offsets("g")
    found = [f"offset {each.offset}" for each in offsets.values() if each is not None]
    async with AsyncConsumer(
        servers,
        random=world.random("reader"),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign(partitions)
        async with asyncio.timeout(5):
            while any([await consumer.position(each) < ends[each].offset for each in partitions]):
                records = await consumer.poll(timeout_ms=100)
                found += [(record.value or b"").decode() for record in records]
    return sorted(found)


def run_late(
    protocol: Protocol, kind: type[Any], begun: bool, commits: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """Two transactions, of which one is committed. Returns what was read, and what should be.

    Args:
        kind: the request of the first transaction that is late.
        begun: whether it arrives during the second transaction, or before.
        commits: whether the first transaction is committed.
    """
    with World(seed=1) as world:
        cluster = VirtualCluster(world, 1, OPTIONS)
        servers = cluster.bootstrap_servers

        async def end(producer: AsyncProducer, commit: bool) -> None:
            if protocol.prepares:
                prepared = await producer.prepare_transaction()
                await producer.complete_transaction(prepared, commit)
            elif commit:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()

        async def transact(
            producer: AsyncProducer,
            commit: bool,
            number: int,
            arrive: Callable[[], Awaitable[None]],
        ) -> list[str]:
            first, second, offset = f"{number} a", f"{number} b", f"offset {number}"
            await producer.begin_transaction(two_phase=protocol.prepares)
            await producer.send("t", first.encode(), partition=0)
            await asyncio.sleep(0.1)  # it is on its way
            if kind is not TxnOffsetCommitRequest:
                await arrive()
            await producer.send("t", second.encode(), partition=1)
            if kind is not ProduceRequest or commit:
                await producer.flush()
            await producer.send_offsets_to_transaction({FIRST: number}, "g")
            if kind is TxnOffsetCommitRequest:
                await arrive()
            await end(producer, commit)
            return [first, second, offset] if commit else []

        async def nothing() -> None:
            pass

        async def scenario() -> tuple[list[str], list[str]]:
            cluster.start()
            await asyncio.sleep(5)
            with world.network.at("client"):
                async with AsyncAdmin(servers, random=world.random("admin")) as admin:
                    await admin.create_topic("t", 2, 1)
                    level = {TRANSACTION_VERSION: protocol.version}
                    await admin.update_features(level, "safe_downgrade")
                late = Late(world, kind, monkeypatch)
                async with AsyncProducer(
                    servers,
                    wall_clock=world.wall_clock,
                    random=world.random("producer"),
                    transactional_id="x",
                    request_timeout_ms=TIMEOUT_MS,
                ) as producer:
                    await producer.init_transactions()
                    expected = await transact(producer, commits, 1, nothing)
                    if not begun:
                        await late.arrive()
                    during = late.arrive if begun else nothing
                    expected += await transact(producer, not commits, 2, during)
                found = await read_committed(world, servers)
            await cluster.close()
            return found, expected

        return world.run(scenario())


def _name(value: object) -> str:
    if isinstance(value, type):
        return value.__name__.removesuffix("Request")
    if isinstance(value, bool):
        return "during" if value else "between"
    return str(value)


IN_VERSION_2 = (ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest)
IN_VERSION_1 = (*IN_VERSION_2, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest)
CASES = [
    *((NEW, kind) for kind in IN_VERSION_2),
    *((old, kind) for old in (OLD, PREPARED) for kind in IN_VERSION_1),
]


@pytest.mark.parametrize("begun", [True, False], ids=["in-the-next", "between"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit-abort", "abort-commit"])
@pytest.mark.parametrize(("protocol", "kind"), CASES, ids=_name)
def test_nothing_comes_of_a_late_request(
    protocol: Protocol,
    kind: type[Any],
    begun: bool,
    commits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, expected = run_late(protocol, kind, begun, commits, monkeypatch)
    assert found == expected
