"""Reading, setting and deleting a group's offsets (KIP-396, KIP-496)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import Calls, FinalError, read_error
from trimtab.client.admin.groups import ABOUT_THE_COORDINATOR, Answers, ask_coordinators
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.errors import BrokerError, ErrorCode, error_code
from trimtab.records import TopicPartition
from trimtab.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trimtab.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from trimtab.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

_LAST_VERSION_WITH_NAMES: Final = 9
_SEVERAL_GROUPS_SINCE: Final = 8
_GROUPS_AT_ONCE: Final = 500


async def alter_group_offsets(
    calls: Calls, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    link = calls.session.coordinator(CoordinatorKind.GROUP, group)
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), position in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
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
                if code in ABOUT_THE_COORDINATOR:
                    return code, subject
                if code is not ErrorCode.NONE:  # no retry, also for an unknown partition
                    raise FinalError(BrokerError(code, "while setting its offset", subject))
        return ErrorCode.NONE, ""

    async def commit() -> None:
        await link.ask(
            OffsetCommitRequest, lambda version: request, judge, at_most=_LAST_VERSION_WITH_NAMES
        )

    await calls.retry(f"set the offsets of group {group}", commit)


async def list_group_offsets(
    calls: Calls, groups: Iterable[str]
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    """By group its offsets: a request for up to `_GROUPS_AT_ONCE` groups of a coordinator, or for
    each group if the coordinator is older than Kafka 3.0."""
    found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    async def fetch(connection: Connection, node: Node, groups: list[str]) -> Answers:
        answers: Answers = {}
        wholes: Mapping[str, OffsetFetchResponseGroup | OffsetFetchResponse]
        version = connection.version_of(OffsetFetchRequest, _LAST_VERSION_WITH_NAMES)
        at_once = _GROUPS_AT_ONCE if version >= _SEVERAL_GROUPS_SINCE else 1
        for start in range(0, len(groups), at_once):
            names = groups[start : start + at_once]
            if version >= _SEVERAL_GROUPS_SINCE:
                asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
                response = await connection.request(OffsetFetchRequest(groups=asked), version)
                wholes = {each.group_id: each for each in response.groups}
            else:
                request = OffsetFetchRequest(group_id=names[0], topics=None)
                wholes = {names[0]: await connection.request(request, version)}
            for group, whole in wholes.items():
                detail = "while reading its offsets"
                answers[group] = read_error(whole.error_code, detail, f"group {group}")
                found[group] = {
                    TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
                    for topic in whole.topics
                    for each in topic.partitions
                    if each.committed_offset >= 0
                }
        return answers

    refusals = await ask_coordinators(calls, "read the offsets of groups", groups, fetch)
    for error in refusals.values():
        raise error
    return {group: found[group] for group in sorted(found)}


async def delete_group_offsets(
    calls: Calls, group: str, partitions: Sequence[TopicPartition]
) -> None:
    link = calls.session.coordinator(CoordinatorKind.GROUP, group)
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=of) for name, of in topics.items()],
    )

    def judge(response: OffsetDeleteResponse) -> tuple[ErrorCode, str]:
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE and code not in ABOUT_THE_COORDINATOR:
            raise FinalError(BrokerError(code, "while deleting its offsets", f"group {group}"))
        return code, f"group {group}"

    async def delete() -> dict[TopicPartition, BrokerError]:
        response = await link.ask(OffsetDeleteRequest, lambda version: request, judge)
        return {
            TopicPartition(topic.name, each.partition_index): BrokerError(
                error_code(each.error_code),
                "",
                f"group {group}, {TopicPartition(topic.name, each.partition_index)}",
            )
            for topic in response.topics
            for each in topic.partitions
            if each.error_code != ErrorCode.NONE
        }

    if not partitions:
        return
    refusals = await calls.retry(f"delete offsets of group {group}", delete)
    if refusals:
        raise PartlyRefused(refusals, None)
