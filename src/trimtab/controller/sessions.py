"""Who is in touch with the controller: soft state, gone when it ends.

    heartbeat ─▶ session ─┬─ no other for broker.session.timeout.ms ─────────▶ ended
                          └─ its connection is lost, and nobody listens ─────▶ ended, at once
                             at the broker's address any more

A lost connection alone proves nothing, as the broker may connect again. But a connection refused
where the broker listened tells that its process is gone; no other error does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Probe: TypeAlias = Callable[[str, int], Awaitable[bool]]
"""Whether a connection to this host and port is refused. False for whatever else happens."""

_PROBE_INTERVAL_S = 0.2
_FIRST_PROBE_INTERVAL_S = 0.01
"""Of a process that ends, the system may close the listening socket last."""


class Session:
    """One incarnation of a broker that is in touch."""

    __slots__ = ("connection", "deadline", "epoch", "is_cut", "prober")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.deadline: asyncio.TimerHandle | None = None
        self.connection: object = None
        self.is_cut = False
        self.prober: asyncio.Task[None] | None = None


class Sessions:
    """The sessions of all brokers.

    Args:
        timeout_s: `broker.session.timeout.ms`, in seconds.
        probe: looks whether a broker's process is gone.
        address: the advertised host and port of a broker; None if it is not registered.
        on_end: called with a broker's id when its session has ended by itself, and why.
    """

    def __init__(
        self,
        timeout_s: float,
        probe: Probe,
        address: Callable[[int], tuple[str, int] | None],
        on_end: Callable[[int, str], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._probe = probe
        self._address = address
        self._on_end = on_end
        self._sessions: dict[int, Session] = {}

    def touch(self, broker_id: int, epoch: int, connection: object = None) -> None:
        """A broker is heard of, on this connection; on none, if it is only to be given time."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            self.drop(broker_id)
            session = self._sessions[broker_id] = Session(epoch)
        if session.deadline is not None:
            session.deadline.cancel()
        session.deadline = asyncio.get_running_loop().call_later(
            self._timeout_s, self._end, broker_id, "its session timed out"
        )
        session.connection = connection
        session.is_cut = False
        if session.prober is not None:
            session.prober.cancel()
            session.prober = None

    def is_taken(self, broker_id: int, epoch: int) -> bool:
        """Whether this incarnation of a broker is in touch: another one must wait.

        One that has no connection is not: the newcomer has one, and if the other comes back it
        hears that its epoch is stale, so nothing is lost but its turn.
        """
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.epoch == epoch
            and session.connection is not None
            and not session.is_cut
        )

    def lost(self, connection: object) -> None:
        """A connection is gone; look after the broker whose last heartbeat came on it."""
        for broker_id, session in self._sessions.items():
            if session.connection is connection and not session.is_cut:
                session.is_cut = True
                session.prober = asyncio.create_task(self._look_after(broker_id))

    def drop(self, broker_id: int) -> None:
        """A broker has ended, or begins anew: forget its session."""
        session = self._sessions.pop(broker_id, None)
        if session is not None:
            if session.deadline is not None:
                session.deadline.cancel()
            if session.prober is not None:
                session.prober.cancel()

    def close(self) -> None:
        """Forget them all."""
        for broker_id in list(self._sessions):
            self.drop(broker_id)

    async def _look_after(self, broker_id: int) -> None:
        """Until it is heard of again, which cancels this, or its session ends."""
        interval_s = _FIRST_PROBE_INTERVAL_S
        while True:
            address = self._address(broker_id)
            if address is not None and await self._probe(*address):
                break
            await asyncio.sleep(interval_s)
            interval_s = min(2 * interval_s, _PROBE_INTERVAL_S)
        self._sessions[broker_id].prober = None
        self._end(broker_id, "its connection is lost, and its address refuses another")

    def _end(self, broker_id: int, reason: str) -> None:
        self.drop(broker_id)
        self._on_end(broker_id, reason)
