"""Requests that the controller carries out: passed on as they are, with its answer.

CreateTopics (19), DeleteTopics (20), AlterConfigs (33), CreatePartitions (37), ElectLeaders (43),
IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46),
DescribeQuorum (55), UnregisterBroker (64).

The answer to a change comes when the brokers have learnt of it. For a controller that is away for
longer than the request may take, and for 5 s at least, the answer is REQUEST_TIMED_OUT, for each
thing that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse
from trimtab.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
)
from trimtab.wire.messages.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from trimtab.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from trimtab.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from trimtab.wire.messages.describe_quorum import DescribeQuorumResponse
from trimtab.wire.messages.elect_leaders import ElectLeadersResponse
from trimtab.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from trimtab.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from trimtab.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from trimtab.wire.messages.unregister_broker import UnregisterBrokerResponse
from trimtab.wire.types import ZERO_UUID

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_LEAST_TIMEOUT_MS = 5000
"""The controller itself keeps to the time of the request, which is 0 where librdkafka is not to
wait for the brokers. Giving up before it can answer would cost all others the connection."""

_DEFAULT_TIMEOUT_MS = 30_000
_MAX_TIMEOUT_MS = 300_000
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_MESSAGE = "The controller did not answer in time; whether it carried out the request is not known."


async def forward(broker: Broker, header: RequestHeader, request: Any) -> Any:
    """The controller's answer, or one that says that there is none."""
    timeout_ms = getattr(request, "timeout_ms", _DEFAULT_TIMEOUT_MS)
    timeout_s = min(max(timeout_ms, _LEAST_TIMEOUT_MS), _MAX_TIMEOUT_MS) / 1000
    try:
        return await broker.controller.ask_when_there(request, timeout_s, header.api_version)
    except PeerLost:
        return _TIME_OUTS[header.api_key](request)


def _create_topics(request: Any) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        throttle_time_ms=0,
        topics=[
            CreatableTopicResult(
                name=topic.name,
                topic_id=ZERO_UUID,
                error_code=_TIMED_OUT,
                error_message=_MESSAGE,
                configs=[],
            )
            for topic in request.topics
        ],
    )


def _delete_topics(request: Any) -> DeleteTopicsResponse:
    wanted = [(name, ZERO_UUID) for name in request.topic_names]
    wanted += [(topic.name, topic.topic_id) for topic in request.topics]
    return DeleteTopicsResponse(
        throttle_time_ms=0,
        responses=[
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=_TIMED_OUT, error_message=_MESSAGE
            )
            for name, topic_id in wanted
        ],
    )


def _alter_configs(request: Any) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        throttle_time_ms=0,
        responses=[
            AlterConfigsResourceResponse(
                error_code=_TIMED_OUT,
                error_message=_MESSAGE,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        ],
    )


def _incremental_alter_configs(request: Any) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        throttle_time_ms=0,
        responses=[
            IncrementalResourceResponse(
                error_code=_TIMED_OUT,
                error_message=_MESSAGE,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        ],
    )


def _create_partitions(request: Any) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        throttle_time_ms=0,
        results=[
            CreatePartitionsTopicResult(
                name=topic.name, error_code=_TIMED_OUT, error_message=_MESSAGE
            )
            for topic in request.topics
        ],
    )


def _elect_leaders(request: Any) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        throttle_time_ms=0, error_code=_TIMED_OUT, replica_election_results=[]
    )


def _alter_reassignments(request: Any) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=_TIMED_OUT, error_message=_MESSAGE, responses=[]
    )


def _list_reassignments(request: Any) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=_TIMED_OUT, error_message=_MESSAGE, topics=[]
    )


def _describe_quorum(request: Any) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_code=_TIMED_OUT, error_message=_MESSAGE, topics=[], nodes=[]
    )


def _unregister_broker(request: Any) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(
        throttle_time_ms=0, error_code=_TIMED_OUT, error_message=_MESSAGE
    )


_TIME_OUTS: dict[int, Callable[[Any], Any]] = {
    19: _create_topics,
    20: _delete_topics,
    33: _alter_configs,
    37: _create_partitions,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    45: _alter_reassignments,
    46: _list_reassignments,
    55: _describe_quorum,
    64: _unregister_broker,
}

FORWARDED = tuple(_TIME_OUTS)
"""The API keys that are passed on."""
