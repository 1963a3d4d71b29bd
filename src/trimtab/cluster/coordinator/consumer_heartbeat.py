"""Heartbeats of consumer groups: what each must contain, and how one is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.cluster.coordinator.effects import RequestRefused
from trimtab.cluster.coordinator.pattern_matches import PatternMatches
from trimtab.cluster.coordinator.topic_pattern import PatternRefused
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_group_describe import DescribedGroup
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_NOW: Final = -2
"""Epochs in heartbeats: the member joins, leaves, or is static, leaves and is expected back."""

_MOST_TOPICS: Final = 10_000
"""Names of topics in a subscription."""

NOT_GIVEN: Final = -1
"""In place of a rebalance timeout that stays as it is."""


def refuse_heartbeat(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """A response with an error."""
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=message,
        member_epoch=0,
        heartbeat_interval_ms=0,
    )


def refuse_description(
    group_id: str, code: ErrorCode, message: str | None = None
) -> DescribedGroup:
    """In place of a group that cannot be described."""
    return DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, assignors: Iterable[str], matches: PatternMatches
) -> None:
    """Check a heartbeat on its own.

    Raises:
        RequestRefused: it lacks something, or has what is not supported.
    """
    epoch = request.member_epoch
    if not request.group_id:
        raise RequestRefused(ErrorCode.INVALID_GROUP_ID, "A group has a name.")
    fault = None
    if "" in (request.instance_id, request.rack_id):
        fault = "Instance id and rack id must not be empty: leave them out."
    elif not request.member_id:
        fault = "The member id is missing."
    elif epoch < LEAVE_FOR_NOW:
        fault = f"There is no member epoch {epoch}."
    elif epoch == LEAVE_FOR_NOW and request.instance_id is None:
        fault = "Only a member with an instance id leaves with epoch -2."
    elif len(request.subscribed_topic_names or ()) > _MOST_TOPICS:
        fault = f"A member subscribes to {_MOST_TOPICS} topics at most: use a regular expression."
    elif epoch == JOIN:
        if request.rebalance_timeout_ms == NOT_GIVEN:
            fault = "A member that joins gives its rebalance timeout."
        elif request.topic_partitions is None or request.topic_partitions:
            fault = "A member that joins has no partitions, and says so with an empty list."
        elif not request.subscribed_topic_names and not request.subscribed_topic_regex:
            fault = "A member that joins subscribes to topics, or with a regular expression."
    if fault is not None:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, fault)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor}; there are {', '.join(assignors)}.",
        )
    if request.subscribed_topic_regex:
        try:
            matches.find(request.subscribed_topic_regex)
        except PatternRefused as refused:
            raise RequestRefused(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The regular expression {request.subscribed_topic_regex!r} is refused: {refused}.",
            ) from None
