"""Requests that the controller carries out: forwarded unchanged, and so is its response.

CreateTopics (19), DeleteTopics (20), AlterConfigs (33), CreatePartitions (37), ElectLeaders (43),
IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46),
DescribeQuorum (55), UpdateFeatures (57), UnregisterBroker (64).

The response to a change is sent when the brokers have replayed it. If the controller does not
answer within the request's time-out, and within 5 s at least, the response has REQUEST_TIMED_OUT
for each topic or resource of the request.
"""

from __future__ import annotations

from typing import Any

from trimtab.cluster.broker.link import Link
from trimtab.cluster.server.peer import PeerLost
from trimtab.cluster.server.turns import Pace, Steps, in_turns
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages import (
    APIS_BY_REQUEST,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from trimtab.kafka.wire.schema import Request, Schema, schema

_LEAST_TIMEOUT_MS = 5000
"""The controller keeps to the request's time-out, which librdkafka sets to 0 if it does not wait
for the brokers. If we gave up that early, we would close the connection for all other requests."""

_DEFAULT_TIMEOUT_MS = 30_000
_MAX_TIMEOUT_MS = 300_000
_MESSAGE = "The controller did not answer in time; whether it carried out the request is not known."


async def forward(link: Link, header: RequestHeader, request: Request[Any]) -> Any:
    """The controller's response, or one with REQUEST_TIMED_OUT."""
    timeout_ms = getattr(request, "timeout_ms", _DEFAULT_TIMEOUT_MS)
    timeout_s = min(max(timeout_ms, _LEAST_TIMEOUT_MS), _MAX_TIMEOUT_MS) / 1000
    try:
        return await link.ask_once_connected(request, timeout_s, header.api_version)
    except PeerLost:
        return await in_turns(_time_out(request))


def _time_out(request: Request[Any]) -> Steps[Any]:
    """The response with REQUEST_TIMED_OUT, derived from the declarations of both messages.

    If the response has an error code of its own, only that is set. Otherwise it has a result for
    each element of the request's arrays: for each topic or resource.
    """
    response = schema(APIS_BY_REQUEST[type(request)].response)
    answer = _refusal(response, request)
    if any(each.name == "error_code" for each in response.fields):
        return answer
    (array,) = (each for each in response.fields if each.is_array)
    assert isinstance(array.type, Schema)
    results = getattr(answer, array.name)
    pace = Pace()
    for field in schema(type(request)).fields:
        for asked in getattr(request, field.name) if field.is_array else ():
            results.append(_refusal(array.type, asked))
            if pace.spend():
                yield
    return answer


_SUBJECT = ("name", "topic_id", "resource_type", "resource_name")
"""The fields that say which topic or resource a result is about."""


def _refusal(kind: Schema, asked: object) -> Any:
    """A response, or the result for the `asked` topic or resource, with REQUEST_TIMED_OUT."""
    values: dict[str, object] = {}
    for field in kind.fields:
        if field.name == "error_code":
            values[field.name] = ErrorCode.REQUEST_TIMED_OUT
        elif field.name == "error_message":
            values[field.name] = _MESSAGE
        elif field.name == "name" and isinstance(asked, str):
            values[field.name] = asked
        elif field.name in _SUBJECT and hasattr(asked, field.name):
            values[field.name] = getattr(asked, field.name)
        elif field.required:
            values[field.name] = [] if field.is_array else field.default
    return kind.cls(**values)


FORWARDED: tuple[type[Request[Any]], ...] = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    AlterConfigsRequest,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    DescribeQuorumRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
"""The requests that are forwarded."""
