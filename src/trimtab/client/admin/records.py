"""Offsets of records: looked up, and set as the start of partitions' logs (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import Calls, Family, check, read_error
from trimtab.client.fetcher.offsets import Isolation, OffsetAndTimestamp, OffsetLookup
from trimtab.kafka.arguments import (
    MAX_INT64,
    AnyPartition,
    Partition,
    checked_integer,
    checked_mapping,
    checked_partition,
    checked_partitions,
    checked_time,
    shown,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from trimtab.kafka.wire.sentinels import EARLIEST, HIGH_WATERMARK, LATEST, MAX_TIMESTAMP, NO_LEADER

Answers: TypeAlias = dict[TopicPartition, int | BrokerError]
"""By partition, its low watermark, or the leader's error."""


Moment: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | int
"""An offset of a partition: its start, its end, its largest timestamp, or a time in ms."""

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class RecordAdmin(Family):
    """Looks up offsets of records, and deletes records."""

    _offsets: OffsetLookup

    async def list_offsets(
        self,
        partitions: Iterable[Partition],
        at: Moment = "latest",
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """An offset of each partition, looked up at its leader.

        Args:
            at: "earliest", "latest", "max_timestamp" (KIP-734), or a time in ms since the epoch:
                the first record at or after it. Offset and timestamp are -1 if there is none.
            isolation: with "read_committed" a partition ends before its first open transaction.
        """
        self._session.check_open()
        if isinstance(at, str):
            if at not in _ENDS:
                raise UsageError(f"at={at!r}: must be a time in ms or one of {', '.join(_ENDS)}")
            moment = _ENDS[at]
        else:
            moment = checked_time("at", at)
        if isolation not in ("read_uncommitted", "read_committed"):
            raise UsageError(
                f"isolation={shown(isolation)}: must be 'read_uncommitted' or 'read_committed'"
            )
        return await self._offsets.find(
            dict.fromkeys(checked_partitions(partitions), moment),
            self._session.timeout,
            Isolation[isolation.upper()],
        )

    async def delete_records(
        self, offsets: Mapping[AnyPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition (KIP-107).

        Args:
            offsets: the first offset to keep; -1 for the high watermark, which deletes all records.

        Returns:
            The first offset that every live replica still has.

        Raises:
            PartlyRefused: some partitions do not exist, or the offset is after their high watermark
                (OFFSET_OUT_OF_RANGE); the others' records are deleted, and `done` has their result.
        """
        # Asks the partitions' leaders; the new leader, if leadership has moved.
        wanted = {
            checked_partition(partition): checked_integer(
                f"the offset of {shown(partition)}", offset, HIGH_WATERMARK, MAX_INT64
            )
            for partition, offset in checked_mapping("offsets", offsets, "{('t', 0): 42}").items()
        }
        missing = dict(wanted)
        done: dict[TopicPartition, int] = {}
        refusals: dict[TopicPartition, BrokerError] = {}

        async def delete() -> None:
            trouble: BaseException | None = None
            leaders = await _find_leaders(self._calls, missing)
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for partition in list(missing):
                leader = leaders.get(partition)
                if leader is None:
                    refusals[partition] = BrokerError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it does not exist", str(partition)
                    )
                    del missing[partition]
                elif leader == NO_LEADER:
                    trouble = BrokerError(
                        ErrorCode.LEADER_NOT_AVAILABLE,
                        "the partition has no leader",
                        str(partition),
                    )
                else:
                    by_leader.setdefault(leader, {})[partition] = missing[partition]
            told = await asyncio.gather(
                *(_ask_leader(self._calls, leader, asked) for leader, asked in by_leader.items()),
                return_exceptions=True,
            )
            for asked, answers in zip(by_leader.values(), told, strict=True):
                if isinstance(answers, BaseException):
                    trouble = answers
                    continue
                for partition in asked:
                    answer = answers.get(partition, _left_out(partition))
                    if isinstance(answer, int):
                        done[partition] = answer
                    elif answer.retriable:
                        trouble = answer
                        continue
                    else:
                        refusals[partition] = answer
                    del missing[partition]
            if trouble is not None:
                raise trouble

        if missing:
            await self._calls.retry("delete records", delete)
        if refusals:
            raise PartlyRefused(refusals, done)
        return {partition: done[partition] for partition in wanted}


def _left_out(partition: TopicPartition) -> BrokerError:
    return BrokerError(
        ErrorCode.UNKNOWN_SERVER_ERROR, "its leader has not answered for it", str(partition)
    )


async def _find_leaders(
    calls: Calls, partitions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The leaders of those of these topics' partitions that exist."""
    response = await calls.fetch_metadata(sorted({each.topic for each in partitions}))
    leaders: dict[TopicPartition, int] = {}
    for topic in response.topics:
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(topic.error_code, None, f"topic {topic.name}")
            for each in topic.partitions:
                leaders[TopicPartition(topic.name or "", each.partition_index)] = each.leader_id
    return leaders


async def _ask_leader(calls: Calls, leader: int, offsets: Mapping[TopicPartition, int]) -> Answers:
    connection = await calls.session.connections.connect(leader)
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            DeleteRecordsPartition(partition_index=index, offset=offset)
        )
    response = await connection.request(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=of) for name, of in topics.items()],
            timeout_ms=calls.timeout_ms,
        )
    )
    answers: Answers = {}
    for answer in response.topics:
        for result in answer.partitions:
            partition = TopicPartition(answer.name, result.partition_index)
            error = read_error(result.error_code, None, str(partition))
            answers[partition] = result.low_watermark if error is None else error
    return answers
