"""The questions of one round that go to one broker, each a single request without retries: the next
round asks again.

Kafka's clients retry until every part has an answer. A measurement does not: one broker that hangs
must not cost the answers of the others.

Tests: test_sample.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from trimtab.client.network.connection import Connection
from trimtab.kafka.errors import BrokerError, ErrorCode, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from trimtab.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from trimtab.kafka.wire.sentinels import CONSUMER

_TOPIC: Final = 2
_LAST_VERSION_WITH_NAMES: Final = 9
_SEVERAL_GROUPS_SINCE: Final = 8
_GROUPS_AT_ONCE: Final = 500
_TOPICS_AT_ONCE: Final = 1000
_SAYS_REFUSED_SINCE: Final = 3
"""Before this version of DescribeLogDirs a broker answers without directories if it refuses."""
_WITH_OFFSETS_OF_CONSUMERS: Final = ("", "classic", "consumer")
"""Types of groups; offsets of share groups are elsewhere."""


class BrokerLogs(NamedTuple):
    """What a broker stores.

    Attributes:
        sizes: bytes of each replica, as stored; without copies that a move into another directory
            has not finished.
        total, usable: bytes of its volumes; None if a volume is unknown.
        takes_replicas: whether a directory can be read, and is not cordoned (KIP-1066).
    """

    sizes: Mapping[TopicPartition, int]
    total: int | None
    usable: int | None
    takes_replicas: bool


class GroupAnswers(NamedTuple):
    """The groups that a broker coordinates.

    Attributes:
        committed: the offsets of each group.
        refused: the errors of the groups that have none here.
    """

    committed: Mapping[str, Mapping[TopicPartition, int]]
    refused: Mapping[str, BrokerError]


async def describe_logs(connection: Connection) -> BrokerLogs:
    """Ask a broker for its logs and volumes (KIP-113, KIP-827).

    Raises:
        BrokerError: CLUSTER_AUTHORIZATION_FAILED.
    """
    version = connection.version_of(DescribeLogDirsRequest)
    response = await connection.request(DescribeLogDirsRequest(topics=None), version)
    subject = f"broker {connection.node.id}"
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(error_code(response.error_code), "", subject)
    if not response.results and version < _SAYS_REFUSED_SINCE:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "it lists no directory", subject)
    readable = [each for each in response.results if each.error_code == ErrorCode.NONE]
    # Directories on one volume all tell its bytes: two volumes never have the same bytes free.
    volumes = {(each.total_bytes, each.usable_bytes) for each in readable}
    is_known = bool(volumes) and all(total >= 0 for total, _ in volumes)
    return BrokerLogs(
        {
            TopicPartition(topic.name, replica.partition_index): replica.partition_size
            for directory in readable
            for topic in directory.topics
            for replica in topic.partitions
            if not replica.is_future_key
        },
        sum(total for total, _ in volumes) if is_known else None,
        sum(usable for _, usable in volumes) if is_known else None,
        any(not directory.is_cordoned for directory in readable),
    )


async def list_leader_offsets(
    connection: Connection, partitions: Iterable[TopicPartition], at: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, BrokerError]]:
    """Ask a leader where its partitions begin or end.

    Args:
        at: `EARLIEST` or `LATEST`.

    Returns:
        The offsets, and the errors of the partitions without one.
    """
    asked: dict[tuple[str, int], TopicPartition] = {each: each for each in partitions}
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=at) for index in indexes
            ],
        )
        for topic, indexes in by_topic(asked.values()).items()
    ]
    response = await connection.request(ListOffsetsRequest(replica_id=CONSUMER, topics=topics))
    offsets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, BrokerError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = asked.get((topic.name, answer.partition_index))
            if partition is None:
                continue
            if answer.error_code == ErrorCode.NONE:
                offsets[partition] = answer.offset
            else:
                code = error_code(answer.error_code)
                refused[partition] = BrokerError(code, "", f"topic {topic.name}")
    return offsets, refused


async def read_groups(connection: Connection, only: Collection[str] | None = None) -> GroupAnswers:
    """Ask a broker which groups it coordinates, and for their committed offsets.

    Args:
        only: of these groups alone; None for all.

    Raises:
        BrokerError: it does not list groups.
    """
    listed = await connection.request(ListGroupsRequest())
    if listed.error_code != ErrorCode.NONE:
        raise BrokerError(error_code(listed.error_code), "", f"broker {connection.node.id}")
    groups = [
        each.group_id
        for each in listed.groups
        if each.group_type.lower() in _WITH_OFFSETS_OF_CONSUMERS
        and each.protocol_type in ("", "consumer")
        and (only is None or each.group_id in only)
    ]
    committed: dict[str, Mapping[TopicPartition, int]] = {}
    refused: dict[str, BrokerError] = {}
    version = connection.version_of(OffsetFetchRequest, _LAST_VERSION_WITH_NAMES)
    at_once = _GROUPS_AT_ONCE if version >= _SEVERAL_GROUPS_SINCE else 1
    for start in range(0, len(groups), at_once):
        answers = await _fetch_offsets(connection, groups[start : start + at_once], version)
        for group, answer in answers.items():
            if answer.error_code != ErrorCode.NONE:
                code = error_code(answer.error_code)
                refused[group] = BrokerError(code, "", f"group {group}")
                continue
            committed[group] = {
                TopicPartition(topic.name, each.partition_index): each.committed_offset
                for topic in answer.topics
                for each in topic.partitions
                if each.error_code == ErrorCode.NONE and each.committed_offset >= 0
            }
    return GroupAnswers(committed, refused)


async def _fetch_offsets(
    connection: Connection, groups: Sequence[str], version: int
) -> Mapping[str, OffsetFetchResponseGroup | OffsetFetchResponse]:
    if version < _SEVERAL_GROUPS_SINCE:
        request = OffsetFetchRequest(group_id=groups[0], topics=None)
        return {groups[0]: await connection.request(request, version)}
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    response = await connection.request(OffsetFetchRequest(groups=asked), version)
    return {each.group_id: each for each in response.groups}


async def read_compaction(
    connection: Connection, topics: Sequence[str]
) -> tuple[dict[str, bool], dict[str, BrokerError]]:
    """Ask any broker which of these topics are compacted.

    Returns:
        By topic whether it is, and the errors of the topics that are not told.
    """
    known: dict[str, bool] = {}
    refused: dict[str, BrokerError] = {}
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        resources = [
            DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=["cleanup.policy"]
            )
            for topic in topics[start : start + _TOPICS_AT_ONCE]
        ]
        response = await connection.request(DescribeConfigsRequest(resources=resources))
        for result in response.results:
            topic = result.resource_name
            if result.error_code != ErrorCode.NONE:
                refused[topic] = BrokerError(error_code(result.error_code), "", f"topic {topic}")
                continue
            known[topic] = any(
                option.name == "cleanup.policy" and "compact" in (option.value or "").split(",")
                for option in result.configs
            )
    return known, refused
