"""Topics: listed, described, created, extended, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trimtab.client.admin.answers import NewTopic
from trimtab.client.admin.calls import (
    Calls,
    Family,
    FinalError,
    check,
    check_change,
    read_error,
    sort_answers,
    unknown_topic,
)
from trimtab.client.network.metadata import view_topic
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import (
    MAX_INT32,
    checked_brokers,
    checked_flag,
    checked_integer,
    checked_mapping,
    checked_names,
    checked_text,
    checked_topic,
    shown,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.sentinels import BROKER_DEFAULT

_LAST_DELETE_BY_NAME_LIST: Final = 5


class TopicAdmin(Family):
    """Lists, describes, creates, extends and deletes topics."""

    async def topics(self, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        checked_flag("include_internal", include_internal)
        response = await self._calls.retry("list topics", lambda: self._calls.fetch_metadata(None))
        return sorted(
            topic.name
            for topic in response.topics
            if topic.name
            and topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
            and (include_internal or not topic.is_internal)
        )

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """Partitions, leaders and replicas by topic; of all topics if no names are given.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic.
        """
        wanted = None if names is None else checked_names("names", names)

        async def describe() -> dict[str, TopicView]:
            response = await self._calls.fetch_metadata(wanted)
            for topic in response.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise FinalError(unknown_topic(topic.name or ""))
                check(topic.error_code, None, f"topic {topic.name}")
            known = self._calls.session.metadata.topic
            views = (known(topic.name or "") for topic in response.topics)
            return {view.name: view for view in views if view is not None}

        return await self._calls.retry("describe topics", describe)

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic, and return once all its partitions have leaders.

        Args:
            partitions, replication_factor: -1 for the cluster's defaults.
            assignment: instead of these two, the brokers of each partition, the preferred leader
                first.
            config: topic options, such as `{"retention.ms": 3600000}`.
            validate_only: check the request without creating the topic.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        topic = NewTopic(name, partitions, replication_factor, assignment, config)
        await self.create_topics([topic], validate_only)

    async def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> None:
        """Create several topics in one request, as `create_topic` does for one.

        Raises:
            BrokerError: the error of the first refused topic; the others are created all the same.
        """
        checked_flag("validate_only", validate_only)
        if isinstance(topics, NewTopic) or not isinstance(topics, Iterable):
            raise UsageError(f"topics={shown(topics)}: give a list of NewTopic")
        wanted = {topic.name: topic for topic in map(_creatable, topics)}
        created: list[str] = []
        refusals: dict[str, BrokerError] = {}

        async def create() -> None:
            connection = await self._calls.connect_to_controller()
            request = CreateTopicsRequest(
                topics=list(wanted.values()),
                timeout_ms=self._calls.timeout_ms,
                validate_only=validate_only,
            )
            response = await self._calls.send_once(connection, request)
            answers = (
                (
                    result.name,
                    read_error(result.error_code, result.error_message, f"topic {result.name}"),
                )
                for result in response.topics
            )
            sort_answers(answers, wanted, created, refusals)

        if wanted:
            await self._calls.retry("create topics", create)
        if created and not validate_only:
            await self._calls.retry(
                "wait for the topics' leaders", lambda: _see_leaders(self._calls, created)
            )
        for error in refusals.values():
            raise error

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Add partitions to a topic, and return once all of them have leaders.

        Args:
            count: the new total number of partitions.
            assignment: the brokers of each new one, the preferred leader first; if not given,
                the cluster chooses.
            validate_only: check the request without adding partitions.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        name = checked_topic(name)
        count = checked_integer("count", count, 1)
        replicas = _checked_assignment(assignment)
        checked_flag("validate_only", validate_only)

        async def create() -> None:
            connection = await self._calls.connect_to_controller()
            topic = CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if replicas is None
                else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in replicas],
            )
            response = await self._calls.send_once(
                connection,
                CreatePartitionsRequest(
                    topics=[topic], timeout_ms=self._calls.timeout_ms, validate_only=validate_only
                ),
                "describe_topics()",
            )
            for result in response.results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise FinalError(unknown_topic(name))
                check_change(result.error_code, result.error_message, f"topic {name}")

        await self._calls.retry("create partitions", create)
        if not validate_only:
            await self._calls.retry(
                "wait for the partitions' leaders", lambda: _see_leaders(self._calls, [name])
            )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, or the cluster does not delete topics.
        """
        name = checked_topic(name)

        async def delete() -> None:
            connection = await self._calls.connect_to_controller()
            version = connection.version_of(DeleteTopicsRequest)
            request = DeleteTopicsRequest(timeout_ms=self._calls.timeout_ms)
            if version > _LAST_DELETE_BY_NAME_LIST:
                request.topics = [DeleteTopicState(name=name)]
            else:
                request.topic_names = [name]
            response = await self._calls.send_once(connection, request)
            for result in response.responses:
                check_change(result.error_code, result.error_message, f"topic {name}")

        await self._calls.retry("delete a topic", delete)


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


def _checked_assignment(assignment: object) -> list[list[int]] | None:
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
