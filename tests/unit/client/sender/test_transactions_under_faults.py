"""Random transactions while everything goes wrong that can pass, or that ends a transaction only.

`trimtab.client.sender.transactions`; see also `test_transactions.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER, RequestClass
from tests.unit.client.scripted_transactions import OTHER, TOPIC, make_transaction_cluster
from trimtab.client.group_offsets import ConsumerGroup
from trimtab.kafka.errors import ErrorCode, TransactionError, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from trimtab.sim.world import World

GROUP = ConsumerGroup("readers", 3, "member-1", "instance-1")
COORDINATORS = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
PASSING: dict[RequestClass, list[object]] = {
    FindCoordinatorRequest: [ErrorCode.COORDINATOR_NOT_AVAILABLE, HANG_UP],
    ProduceRequest: [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        HANG_UP,
        NO_ANSWER,
    ],
} | {
    api: [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        HANG_UP,
        NO_ANSWER,
    ]
    for api in COORDINATORS
}
UNKNOWN = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
ENDING: dict[RequestClass, Sequence[object]] = {
    AddPartitionsToTxnRequest: UNKNOWN,
    AddOffsetsToTxnRequest: UNKNOWN,
    TxnOffsetCommitRequest: UNKNOWN,
    ProduceRequest: (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("level", [1, 2], ids=["version-1", "version-2"])
@pytest.mark.parametrize("seed", range(10))
def test_under_faults_exactly_the_committed_records_are_read(level: int, seed: int) -> None:
    expected: dict[TopicPartition, list[bytes | None]] = {TOPIC: [], OTHER: []}
    positions: dict[TopicPartition, int] = {}
    fatal: list[TransactionError] = []
    with World(seed) as world:
        brokers = make_transaction_cluster(world, level)
        random = world.random("faults")

        def fault(api: RequestClass) -> object:
            draw = random.random()
            if draw < 0.15:
                return random.choice(PASSING[api])
            if draw < 0.2 and api in ENDING:
                return random.choice(ENDING[api])
            if draw < 0.25:
                brokers.coordinator, brokers.groups = random.randrange(2), random.randrange(2)
            return ErrorCode.NONE

        async def repeat(call: Callable[[], Awaitable[object]]) -> None:
            while True:
                try:
                    await call()
                    return
                except Unavailable:
                    continue

        async def scenario() -> None:
            nonlocal fatal
            async with brokers.producer(batch_size=100, max_block_ms=500) as producer:
                await repeat(producer.init_transactions)
                for number in range(12):
                    sent: dict[TopicPartition, list[bytes | None]] = {TOPIC: [], OTHER: []}
                    wants_abort = random.random() < 0.25
                    await repeat(producer.begin_transaction)
                    try:
                        for index in range(random.randrange(12)):
                            partition = random.choice([TOPIC, OTHER])
                            value = b"%d-%d" % (number, index)
                            await producer.send(*partition[:1], value, partition=partition[1])
                            sent[partition].append(value)
                            await asyncio.sleep(random.random() * 0.02)
                        position = {OTHER: number}
                        await repeat(partial(producer.send_offsets_to_transaction, position, GROUP))
                        if not wants_abort:
                            await repeat(producer.commit_transaction)
                    except TransactionError as error:
                        fatal += [error] if error.is_fatal else []
                        wants_abort = True
                    if wants_abort:
                        await repeat(producer.abort_transaction)
                        continue
                    positions[OTHER] = number
                    for partition, values in sent.items():
                        expected[partition] += values

        brokers.fault = fault
        brokers.world.run(scenario())
    assert fatal == []
    assert {TOPIC: [], OTHER: []} | brokers.committed == expected
    assert brokers.offsets == positions
    assert expected[TOPIC] + expected[OTHER]
