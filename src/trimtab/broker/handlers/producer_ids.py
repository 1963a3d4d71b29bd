"""InitProducerId (22), versions 0-6: an id for an idempotent or a transactional producer.

Without a transactional id the producer gets a new id; the id and epoch in the request are ignored,
as by Kafka (`TransactionCoordinator.handleInitProducerId`). With one, the coordinator of the
transactional id fences the producer before it, and gives the next epoch.
"""

from __future__ import annotations

from trimtab.broker.producer_ids import ProducerIds
from trimtab.broker.transactions import Transactions
from trimtab.coordinator.transaction_shard import refuse_init
from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FENCED_SINCE = 4


async def init_producer_id(
    transactions: Transactions,
    ids: ProducerIds,
    header: RequestHeader,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse:
    """A producer id and epoch."""
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            return InitProducerIdResponse(producer_id=await ids.next(), producer_epoch=0)
        await ids.fill()
    except PeerLost:  # the controller cannot be reached; clients retry
        return refuse_init(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response: InitProducerIdResponse = await transactions.ask(
        header,
        transactional_id,
        lambda shard, now, caller: shard.init(now, caller, request),
        refuse_init,
    )
    if response.error_code == ErrorCode.PRODUCER_FENCED and header.api_version < _FENCED_SINCE:
        response.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return response
