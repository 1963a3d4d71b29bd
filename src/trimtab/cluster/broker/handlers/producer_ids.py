"""InitProducerId (22), versions 0-6: an id for an idempotent or a transactional producer.

Without a transactional id the producer gets a new id; the id and epoch in the request are ignored,
as by Kafka (`TransactionCoordinator.handleInitProducerId`). With one, the coordinator of the
transactional id fences the producer before it, and gives the next epoch.
"""

from __future__ import annotations

from trimtab.cluster.broker.producer_ids import ProducerIds
from trimtab.cluster.broker.transactions import TransactionCoordinator
from trimtab.cluster.coordinator.transaction_shard import refuse_init
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FENCED_SINCE = 4


async def init_producer_id(
    transactions: TransactionCoordinator,
    ids: ProducerIds,
    header: RequestHeader,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse:
    """A producer id and epoch."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        producer_id = ids.take_producer_id()
        if producer_id is None:  # clients retry
            return refuse_init(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    response: InitProducerIdResponse = await transactions.ask_shard(
        header,
        transactional_id,
        lambda shard, now, caller: shard.init(now, caller, request),
        refuse_init,
    )
    if response.error_code == ErrorCode.PRODUCER_FENCED and header.api_version < _FENCED_SINCE:
        response.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return response
