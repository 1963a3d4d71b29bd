"""CreateTopics (19), versions 2-7, and DeleteTopics (20), versions 1-6.

The controller decides (`trimtab.controller.topics` says what is refused and how). The answer comes
when every broker has the new partitions, or has dropped the old ones: no time-out is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker


def create_topics(
    broker: Broker, header: RequestHeader, request: CreateTopicsRequest
) -> Awaitable[CreateTopicsResponse]:
    """Forwarded to the controller."""
    return broker.controller.create_topics(request)


def delete_topics(
    broker: Broker, header: RequestHeader, request: DeleteTopicsRequest
) -> Awaitable[DeleteTopicsResponse]:
    """Forwarded to the controller."""
    return broker.controller.delete_topics(request)
