"""Transactions as their coordinators know them: listed, described, fenced (KIP-664)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from trimtab.client.admin.answers import TransactionDescription, TransactionListing
from trimtab.client.admin.calls import Calls, FinalError, check
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.client.sender.prepared import ProducerIdentity, verdict_of
from trimtab.errors import BrokerError, ErrorCode, UsageError, error_code
from trimtab.records import TopicPartition
from trimtab.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.wire.messages.list_transactions import ListTransactionsRequest

_DURATION_SINCE: Final = 1
_PATTERN_SINCE: Final = 2
_INIT_AT_MOST: Final = 5
_FENCE_TIMEOUT_MS: Final = 60_000
"""The timeout of transactions under the new epoch; no producer begins any."""


async def list_transactions(
    calls: Calls,
    prefix: str,
    states: Sequence[str] | None,
    pattern: str | None,
    longer_than_ms: int | None,
    producer_ids: Sequence[int],
) -> list[TransactionListing]:
    async def ask(broker: int) -> list[TransactionListing]:
        connection = await calls.connect_to_broker(broker)
        version = connection.version_of(ListTransactionsRequest)
        regex = pattern
        if regex is None and prefix and version >= _PATTERN_SINCE:
            regex = re.escape(prefix) + ".*"
        for is_given, since, what in (
            (pattern is not None, _PATTERN_SINCE, "a pattern"),
            (longer_than_ms is not None, _DURATION_SINCE, "a duration"),
        ):
            if is_given and version < since:
                raise FinalError(
                    BrokerError(
                        ErrorCode.UNSUPPORTED_VERSION,
                        f"it does not select transactions by {what}; leave that out",
                        f"broker {broker}",
                    )
                )
        response = await connection.request(
            ListTransactionsRequest(
                state_filters=list(states or ()),
                producer_id_filters=list(producer_ids),
                transactional_id_pattern=regex,
                duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            ),
            version,
        )
        if response.unknown_state_filters:
            raise FinalError(
                UsageError(f"states: broker {broker} knows no {response.unknown_state_filters}")
            )
        check(response.error_code, None, f"broker {broker}")
        return [
            TransactionListing(
                each.transactional_id, each.producer_id, each.transaction_state, broker
            )
            for each in response.transaction_states
            if each.transactional_id.startswith(prefix)
        ]

    async def list_all() -> list[TransactionListing]:
        await calls.fetch_metadata([])
        found = await asyncio.gather(*map(ask, sorted(calls.session.metadata.nodes)))
        return sorted(each for part in found for each in part)

    return await calls.retry("list transactions", list_all)


async def describe_transactions(
    calls: Calls, transactional_ids: Sequence[str]
) -> dict[str, TransactionDescription]:
    """Asks every broker about all ids: each answers for those that it coordinates."""

    async def ask(broker: int) -> list[tuple[int, TransactionState]]:
        connection = await calls.connect_to_broker(broker)
        response = await connection.request(
            DescribeTransactionsRequest(transactional_ids=list(transactional_ids)),
        )
        return [(broker, each) for each in response.transaction_states]

    async def describe() -> dict[str, TransactionDescription]:
        await calls.fetch_metadata([])
        found = await asyncio.gather(*map(ask, sorted(calls.session.metadata.nodes)))
        described: dict[str, TransactionDescription] = {}
        missing = dict.fromkeys(transactional_ids, ErrorCode.NOT_COORDINATOR)
        for broker, state in (each for part in found for each in part):
            code = error_code(state.error_code)
            if code is ErrorCode.NONE:
                described[state.transactional_id] = _describe(state, broker)
            if code is not ErrorCode.NOT_COORDINATOR:
                missing[state.transactional_id] = code
        for name, code in missing.items():
            if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                raise BrokerError(code, "", f"transactional id {name}")
        return described

    if not transactional_ids:
        return {}
    return await calls.retry("describe transactions", describe)


def _describe(state: TransactionState, coordinator: int) -> TransactionDescription:
    return TransactionDescription(
        state.transactional_id,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms,
        tuple(
            TopicPartition(topic.topic, partition)
            for topic in state.topics
            for partition in topic.partitions
        ),
        coordinator,
    )


async def fence_producers(
    calls: Calls, transactional_ids: Sequence[str]
) -> dict[str, ProducerIdentity]:
    async def fence(name: str) -> ProducerIdentity:
        link = calls.session.coordinator(CoordinatorKind.TRANSACTION, name)
        response = await link.ask(
            InitProducerIdRequest,
            lambda version: InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=_FENCE_TIMEOUT_MS
            ),
            verdict_of,
            at_most=_INIT_AT_MOST,
        )
        return ProducerIdentity(name, response.producer_id, response.producer_epoch)

    async def fence_all() -> dict[str, ProducerIdentity]:
        fenced = await asyncio.gather(*map(fence, transactional_ids))
        return {each.transactional_id: each for each in fenced}

    return await calls.retry("fence producers", fence_all)
