"""Decisions about brokers: registration, fencing, shutdown (KIP-631, KIP-841, KIP-966).

    registered, fenced ─▶ caught up: unfenced ─▶ in controlled shutdown ─▶ fenced, may end
            ▲                    │ session ended
            └────────────────────┘

Source: Kafka's `ClusterControlManager` and `BrokerHeartbeatManager`.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from trimtab.cluster.controller.decision import Decision
from trimtab.cluster.controller.leader_changes import (
    elect_where_missing,
    remove_from_isrs,
    remove_from_isrs_and_elrs,
)
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.metadata.image import (
    FENCE,
    UNFENCE,
    BrokerRegistration,
    ClusterImage,
    register_broker_record,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from trimtab.kafka.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from trimtab.kafka.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)
from trimtab.kafka.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

_IN_CONTROLLED_SHUTDOWN = 1
_MOST_NAMED = 1000
"""Listeners, features or directories of one broker at most, as one record contains them all."""

_log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """How far brokers have replayed the metadata log, as offsets of the next record.

    Attributes:
        shutdown_offset: the offset after the records that moved this broker's leaders away.
        lowest_active: the lowest offset of all active brokers.
    """

    shutdown_offset: int
    lowest_active: int


def is_current(image: ClusterImage, broker_id: int, epoch: int) -> bool:
    """Whether `epoch` is the broker's current epoch; if not, it gets STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.epoch == epoch


def decide_registration(
    image: ClusterImage,
    rules: TopicRules,
    request: BrokerRegistrationRequest,
    cluster_id: str,
    next_offset: int,
    is_connected: bool,
) -> Decision:
    """BrokerRegistration: a new incarnation gets a new epoch, and begins fenced.

    It is removed from all ISRs. If the previous incarnation did not close cleanly, its logs may
    have lost records, and it is removed from the ELRs, too. It closed cleanly if
    `previous_broker_epoch` is its epoch; or that of the one before it, if it has sent no heartbeat:
    then it may have ended before it knew its epoch, and has lost nothing, either.

    Args:
        next_offset: the offset of the next record in the journal.
        is_connected: whether another incarnation of the broker is still connected.
    """
    code = _check_registration(image, request, cluster_id, is_connected)
    if code is not ErrorCode.NONE:
        return Decision([], BrokerRegistrationResponse(error_code=code))
    listener = request.listeners[0]
    before = image.brokers.get(request.broker_id)
    records: list[Any] = []
    registered = BrokerRegistration(
        request.broker_id,
        next_offset,
        request.incarnation_id,
        listener.host,
        listener.port,
        request.rack,
        fenced=True,
        log_dirs=tuple(request.log_dirs),
    )
    if before is not None and before.incarnation_id == request.incarnation_id:
        registered = registered._replace(
            epoch=before.epoch,
            fenced=before.fenced,
            in_controlled_shutdown=before.in_controlled_shutdown,
        )
    elif before is not None:
        was_clean = request.previous_broker_epoch == before.epoch
        remove = remove_from_isrs if was_clean else remove_from_isrs_and_elrs
        records = remove(image, rules, before.id)
        registered = registered._replace(epoch=next_offset + len(records))
        _log.info(
            "a broker is back broker=%d epoch=%d clean=%s", before.id, registered.epoch, was_clean
        )
    records.append(register_broker_record(registered))
    return Decision(records, BrokerRegistrationResponse(broker_epoch=registered.epoch))


def _check_registration(
    image: ClusterImage, request: BrokerRegistrationRequest, cluster_id: str, is_connected: bool
) -> ErrorCode:
    if request.cluster_id != cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    before = image.brokers.get(request.broker_id)
    if before is not None and before.incarnation_id != request.incarnation_id and is_connected:
        return ErrorCode.DUPLICATE_BROKER_REGISTRATION
    named = max(len(request.listeners), len(request.features), len(request.log_dirs))
    if request.broker_id < 0 or not request.listeners or named > _MOST_NAMED:
        return ErrorCode.INVALID_REGISTRATION
    for feature in request.features:
        level = image.features.get(feature.name, 0)
        if level and not feature.min_supported_version <= level <= feature.max_supported_version:
            return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


def decide_heartbeat(
    image: ClusterImage, rules: TopicRules, request: BrokerHeartbeatRequest, progress: Progress
) -> Decision:
    """BrokerHeartbeat: the broker's new state."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    is_caught_up = request.current_metadata_offset >= broker.epoch
    records: list[Any] = []
    is_fenced, ends = broker.fenced, False
    if not set(broker.log_dirs).isdisjoint(request.offline_log_dirs):
        # KIP-858: the broker's only directory. It may have lost acknowledged records.
        _log.warning("a log directory has failed broker=%d epoch=%d", broker.id, broker.epoch)
        records = remove_from_isrs_and_elrs(image, rules, broker.id)
        if not broker.fenced:
            is_fenced = True
            records.append(_change_record(broker, fenced=FENCE))
    elif broker.fenced:
        if request.want_shut_down:
            ends = True
        elif not request.want_fence and is_caught_up:
            is_fenced = False
            records.append(_change_record(broker, fenced=UNFENCE))
            records += elect_where_missing(image, rules, broker.id)
    elif request.want_fence:
        is_fenced, ends = True, request.want_shut_down
        records = fence(image, rules, broker)
    elif request.want_shut_down:
        leads = _leads_anything(image, broker.id)
        if leads and not broker.in_controlled_shutdown:
            records.append(_change_record(broker, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN))
            records += remove_from_isrs(image, rules, broker.id)
        elif not leads and (
            not broker.in_controlled_shutdown or progress.shutdown_offset <= progress.lowest_active
        ):
            is_fenced = ends = True
            records = fence(image, rules, broker)
    return Decision(
        records,
        BrokerHeartbeatResponse(
            is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=ends
        ),
    )


def fence(image: ClusterImage, rules: TopicRules, broker: BrokerRegistration) -> list[Any]:
    """Fence a broker: remove it from the ISRs and elect other leaders."""
    return [*remove_from_isrs(image, rules, broker.id), _change_record(broker, fenced=FENCE)]


def decide_unregistration(
    image: ClusterImage, rules: TopicRules, request: UnregisterBrokerRequest
) -> Decision:
    """UnregisterBroker: remove a broker, and its replicas from all ISRs and ELRs."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Decision(
            [],
            UnregisterBrokerResponse(
                error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                error_message=f"Broker ID {request.broker_id} is not currently registered",
            ),
        )
    records = remove_from_isrs_and_elrs(image, rules, broker.id)
    records.append(UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
    return Decision(records, UnregisterBrokerResponse(error_message=None))


def _leads_anything(image: ClusterImage, broker_id: int) -> bool:
    return any(
        partition.leader == broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _change_record(
    broker: BrokerRegistration, fenced: int = 0, in_controlled_shutdown: int = 0
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )
