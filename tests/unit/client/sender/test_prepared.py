"""Transactions that one producer prepares and another ends (`client/sender/prepared.py`)."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER, RequestClass
from tests.unit.client.scripted_transactions import (
    OTHER,
    TOPIC,
    TransactionCluster,
    make_transaction_cluster,
)
from trimtab.client.producer import AsyncProducer
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, ErrorCode, TransactionError, Unavailable, UsageError
from trimtab.kafka.wire.messages import APIS_BY_REQUEST
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.sim.world import World

TWO_PHASE: dict[RequestClass, tuple[int, int]] = {InitProducerIdRequest: (0, 6)}


async def prepare(producer: AsyncProducer, value: bytes = b"1") -> PreparedTransaction:
    await producer.init_transactions()
    await producer.begin_transaction(two_phase=True)
    await producer.send("topic", value, partition=0)
    return await producer.prepare_transaction()


@asynccontextmanager
async def stranger(brokers: TransactionCluster, **options: Any) -> AsyncIterator[AsyncProducer]:
    """Another producer, which has no transactional id."""
    producer = AsyncProducer(
        brokers.cluster.bootstrap, random=brokers.world.random("stranger"), **options
    )
    try:
        yield producer
    finally:
        await producer.close(timeout=5)


@pytest.mark.kip(939)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_another_producer_ends_it_and_may_say_so_twice(
    brokers: TransactionCluster, commit: bool
) -> None:
    async with brokers.producer(linger_ms=1000) as producer:
        prepared = await prepare(producer)
    assert brokers.decisions == []  # closing did not change it
    kept = PreparedTransaction.parse(str(prepared))
    for _ in range(3):
        async with stranger(brokers) as other:
            await other.complete_transaction(kept, commit)
    async with stranger(brokers) as other:
        with pytest.raises(BrokerError, match="the opposite decision") as refused:
            await other.complete_transaction(kept, not commit)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert brokers.decisions == [commit]
    assert brokers.committed == ({TOPIC: [b"1"]} if commit else {})
    assert {version for _, version, _ in brokers.asked(EndTxnRequest)} == {4}


@pytest.mark.kip(939)
async def test_it_is_of_the_older_protocol_whatever_the_cluster_has_settled_on(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await prepare(producer)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("topic", b"2", partition=0)
        await producer.commit_transaction()
    asked = brokers.asked(AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)
    assert [api for api, _, _ in asked][:3] == [
        AddPartitionsToTxnRequest,
        ProduceRequest,
        EndTxnRequest,
    ]
    ends = [version for api, version, _ in asked if api is EndTxnRequest]
    assert ends == [4, 5 if brokers.level == 2 else 4]
    assert brokers.committed == {TOPIC: [b"1", b"2"]}


async def test_an_ordinary_transaction_after_it_has_an_epoch_of_its_own(
    brokers: TransactionCluster,
) -> None:
    """Otherwise who ends the prepared one again would end this one. And under version 2 a leader
    without the last marker would take its records for part of the one before."""
    async with brokers.producer() as producer:
        await prepare(producer)
        await producer.commit_transaction()
        for value in (b"2", b"3"):
            await producer.begin_transaction()
            await producer.send("topic", value, partition=0)
            await producer.commit_transaction()
    ends = [request.producer_epoch for _, _, request in brokers.asked(EndTxnRequest)]
    assert ends == ([0, 1, 2] if brokers.level == 2 else [0, 1, 1])
    assert len(brokers.asked(InitProducerIdRequest)) == 2
    assert brokers.committed == {TOPIC: [b"1", b"2", b"3"]}


@pytest.mark.kip(939)
@pytest.mark.parametrize("two_phase", [True, False])
async def test_who_ends_it_once_more_does_not_end_the_next_one(
    brokers: TransactionCluster, two_phase: bool
) -> None:
    async with brokers.producer() as producer, stranger(brokers) as other:
        prepared = await prepare(producer)
        await producer.complete_transaction(prepared, True)
        await producer.begin_transaction(two_phase)
        await producer.send("topic", b"2", partition=0)
        await producer.flush()
        with pytest.raises(BrokerError, match="a newer producer has its transactional id"):
            await other.complete_transaction(prepared, True)
        await producer.abort_transaction()
    assert brokers.decisions == [True, False]
    assert brokers.committed == {TOPIC: [b"1"]}


async def test_once_prepared_nothing_is_possible_but_to_end_it(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        prepared = await prepare(producer)
        calls: list[Any] = [
            lambda: producer.send("topic", b"2", partition=0),
            lambda: producer.send_offsets_to_transaction({TOPIC: 1}, "readers"),
            lambda: producer.begin_transaction(),
            lambda: producer.prepare_transaction(),
            lambda: producer.init_transactions(),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="has prepared its transaction; end it first"):
                await call()
        await producer.complete_transaction(prepared, False)
        await producer.begin_transaction(two_phase=True)
        await producer.send("topic", b"3", partition=1)
        await producer.complete_transaction(await producer.prepare_transaction(), True)
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert brokers.decisions == [False, True]
    assert brokers.committed == {OTHER: [b"3"]}


async def test_only_a_transaction_begun_with_two_phase_is_prepared(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        with pytest.raises(UsageError, match="begin_transaction"):
            await producer.prepare_transaction()
        await producer.begin_transaction()
        await producer.send("topic", b"1", partition=0)
        with pytest.raises(UsageError, match="two_phase=True"):
            await producer.prepare_transaction()
        await producer.commit_transaction()
        with pytest.raises(UsageError, match="two_phase"):
            await producer.begin_transaction(two_phase="yes")  # type: ignore[arg-type]
    assert brokers.decisions == [True]


async def test_one_in_which_nothing_was_sent_is_ended_without_a_request(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        await producer.begin_transaction(two_phase=True)
        prepared = await producer.prepare_transaction()
        assert prepared.is_empty
        assert PreparedTransaction.parse(str(prepared)) == prepared
        async with stranger(brokers) as other:
            await other.complete_transaction(prepared, True)
        await producer.commit_transaction()
    assert brokers.asked(EndTxnRequest) == []


async def test_a_record_that_is_refused_leaves_nothing_prepared(
    brokers: TransactionCluster,
) -> None:
    brokers.script[ProduceRequest] = [ErrorCode.MESSAGE_TOO_LARGE]
    async with brokers.producer() as producer:
        with pytest.raises(TransactionError, match="abort_transaction") as raised:
            await prepare(producer)
        assert not raised.value.is_fatal
        await producer.abort_transaction()
    assert brokers.committed == {}


async def test_its_offsets_are_committed_with_it(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        await producer.begin_transaction(two_phase=True)
        await producer.send_offsets_to_transaction({TOPIC: 7}, "readers")
        prepared = await producer.prepare_transaction()
    async with stranger(brokers) as other:
        assert brokers.offsets == {}
        await other.complete_transaction(prepared, True)
    assert brokers.offsets == {TOPIC: 7}


@pytest.mark.parametrize("answer", [HANG_UP, ErrorCode.CONCURRENT_TRANSACTIONS, "moved"])
async def test_ending_it_is_retried_until_the_coordinator_answers(
    brokers: TransactionCluster, answer: object
) -> None:
    async with brokers.producer() as producer:
        prepared = await prepare(producer)
    if answer == "moved":
        brokers.coordinator = 1
    else:
        brokers.script[EndTxnRequest] = [answer]
    async with stranger(brokers) as other:
        await other.complete_transaction(prepared, True)
    assert brokers.decisions == [True]


async def test_without_an_answer_the_error_has_the_cause_and_the_call_may_be_repeated(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        prepared = await prepare(producer)
    brokers.fault = lambda api: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if api is EndTxnRequest else ErrorCode.NONE
    )
    async with stranger(brokers, max_block_ms=2000) as other:
        before = brokers.world.loop.time()
        with pytest.raises(Unavailable, match=r"2 s \(max.block.ms\): .*COORDINATOR_LOAD"):
            await other.complete_transaction(prepared, True)
        assert brokers.world.loop.time() - before == pytest.approx(2, abs=0.1)
        brokers.fault = lambda api: NO_ANSWER if api is EndTxnRequest else ErrorCode.NONE
        with pytest.raises(Unavailable, match="call it again"):
            await other.complete_transaction(prepared, True)
        brokers.fault = lambda api: ErrorCode.NONE
        await other.complete_transaction(prepared, True)
    assert brokers.decisions == [True]


@pytest.mark.parametrize("how", ["expired", "taken over"])
async def test_a_transaction_that_the_coordinator_aborted_cannot_be_committed(
    brokers: TransactionCluster, how: str
) -> None:
    async with brokers.producer() as producer:
        prepared = await prepare(producer)
    if how == "expired":
        brokers.expire()
    else:
        async with brokers.producer() as newer:
            await newer.init_transactions()
    async with stranger(brokers) as other:
        for commit in (True, False):
            with pytest.raises(BrokerError, match=r"transaction\.timeout\.ms") as refused:
                await other.complete_transaction(prepared, commit)
            assert refused.value.code is ErrorCode.PRODUCER_FENCED
            assert str(prepared) in str(refused.value)
    assert brokers.committed == {}


# identities


async def test_another_process_resumes_the_identity(brokers: TransactionCluster) -> None:
    async with brokers.producer() as first:
        identity = await first.init_transactions()
    async with brokers.producer() as second:
        await second.resume_transactions(pickle.loads(pickle.dumps(identity)))
        await second.begin_transaction(two_phase=True)
        await second.send("topic", b"1", partition=0)
        prepared = await second.prepare_transaction()
        assert (prepared.producer_id, prepared.epoch) == identity.numbers
        await second.commit_transaction()
        with pytest.raises(UsageError, match="and in no transaction"):
            await second.resume_transactions(identity)
    assert brokers.committed == {TOPIC: [b"1"]}
    assert len(brokers.asked(InitProducerIdRequest)) == 1


async def test_closing_a_resumed_producer_leaves_the_transaction_open(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as first:
        identity = await first.init_transactions()
    async with brokers.producer() as second:
        await second.resume_transactions(identity)
        await second.begin_transaction(two_phase=True)
        await second.send("topic", b"1", partition=0)
    async with brokers.producer() as third:
        await third.resume_transactions(identity)
        await third.begin_transaction(two_phase=True)
        await third.send("topic", b"2", partition=1)
        await third.commit_transaction()
    assert brokers.committed == {TOPIC: [b"1"], OTHER: [b"2"]}


async def test_a_producer_with_an_old_identity_is_fenced_and_fences_none(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as first:
        old = await first.init_transactions()
    async with brokers.producer() as second, brokers.producer() as zombie:
        prepared = await prepare(second, b"new")
        await zombie.resume_transactions(old)
        await zombie.begin_transaction(two_phase=True)
        lost = await zombie.send("topic", b"old", partition=0)
        with pytest.raises(TransactionError, match="PRODUCER_FENCED"):
            await zombie.prepare_transaction()
        with pytest.raises(TransactionError):
            await lost
    async with stranger(brokers) as other:
        await other.complete_transaction(prepared, True)
    assert brokers.committed == {TOPIC: [b"new"]}


@pytest.mark.kip(360)
async def test_an_id_is_taken_over_from_a_certain_one_only(brokers: TransactionCluster) -> None:
    async with brokers.producer() as first:
        old = await first.init_transactions()
    async with brokers.producer() as second:
        new = await second.init_transactions(after=old)
        assert new == ProducerIdentity("orders", old.producer_id, old.epoch + 1)
    brokers.raised_from = None
    async with brokers.producer() as third:
        with pytest.raises(BrokerError) as refused:
            await third.init_transactions(after=old)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        await third.init_transactions(after=new)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (ProducerIdentity("bills", 1, 0), "is that of 'bills', this producer's .* is 'orders'"),
        (("orders", 1, 0), "is no ProducerIdentity"),
        (None, "None is no ProducerIdentity"),
        (ProducerIdentity("orders", 1, None), "is no ProducerIdentity"),  # type: ignore[arg-type]
    ],
)
async def test_only_an_identity_of_the_same_id_is_taken(
    brokers: TransactionCluster, identity: Any, message: str
) -> None:
    async with brokers.producer() as producer:
        with pytest.raises(UsageError, match=message):
            await producer.resume_transactions(identity)
        if identity is not None:
            with pytest.raises(UsageError, match=message):
                await producer.init_transactions(after=identity)
        await producer.init_transactions()


# without a time limit


@pytest.mark.kip(939)
def test_two_phase_commit_is_asked_for_in_version_6() -> None:
    with World(23) as world:
        brokers = make_transaction_cluster(world, 2, TWO_PHASE)

        async def scenario() -> None:
            async with brokers.producer(transaction_two_phase_commit_enable=True) as producer:
                await producer.init_transactions()
                await producer.begin_transaction()  # every one may be prepared
                await producer.send("topic", b"1", partition=0)
                await producer.prepare_transaction()
                await producer.commit_transaction()
            async with brokers.producer() as producer:
                await producer.init_transactions()

        brokers.world.run(scenario())
        (_, version, request), (_, stable, _) = brokers.asked(InitProducerIdRequest)
        assert (version, request.enable2_pc, request.transaction_timeout_ms) == (6, True, 2**31 - 1)
        assert stable == 5  # an unstable version is used where it is needed, and nowhere else


@pytest.mark.kip(939)
async def test_a_broker_without_two_phase_commit_is_named_with_its_options(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer(transaction_two_phase_commit_enable=True) as producer:
        with pytest.raises(BrokerError, match=r"unstable\.api\.versions\.enable=true") as no:
            await producer.init_transactions()
    assert no.value.code is ErrorCode.UNSUPPORTED_VERSION


async def test_a_broker_without_transactions_says_so_at_once(brokers: TransactionCluster) -> None:
    for broker in brokers.cluster.brokers.values():
        del broker.versions[EndTxnRequest]
    async with stranger(brokers) as other:
        with pytest.raises(BrokerError, match="serves no transactions"):
            await other.complete_transaction(PreparedTransaction("orders", 1, 0), True)


def test_version_6_is_not_offered() -> None:
    assert APIS_BY_REQUEST[InitProducerIdRequest].max_version == 5


# the text form


@pytest.mark.parametrize("name", ["orders", "a:b:c", "dépôt/1", " "])
def test_the_text_of_a_prepared_transaction_is_parsed_back(name: str) -> None:
    prepared = PreparedTransaction(name, 2**63 - 1, 2**15 - 1, is_empty=True)
    assert PreparedTransaction.parse(str(prepared)) == prepared
    assert PreparedTransaction(*json.loads(json.dumps(prepared))) == prepared


@pytest.mark.parametrize(
    "text",
    ["", "1:2:0", "1:2:0:", "-1:2:0:x", "1:40000:0:x", "9223372036854775808:0:0:x", "٣:0:0:x", 7],
)
def test_anything_else_is_not(text: Any) -> None:
    with pytest.raises(UsageError, match="is no prepared transaction"):
        PreparedTransaction.parse(text)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "1:0:0:orders",
        ("orders", 1, 0, False),
        PreparedTransaction("", 1, 0),
        PreparedTransaction("orders", -1, 0),
        PreparedTransaction("orders", 1, True),
        PreparedTransaction("orders", 1, 0, None),  # type: ignore[arg-type]
    ],
)
async def test_only_a_prepared_transaction_is_completed(
    brokers: TransactionCluster, given: Any
) -> None:
    async with stranger(brokers) as other:
        with pytest.raises(UsageError, match="is no PreparedTransaction"):
            await other.complete_transaction(given, True)
        with pytest.raises(UsageError, match="commit"):
            await other.complete_transaction(PreparedTransaction("orders", 1, 0), 1)  # type: ignore[arg-type]


# one producer, one transactional id after the other


async def test_a_producer_that_has_prepared_goes_on_under_other_ids_and_the_same(
    brokers: TransactionCluster,
) -> None:
    kept = []
    async with brokers.producer() as producer, stranger(brokers) as other:
        for number, name in enumerate(("a", "b", "b", "a")):
            brokers.transactional_id = name
            await producer.change_transactional_id(name)
            kept.append(await prepare(producer, b"%d" % number))
            assert brokers.committed.get(TOPIC, []) == [b"%d" % n for n in range(number)]
            await other.complete_transaction(kept[-1], commit=True)
    assert [each.transactional_id for each in kept] == ["a", "b", "b", "a"]
    assert len({each[:3] for each in kept}) == 4
    asked = brokers.asked(InitProducerIdRequest)
    assert [request.transactional_id for _, _, request in asked] == ["a", "b", "b", "a"]
    looked_up = [request.coordinator_keys for *_, request in brokers.asked(FindCoordinatorRequest)]
    assert looked_up == [[name] for name in "aabbbbaa"], "by each of the two producers"
    assert brokers.committed == {TOPIC: [b"0", b"1", b"2", b"3"]}
    # A number of the identity before would be refused, or taken for a repeat.
    assert len(brokers.asked(ProduceRequest)) == 4


async def test_what_is_prepared_stays_so_under_the_next_id(brokers: TransactionCluster) -> None:
    async with brokers.producer() as producer, stranger(brokers) as other:
        prepared = await prepare(producer)
        await producer.change_transactional_id("another")
        with pytest.raises(UsageError, match="is not initialized"):
            await producer.begin_transaction()
        assert brokers.decisions == []
        await other.complete_transaction(prepared, commit=True)
    assert brokers.committed == {TOPIC: [b"1"]}


async def test_an_id_is_not_changed_while_a_transaction_is_open(
    brokers: TransactionCluster,
) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        with pytest.raises(UsageError, match=r"change_transactional_id\(\).*end it first"):
            await producer.change_transactional_id("another")
        await producer.send("topic", b"1", partition=0)
        await producer.commit_transaction()
        for wrong in ("", None, 7, b"name"):
            with pytest.raises(UsageError, match="is no transactional"):
                await producer.change_transactional_id(wrong)  # type: ignore[arg-type]
    async with stranger(brokers) as other:
        with pytest.raises(UsageError, match="no transactions"):
            await other.change_transactional_id("another")
    assert brokers.committed == {TOPIC: [b"1"]}


async def test_who_went_on_from_a_shared_epoch_aborts_what_is_its_own(
    brokers: TransactionCluster,
) -> None:
    """Of an epoch that another process may have, nothing is aborted on closing; of the next is."""
    async with brokers.producer() as producer:
        identity = await producer.init_transactions()
    async with brokers.producer() as producer:
        await producer.resume_transactions(identity)
        await producer.begin_transaction(two_phase=True)
        await producer.send("topic", b"1", partition=0)
        prepared = await producer.prepare_transaction()
        await producer.complete_transaction(prepared, commit=True)
        await producer.change_transactional_id("orders")
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send("topic", b"2", partition=0))
    assert brokers.decisions == [True, False]
