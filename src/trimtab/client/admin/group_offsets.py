"""Reading and setting a consumer group's offsets (KIP-396)."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.client.admin.calls import Calls, FinalError
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.errors import BrokerError, ErrorCode, error_code
from trimtab.records import TopicPartition
from trimtab.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trimtab.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

_LAST_VERSION_WITH_NAMES = 9
_SEVERAL_GROUPS_SINCE = 8
_ABOUT_THE_COORDINATOR = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)


async def alter_group_offsets(
    calls: Calls, group: str, offsets: Mapping[TopicPartition, int]
) -> None:
    link = calls.session.coordinator(CoordinatorKind.GROUP, group)
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name=name, partitions=of) for name, of in topics.items()],
    )

    def judge(response: OffsetCommitResponse) -> tuple[ErrorCode, str]:
        for topic in response.topics:
            for each in topic.partitions:
                code = error_code(each.error_code)
                subject = f"group {group}, {TopicPartition(topic.name, each.partition_index)}"
                if code in _ABOUT_THE_COORDINATOR:
                    return code, subject
                if code is not ErrorCode.NONE:  # no retry, also for an unknown partition
                    raise FinalError(BrokerError(code, "while setting its offset", subject))
        return ErrorCode.NONE, ""

    async def commit() -> None:
        await link.ask(
            OffsetCommitRequest, lambda version: request, judge, at_most=_LAST_VERSION_WITH_NAMES
        )

    await calls.retry(f"set the offsets of group {group}", commit)


async def list_group_offsets(calls: Calls, group: str) -> dict[TopicPartition, int]:
    link = calls.session.coordinator(CoordinatorKind.GROUP, group)

    def make(version: int) -> OffsetFetchRequest:
        if version < _SEVERAL_GROUPS_SINCE:
            return OffsetFetchRequest(group_id=group, topics=None)
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])

    def judge(response: OffsetFetchResponse) -> tuple[ErrorCode, str]:
        whole = response.groups[0] if response.groups else response
        code = error_code(whole.error_code)
        if code is not ErrorCode.NONE and code not in _ABOUT_THE_COORDINATOR:
            raise FinalError(BrokerError(code, "while reading its offsets", f"group {group}"))
        return code, f"group {group}"

    async def fetch() -> dict[TopicPartition, int]:
        response = await link.ask(OffsetFetchRequest, make, judge, at_most=_LAST_VERSION_WITH_NAMES)
        topics = response.groups[0].topics if response.groups else response.topics
        return {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    return await calls.retry(f"read the offsets of group {group}", fetch)
