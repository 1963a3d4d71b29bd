"""Requests that the controller carries out: forwarded unchanged, and so is its response.

CreateTopics (19), DeleteTopics (20), AlterConfigs (33), CreatePartitions (37), ElectLeaders (43),
IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46),
DescribeQuorum (55), UnregisterBroker (64).

The response to a change is sent when the brokers have replayed it. If the controller does not
answer within the request's time-out, and within 5 s at least, the response has REQUEST_TIMED_OUT
for each topic or resource of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.server.turns import Pace, Steps, in_turns
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
"""The controller keeps to the request's time-out, which librdkafka sets to 0 if it does not wait
for the brokers. If we gave up that early, we would close the connection for all other requests."""

_DEFAULT_TIMEOUT_MS = 30_000
_MAX_TIMEOUT_MS = 300_000
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_MESSAGE = "The controller did not answer in time; whether it carried out the request is not known."


async def forward(broker: Broker, header: RequestHeader, request: Any) -> Any:
    """The controller's response, or one with REQUEST_TIMED_OUT."""
    timeout_ms = getattr(request, "timeout_ms", _DEFAULT_TIMEOUT_MS)
    timeout_s = min(max(timeout_ms, _LEAST_TIMEOUT_MS), _MAX_TIMEOUT_MS) / 1000
    try:
        return await broker.controller.ask_once_connected(request, timeout_s, header.api_version)
    except PeerLost:
        return await in_turns(_time_out(_TIME_OUTS[header.api_key], request))


class _TimeOut(NamedTuple):
    """How to build the response when the controller does not answer.

    Attributes:
        response: the response's class.
        fields: values of the response's other fields.
        answers: the name of the response's array of results; empty if it has none.
        things: the request's topics or resources, one for each result.
        answer: builds the result for one of them.
    """

    response: type
    fields: dict[str, Any]
    answers: str = ""
    things: Callable[[Any], Iterable[Any]] = lambda request: ()
    answer: Callable[[Any], Any] = lambda thing: thing


def _time_out(how: _TimeOut, request: Any) -> Steps[Any]:
    pace = Pace()
    answers = []
    for thing in how.things(request):
        answers.append(how.answer(thing))
        if pace.spend():
            yield
    array = {how.answers: answers} if how.answers else {}
    return how.response(**how.fields, **array)


_CODE: dict[str, Any] = {"error_code": _TIMED_OUT}
_FAULT: dict[str, Any] = {"error_code": _TIMED_OUT, "error_message": _MESSAGE}
_UNTHROTTLED: dict[str, Any] = {"throttle_time_ms": 0}


def _create_topic(topic: Any) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, topic_id=ZERO_UUID, configs=[], **_FAULT)


def _delete_topic(topic: Any) -> DeletableTopicResult:
    name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else (topic.name, topic.topic_id)
    return DeletableTopicResult(name=name, topic_id=topic_id, **_FAULT)


def _alter_configs(resource: Any) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **_FAULT
    )


def _incremental_alter_configs(resource: Any) -> IncrementalResourceResponse:
    return IncrementalResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **_FAULT
    )


def _create_partitions(topic: Any) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic.name, **_FAULT)


_TOPICS = attrgetter("topics")
_RESOURCES = attrgetter("resources")
_TIME_OUTS = {
    19: _TimeOut(CreateTopicsResponse, _UNTHROTTLED, "topics", _TOPICS, _create_topic),
    20: _TimeOut(
        *(DeleteTopicsResponse, _UNTHROTTLED, "responses"),
        lambda request: chain(request.topic_names, request.topics),
        _delete_topic,
    ),
    33: _TimeOut(AlterConfigsResponse, _UNTHROTTLED, "responses", _RESOURCES, _alter_configs),
    37: _TimeOut(CreatePartitionsResponse, _UNTHROTTLED, "results", _TOPICS, _create_partitions),
    43: _TimeOut(ElectLeadersResponse, _UNTHROTTLED | _CODE, "replica_election_results"),
    44: _TimeOut(
        *(IncrementalAlterConfigsResponse, _UNTHROTTLED, "responses", _RESOURCES),
        _incremental_alter_configs,
    ),
    45: _TimeOut(AlterPartitionReassignmentsResponse, _UNTHROTTLED | _FAULT, "responses"),
    46: _TimeOut(ListPartitionReassignmentsResponse, _UNTHROTTLED | _FAULT, "topics"),
    55: _TimeOut(DescribeQuorumResponse, _FAULT, "topics"),
    64: _TimeOut(UnregisterBrokerResponse, _UNTHROTTLED | _FAULT),
}

FORWARDED = tuple(_TIME_OUTS)
"""The API keys that are forwarded."""
