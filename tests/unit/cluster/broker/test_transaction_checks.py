"""How often a leader asks the coordinator of a transaction
(`trimtab.cluster.broker.transaction_checks`); `test_transactions.py` has the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse

pytestmark = pytest.mark.kip(890)

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("ending_ms", "adds", "asked_ms", "code"),
    [
        (0, True, [0], ErrorCode.NONE),
        (2, True, [0, 1, 3], ErrorCode.NONE),
        (40, True, [0, 1, 3, 7, 15, 31, 51], ErrorCode.NONE),
        (1000, True, [0, 1, 3, 7, 15, 31, 51, 71, 91], ErrorCode.CONCURRENT_TRANSACTIONS),
        (1000, False, [0], ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_while_the_transaction_before_ends_it_asks_again_after_1_2_4_ms_and_up_to_20(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    ending_ms: int,
    adds: bool,
    asked_ms: list[int],
    code: ErrorCode,
) -> None:
    async def scenario() -> None:
        checks = lab.brokers[0].services.transaction_checks
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        asked: list[int] = []

        def answer(_: int, question: Any) -> None:
            asked.append(round((loop.time() - begun_s) * 1000))
            is_ending = asked[-1] < ending_ms
            code = ErrorCode.CONCURRENT_TRANSACTIONS if is_ending else ErrorCode.NONE
            question.settle({PARTITION: code})

        monkeypatch.setattr(checks._topic, "find_leader", lambda _: lab.brokers[0])
        monkeypatch.setattr(checks._outbox, "queue_item", answer)
        assert await checks.check("x", ProducerIdAndEpoch(1, 0), [PARTITION], adds) == {
            PARTITION: code
        }
        assert asked == asked_ms

    lab.run(scenario)


def test_a_coordinator_that_answers_nonsense_is_asked_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        checks = lab.brokers[0].services.transaction_checks

        async def answer(*_: object) -> AddPartitionsToTxnResponse:
            return AddPartitionsToTxnResponse(error_code=9999)

        monkeypatch.setattr(checks._peers, "ask", answer)
        monkeypatch.setattr(checks._topic, "find_leader", lambda _: lab.brokers[0])
        async with asyncio.timeout(60):
            found = await checks.check("x", ProducerIdAndEpoch(1, 0), [PARTITION], adds=False)
        assert found == {PARTITION: ErrorCode.NETWORK_EXCEPTION}

    lab.run(scenario)
