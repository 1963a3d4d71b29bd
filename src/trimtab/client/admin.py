"""Admin clients: topics, offsets and configurations of a cluster, from any thread or a loop.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("flights", partitions=6)
        print(admin.list_offsets([("flights", 0)], at="latest"))

Whatever only reads is asked again, of other brokers too, until `default.api.timeout.ms` is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from trimtab.client.fetcher.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Isolation,
    OffsetAndTimestamp,
    Partition,
    checked_partition,
)
from trimtab.client.network.connections import ApiKey, Connection, Node
from trimtab.client.network.metadata import TopicView, view_topic
from trimtab.client.options import ADMIN
from trimtab.client.session import Session
from trimtab.config import OptionType
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError, error_code
from trimtab.records import TopicPartition
from trimtab.runtime.loop_thread import LoopThread, shared
from trimtab.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trimtab.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from trimtab.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from trimtab.wire.messages.metadata import MetadataResponse

T = TypeVar("T")

Moment: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | int
"""Which offset of a partition: one of its ends, its youngest record, or a time in ms."""

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}
_BROKER_DEFAULT: Final = -1
_LAST_DELETE_BY_NAME_LIST: Final = 5
_RESOURCES: Final = {"topic": 2, "broker": 4}
_DOCUMENTED_SINCE: Final = 3
_ASK_ANOTHER_CONTROLLER: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class NewTopic(NamedTuple):
    """A topic to create.

    Attributes:
        partitions: how many; -1 for the cluster's default, and where `assignment` says it.
        replication_factor: replicas of each; -1 likewise.
        assignment: the brokers of each partition, the preferred leader first.
        config: topic options, such as `{"retention.ms": 3600000}`.
    """

    name: str
    partitions: int = _BROKER_DEFAULT
    replication_factor: int = _BROKER_DEFAULT
    assignment: Mapping[int, Sequence[int]] | None = None
    config: Mapping[str, object] | None = None


class ConfigSource(IntEnum):
    """Where a configured value comes from, numbered as in DescribeConfigs (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigEntry(NamedTuple):
    """One option of a topic or broker. `value` is None if it is not set, or secret.

    `type` and `documentation` are None where the broker does not tell them.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: OptionType | None
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class ClusterDescription(NamedTuple):
    """A cluster: its id, its brokers by number, and who takes requests for the controller."""

    cluster_id: str | None
    controller_id: int
    nodes: list[Node]


class AsyncAdmin:
    """`Admin` for an event loop: the same names, awaited.

    Args:
        bootstrap_servers, options: as for `Admin`.
        random: where jitter comes from; a simulation hands in its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        random: Random | None = None,
        **options: object,
    ) -> None:
        self._session = Session(ADMIN, bootstrap_servers, options, random or Random())
        self._closed = False

    async def topics(self, include_internal: bool = False) -> list[str]:
        """As `Admin.topics`."""
        response = await self._retry("list topics", lambda: self._fetch_metadata(None))
        return sorted(
            topic.name
            for topic in response.topics
            if topic.name
            and topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
            and (include_internal or not topic.is_internal)
        )

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """As `Admin.describe_topics`."""
        asked = None if names is None else list(names)

        async def describe() -> dict[str, TopicView]:
            response = await self._fetch_metadata(asked)
            for topic in response.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _FinalError(_unknown_topic(topic.name or ""))
                _check(topic.error_code, None, f"topic {topic.name}")
            nodes = self._session.metadata.nodes
            return {topic.name or "": view_topic(topic, nodes) for topic in response.topics}

        return await self._retry("describe topics", describe)

    async def create_topic(
        self,
        name: str,
        partitions: int = _BROKER_DEFAULT,
        replication_factor: int = _BROKER_DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """As `Admin.create_topic`."""
        topic = NewTopic(name, partitions, replication_factor, assignment, config)
        await self.create_topics([topic], validate_only)

    async def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> None:
        """As `Admin.create_topics`."""
        wanted = {topic.name: _creatable(topic) for topic in topics}
        refused: list[BrokerError] = []
        created: list[str] = []

        async def create() -> None:
            connection = await self._connect_to_controller()
            request = CreateTopicsRequest(
                topics=list(wanted.values()),
                timeout_ms=self._timeout_ms(),
                validate_only=validate_only,
            )
            response: CreateTopicsResponse = await self._send_once(
                connection, request, ApiKey.CREATE_TOPICS
            )
            again: list[BrokerError] = []
            for result in response.topics:
                error = _error(result.error_code, result.error_message, f"topic {result.name}")
                if error is not None and error.code in _ASK_ANOTHER_CONTROLLER:
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
            await self._retry("create topics", create)
        if created and not validate_only:
            await self._retry("wait for the topics' leaders", lambda: self._see_leaders(created))
        if refused:
            raise refused[0]

    async def delete_topic(self, name: str) -> None:
        """As `Admin.delete_topic`."""

        async def delete() -> None:
            connection = await self._connect_to_controller()
            version = connection.version_of(ApiKey.DELETE_TOPICS)
            request = DeleteTopicsRequest(timeout_ms=self._timeout_ms())
            if version > _LAST_DELETE_BY_NAME_LIST:
                request.topics = [DeleteTopicState(name=name)]
            else:
                request.topic_names = [name]
            response: DeleteTopicsResponse = await self._send_once(
                connection, request, ApiKey.DELETE_TOPICS
            )
            for result in response.responses:
                error = _error(result.error_code, result.error_message, f"topic {name}")
                if error is not None and error.code in _ASK_ANOTHER_CONTROLLER:
                    raise error
                if error is not None:
                    raise _FinalError(error)

        await self._retry("delete a topic", delete)

    async def list_offsets(
        self,
        partitions: Iterable[Partition],
        at: Moment = "latest",
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """As `Admin.list_offsets`."""
        self._check_open()
        if isinstance(at, str):
            if at not in _ENDS:
                raise UsageError(f"at={at!r}: must be a time in ms or one of {', '.join(_ENDS)}")
            moment = _ENDS[at]
        elif at < 0:
            raise UsageError(f"at={at}: a time in ms must be 0 or greater")
        else:
            moment = at
        return await self._session.offsets.find(
            {checked_partition(partition): moment for partition in partitions},
            self._session.timeout,
            Isolation[isolation.upper()],
        )

    async def describe_configs(
        self, kind: Literal["topic", "broker"], name: str | int
    ) -> list[ConfigEntry]:
        """As `Admin.describe_configs`."""
        if kind not in _RESOURCES:
            raise UsageError(f"kind={kind!r}: must be one of {', '.join(_RESOURCES)}")
        if kind == "broker" and not str(name).isdigit():
            raise UsageError(f"broker {name!r}: a broker is named by its number, such as 0")

        async def describe() -> list[ConfigEntry]:
            connection = await self._connect_for_configs(kind, name)
            resource = DescribeConfigsResource(
                resource_type=_RESOURCES[kind], resource_name=str(name), configuration_keys=None
            )
            response: DescribeConfigsResponse = await connection.request(
                DescribeConfigsRequest(resources=[resource], include_documentation=True)
                if connection.version_of(ApiKey.DESCRIBE_CONFIGS) >= _DOCUMENTED_SINCE
                else DescribeConfigsRequest(resources=[resource]),
                ApiKey.DESCRIBE_CONFIGS,
            )
            entries: list[ConfigEntry] = []
            for result in response.results:
                error = _error(result.error_code, result.error_message, f"{kind} {name}")
                if error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _FinalError(_unknown_topic(str(name)))
                if error is not None:
                    raise error
                entries += [
                    ConfigEntry(
                        config.name,
                        config.value,
                        _source(config.config_source),
                        config.read_only,
                        config.is_sensitive,
                        _type(config.config_type),
                        config.documentation or None,
                    )
                    for config in result.configs
                ]
            return sorted(entries)

        return await self._retry(f"describe the configuration of {kind} {name}", describe)

    async def cluster(self) -> ClusterDescription:
        """As `Admin.cluster`."""
        response = await self._retry("describe the cluster", lambda: self._fetch_metadata([]))
        return ClusterDescription(
            response.cluster_id,
            response.controller_id,
            [node for _, node in sorted(self._session.metadata.nodes.items())],
        )

    async def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            await self._session.close()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _retry(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns, made again with back-off while its failure may pass."""
        self._check_open()
        session = self._session
        last: KafkaError | None = None
        failures = 0
        try:
            async with asyncio.timeout(session.timeout):
                while True:
                    try:
                        return await attempt()
                    except _FinalError as final:
                        raise final.error from None
                    except KafkaError as error:
                        if isinstance(error, BrokerError) and not error.retriable:
                            raise
                        if not isinstance(error, BrokerError | Unavailable):
                            raise
                        last = error
                    await asyncio.sleep(session.backoff.wait(failures, session.random))
                    failures += 1
        except TimeoutError:
            waited = f"within {session.timeout:g} s (default.api.timeout.ms)"
            if isinstance(last, BrokerError):
                raise BrokerError(last.code, f"{last.detail}; {waited}", last.subject) from None
            why = last or "no broker answered"
            raise Unavailable(f"cannot {what} {waited}: {why}") from None

    async def _fetch_metadata(self, topics: list[str] | None) -> MetadataResponse:
        return await self._session.metadata.fetch(topics)

    async def _connect_to_controller(self) -> Connection:
        await self._fetch_metadata([])
        connections, controller = self._session.connections, self._session.metadata.controller_id
        if controller < 0:
            return await connections.connect_any()
        return await connections.connect(controller)

    async def _connect_for_configs(self, kind: str, name: str | int) -> Connection:
        connections = self._session.connections
        if kind == "topic":
            return await connections.connect_any()
        await self._fetch_metadata([])
        if int(name) not in self._session.metadata.nodes:
            known = ", ".join(map(str, sorted(self._session.metadata.nodes)))
            raise UsageError(f"broker {name} is not in the cluster; there are {known}")
        return await connections.connect(int(name))

    async def _send_once(self, connection: Connection, request: object, api: ApiKey) -> Any:
        """Send what must not be sent twice: once it may have happened, the error is final."""
        version = connection.version_of(api)
        try:
            return await connection.request(request, api, version)
        except Unavailable as error:
            raise _FinalError(
                Unavailable(f"{error}; look with topics() whether it has happened")
            ) from None

    async def _see_leaders(self, names: list[str]) -> None:
        response = await self._fetch_metadata(names)
        nodes = self._session.metadata.nodes
        for topic in response.topics:
            _check(topic.error_code, "the topic was just created", f"topic {topic.name}")
            view = view_topic(topic, nodes)
            if not view.partitions or len(view.available) < view.partition_count:
                leaderless = [i for i, leader in enumerate(view.leaders) if leader < 0]
                raise BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"the topic was created, but partitions {leaderless} have no leader yet",
                    f"topic {topic.name}",
                )

    def _timeout_ms(self) -> int:
        return int(self._session.options.integer("request.timeout.ms"))

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the admin client is closed")


class Admin:
    """Looks after topics, from any thread.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name.
        options: Kafka's admin options, dotted or in snake case.

    Raises:
        UsageError: an unknown option, or a value that is out of range.

    Every method raises `Unavailable`, with the addresses that were tried, if no broker answers
    within `default.api.timeout.ms`, and `BrokerError` if one refuses.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str] | None = None, **options: object
    ) -> None:
        self._admin = AsyncAdmin(bootstrap_servers, random=Random(), **options)
        self._thread: LoopThread = shared()
        self._closed = False

    def topics(self, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(self._admin.topics(include_internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """Partitions, leaders and replicas by topic; of all topics if no names are given.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first name that is no topic.
        """
        return self._run(self._admin.describe_topics(names))

    def create_topic(
        self,
        name: str,
        partitions: int = _BROKER_DEFAULT,
        replication_factor: int = _BROKER_DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic, and return once all its partitions have leaders.

        Args:
            partitions, replication_factor: -1 for the cluster's defaults.
            assignment: the brokers of each partition instead, the preferred leader first.
            config: topic options, such as `{"retention.ms": 3600000}`.
            validate_only: only find out whether the cluster would.

        Raises:
            BrokerError: the cluster refuses; the code and its words say why.
        """
        topic = NewTopic(name, partitions, replication_factor, assignment, config)
        self._run(self._admin.create_topics([topic], validate_only))

    def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> None:
        """Create several topics in one request, as `create_topic` does one.

        Raises:
            BrokerError: of the first topic that was refused; the others are created all the same.
        """
        self._run(self._admin.create_topics(topics, validate_only))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, or the cluster does not delete topics.
        """
        self._run(self._admin.delete_topic(name))

    def list_offsets(
        self,
        partitions: Iterable[Partition],
        at: Moment = "latest",
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """An offset of each partition, asked of its leader.

        Args:
            at: "earliest", "latest", "max_timestamp" (KIP-734), or a time in ms since the epoch:
                the first record at or after it. Offset and timestamp are -1 where there is none.
            isolation: "read_committed" ends a partition before its first open transaction.
        """
        return self._run(self._admin.list_offsets(partitions, at, isolation))

    def describe_configs(
        self, kind: Literal["topic", "broker"], name: str | int
    ) -> list[ConfigEntry]:
        """All options of a topic, or of a broker by its number, sorted by name."""
        return self._run(self._admin.describe_configs(kind, name))

    def cluster(self) -> ClusterDescription:
        """The cluster's id and its brokers."""
        return self._run(self._admin.cluster())

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.run(self._admin.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            call.close()
            raise UsageError("the admin client is closed")
        return self._thread.run(call)


class _FinalError(Exception):
    """Carries an error past the retries, although its kind may pass."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(str(error))
        self.error = error


def _creatable(topic: NewTopic) -> CreatableTopic:
    if topic.assignment is not None and (topic.partitions, topic.replication_factor) != (-1, -1):
        raise UsageError(
            f"topic {topic.name}: give assignment, or partitions and replication_factor, not both"
        )
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in (topic.assignment or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=_text(value))
            for name, value in (topic.config or {}).items()
        ],
    )


def _text(value: object) -> str | None:
    """A configured value as Kafka writes it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(code: int, message: str | None, subject: str) -> BrokerError | None:
    if code == ErrorCode.NONE:
        return None
    return BrokerError(error_code(code), message or "", subject)


def _check(code: int, message: str | None, subject: str) -> None:
    error = _error(code, message, subject)
    if error is not None:
        raise error


def _unknown_topic(name: str) -> BrokerError:
    return BrokerError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic", f"topic {name}"
    )


def _source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in _SOURCES else ConfigSource.UNKNOWN


def _type(number: int) -> OptionType | None:
    return OptionType(number) if number in _TYPES else None


_SOURCES: Final = frozenset(ConfigSource)
_TYPES: Final = frozenset(OptionType)
