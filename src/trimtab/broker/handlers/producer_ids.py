"""InitProducerId (22), versions 0-5: an id for an idempotent producer.

The broker gets ids from the controller in blocks of a thousand and gives each to one producer only.
The producer id and epoch in the request are ignored: without a transactional id the producer gets a
new id, as from Kafka (`TransactionCoordinator.handleInitProducerId`).

A transactional id is refused with UNSUPPORTED_VERSION, which clients treat as fatal; the response
has no room for a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trimtab.broker.controller_link import ControllerLink
from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_TIMEOUT_S = 10.0


class ProducerIds:
    """Gives each id of this broker's blocks to one producer.

    Args:
        broker_epoch: returns this broker's current epoch.
        link: the connection to the controller.
    """

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], link: ControllerLink
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._link = link
        self._ids = iter(range(0))

    async def next(self) -> int:
        """A producer id that no producer has been given before.

        Raises:
            PeerLost: the controller cannot be reached, or refuses.
        """
        while (producer_id := next(self._ids, None)) is None:
            block = await self._link.ask_until_answered(
                AllocateProducerIdsRequest(
                    broker_id=self._broker_id, broker_epoch=self._broker_epoch()
                ),
                _TIMEOUT_S,
            )
            if block.error_code:
                raise PeerLost(f"the controller gives no producer ids: error {block.error_code}")
            first = block.producer_id_start
            self._ids = iter(range(first, first + block.producer_id_len))
        return producer_id


def init_producer_id(
    ids: ProducerIds, header: RequestHeader, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id, with epoch 0."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return _allocate(ids)


async def _allocate(ids: ProducerIds) -> InitProducerIdResponse:
    try:
        producer_id = await ids.next()
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
