"""Decisions about creating and deleting topics: records and responses.

Error codes and the order of checks are those of Kafka's `ReplicationControlManager` and
`ControllerApis`, and so are the messages that clients show to users.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from random import Random
from typing import Any

from trimtab.balance.limits import Allowance
from trimtab.cluster import config
from trimtab.cluster.config import Source
from trimtab.cluster.controller.configs import warn_ignored
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision, WholeRequest
from trimtab.cluster.controller.topic_rules import WHOLE_CLUSTER
from trimtab.cluster.metadata.batches import TOPIC as JOURNAL_TOPIC
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    ClusterImage,
    PartitionRegistration,
    partition_record,
)
from trimtab.cluster.server.turns import Steps, answer_each
from trimtab.kafka.errors import ErrorCode, Refusal, UsageError
from trimtab.kafka.options import Value, read_given, write
from trimtab.kafka.topic_name import collision_key, find_fault
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trimtab.kafka.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from trimtab.kafka.wire.messages.metadata_records import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from trimtab.kafka.wire.sentinels import BROKER_DEFAULT
from trimtab.kafka.wire.types import ZERO_UUID

_EXCESS = (
    f"Excessively large number of partitions per request: at most {MAX_RECORDS} are created at a "
    "time; ask for fewer in each request."
)
_EXPLAINED = 1000
"""Topics whose results contain the message; further results have the code alone."""


def is_excessive(request: CreateTopicsRequest, by_default: int) -> bool:
    """Whether a request asks for more than `MAX_RECORDS` partitions in total; Kafka refuses all of
    it then (`ReplicationControlManager.validateTotalNumberOfPartitions`).

    Args:
        by_default: partitions of a topic without `num_partitions`.
    """
    wanted = 0
    for topic in request.topics:
        given = by_default if topic.num_partitions == BROKER_DEFAULT else topic.num_partitions
        wanted += max(1, len(topic.assignments) or given)
        if len(request.topics) > 1 and wanted > MAX_RECORDS:
            return True
    return False


def refuse_excess(request: CreateTopicsRequest) -> Steps[CreateTopicsResponse]:
    """The response to an excessive request."""
    return answer_each(
        enumerate(request.topics),
        lambda numbered: CreatableTopicResult(
            name=numbered[1].name,
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=_EXCESS if numbered[0] < _EXPLAINED else None,
            configs=[],
        ),
        lambda topics: CreateTopicsResponse(throttle_time_ms=0, topics=topics),
    )


def decide_create(
    image: ClusterImage,
    request: CreateTopicsRequest,
    given: Mapping[str, Value],
    allowance: Allowance,
    random: Random,
    whole: WholeRequest | None = None,
) -> Decision:
    """Create each topic of the request that can be created; with `validate_only` write nothing.

    Args:
        given: the static broker options that were set; topics inherit from them.
        whole: state shared with the other parts of a large request.
    """
    whole = whole or WholeRequest()
    defaults = _Defaults(
        config.Settings.read(given, image.configs(CONFIG_BROKER, WHOLE_CLUSTER), {})
    )
    times = whole.count(topic.name for topic in request.topics)
    records: list[Any] = []
    results: dict[str, CreatableTopicResult] = {}
    for topic in request.topics:
        if topic.name in results:
            continue
        try:
            if times[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            room = MAX_RECORDS - whole.records
            created = _Creation(image, topic, defaults, allowance, random, whole.new_names, room)
        except Refusal as refusal:
            results[topic.name] = CreatableTopicResult(
                name=topic.name,
                topic_id=ZERO_UUID,
                error_code=refusal.code,
                error_message=refusal.message,
                configs=[],
            )
            continue
        whole.new_names[collision_key(topic.name)] = topic.name
        whole.records += len(created.records)
        records += created.records
        results[topic.name] = created.result
    response = CreateTopicsResponse(throttle_time_ms=0, topics=list(results.values()))
    return Decision([] if request.validate_only else records, response)


class _Defaults:
    """The options that topics inherit, computed once per request.

    Attributes:
        broker_config: the options of all brokers.
        values: the options of a topic that sets none.
        described: the same, as in a DescribeConfigs response.
    """

    def __init__(self, settings: config.Settings) -> None:
        self.broker_config = settings.resolve()
        self.values = config.inherit(self.broker_config)
        self.described: dict[str, CreatableTopicConfigs] = {}
        for option in sorted(config.TOPIC, key=lambda option: option.name):
            found = settings.of_topic(option, {})
            source = found[0].source if found else Source.DEFAULT
            self.described[option.name] = _describe(option.name, self.values[option.name], source)


class _Creation:
    """A topic to be created: its records and its result.

    Raises:
        Refusal: the topic cannot be created.
    """

    def __init__(
        self,
        image: ClusterImage,
        topic: CreatableTopic,
        defaults: _Defaults,
        allowance: Allowance,
        random: Random,
        taken: Mapping[str, str],
        max_records: int,
    ) -> None:
        _check_name(image, topic.name, taken)
        configs = _check_configs(topic, defaults)
        max_partitions = max_records - 1 - len(configs)
        if topic.assignments:
            _check_count(len(topic.assignments), max_partitions)
            assignment = _check_assignment(image, topic)
            allowance.check(topic.name, assignment)
        else:
            partitions, factor = _read_counts(topic, defaults.broker_config)
            _check_count(partitions, max_partitions)
            assignment = assign(image, allowance, topic.name, partitions, factor, random)
        topic_id = new_topic_id(random)
        self.records: list[Any] = [TopicRecord(name=topic.name, topic_id=topic_id)]
        self.records += [
            ConfigRecord(
                resource_type=CONFIG_TOPIC,
                resource_name=topic.name,
                name=name,
                value=write(value),
            )
            for name, value in configs.items()
        ]
        self.records += [
            partition_record(topic_id, new_partition(image, index, replicas))
            for index, replicas in enumerate(assignment)
        ]
        self.result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            num_partitions=len(assignment),
            replication_factor=len(assignment[0]),
            configs=[
                _describe(name, configs[name], Source.TOPIC) if name in configs else described
                for name, described in defaults.described.items()
            ],
        )


def new_partition(
    image: ClusterImage, index: int, replicas: Sequence[int]
) -> PartitionRegistration:
    """A new partition: all active replicas are in the ISR, and the first of them leads.

    Raises:
        Refusal: no replica is on an active broker.
    """
    isr = tuple(broker for broker in replicas if image.brokers[broker].is_active)
    if not isr:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All brokers specified in the manual partition assignment for partition "
            f"{index} are fenced or in controlled shutdown.",
        )
    return PartitionRegistration(index, isr[0], 0, 0, tuple(replicas), isr)


def _check_name(image: ClusterImage, name: str, taken: Mapping[str, str]) -> None:
    if name == JOURNAL_TOPIC:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
        )
    fault = find_fault(name)
    if fault is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name in image.topics:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = image.colliding(name) or taken.get(collision_key(name))
    if other is not None:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}; '.' and '_' count as the same.",
        )


def _check_configs(topic: CreatableTopic, defaults: _Defaults) -> dict[str, Value]:
    if len(topic.configs) > MAX_RECORDS:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"{len(topic.configs)} configs lead to more than the {MAX_RECORDS} records that a "
            "request may; name each config once.",
        )
    given: dict[str, object] = {}
    for entry in topic.configs:
        if entry.value is None:
            raise Refusal(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic config: {entry.name}"
            )
        if entry.name not in config.TOPIC:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {entry.name}")
        given[entry.name] = entry.value
    try:
        values = read_given(config.TOPIC, given)
        config.check_topic({**defaults.values, **values})
    except UsageError as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
    warn_ignored(config.TOPIC, f"topic={topic.name}", values)
    return values


def _check_assignment(image: ClusterImage, topic: CreatableTopic) -> list[list[int]]:
    """The replicas of every partition in a manual assignment."""
    if topic.replication_factor != BROKER_DEFAULT:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to "
            "-1.",
        )
    if topic.num_partitions != BROKER_DEFAULT:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    replicas: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        index = assignment.partition_index
        check_replicas(image, index, assignment.broker_ids)
        if index in replicas:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        replicas[index] = list(assignment.broker_ids)
    if sorted(replicas) != list(range(len(replicas))):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    if len({len(brokers) for brokers in replicas.values()}) > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment gives partitions different numbers of replicas; "
            "give all the same.",
        )
    return [replicas[index] for index in range(len(replicas))]


def check_replicas(image: ClusterImage, index: int, brokers: Sequence[int]) -> None:
    """Check the replicas of one partition in a manual assignment.

    Raises:
        Refusal: there is none, a broker is named twice, or is not registered.
    """
    where = f"The manual partition assignment of partition {index}"
    if not brokers:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where} includes an empty replica list."
        )
    # One more than the registered brokers suffices to find an unknown or repeated one.
    brokers = brokers[: len(image.brokers) + 1]
    for broker in brokers:
        if broker not in image.brokers:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{where} includes broker {broker}, but no such broker is registered.",
            )
    if len(set(brokers)) != len(brokers):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where} includes a broker more than once."
        )


def _check_count(partitions: int, most: int) -> None:
    if partitions > most:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions lead to more than the {MAX_RECORDS} records that a request "
            "may; create fewer at a time.",
        )


def _read_counts(topic: CreatableTopic, broker_config: Mapping[str, Value]) -> tuple[int, int]:
    """The number of partitions, and the replication factor."""
    factor: Any = topic.replication_factor
    partitions: Any = topic.num_partitions
    if factor < BROKER_DEFAULT or factor == 0:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} must be larger than 0, or -1 to use the default value.",
        )
    if partitions < BROKER_DEFAULT or partitions == 0:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions {partitions} must be larger than 0, or -1 to use the default "
            "value.",
        )
    if factor == BROKER_DEFAULT:
        factor = broker_config["default.replication.factor"]
    if partitions == BROKER_DEFAULT:
        partitions = broker_config["num.partitions"]
    return partitions, factor


def assign(
    image: ClusterImage,
    allowance: Allowance,
    topic: str,
    partitions: int,
    factor: int,
    random: Random,
) -> list[list[int]]:
    """Choose the replicas of new partitions, `factor` for each.

    Raises:
        Refusal: there are fewer brokers than `factor`, or a limit on replicas is exceeded.
    """
    # Also fenced ones may get replicas, but not those shutting down.
    brokers = [each for each in image.brokers.values() if each.fenced or each.is_active]
    racks = {broker.id: broker.rack for broker in brokers if not broker.fenced}
    fault = ""
    if not racks:
        fault = "All brokers are currently fenced or in controlled shutdown."
    elif factor > len(brokers):
        fault = (
            f"The target replication factor of {factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered."
        )
    if fault:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): {fault}",
        )
    fenced_racks = {broker.id: broker.rack for broker in brokers if broker.fenced}
    return allowance.place(topic, racks, partitions, factor, random, fenced_racks)


def _describe(name: str, value: Value, source: Source) -> CreatableTopicConfigs:
    """An option as in a DescribeConfigs response."""
    return CreatableTopicConfigs(
        name=name,
        value=write(value),
        read_only=False,
        config_source=source,
        is_sensitive=False,
    )


def new_topic_id(random: Random) -> bytes:
    """A random (version 4) UUID whose text form does not begin with '-', like Kafka's."""
    while True:
        drawn = bytearray(random.randbytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        if drawn[0] >> 2 != 62:  # base64url's digit '-', which command lines take for an option
            return bytes(drawn)


def decide_delete(
    image: ClusterImage,
    request: DeleteTopicsRequest,
    enabled: bool,
    whole: WholeRequest | None = None,
) -> Decision:
    """Delete each topic given by name or by id.

    Args:
        whole: state shared with the other parts of a large request.
    """
    wanted: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in request.topic_names]
    wanted += [(topic.name, topic.topic_id) for topic in request.topics]
    times = (whole or WholeRequest()).count(wanted)
    records: dict[bytes, RemoveTopicRecord] = {}  # a request may have a topic's name and its id
    responses = []
    for name, topic_id in dict.fromkeys(wanted):
        code, message = _find_deletable(image, name, topic_id, times, enabled)
        if code is ErrorCode.NONE:
            topic = image.topics[name] if name is not None else image.topics_by_id[topic_id]
            name, topic_id = topic.name, topic.id
            records[topic_id] = RemoveTopicRecord(topic_id=topic_id)
        responses.append(
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=message
            )
        )
    return Decision(
        list(records.values()), DeleteTopicsResponse(throttle_time_ms=0, responses=responses)
    )


def _find_deletable(
    image: ClusterImage,
    name: str | None,
    topic_id: bytes,
    times: Mapping[Hashable, int],
    enabled: bool,
) -> tuple[ErrorCode, str | None]:
    if not enabled:
        return (
            ErrorCode.TOPIC_DELETION_DISABLED,
            "Topic deletion is disabled; set delete.topic.enable=true on the brokers.",
        )
    if name is None and topic_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
    if name is not None and topic_id != ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
    if times[name, topic_id] > 1:
        what = "id" if name is None else "name"
        return ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}."
    if name is None and topic_id not in image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."
    if name is not None and name not in image.topics:
        return (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    return ErrorCode.NONE, None
