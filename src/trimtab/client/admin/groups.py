"""Groups as their coordinators know them: listed, described, deleted.

A group is described by ConsumerGroupDescribe, or else by DescribeGroups: only its coordinator knows
which protocol it uses (KIP-848).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from trimtab.client.admin.answers import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupType,
    PartlyRefused,
)
from trimtab.client.admin.calls import Calls, Family, check, read_error
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.coordinator import CoordinatorKind, find_coordinators
from trimtab.kafka.arguments import checked_texts
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    Member,
)
from trimtab.kafka.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from trimtab.kafka.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    decode_embedded,
)
from trimtab.kafka.wire.messages.delete_groups import DeleteGroupsRequest
from trimtab.kafka.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest

Answers: TypeAlias = dict[str, BrokerError | None]
"""By group, the coordinator's error; None without one."""

_STATES_SINCE: Final = 4
_TYPES_SINCE: Final = 5
_DEAD: Final = "Dead"
"""The state of a group that does not exist, in DescribeGroups before version 6."""
_PROTOCOLS: Final[dict[int, GroupType]] = {0: "classic", 1: "consumer"}
"""Of a member, by its type in ConsumerGroupDescribe."""

ABOUT_THE_COORDINATOR: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""After these codes the request is sent again, to the coordinator that is found then."""


class GroupAdmin(Family):
    """Lists, describes and deletes groups."""

    async def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """All groups that the cluster knows, sorted by id.

        Args:
            states: only groups in one of these states, such as `["Stable"]`; None for all.
            types: only groups of these types, such as `["classic", "consumer"]`; None for all.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, if a broker is too old to select by state (Kafka 2.6)
                or by type (3.8).
        """
        # Asks every broker: each lists the groups that it coordinates.
        states_asked = [] if states is None else checked_texts("states", states)
        types_asked = [] if types is None else checked_texts("types", types)

        async def ask() -> list[GroupListing]:
            await self._calls.fetch_metadata([])
            found: dict[str, GroupListing] = {}
            for broker in sorted(self._calls.session.metadata.nodes):
                connection = await self._calls.connect_to_broker(broker)
                version = connection.version_of(ListGroupsRequest)
                for what, words, since, release in (
                    ("states", states_asked, _STATES_SINCE, "2.6"),
                    ("types", types_asked, _TYPES_SINCE, "3.8"),
                ):
                    if words and version < since:
                        raise BrokerError(
                            ErrorCode.UNSUPPORTED_VERSION,
                            f"it serves ListGroups up to version {version}; {what} need {since} "
                            f"(Kafka {release})",
                            f"broker {broker}",
                        )
                response = await connection.request(
                    ListGroupsRequest(states_filter=states_asked, types_filter=types_asked), version
                )
                check(response.error_code, None, f"broker {broker}")
                for listed_group in response.groups:
                    found[listed_group.group_id] = GroupListing(
                        listed_group.group_id,
                        listed_group.protocol_type,
                        listed_group.group_state,
                        listed_group.group_type.lower(),
                    )
            return [found[group] for group in sorted(found)]

        return await self._calls.retry("list groups", ask)

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of these groups, of both protocols; groups that no coordinator knows
        are left out.

        Raises:
            BrokerError: a coordinator refuses, such as GROUP_AUTHORIZATION_FAILED.
        """
        wanted = checked_texts("group_ids", group_ids)
        found: dict[str, GroupDescription] = {}

        async def describe(connection: Connection, node: Node, groups: list[str]) -> Answers:
            answers: Answers = {}
            if connection.serves(ConsumerGroupDescribeRequest):
                await _describe_consumer_groups(connection, node, groups, found, answers)
            classic = [group for group in groups if group not in answers]
            if classic:
                await _describe_classic_groups(connection, node, classic, found, answers)
            return answers

        refusals = await ask_coordinators(self._calls, "describe groups", wanted, describe)
        for error in refusals.values():
            raise error
        return {group: found[group] for group in sorted(found)}

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, and their committed offsets.

        Raises:
            PartlyRefused: some groups have members (NON_EMPTY_GROUP), do not exist
                (GROUP_ID_NOT_FOUND), or may not be deleted; the others are deleted.
        """
        wanted = checked_texts("group_ids", group_ids)

        async def delete(connection: Connection, node: Node, groups: list[str]) -> Answers:
            response = await self._calls.send_once(
                connection, DeleteGroupsRequest(groups_names=groups), "list_groups()"
            )
            return {
                result.group_id: read_error(result.error_code, None, f"group {result.group_id}")
                for result in response.results
            }

        refusals = await ask_coordinators(self._calls, "delete groups", wanted, delete)
        if refusals:
            raise PartlyRefused(refusals, None)


async def ask_coordinators(
    calls: Calls,
    what: str,
    groups: Iterable[str],
    ask: Callable[[Connection, Node, list[str]], Awaitable[Answers]],
) -> dict[str, BrokerError]:
    """Ask each group's coordinator, until it has answered; one request for all of its groups.

    Args:
        what: completes the error message "cannot …".
        ask: takes note of the answers.

    Returns:
        The errors, by group.
    """
    missing = dict.fromkeys(groups)
    refusals: dict[str, BrokerError] = {}

    async def attempt() -> None:
        trouble: BrokerError | None = None
        finder = await calls.connect_any()
        by_node: dict[Node, list[str]] = {}
        for coordinator in await find_coordinators(finder, CoordinatorKind.GROUP, list(missing)):
            check(coordinator.error_code, coordinator.error_message, f"group {coordinator.key}")
            by_node.setdefault(
                Node(coordinator.node_id, coordinator.host, coordinator.port), []
            ).append(coordinator.key)
        calls.session.connections.update(by_node)
        for node, of_node in by_node.items():
            connection = await calls.session.connections.connect(node.id)
            answers = await ask(connection, node, of_node)
            for group in of_node:
                error = answers.get(group, _left_out(group))
                if error is not None and error.code in ABOUT_THE_COORDINATOR:
                    trouble = error
                    continue
                missing.pop(group, None)
                if error is not None:
                    refusals[group] = error
        if trouble is not None:
            raise trouble

    if missing:
        await calls.retry(what, attempt)
    return refusals


def _left_out(group: str) -> BrokerError:
    return BrokerError(
        ErrorCode.UNKNOWN_SERVER_ERROR, "its coordinator has not answered for it", f"group {group}"
    )


async def _describe_consumer_groups(
    connection: Connection,
    node: Node,
    groups: list[str],
    found: dict[str, GroupDescription],
    answers: Answers,
) -> None:
    """Describe those of KIP-848; the others get no answer."""
    response = await connection.request(
        ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)
    )
    for group in response.groups:
        error = read_error(group.error_code, group.error_message, f"group {group.group_id}")
        if error is None:
            found[group.group_id] = _read_consumer_group(group, node)
        elif error.code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue  # it may be a classic one
        answers[group.group_id] = error


async def _describe_classic_groups(
    connection: Connection,
    node: Node,
    groups: list[str],
    found: dict[str, GroupDescription],
    answers: Answers,
) -> None:
    """Describe them; those that do not exist are not found."""
    response = await connection.request(DescribeGroupsRequest(groups=groups))
    for group in response.groups:
        error = read_error(group.error_code, group.error_message, f"group {group.group_id}")
        if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            error = None
        elif error is None and group.group_state != _DEAD:
            found[group.group_id] = _read_classic_group(group, node)
        answers[group.group_id] = error


def _read_consumer_group(group: DescribedConsumerGroup, node: Node) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        "consumer",
        PROTOCOL_TYPE,
        group.group_state,
        group.assignor_name,
        node,
        tuple(map(_read_member, group.members)),
        group.group_epoch,
        group.assignment_epoch,
    )


def _read_member(member: Member) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _read_assignment(member.assignment),
        _read_assignment(member.target_assignment),
        member.member_epoch,
        _PROTOCOLS.get(member.member_type),
    )


def _read_assignment(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def _read_classic_group(group: DescribedGroup, node: Node) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        "classic",
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        node,
        tuple(_read_classic_member(each, group.protocol_type) for each in group.members),
    )


def _read_classic_member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE and member.member_assignment:
        assignment, _ = decode_embedded(ConsumerProtocolAssignment, member.member_assignment)
        partitions = tuple(
            TopicPartition(topic.topic, index)
            for topic in assignment.assigned_partitions
            for index in topic.partitions
        )
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        partitions,
    )
