"""Transactions as their coordinators know them: listed, described, fenced (KIP-664)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from trimtab.client.admin.answers import TransactionDescription, TransactionListing
from trimtab.client.admin.calls import Family, FinalError, check
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.client.sender.prepared import ProducerIdentity, verdict_of
from trimtab.kafka.arguments import (
    MAX_INT64,
    checked_integer,
    checked_producers,
    checked_text,
    checked_texts,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError, error_code
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.list_transactions import ListTransactionsRequest

_DURATION_SINCE: Final = 1
_PATTERN_SINCE: Final = 2
_INIT_AT_MOST: Final = 5
_FENCE_TIMEOUT_MS: Final = 60_000
"""The timeout of transactions under the new epoch; no producer begins any."""


class TransactionAdmin(Family):
    """Lists and describes transactions, and fences their producers."""

    async def list_transactions(
        self,
        prefix: str = "",
        states: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        longer_than_ms: int | None = None,
        producer_ids: Iterable[int] = (),
    ) -> list[TransactionListing]:
        """The transactional ids that the cluster knows, sorted (KIP-664).

        Args:
            prefix: only ids that begin with this.
            states: only ids in one of these states, such as `["Ongoing"]`; None for all.
            pattern: only ids that this regular expression matches as a whole (KIP-1152).
            longer_than_ms: only ids whose transaction began longer ago, or that have had none yet
                (KIP-994).
            producer_ids: only ids of these producers; none given: of all.
        """
        prefix = checked_text("prefix", prefix)
        states_asked = [] if states is None else checked_texts("states", states)
        pattern = None if pattern is None else checked_text("pattern", pattern)
        if longer_than_ms is not None:
            longer_than_ms = checked_integer("longer_than_ms", longer_than_ms, 0, MAX_INT64)
        ids = checked_producers("producer_ids", producer_ids)

        async def ask(broker: int) -> list[TransactionListing]:
            connection = await self._calls.connect_to_broker(broker)
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
                    state_filters=states_asked,
                    producer_id_filters=ids,
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
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.transaction_state,
                    broker,
                )
                for transaction in response.transaction_states
                if transaction.transactional_id.startswith(prefix)
            ]

        async def list_all() -> list[TransactionListing]:
            await self._calls.fetch_metadata([])
            found = await asyncio.gather(*map(ask, sorted(self._calls.session.metadata.nodes)))
            return sorted(each for part in found for each in part)

        return await self._calls.retry("list transactions", list_all)

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """Epoch, state and partitions of these ids; ids that no coordinator knows are left out."""
        # Asks every broker about all ids: each answers for those that it coordinates.
        ids = checked_texts("transactional_ids", transactional_ids)

        async def ask(broker: int) -> list[tuple[int, TransactionState]]:
            connection = await self._calls.connect_to_broker(broker)
            response = await connection.request(
                DescribeTransactionsRequest(transactional_ids=ids),
            )
            return [(broker, each) for each in response.transaction_states]

        async def describe() -> dict[str, TransactionDescription]:
            await self._calls.fetch_metadata([])
            found = await asyncio.gather(*map(ask, sorted(self._calls.session.metadata.nodes)))
            described: dict[str, TransactionDescription] = {}
            missing = dict.fromkeys(ids, ErrorCode.NOT_COORDINATOR)
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

        if not ids:
            return {}
        return await self._calls.retry("describe transactions", describe)

    async def fence_producers(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, ProducerIdentity]:
        """Fence the producers of these transactional ids, and abort the transactions that they have
        open or prepared. Returns once that is done, with the new identity of each id.

        Raises:
            BrokerError: a coordinator refuses; other producers may have been fenced.
        """
        ids = checked_texts("transactional_ids", transactional_ids)

        async def fence(name: str) -> ProducerIdentity:
            link = self._calls.session.coordinator(CoordinatorKind.TRANSACTION, name)
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
            fenced = await asyncio.gather(*map(fence, ids))
            return {each.transactional_id: each for each in fenced}

        return await self._calls.retry("fence producers", fence_all)


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
