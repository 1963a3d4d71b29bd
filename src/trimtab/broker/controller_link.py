"""A broker's connection to the controller, opened again whenever it is lost."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from trimtab.server.faults import Faults
from trimtab.server.peer import Peer, PeerLost
from trimtab.wire.schema import Request

Response = TypeVar("Response")

_CONNECT_TIMEOUT_S = 5.0
_FIRST_BACKOFF_S = 0.02
_MAX_BACKOFF_S = 1.0


class ControllerLink:
    """A connection to the controller for one kind of request, so that a slow request delays no
    others.

    Args:
        host: the controller's host.
        port: the controller's port.
        client_id: names the sender in the controller's log.
        faults: those of the broker.
    """

    def __init__(self, host: str, port: int, client_id: str, faults: Faults | None = None) -> None:
        self._host = host
        self._port = port
        self._client_id = client_id
        self._faults = faults
        self._peer: Peer | None = None
        self._connecting: asyncio.Task[Peer] | None = None

    async def ask(
        self, request: Request[Response], timeout_s: float, version: int | None = None
    ) -> Response:
        """Send a request, in the newest version unless one is given; returns the response.

        Raises:
            PeerLost: the controller cannot be reached, or does not answer in time; it may have
                carried out the request.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self._connect()).ask(request, version)
        except TimeoutError as error:
            self.close()  # a late response would be taken for that to the next request
            raise PeerLost(
                f"the controller at {self._host}:{self._port} does not answer within {timeout_s} s"
            ) from error

    async def ask_until_answered(self, request: Request[Response], timeout_s: float) -> Response:
        """Like `ask`, but send the request again while the controller is lost, until the time is
        over. Only for requests that may be carried out twice."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                return await self.ask(request, max(0.001, deadline_s - loop.time()))
            except PeerLost:
                if loop.time() + backoff_s >= deadline_s:
                    raise
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def ask_once_connected(
        self, request: Request[Response], timeout_s: float, version: int
    ) -> Response:
        """Like `ask`, but wait until the controller can be reached. A request is sent once only."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._connect()
            except TimeoutError as error:
                raise PeerLost("the controller cannot be reached") from error
            except PeerLost:
                if loop.time() + backoff_s >= deadline_s:
                    raise
            else:
                return await self.ask(request, max(0.001, deadline_s - loop.time()), version)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            if connecting.done() and not connecting.cancelled() and not connecting.exception():
                connecting.result().close()  # connected, but not yet stored in `_peer`
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _connect(self) -> Peer:
        if self._peer is not None and not self._peer.is_lost:
            return self._peer
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(
                Peer.connect(
                    self._host, self._port, self._client_id, _CONNECT_TIMEOUT_S, self._faults
                )
            )
        connecting = self._connecting
        try:
            peer = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and (task is None or not task.cancelling()):
                raise PeerLost("the link to the controller is closed") from None
            raise
        finally:
            if connecting.done() and self._connecting is connecting:
                self._connecting = None
        self._peer = peer
        return peer
