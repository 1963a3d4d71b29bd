"""Looks up offsets by timestamp at the partitions' leaders (ListOffsets)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from trimtab.client.network.options import Options
from trimtab.client.network.session import Session
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    error_code,
)
from trimtab.kafka.records import NO_OFFSET, TopicPartition
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.sentinels import (
    CONSUMER,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    NO_EPOCH,
    NO_LEADER,
)

logger = logging.getLogger("trimtab.client")

_MAX_TIMESTAMP_SINCE: Final = 7

RESETS: Final[Mapping[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
"""The values of `auto.offset.reset` as ListOffsets timestamps."""


class Isolation(IntEnum):
    """Which records a reader sees (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetAndTimestamp(NamedTuple):
    """An offset and the timestamp of its record (ms since the epoch, UTC).

    Both are -1 if no record matches. The timestamp is also -1 for `EARLIEST` and `LATEST`.
    """

    offset: int
    timestamp: int
    leader_epoch: int = NO_EPOCH


class OffsetLookup:
    """Looks up offsets at the partitions' leaders; asks the new leader if leadership moved."""

    def __init__(self, session: Session) -> None:
        self._connections = session.connections
        self._metadata = session.metadata
        self._backoff = session.backoff
        self._random = session.random

    async def find(
        self,
        wanted: Mapping[TopicPartition, int],
        timeout: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after a timestamp, for each partition.

        Args:
            wanted: a timestamp in ms, or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`, by partition.
            timeout: seconds for all attempts together.
            isolation: with READ_COMMITTED a partition ends before its first open transaction.

        Raises:
            BrokerError: not retriable, or still returned after `timeout`.
            Unavailable: a leader could not be reached within `timeout`.
        """
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        missing = dict(wanted)
        troubles: dict[TopicPartition, KafkaError] = {}
        try:
            async with asyncio.timeout(timeout):
                attempt = 0
                while missing:
                    if unsure := self._metadata.unsure(missing):
                        await self._refresh(unsure, missing, troubles)
                    try:
                        await self._ask_leaders(missing, found, troubles, isolation)
                    finally:
                        self._metadata.doubt(partition.topic for partition in missing)
                    if missing:
                        await asyncio.sleep(self._backoff.wait(attempt, self._random))
                    attempt += 1
        except TimeoutError:
            raise self._explain(missing, troubles, timeout) from None
        return {partition: found[partition] for partition in wanted}

    def why_no_leader(self, partition: TopicPartition) -> KafkaError:
        """Why a partition has no leader, according to metadata, or why metadata is missing."""
        view = self._metadata.topic(partition.topic)
        if view is None and self._metadata.failure is not None:
            return self._metadata.failure
        if view is None:
            error = self._metadata.error(partition.topic)
            if error is None:
                return Unavailable(f"the cluster has not described topic {partition.topic} yet")
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return error
            return BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "there is no such topic; create it first",
                str(partition),
            )
        if partition.partition >= view.partition_count:
            return BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {partition.topic} has {view.partition_count} partitions, counted from 0",
                str(partition),
            )
        return BrokerError(
            ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader", str(partition)
        )

    def _leader(self, partition: TopicPartition) -> int:
        return self._metadata.leader(*partition)

    async def _refresh(
        self,
        topics: list[str],
        missing: Mapping[TopicPartition, int],
        troubles: dict[TopicPartition, KafkaError],
    ) -> None:
        try:
            await self._metadata.fetch(topics)
        except (AuthenticationFailed, BrokerError):
            raise
        except KafkaError as error:
            troubles.update(dict.fromkeys(missing, error))

    async def _ask_leaders(
        self,
        missing: dict[TopicPartition, int],
        found: dict[TopicPartition, OffsetAndTimestamp],
        troubles: dict[TopicPartition, KafkaError],
        isolation: Isolation,
    ) -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, timestamp in missing.items():
            leader = self._leader(partition)
            if leader == NO_LEADER:
                troubles.setdefault(partition, self.why_no_leader(partition))
            else:
                by_leader.setdefault(leader, {})[partition] = timestamp
        answers = await asyncio.gather(
            *(self._ask(leader, asked, isolation) for leader, asked in by_leader.items()),
            return_exceptions=True,
        )
        for asked, answer in zip(by_leader.values(), answers, strict=True):
            if isinstance(answer, BrokerError | AuthenticationFailed) or not isinstance(
                answer, KafkaError | dict
            ):
                raise answer
            for partition in asked:
                result = answer if isinstance(answer, KafkaError) else answer.get(partition)
                if result is None:
                    continue
                if isinstance(result, OffsetAndTimestamp):
                    found[partition] = result
                    del missing[partition]
                elif isinstance(result, BrokerError) and not result.retriable:
                    raise result
                else:
                    logger.debug("offset lookup failed, trying again: %s", result)
                    troubles[partition] = result

    async def _ask(
        self, leader: int, asked: Mapping[TopicPartition, int], isolation: Isolation
    ) -> dict[TopicPartition, OffsetAndTimestamp | BrokerError]:
        connection = await self._connections.connect(leader)
        version = connection.version_of(ListOffsetsRequest)
        if version < _MAX_TIMESTAMP_SINCE and MAX_TIMESTAMP in asked.values():
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.node} serves ListOffsets up to version {version};"
                f" the largest timestamp needs {_MAX_TIMESTAMP_SINCE} (Kafka 3.0)",
            )
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition, timestamp in asked.items():
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=name, partitions=of) for name, of in topics.items()],
        )
        response = await connection.request(request, version)
        results: dict[TopicPartition, OffsetAndTimestamp | BrokerError] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                if answer.error_code == ErrorCode.NONE:
                    results[partition] = OffsetAndTimestamp(
                        answer.offset, answer.timestamp, answer.leader_epoch
                    )
                else:
                    results[partition] = BrokerError(
                        error_code(answer.error_code), "while looking up an offset", str(partition)
                    )
        return results

    def _explain(
        self,
        missing: Mapping[TopicPartition, int],
        troubles: Mapping[TopicPartition, KafkaError],
        timeout: float,
    ) -> KafkaError:
        waited = f"within {timeout:g} s"
        for partition in missing:
            trouble = troubles.get(partition)
            if isinstance(trouble, BrokerError):
                return BrokerError(trouble.code, f"{trouble.detail}; {waited}", trouble.subject)
            if trouble is not None:
                return Unavailable(f"no offset of {partition} {waited}: {trouble}")
        names = ", ".join(map(str, missing))
        return Unavailable(f"no offset of {names} {waited}: the brokers did not answer")


def found_or_none(found: OffsetAndTimestamp) -> OffsetAndTimestamp | None:
    """The same, or None if its offset is -1: no record has the timestamp or a later one."""
    return None if found.offset == NO_OFFSET else found


def isolation_of(options: Options) -> Isolation:
    """The option `isolation.level`."""
    return Isolation[options.text("isolation.level").upper()]
