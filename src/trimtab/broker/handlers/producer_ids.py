"""InitProducerId (22), versions 0-5: an id for an idempotent producer.

The broker gets ids from the controller in blocks of a thousand and gives each to one producer only.
The producer id and epoch in the request are ignored: without a transactional id the producer gets a
new id, as from Kafka (`TransactionCoordinator.handleInitProducerId`).

A transactional id is refused with UNSUPPORTED_VERSION, which clients treat as fatal; the response
has no room for a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trimtab.broker.broker import Broker


def init_producer_id(
    broker: Broker, header: RequestHeader, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id, with epoch 0."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return _allocate(broker)


async def _allocate(broker: Broker) -> InitProducerIdResponse:
    try:
        producer_id = await broker.next_producer_id()
    except PeerLost:  # the controller cannot be reached; clients retry
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )
