"""Reading, setting and deleting a group's offsets (KIP-396, KIP-496)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import Family, FinalError, read_error
from trimtab.client.admin.groups import ABOUT_THE_COORDINATOR, Answers, ask_coordinators
from trimtab.client.group_offsets import OffsetAndMetadata, checked_offsets
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.kafka.arguments import (
    AnyPartition,
    Partition,
    checked_partitions,
    checked_text,
    checked_texts,
    shown,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError, error_code
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trimtab.kafka.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

_LAST_VERSION_WITH_NAMES: Final = 9
_SEVERAL_GROUPS_SINCE: Final = 8
_GROUPS_AT_ONCE: Final = 500


class GroupOffsetAdmin(Family):
    """Lists, sets and deletes groups' offsets."""

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """A consumer group's committed offsets (of the next record to read), by partition.

        Empty for an unknown group.

        Raises:
            BrokerError: not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        _check_group(group)
        return (await self.list_offsets_of_groups([group]))[group]

    async def list_offsets_of_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """By group what `list_group_offsets` returns, with a request for each coordinator."""
        # A request for up to `_GROUPS_AT_ONCE` groups of a coordinator, or for each group if the
        # coordinator is older than Kafka 3.0.
        wanted = checked_texts("group_ids", group_ids)
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
                        TopicPartition(topic.name, partition.partition_index): OffsetAndMetadata(
                            partition.committed_offset,
                            partition.metadata or "",
                            partition.committed_leader_epoch,
                        )
                        for topic in whole.topics
                        for partition in topic.partitions
                        if partition.committed_offset >= 0
                    }
            return answers

        refusals = await ask_coordinators(self._calls, "read the offsets of groups", wanted, fetch)
        for error in refusals.values():
            raise error
        return {group: found[group] for group in sorted(found)}

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[AnyPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set a consumer group's committed offsets (of the next record to read), by partition
        (KIP-396).

        Tools that show lag use them, too. The group must have no members.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID if the group has members; not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        _check_group(group)
        positions = checked_offsets(offsets)
        link = self._calls.session.coordinator(CoordinatorKind.GROUP, group)
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), position in positions.items():
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
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=of) for name, of in topics.items()
            ],
        )

        def judge(response: OffsetCommitResponse) -> tuple[ErrorCode, str]:
            for topic in response.topics:
                for partition in topic.partitions:
                    code = error_code(partition.error_code)
                    subject = (
                        f"group {group}, {TopicPartition(topic.name, partition.partition_index)}"
                    )
                    if code in ABOUT_THE_COORDINATOR:
                        return code, subject
                    if code is not ErrorCode.NONE:  # no retry, also for an unknown partition
                        raise FinalError(BrokerError(code, "while setting its offset", subject))
            return ErrorCode.NONE, ""

        async def commit() -> None:
            await link.ask(
                OffsetCommitRequest,
                lambda version: request,
                judge,
                at_most=_LAST_VERSION_WITH_NAMES,
            )

        await self._calls.retry(f"set the offsets of group {group}", commit)

    async def delete_group_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        """Delete a consumer group's committed offsets of these partitions (KIP-496). Partitions
        without one stay without.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND; not authorized.
            PartlyRefused: the group reads the topics of some partitions
                (GROUP_SUBSCRIBED_TO_TOPIC), or they do not exist; the others' offsets are deleted.
        """
        _check_group(group)
        wanted = checked_partitions(partitions)
        link = self._calls.session.coordinator(CoordinatorKind.GROUP, group)
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for topic, index in wanted:
            topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(name=name, partitions=of) for name, of in topics.items()
            ],
        )

        def judge(response: OffsetDeleteResponse) -> tuple[ErrorCode, str]:
            code = error_code(response.error_code)
            if code is not ErrorCode.NONE and code not in ABOUT_THE_COORDINATOR:
                raise FinalError(BrokerError(code, "while deleting its offsets", f"group {group}"))
            return code, f"group {group}"

        async def delete() -> dict[TopicPartition, BrokerError]:
            response = await link.ask(OffsetDeleteRequest, lambda version: request, judge)
            return {
                TopicPartition(topic.name, partition.partition_index): BrokerError(
                    error_code(partition.error_code),
                    "",
                    f"group {group}, {TopicPartition(topic.name, partition.partition_index)}",
                )
                for topic in response.topics
                for partition in topic.partitions
                if partition.error_code != ErrorCode.NONE
            }

        if not wanted:
            return
        refusals = await self._calls.retry(f"delete offsets of group {group}", delete)
        if refusals:
            raise PartlyRefused(refusals, None)


def _check_group(group: object) -> None:
    if not isinstance(group, str) or not group:
        raise UsageError(f"group={shown(group)}: must be a group's id")
    checked_text("group", group)
