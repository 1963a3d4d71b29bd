"""How often a leader asks the coordinator of a transaction (`trimtab.broker.transaction_checks`);
`test_transactions.py` has the rest."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.conftest import Lab
from trimtab.coordinator.transaction import Identity
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition

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

        async def answer(*_: object) -> dict[TopicPartition, ErrorCode]:
            asked.append(round((loop.time() - begun_s) * 1000))
            is_ending = asked[-1] < ending_ms
            return {PARTITION: ErrorCode.CONCURRENT_TRANSACTIONS if is_ending else ErrorCode.NONE}

        monkeypatch.setattr(checks, "_ask", answer)
        assert await checks.check("x", Identity(1, 0), [PARTITION], adds) == {PARTITION: code}
        assert asked == asked_ms

    lab.run(scenario)
