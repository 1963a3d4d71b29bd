"""Changes of leaders and ISRs: when brokers come and go, on request, and periodically.

Source: Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from trimtab.cluster.controller.decision import Decision
from trimtab.cluster.controller.election import Election, change_partition
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.metadata.image import ClusterImage, PartitionRegistration, TopicImage
from trimtab.kafka.errors import ErrorCode, Refusal
from trimtab.kafka.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.metadata_records import PartitionChangeRecord
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_LEADER

MAX_ELECTIONS = 1000
"""Leaders moved at a time when they are balanced, as in Kafka."""

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}
"""By `ElectionType`."""


_log = logging.getLogger(__name__)


def active_brokers(image: ClusterImage) -> set[int]:
    """The brokers that may lead and join ISRs. Use the set for look-ups only, not for iteration,
    as its order is not defined."""
    return {broker.id for broker in image.brokers.values() if broker.is_active}


def remove_from_isrs(image: ClusterImage, rules: TopicRules, broker_id: int) -> list[Any]:
    """Remove a fenced or stopping broker from all ISRs and from leadership.

    Where the ISR becomes smaller than `min.insync.replicas`, it joins the ELR, as its log is
    complete (KIP-966).
    """
    return _change(
        image,
        rules,
        (each for each in image.partitions_with(broker_id) if broker_id in each[1].isr),
        active_brokers(image) - {broker_id},
        removed=broker_id,
    )


def remove_from_isrs_and_elrs(image: ClusterImage, rules: TopicRules, broker_id: int) -> list[Any]:
    """Remove a broker that may have lost records, or is unregistered, from all ISRs and ELRs."""
    return _change(
        image,
        rules,
        image.partitions_with(broker_id),
        active_brokers(image) - {broker_id},
        removed=broker_id,
        lost=(broker_id,),
    )


def elect_where_missing(image: ClusterImage, rules: TopicRules, broker_id: int) -> list[Any]:
    """Elect leaders for partitions without one that have a replica on an unfenced broker."""
    return _change(
        image,
        rules,
        (each for each in image.partitions_without_leader() if broker_id in each[1].replicas),
        active_brokers(image) | {broker_id},
    )


def review_eligible(image: ClusterImage, rules: TopicRules) -> list[Any]:
    """Clear the ELR where the ISR has `min.insync.replicas`, as ELR members may lag behind then.

    Called at the start of a controller, whose static `min.insync.replicas` may have changed.
    """
    partitions = (
        (topic, partition)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.elr and partition.leader != NO_LEADER
    )
    return _change(image, rules, partitions, active_brokers(image))


def balance_leaders(image: ClusterImage, rules: TopicRules) -> list[Any]:
    """Elect the preferred leaders of up to `MAX_ELECTIONS` partitions."""
    active = active_brokers(image)
    changes = (
        change_partition(
            topic.id,
            partition,
            partition,
            active.__contains__,
            rules.min_isr(topic.name),
            Election.PREFERRED,
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader != partition.preferred_leader in active
    )
    return list(islice((record for record in changes if record is not None), MAX_ELECTIONS))


def elect_unclean_where_missing(image: ClusterImage, rules: TopicRules) -> list[Any]:
    """Elect leaders for partitions without one, where unclean elections are allowed."""
    leaderless = image.partitions_without_leader()
    partitions = (each for each in leaderless if rules.allows_unclean(each[0].name))
    return _change(image, rules, partitions, active_brokers(image))


def name_partitions(image: ClusterImage, request: ElectLeadersRequest) -> ElectLeadersRequest:
    """The request with its partitions. If it names none, all partitions of the cluster that need
    an election."""
    election = _ELECTIONS.get(request.election_type)
    if request.topic_partitions is not None or election is None:
        return request
    return ElectLeadersRequest(
        election_type=request.election_type,
        timeout_ms=request.timeout_ms,
        topic_partitions=[
            TopicPartitions(
                topic=topic.name,
                partitions=[each.id for each in topic.partitions if _is_needed(each, election)],
            )
            for topic in image.topics.values()
        ],
    )


def decide_elections(
    image: ClusterImage, rules: TopicRules, request: ElectLeadersRequest
) -> Decision:
    """ElectLeaders: a result for each partition."""
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        return Decision([], ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    wanted = name_partitions(image, request).topic_partitions or ()
    active = active_brokers(image)
    records: list[Any] = []
    results = []
    for topic in wanted:
        result = ReplicaElectionResult(topic=topic.topic, partition_result=[])
        results.append(result)
        for index in dict.fromkeys(topic.partitions):
            code, message = ErrorCode.NONE, None
            try:
                records.append(
                    _elect(image, rules, topic.topic, index, election, active.__contains__)
                )
            except Refusal as refusal:
                code, message = refusal.code, refusal.message
            result.partition_result.append(
                PartitionResult(partition_id=index, error_code=code, error_message=message)
            )
    return Decision(records, ElectLeadersResponse(replica_election_results=results))


def _is_needed(partition: PartitionRegistration, election: Election) -> bool:
    if election is Election.PREFERRED:
        return partition.leader != partition.preferred_leader
    return partition.leader == NO_LEADER


def _elect(
    image: ClusterImage,
    rules: TopicRules,
    name: str,
    index: int,
    election: Election,
    is_active: Callable[[int], bool],
) -> PartitionChangeRecord:
    topic = image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = image.partition(topic.id, index)
    if partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if not _is_needed(partition, election):
        raise Refusal(
            ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
    record = change_partition(
        topic.id, partition, partition, is_active, rules.min_isr(name), election
    )
    if record is not None:
        return record
    if election is Election.PREFERRED:
        raise Refusal(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
        )
    raise Refusal(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    )


def _change(
    image: ClusterImage,
    rules: TopicRules,
    partitions: Iterable[tuple[TopicImage, PartitionRegistration]],
    active: set[int],
    removed: int = NO_BROKER,
    lost: tuple[int, ...] = (),
) -> list[Any]:
    """The change records of these partitions, with `removed` taken out of their ISRs."""
    is_active = active.__contains__
    records: list[Any] = []
    name = None
    min_isr, election = 1, Election.ONLINE
    for topic, partition in partitions:
        if topic.name != name:
            name = topic.name
            min_isr = rules.min_isr(name)
            election = Election.UNCLEAN if rules.allows_unclean(name) else Election.ONLINE
        wanted = partition
        if removed in partition.isr:
            isr = tuple(replica for replica in partition.isr if replica != removed)
            wanted = partition._replace(isr=isr)
        record = change_partition(topic.id, partition, wanted, is_active, min_isr, election, lost)
        if record is not None:
            records.append(record)
    if records:
        _log.info("changing partitions=%d removed=%d lost=%s", len(records), removed, lost)
    return records
