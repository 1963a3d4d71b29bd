"""Topics: listed, described, created, extended, deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.client.admin.answers import NewTopic
from trimtab.client.admin.calls import (
    Calls,
    FinalError,
    check,
    may_be_sent_again,
    raise_change_error,
    read_error,
    unknown_topic,
)
from trimtab.client.arguments import (
    MAX_INT32,
    checked_brokers,
    checked_integer,
    checked_mapping,
    checked_text,
    checked_topic,
    shown,
)
from trimtab.client.network.metadata import view_topic
from trimtab.client.topic_view import TopicView
from trimtab.errors import BrokerError, ErrorCode, UsageError
from trimtab.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.wire.sentinels import BROKER_DEFAULT

_LAST_DELETE_BY_NAME_LIST: Final = 5


async def list_topics(calls: Calls, include_internal: bool) -> list[str]:
    response = await calls.retry("list topics", lambda: calls.fetch_metadata(None))
    return sorted(
        topic.name
        for topic in response.topics
        if topic.name
        and topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
        and (include_internal or not topic.is_internal)
    )


async def describe_topics(calls: Calls, names: list[str] | None) -> dict[str, TopicView]:
    async def describe() -> dict[str, TopicView]:
        response = await calls.fetch_metadata(names)
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise FinalError(unknown_topic(topic.name or ""))
            check(topic.error_code, None, f"topic {topic.name}")
        nodes = calls.session.metadata.nodes
        return {topic.name or "": view_topic(topic, nodes) for topic in response.topics}

    return await calls.retry("describe topics", describe)


async def create_topics(calls: Calls, topics: Iterable[NewTopic], validate_only: bool) -> None:
    if isinstance(topics, NewTopic) or not isinstance(topics, Iterable):
        raise UsageError(f"topics={shown(topics)}: give a list of NewTopic")
    wanted = {topic.name: topic for topic in map(_creatable, topics)}
    refused: list[BrokerError] = []
    created: list[str] = []

    async def create() -> None:
        connection = await calls.connect_to_controller()
        request = CreateTopicsRequest(
            topics=list(wanted.values()),
            timeout_ms=calls.timeout_ms,
            validate_only=validate_only,
        )
        response = await calls.send_once(connection, request)
        again: list[BrokerError] = []
        for result in response.topics:
            error = read_error(result.error_code, result.error_message, f"topic {result.name}")
            if error is not None and may_be_sent_again(error):
                again.append(error)
                continue
            wanted.pop(result.name, None)
            if error is None:
                created.append(result.name)
            else:
                refused.append(error)
        if again:
            raise again[0]

    if wanted:
        await calls.retry("create topics", create)
    if created and not validate_only:
        await calls.retry("wait for the topics' leaders", lambda: _see_leaders(calls, created))
    if refused:
        raise refused[0]


async def create_partitions(
    calls: Calls,
    name: str,
    count: int,
    assignment: list[list[int]] | None,
    validate_only: bool,
) -> None:
    async def create() -> None:
        connection = await calls.connect_to_controller()
        topic = CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignment is None
            else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignment],
        )
        response = await calls.send_once(
            connection,
            CreatePartitionsRequest(
                topics=[topic], timeout_ms=calls.timeout_ms, validate_only=validate_only
            ),
            "describe_topics()",
        )
        for result in response.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise FinalError(unknown_topic(name))
            raise_change_error(read_error(result.error_code, result.error_message, f"topic {name}"))

    await calls.retry("create partitions", create)
    if not validate_only:
        await calls.retry("wait for the partitions' leaders", lambda: _see_leaders(calls, [name]))


async def delete_topic(calls: Calls, name: str) -> None:
    async def delete() -> None:
        connection = await calls.connect_to_controller()
        version = connection.version_of(DeleteTopicsRequest)
        request = DeleteTopicsRequest(timeout_ms=calls.timeout_ms)
        if version > _LAST_DELETE_BY_NAME_LIST:
            request.topics = [DeleteTopicState(name=name)]
        else:
            request.topic_names = [name]
        response = await calls.send_once(connection, request)
        for result in response.responses:
            raise_change_error(read_error(result.error_code, result.error_message, f"topic {name}"))

    await calls.retry("delete a topic", delete)


async def _see_leaders(calls: Calls, names: list[str]) -> None:
    response = await calls.fetch_metadata(names)
    nodes = calls.session.metadata.nodes
    for topic in response.topics:
        check(topic.error_code, "the topic was just created", f"topic {topic.name}")
        view = view_topic(topic, nodes)
        if not view.partitions or len(view.available) < view.partition_count:
            leaderless = [i for i, leader in enumerate(view.leaders) if leader < 0]
            raise BrokerError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"created, but partitions {leaderless} have no leader yet",
                f"topic {topic.name}",
            )


def _creatable(topic: object) -> CreatableTopic:
    if not isinstance(topic, NewTopic):
        raise UsageError(f"{shown(topic)} is no NewTopic: give a list of them")
    name = checked_topic(topic.name)
    if topic.assignment is not None and (topic.partitions, topic.replication_factor) != (
        BROKER_DEFAULT,
        BROKER_DEFAULT,
    ):
        raise UsageError(
            f"topic {name}: give assignment, or partitions and replication_factor, not both"
        )
    assignment = checked_mapping(
        "assignment", {} if topic.assignment is None else topic.assignment, "{0: [1, 2]}"
    )
    config = {} if topic.config is None else topic.config
    return CreatableTopic(
        name=name,
        num_partitions=checked_integer("partitions", topic.partitions, BROKER_DEFAULT),
        replication_factor=checked_integer(
            "replication_factor", topic.replication_factor, BROKER_DEFAULT, 2**15 - 1
        ),
        assignments=[
            CreatableReplicaAssignment(
                partition_index=checked_integer("partition", partition),
                broker_ids=checked_brokers(f"the replicas of {shown(partition)}", brokers),
            )
            for partition, brokers in assignment.items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value)
            for name, value in write_config("config", config).items()
        ],
    )


def checked_assignment(assignment: object) -> list[list[int]] | None:
    """The brokers of each new partition; None if the cluster chooses."""
    if assignment is None:
        return None
    if isinstance(assignment, str | bytes) or not isinstance(assignment, Iterable):
        raise UsageError(f"assignment={shown(assignment)}: give lists, as in [[0, 1], [1, 2]]")
    return [checked_brokers("the replicas of a partition", brokers) for brokers in assignment]


def write_config(what: str, config: object) -> dict[str, str | None]:
    """Options with their values as text in Kafka's form; None stays None.

    Raises:
        UsageError: not a dictionary, a name that is not text, a value of another type.
    """
    given = checked_mapping(what, config, "{'retention.ms': 3600000}")
    return {
        checked_text("option", name): None if value is None else _write_value(name, value)
        for name, value in given.items()
    }


def _write_value(name: object, value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_write_value(name, word) for word in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return checked_text(f"the value of {shown(name)}", value, MAX_INT32)
