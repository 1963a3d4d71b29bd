"""Deletes the start of partitions' logs (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import Calls, check, read_error
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from trimtab.wire.sentinels import NO_LEADER

Answers: TypeAlias = dict[TopicPartition, int | BrokerError]
"""By partition, its low watermark, or the leader's error."""


async def delete_records(
    calls: Calls, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Asks the partitions' leaders; the new leader, if leadership has moved."""
    missing = dict(offsets)
    done: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, BrokerError] = {}

    async def delete() -> None:
        trouble: BaseException | None = None
        leaders = await _find_leaders(calls, missing)
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
                    ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader", str(partition)
                )
            else:
                by_leader.setdefault(leader, {})[partition] = missing[partition]
        told = await asyncio.gather(
            *(_ask_leader(calls, leader, asked) for leader, asked in by_leader.items()),
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
        await calls.retry("delete records", delete)
    if refusals:
        raise PartlyRefused(refusals, done)
    return {partition: done[partition] for partition in offsets}


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
        for each in answer.partitions:
            partition = TopicPartition(answer.name, each.partition_index)
            error = read_error(each.error_code, None, str(partition))
            answers[partition] = each.low_watermark if error is None else error
    return answers
