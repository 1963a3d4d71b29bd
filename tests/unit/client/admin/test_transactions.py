"""Transactions as an admin client sees them (`client/admin/transactions.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.client.scripted_transactions import TransactionCluster, make_transaction_cluster
from trimtab.client.admin import AsyncAdmin, TransactionDescription, TransactionListing
from trimtab.client.sender.prepared import ProducerIdentity
from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from trimtab.kafka.wire.messages.list_transactions import TransactionState as Listed
from trimtab.sim.world import World

COORDINATED = {0: ["orders/1", "orders-2"], 1: ["orders/0"]}
"""By broker, the ids whose coordinator it is."""


@pytest.fixture
def brokers(world: World) -> TransactionCluster:
    made = make_transaction_cluster(world, 2)
    for number, broker in made.cluster.brokers.items():
        broker.answers[ListTransactionsRequest] = lister(number)
        broker.answers[DescribeTransactionsRequest] = describer(number)
    return made


def lister(broker: int) -> Callable[[ListTransactionsRequest], ListTransactionsResponse]:
    def answer(request: ListTransactionsRequest) -> ListTransactionsResponse:
        return ListTransactionsResponse(
            unknown_state_filters=[s for s in request.state_filters if s != "Ongoing"],
            transaction_states=[
                Listed(transactional_id=name, producer_id=7, transaction_state="Ongoing")
                for name in COORDINATED[broker]
            ],
        )

    return answer


def describer(
    broker: int,
) -> Callable[[DescribeTransactionsRequest], DescribeTransactionsResponse]:
    loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] if broker == 1 else []

    def describe(name: str) -> TransactionState:
        if name == "nobody's" and broker == 0:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        elif name not in COORDINATED[broker]:
            code = ErrorCode.NOT_COORDINATOR
        else:
            code = loading.pop() if loading else ErrorCode.NONE
        if code is not ErrorCode.NONE:
            return TransactionState(error_code=code, transactional_id=name)
        return TransactionState(
            transactional_id=name,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=17,
            producer_id=7,
            producer_epoch=3,
            topics=[TopicData(topic="topic", partitions=[0, 1])],
        )

    def answer(request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[describe(name) for name in request.transactional_ids]
        )

    return answer


def ask(brokers: TransactionCluster, question: Callable[[AsyncAdmin], Awaitable[Any]]) -> Any:
    async def scenario() -> Any:
        async with AsyncAdmin(brokers.cluster.bootstrap, random=brokers.world.random("a")) as admin:
            return await question(admin)

    return brokers.world.run(scenario())


@pytest.mark.kip(1152)
@pytest.mark.parametrize("newest", [1, 2], ids=["without-pattern", "with-pattern"])
def test_ids_of_all_coordinators_are_listed_by_prefix(
    brokers: TransactionCluster, newest: int
) -> None:
    for broker in brokers.cluster.brokers.values():
        broker.versions[ListTransactionsRequest] = (0, newest)
    found = ask(brokers, lambda admin: admin.list_transactions("orders/", ["Ongoing"]))
    assert found == [
        TransactionListing("orders/0", 7, "Ongoing", 1),
        TransactionListing("orders/1", 7, "Ongoing", 0),
    ]
    (_, _, request), *_ = brokers.asked(ListTransactionsRequest)
    assert request.state_filters == ["Ongoing"]
    assert request.transactional_id_pattern == ("orders/.*" if newest == 2 else None)


def test_a_state_that_there_is_not_is_refused(brokers: TransactionCluster) -> None:
    with pytest.raises(UsageError, match=r"knows no.*Asleep"):
        ask(brokers, lambda admin: admin.list_transactions(states=["Asleep"]))


@pytest.mark.kip(664)
def test_each_id_is_described_by_its_coordinator(brokers: TransactionCluster) -> None:
    found = ask(brokers, lambda admin: admin.describe_transactions(["orders/0", "nobody's"]))
    partitions = (TopicPartition("topic", 0), TopicPartition("topic", 1))
    expected = TransactionDescription("orders/0", 7, 3, "Ongoing", 60_000, 17, partitions, 1)
    assert found == {"orders/0": expected}


def test_no_ids_are_described_without_a_request(brokers: TransactionCluster) -> None:
    assert ask(brokers, lambda admin: admin.describe_transactions([])) == {}
    assert brokers.asked(DescribeTransactionsRequest) == []


def test_taking_over_an_id_aborts_its_open_transaction(brokers: TransactionCluster) -> None:
    brokers.script[InitProducerIdRequest] = [ErrorCode.CONCURRENT_TRANSACTIONS]
    brokers.is_open = True
    found = ask(brokers, lambda admin: admin.fence_producers(["orders"]))
    assert found == {"orders": ProducerIdentity("orders", 7, 0)}
    assert brokers.decisions == [False]


@pytest.mark.parametrize("wrong", ["orders", 7, [7]])
@pytest.mark.parametrize("call", [AsyncAdmin.describe_transactions, AsyncAdmin.fence_producers])
def test_ids_are_a_list_of_texts(brokers: TransactionCluster, call: Any, wrong: Any) -> None:
    with pytest.raises(UsageError, match="transactional_ids"):
        ask(brokers, lambda admin: call(admin, wrong))
