"""Producer ids, which this broker gets from the controller in blocks of a thousand, ahead: so that
producers can start while the controller is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trimtab.cluster.broker.link import Link
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest

_TIMEOUT_S = 10.0
_ENOUGH = 1000
"""With so many ids left, the next block is fetched."""

_log = logging.getLogger(__name__)


class ProducerIds:
    """Gives each id of this broker's blocks to one producer.

    Args:
        broker_epoch: returns this broker's current epoch.
        link: the connection to the controller.
    """

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], link: Link) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._link = link
        self._blocks: list[range] = []
        self._fetching: asyncio.Task[None] | None = None

    def take_producer_id(self) -> int | None:
        """A producer id that no producer has been given before; None if there is none right now:
        the controller has not been reached for long."""
        left = sum(map(len, self._blocks))
        if left <= _ENOUGH and self._fetching is None:
            self._fetch_later()
        if not left:
            return None
        block = self._blocks[0]
        self._blocks[0] = block[1:]
        if len(block) == 1:
            del self._blocks[0]
        return block[0]

    async def fill(self) -> None:
        """Get the first ids, unless the controller does not give them in time."""
        await asyncio.wait([self._fetching or self._fetch_later()])

    def close(self) -> None:
        """Fetch no more."""
        if self._fetching is not None:
            self._fetching.cancel()

    def _fetch_later(self) -> asyncio.Task[None]:
        fetching = self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        fetching.add_done_callback(self._fetched)
        return fetching

    def _fetched(self, fetching: asyncio.Task[None]) -> None:
        self._fetching = None
        if not fetching.cancelled() and (error := fetching.exception()) is not None:
            _log.warning("no producer ids broker=%d error=%s", self._broker_id, error)

    async def _fetch(self) -> None:
        request = AllocateProducerIdsRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch()
        )
        block = await self._link.ask_until_answered(request, _TIMEOUT_S)
        if block.error_code:
            raise PeerLost(f"the controller gives no producer ids: error {block.error_code}")
        first = block.producer_id_start
        self._blocks.append(range(first, first + block.producer_id_len))
