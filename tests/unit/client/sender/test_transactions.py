"""Transactions against a coordinator that keeps Kafka's rules, in both generations of the protocol
(`trimtab.client.sender.transactions`, `trimtab.client.network.coordinator`).

Long because both generations of the protocol run through the same cases.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER, RequestClass
from tests.unit.client.scripted_transactions import (
    KAFKA_2_1,
    OTHER,
    TOPIC,
    TransactionCluster,
    make_transaction_cluster,
)
from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import BrokerError, ErrorCode, TransactionError, Unavailable, UsageError
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World

GROUP = ConsumerGroup("readers", 3, "member-1", "instance-1")


@pytest.fixture
def older(world: World) -> TransactionCluster:
    return make_transaction_cluster(world, level=1)


@pytest.fixture
def newer(world: World) -> TransactionCluster:
    return make_transaction_cluster(world, level=2)


@pytest.fixture
def oldest(world: World) -> TransactionCluster:
    return make_transaction_cluster(world, 0, KAFKA_2_1)


async def begin(producer: AsyncProducer) -> None:
    await producer.init_transactions()
    await producer.begin_transaction()


# commit and abort


async def test_committed_records_are_read_and_aborted_ones_are_not(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        for number in range(6):
            await producer.begin_transaction()
            for partition in range(2):
                await producer.send("topic", b"%d" % number, partition=partition)
            if number % 3 == 2:
                await producer.flush()
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"0", b"1", b"3", b"4"], OTHER: [b"0", b"1", b"3", b"4"]}
    assert brokers.decisions == [True, True, False, True, True, False]


async def test_kafka_2_1_is_spoken_to_in_its_versions(oldest: TransactionCluster) -> None:
    async with oldest.producer() as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        await producer.send_offsets_to_transaction({OTHER: 5}, "readers")
        await producer.commit_transaction()
    assert oldest.committed == {TOPIC: [b"1"]}
    assert oldest.offsets == {OTHER: 5}
    newest = {api: high for api, (_, high) in KAFKA_2_1.items() if api is not ApiVersionsRequest}
    assert {api: version for api, version, _ in oldest.asked(*newest)} == newest


async def test_version_1_adds_partitions_before_it_sends_and_keeps_to_its_versions(
    older: TransactionCluster,
) -> None:
    older.cluster.leaders["topic"] = [0, 0]
    async with older.producer(linger_ms=10) as producer:
        await begin(producer)
        for partition in range(2):
            await producer.send("topic", b"1", partition=partition)
        await producer.commit_transaction()
    asked = older.asked(AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)
    assert [(api, version) for api, version, _ in asked] == [
        (AddPartitionsToTxnRequest, 3),
        (ProduceRequest, 11),
        (EndTxnRequest, 4),
    ]
    (topic,) = asked[0][2].v3_and_below_topics
    assert sorted(topic.partitions) == [0, 1]  # those that turn up together, in one request


async def test_version_2_adds_nothing_and_takes_a_new_epoch_from_each_end(
    newer: TransactionCluster,
) -> None:
    async with newer.producer() as producer:
        await producer.init_transactions()
        for _ in range(3):
            await producer.begin_transaction()
            await producer.send("topic", b"1", partition=0)
            await producer.commit_transaction()
    asked = newer.asked(
        AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest, InitProducerIdRequest
    )
    assert [(api, version) for api, version, _ in asked] == [
        (InitProducerIdRequest, 5),
        *[(ProduceRequest, 13), (EndTxnRequest, 5)] * 3,
    ]
    ends = [request for api, _, request in asked if api is EndTxnRequest]
    assert [request.producer_epoch for request in ends] == [0, 1, 2]


async def test_a_transaction_follows_the_cluster_to_version_2_but_ends_as_it_began(
    older: TransactionCluster,
) -> None:
    async with older.producer() as producer:
        await begin(producer)
        await producer.send("topic", b"old", partition=0)
        await producer.flush()
        for link in older.cluster.brokers[0].links:
            assert link.transport is not None
            link.transport.abort()
        older.level = 2
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("topic", b"new", partition=0)
        await producer.commit_transaction()
    asked = older.asked(AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)
    assert [(api, version) for api, version, _ in asked] == [
        (AddPartitionsToTxnRequest, 3),
        (ProduceRequest, 11),
        (EndTxnRequest, 4),
        (ProduceRequest, 13),
        (EndTxnRequest, 5),
    ]
    assert older.committed == {TOPIC: [b"old", b"new"]}


async def test_an_empty_transaction_sends_no_request(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        await begin(producer)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert brokers.asked(EndTxnRequest, AddPartitionsToTxnRequest) == []


async def test_only_the_partition_that_is_used_is_added(older: TransactionCluster) -> None:
    """KAFKA-13782: not the one that the partitioner left because its batch was full."""
    async with older.producer(batch_size=200, partitioner_class="sticky") as producer:
        await producer.init_transactions()
        for number in range(20):
            await producer.begin_transaction()
            await producer.send("topic", b"%d" % number * 30)
            await producer.commit_transaction()
    asked = older.asked(AddPartitionsToTxnRequest, ProduceRequest)
    added, used = [], []
    for api, _, request in asked:
        if api is ProduceRequest:
            used += [d.index for topic in request.topic_data for d in topic.partition_data]
        else:
            added += [p for topic in request.v3_and_below_topics for p in topic.partitions]
    assert added == used
    assert len(used) == 20
    assert set(used) == {0, 1}


async def test_an_abort_drops_unsent_batches(brokers: TransactionCluster) -> None:
    async with brokers.producer(linger_ms=1000) as producer:
        await begin(producer)
        waiting = await producer.send("topic", b"1", partition=0)
        await producer.abort_transaction()
        with pytest.raises(TransactionError, match="repeat the transaction") as raised:
            await waiting
        assert not raised.value.is_fatal
    assert brokers.asked(ProduceRequest) == []


async def test_version_1_aborts_only_after_the_answers_to_all_sent_batches(
    older: TransactionCluster,
) -> None:
    """A batch that came after the end of its transaction would stay without one."""
    older.script[ProduceRequest] = [HANG_UP]
    async with older.producer() as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        await asyncio.sleep(0.05)
        await producer.abort_transaction()
    asked = [api for api, _, _ in older.asked(ProduceRequest, EndTxnRequest)]
    assert asked == [ProduceRequest, ProduceRequest, EndTxnRequest]
    assert older.committed == {}


async def test_version_2_ends_at_once_as_nothing_late_can_harm(newer: TransactionCluster) -> None:
    newer.script[ProduceRequest] = [HANG_UP]
    async with newer.producer(retry_backoff_ms=5000, retry_backoff_max_ms=5000) as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        await asyncio.sleep(0.05)
        began = newer.world.loop.time()
        await producer.abort_transaction()
        assert newer.world.loop.time() - began < 1
    asked = [api for api, _, _ in newer.asked(ProduceRequest, EndTxnRequest)]
    assert asked == [ProduceRequest, EndTxnRequest]


async def test_version_2_fails_batches_at_once_that_come_back_unstored(
    newer: TransactionCluster,
) -> None:
    newer.script[ProduceRequest] = [ErrorCode.NOT_ENOUGH_REPLICAS]
    async with newer.producer(retry_backoff_ms=5000, retry_backoff_max_ms=5000) as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        await newer.arrival(ProduceRequest)
        began = newer.world.loop.time()
        await producer.abort_transaction()
        assert newer.world.loop.time() - began < 1
    assert newer.decisions == []  # nothing had begun


async def test_an_abort_waits_for_partitions_that_are_being_added(
    older: TransactionCluster,
) -> None:
    """One that was added behind the end would be part of the next transaction."""
    older.script[AddPartitionsToTxnRequest] = [NO_ANSWER]
    async with older.producer(request_timeout_ms=1000, delivery_timeout_ms=5000) as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        await older.arrival(AddPartitionsToTxnRequest)
        began = older.world.loop.time()
        await producer.abort_transaction()
        assert older.world.loop.time() - began >= 1
    assert len(older.asked(AddPartitionsToTxnRequest)) == 1
    assert len(older.asked(EndTxnRequest)) == 1


async def test_a_batch_that_is_split_stays_in_its_transaction(brokers: TransactionCluster) -> None:
    async with brokers.producer(linger_ms=10) as producer:
        await begin(producer)
        brokers.script[ProduceRequest] = [ErrorCode.MESSAGE_TOO_LARGE]
        for number in range(4):
            await producer.send("topic", b"%d" % number, partition=0)
        await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"0", b"1", b"2", b"3"]}
    assert len(brokers.asked(ProduceRequest)) > 2


async def test_a_batch_split_in_a_failed_transaction_is_dropped(newer: TransactionCluster) -> None:
    newer.cluster.leaders["topic"] = [0, 0]
    async with newer.producer(max_block_ms=5000) as producer:
        await begin(producer)
        for partition in range(2):
            await (await producer.send("topic", b"first", partition=partition))
        newer.script[ProduceRequest] = [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE]
        await producer.send("topic", b"1", partition=0)
        await newer.arrival(ProduceRequest)
        for value in (b"2", b"3"):
            await producer.send("topic", value, partition=1)
        with pytest.raises(TransactionError, match="INVALID_RECORD"):
            await producer.commit_transaction()
        await producer.abort_transaction()
    assert len(newer.asked(ProduceRequest)) == 4
    assert newer.decisions == [False]


async def test_records_that_expire_end_the_transaction(brokers: TransactionCluster) -> None:
    options = {"request_timeout_ms": 1000, "delivery_timeout_ms": 3000}
    async with brokers.producer(**options) as producer:
        await begin(producer)
        brokers.script[ProduceRequest] = [NO_ANSWER] * 4
        await producer.send("topic", b"1", partition=0)
        with pytest.raises(TransactionError, match=r"delivery\.timeout\.ms.*abort_transac"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        brokers.script.clear()
        await producer.begin_transaction()
        await producer.send("topic", b"2", partition=0)
        await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"2"]}


async def test_a_commit_that_failed_says_so_before_the_rest_is_settled(
    older: TransactionCluster,
) -> None:
    options = {"retry_backoff_ms": 5000, "retry_backoff_max_ms": 5000}
    async with older.producer(**options) as producer:
        await begin(producer)
        for partition in range(2):
            await (await producer.send("topic", b"first", partition=partition))
        older.script[ProduceRequest] = [ErrorCode.NOT_ENOUGH_REPLICAS]
        await producer.send("topic", b"not stored for now", partition=0)
        await asyncio.sleep(0.1)
        older.script[ProduceRequest] = [ErrorCode.INVALID_RECORD]
        await producer.send("topic", b"never stored", partition=1)
        began = older.world.loop.time()
        with pytest.raises(TransactionError, match="INVALID_RECORD"):
            await producer.commit_transaction()
        assert older.world.loop.time() - began < 1


async def test_recreating_a_topic_fails_its_transaction(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        await begin(producer)
        await (await producer.send("topic", b"1", partition=0))
        brokers.cluster.topic_id = lambda name: bytes([2] * 16)  # type: ignore[method-assign]
        brokers.cluster.topic_of = lambda topic_id: "topic"  # type: ignore[method-assign]
        brokers.script[ProduceRequest] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await producer.send("topic", b"2", partition=0)
        with pytest.raises(TransactionError, match="topic-0 was deleted and created again"):
            await producer.commit_transaction()
        await producer.abort_transaction()
    assert brokers.committed == {}


# coordinators


async def test_a_coordinator_that_moves_is_found_again(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        for number in range(4):
            brokers.coordinator = number % 2
            await producer.begin_transaction()
            await producer.send("topic", b"%d" % number, partition=0)
            await producer.flush()
            brokers.coordinator = 1 - brokers.coordinator
            await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"0", b"1", b"2", b"3"]}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        HANG_UP,
    ],
)
async def test_retriable_errors_are_waited_out(brokers: TransactionCluster, code: object) -> None:
    script = brokers.script
    for api in (InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest):
        script[api] = [code, code]
    script[AddOffsetsToTxnRequest] = script[TxnOffsetCommitRequest] = [code]
    if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
        script[FindCoordinatorRequest] = [code]
    async with brokers.producer() as producer:
        await begin(producer)
        delivery = await producer.send("topic", b"1", partition=0)
        await producer.send_offsets_to_transaction({OTHER: 5}, GROUP)
        await producer.commit_transaction()
        assert delivery.done()
    assert brokers.committed == {TOPIC: [b"1"]}
    assert brokers.offsets == {OTHER: 5}
    assert brokers.decisions == [True]  # once, though the response was lost
    assert not any(script.values()) or brokers.level == 2


async def test_a_partition_is_added_soon_after_the_transaction_before(
    older: TransactionCluster,
) -> None:
    """KAFKA-5482: its markers are written in milliseconds, so the wait is not retry.backoff.ms."""
    async with older.producer() as producer:
        await begin(producer)
        older.script[AddPartitionsToTxnRequest] = [ErrorCode.CONCURRENT_TRANSACTIONS]
        began = older.world.loop.time()
        await (await producer.send("topic", b"1", partition=0))
        assert older.world.loop.time() - began < 0.02


@pytest.mark.parametrize(("latency_ms", "between_ms"), [(0.5, 2), (1, 4), (10, 23)])
async def test_version_2_leaves_brokers_the_time_to_write_markers(
    newer: TransactionCluster, latency_ms: float, between_ms: float
) -> None:
    """As long as EndTxn took, and 3 ms at most."""
    newer.world.network.set_link(ANY, ANY, NetworkLink(latency_ms, latency_ms))
    async with newer.producer() as producer:
        await producer.init_transactions()
        for _ in range(2):
            async with producer.transaction():
                await producer.send("topic", b"1", partition=0)
    produced = [a.at for a in newer.cluster.brokers[0].asked if a.api is ProduceRequest]
    ended = [a.at for a in newer.cluster.brokers[0].asked if a.api is EndTxnRequest]
    assert between_ms <= (produced[1] - ended[0]) * 1000 < between_ms + 1


# offsets


async def test_offsets_are_committed_by_the_member_that_read_them(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await begin(producer)
        await producer.send_offsets_to_transaction(
            {TOPIC: 5, OTHER: OffsetAndMetadata(6, "note", 2)}, GROUP
        )
        assert brokers.offsets == {}
        await producer.commit_transaction()
    assert brokers.offsets == {TOPIC: 5, OTHER: 6}
    asked = brokers.asked(AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)
    assert [(api, version) for api, version, _ in asked] == (
        [(TxnOffsetCommitRequest, 5), (EndTxnRequest, 5)]
        if brokers.level == 2
        else [(AddOffsetsToTxnRequest, 4), (TxnOffsetCommitRequest, 4), (EndTxnRequest, 4)]
    )
    request = asked[-2][2]
    assert (
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
    ) == GROUP
    positions = [
        (p.partition_index, p.committed_offset, p.committed_metadata, p.committed_leader_epoch)
        for p in request.topics[0].partitions
    ]
    assert positions == [(0, 5, "", -1), (1, 6, "note", 2)]


async def test_brokers_that_know_no_members_take_the_group_id_alone(
    oldest: TransactionCluster,
) -> None:
    async with oldest.producer() as producer:
        await begin(producer)
        with pytest.raises(TransactionError, match="give the group's id alone") as raised:
            await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        assert not raised.value.is_fatal
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({TOPIC: 5}, "readers")
        await producer.commit_transaction()
    assert oldest.offsets == {TOPIC: 5}


# errors


async def test_a_newer_producer_fences_the_older(brokers: TransactionCluster) -> None:
    async with brokers.producer() as old, brokers.producer() as new:
        await begin(old)
        await old.send("topic", b"old", partition=0)
        await old.flush()
        await begin(new)
        await new.send("topic", b"new", partition=0)
        with pytest.raises(TransactionError, match="close this producer") as raised:
            await old.commit_transaction()
        assert raised.value.code is ErrorCode.PRODUCER_FENCED
        assert raised.value.is_fatal
        assert isinstance(raised.value.__cause__, BrokerError)
        for call in (old.begin_transaction, old.abort_transaction, old.init_transactions):
            with pytest.raises(TransactionError, match="PRODUCER_FENCED"):
                await call()
        with pytest.raises(TransactionError, match="PRODUCER_FENCED"):
            await old.send("topic", b"late", partition=0)
        await new.commit_transaction()
    assert brokers.committed == {TOPIC: [b"new"]}
    assert brokers.decisions == [False, True]


async def test_the_leader_of_a_fenced_producer_leaves_the_verdict_to_the_coordinator(
    brokers: TransactionCluster,
) -> None:
    """KIP-588: INVALID_PRODUCER_EPOCH is a reason to abort, which shows whether it is fenced."""
    async with brokers.producer() as old, brokers.producer() as new:
        await begin(old)
        await (await old.send("topic", b"1", partition=0))
        await new.init_transactions()
        late = await old.send("topic", b"2", partition=0)
        with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
            await late
        with pytest.raises(TransactionError, match="abort_transaction") as raised:
            await old.commit_transaction()
        assert not raised.value.is_fatal
        with pytest.raises(TransactionError, match="PRODUCER_FENCED") as raised:
            await old.abort_transaction()
        assert raised.value.is_fatal


FATAL = [
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TXN_STATE,
]
ABORTABLE = [
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


@pytest.mark.parametrize("code", FATAL + ABORTABLE, ids=lambda code: code.name)
@pytest.mark.parametrize(
    "api",
    [
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    ],
    ids=lambda api: api.__name__,
)
async def test_a_coordinators_error_ends_the_transaction_or_the_producer(
    older: TransactionCluster, api: RequestClass, code: ErrorCode
) -> None:
    older.script[api] = [code]

    async def transact(producer: AsyncProducer) -> None:
        await producer.begin_transaction()
        await producer.send("topic", b"1", partition=0)
        await producer.send("topic", b"1", partition=1)
        await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        await producer.commit_transaction()

    async with older.producer() as producer:
        await producer.init_transactions()
        with pytest.raises(TransactionError, match=code.name) as raised:
            await transact(producer)
        assert raised.value.code is code
        assert raised.value.is_fatal is (code in FATAL)
        if raised.value.is_fatal:
            with pytest.raises(TransactionError, match="close this producer"):
                await producer.abort_transaction()
        else:
            await producer.abort_transaction()
            await transact(producer)
    if code in ABORTABLE:
        assert older.committed == {TOPIC: [b"1"], OTHER: [b"1"]}
        assert older.offsets == {TOPIC: 5}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_RECORD,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
    ids=lambda code: code.name,
)
async def test_a_lost_batch_ends_the_transaction_and_the_next_begins_with_a_new_epoch(
    brokers: TransactionCluster, code: ErrorCode
) -> None:
    async with brokers.producer() as producer:
        await begin(producer)
        await (await producer.send("topic", b"1", partition=0))
        brokers.script[ProduceRequest] = [code]
        lost = await producer.send("topic", b"2", partition=0)
        with pytest.raises(BrokerError, match=code.name):
            await lost
        with pytest.raises(TransactionError, match=f"{code.name}.*abort_transac"):
            await producer.send("topic", b"3", partition=0)
        with pytest.raises(TransactionError, match=code.name) as raised:
            await producer.commit_transaction()
        assert raised.value.code is code
        assert not raised.value.is_fatal
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("topic", b"again", partition=0)
        await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"again"]}
    raised_epochs = [
        (request.producer_id, request.producer_epoch)
        for _, _, request in brokers.asked(InitProducerIdRequest)
    ]
    is_forgotten = code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert raised_epochs == [(-1, -1), *([(7, 0)] if brokers.level < 2 or is_forgotten else [])]
    # A coordinator that has forgotten the producer could not end its transaction.
    ends = [request.committed for _, _, request in brokers.asked(EndTxnRequest)]
    assert ends == ([True] if is_forgotten else [False, True])


async def test_brokers_that_cannot_raise_an_epoch_end_the_producer_that_lost_a_batch(
    oldest: TransactionCluster,
) -> None:
    oldest.script[ProduceRequest] = [ErrorCode.INVALID_RECORD]
    async with oldest.producer() as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        with pytest.raises(TransactionError, match="abort_transaction"):
            await producer.commit_transaction()
        with pytest.raises(TransactionError, match=r"before Kafka 2\.5.*close this") as raised:
            await producer.abort_transaction()
        assert raised.value.is_fatal
    assert oldest.decisions == [False]


async def test_a_batch_that_is_refused_for_now_stays_in_its_transaction(
    brokers: TransactionCluster,
) -> None:
    brokers.script[ProduceRequest] = [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ]
    async with brokers.producer() as producer:
        await begin(producer)
        for number in range(3):
            await producer.send("topic", b"%d" % number, partition=0)
        await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"0", b"1", b"2"]}
    assert len(brokers.asked(AddPartitionsToTxnRequest)) == (brokers.level < 2)


async def test_initialization_that_was_refused_may_be_repeated(brokers: TransactionCluster) -> None:
    brokers.script[InitProducerIdRequest] = [
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ]
    async with brokers.producer() as producer:
        with pytest.raises(BrokerError, match=r"orders: .*transaction\.max\.timeout\.ms"):
            await producer.init_transactions()
        with pytest.raises(BrokerError, match="grant Write"):
            await producer.init_transactions()
        await begin(producer)
    timeouts = {r.transaction_timeout_ms for _, _, r in brokers.asked(InitProducerIdRequest)}
    assert timeouts == {60_000}


# calls


async def test_calls_at_the_wrong_time_name_the_right_one(newer: TransactionCluster) -> None:
    async with newer.producer() as producer:
        for call in (
            producer.begin_transaction(),
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.send_offsets_to_transaction({TOPIC: 1}, "readers"),
            producer.send("topic", b"1"),
        ):
            with pytest.raises(UsageError, match=r"not initialized; call init_transactions\("):
                await call
        await producer.init_transactions()
        for call in (producer.commit_transaction(), producer.send("topic", b"1")):
            with pytest.raises(UsageError, match=r"in no transaction; call begin_transaction"):
                await call
        await producer.begin_transaction()
        with pytest.raises(UsageError, match=r"commit_transaction\(\) or abort_transaction"):
            await producer.begin_transaction()
        with pytest.raises(UsageError, match="is in a transaction"):
            await producer.init_transactions()


async def test_a_call_that_timed_out_continues_and_may_be_repeated(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer(max_block_ms=1000) as producer:
        brokers.script[FindCoordinatorRequest] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
        with pytest.raises(
            Unavailable, match=r"init_transactions\(\).*COORDINATOR_NOT_AVAILABLE.*call it agai"
        ):
            await producer.init_transactions()
        with pytest.raises(UsageError, match=r"call init_transactions\(\) again"):
            await producer.begin_transaction()
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("topic", b"1", partition=0)
        brokers.script[EndTxnRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 4
        with pytest.raises(Unavailable, match=r"commit_transaction\(\) is not done after 1 s"):
            await producer.commit_transaction()
        with pytest.raises(UsageError, match=r"call commit_transaction\(\) again"):
            await producer.abort_transaction()
        await asyncio.sleep(10)
        with pytest.raises(UsageError, match=r"call commit_transaction\(\) again"):
            await producer.begin_transaction()
        await producer.commit_transaction()
        await producer.begin_transaction()
    assert brokers.decisions == [True]


async def test_offsets_that_timed_out_are_waited_for_by_the_commit(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer(max_block_ms=1000) as producer:
        await begin(producer)
        brokers.script[TxnOffsetCommitRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 4
        with pytest.raises(Unavailable, match=r"send_offsets_to_transaction\(\)"):
            await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        await producer.commit_transaction()
    assert brokers.offsets == {TOPIC: 5}


async def test_offsets_that_timed_out_are_not_sent_twice(brokers: TransactionCluster) -> None:
    async with brokers.producer(max_block_ms=1000) as producer:
        await begin(producer)
        brokers.script[TxnOffsetCommitRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 4
        with pytest.raises(Unavailable, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        await producer.send_offsets_to_transaction({TOPIC: 6}, GROUP)
        await producer.commit_transaction()
    assert brokers.offsets == {TOPIC: 6}
    assert len(brokers.asked(TxnOffsetCommitRequest)) == 4 + 1 + 1


async def test_an_abort_gives_up_offsets_and_partitions_that_were_not_taken(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer(max_block_ms=1000) as producer:
        await begin(producer)
        for api in (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest):
            brokers.script[api] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        brokers.script[TxnOffsetCommitRequest] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        brokers.script[ProduceRequest] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        delivery = await producer.send("topic", b"1", partition=0)
        with pytest.raises(Unavailable):
            await producer.send_offsets_to_transaction({TOPIC: 5}, GROUP)
        await producer.abort_transaction()
        with pytest.raises(TransactionError, match="repeat the transaction"):
            await delivery
        brokers.script.clear()
        await producer.begin_transaction()
        await producer.send("topic", b"2", partition=0)
        await producer.commit_transaction()
    assert brokers.committed == {TOPIC: [b"2"]}
    assert brokers.offsets == {}


async def test_closing_aborts_an_open_transaction(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        await begin(producer)
        await (await producer.send("topic", b"1", partition=0))
    assert brokers.decisions == [False]


async def test_a_producer_that_died_leaves_nothing_to_the_next_of_its_id(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as dead:
        await begin(dead)
        await (await dead.send("topic", b"half", partition=0))
        async with brokers.producer() as next_one:
            await begin(next_one)
            await next_one.send("topic", b"whole", partition=0)
            await next_one.commit_transaction()
    assert brokers.committed == {TOPIC: [b"whole"]}
    assert brokers.decisions == [False, True]


def test_a_cluster_without_transactions_says_so_at_once() -> None:
    with World(23) as world:
        brokers = make_transaction_cluster(world, level=0)
        for broker in brokers.cluster.brokers.values():
            del broker.versions[EndTxnRequest]

        async def scenario() -> None:
            async with brokers.producer() as producer:
                with pytest.raises(BrokerError, match="serves no transactions; leave transactiona"):
                    await producer.init_transactions()

        brokers.world.run(scenario())


async def test_waiting_calls_raise_when_the_producer_is_closed(brokers: TransactionCluster) -> None:
    brokers.script[EndTxnRequest] = [NO_ANSWER]
    async with brokers.producer() as producer:
        await begin(producer)
        await producer.send("topic", b"1", partition=0)
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(1)
    with pytest.raises(Unavailable, match="closed meanwhile"):
        await committing
