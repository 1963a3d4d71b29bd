"""The brokers' sessions with the controller, kept in memory only.

    heartbeat ─▶ session ─┬─ no heartbeat for broker.session.timeout.ms ─────▶ ended
                          └─ connection lost, and the broker's address ──────▶ ended at once
                             refuses connections

A lost connection alone proves nothing, as the broker may connect again. But if the broker's
address refuses a connection, its process has ended. Other errors do not prove that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Probe: TypeAlias = Callable[[str, int], Awaitable[bool]]
"""Whether a connection to this host and port is refused; False for any other outcome."""

_PROBE_INTERVAL_S = 0.2
_FIRST_PROBE_INTERVAL_S = 0.01
"""Short, as the system may close the listening socket of an ended process after its connections."""


class BrokerSession:
    """The session of one incarnation of a broker."""

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
        probe: checks whether a broker's address refuses connections.
        address: the advertised host and port of a broker; None if it is not registered.
        on_end: called with a broker's id and a reason when its session has timed out or its
            process is gone.
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
        self._sessions: dict[int, BrokerSession] = {}

    def touch(self, broker_id: int, epoch: int, connection: object = None) -> None:
        """Begin or prolong a broker's session. `connection` is the heartbeat's; None if the
        controller has restarted and gives the broker time to reconnect."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            self.drop(broker_id)
            session = self._sessions[broker_id] = BrokerSession(epoch)
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

    def is_connected(self, broker_id: int, epoch: int) -> bool:
        """Whether this incarnation of a broker is connected; then another one with the same id
        must wait.

        An incarnation without a connection may be replaced: if it comes back, it gets
        STALE_BROKER_EPOCH and registers again.
        """
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.epoch == epoch
            and session.connection is not None
            and not session.is_cut
        )

    def lost(self, connection: object) -> None:
        """A connection is lost: probe the broker whose last heartbeat came on it."""
        for broker_id, session in self._sessions.items():
            if session.connection is connection and not session.is_cut:
                session.is_cut = True
                session.prober = asyncio.create_task(self._probe_until_refused(broker_id))

    def drop(self, broker_id: int) -> None:
        """Remove a broker's session, without calling `on_end`."""
        session = self._sessions.pop(broker_id, None)
        if session is not None:
            if session.deadline is not None:
                session.deadline.cancel()
            if session.prober is not None:
                session.prober.cancel()

    def close(self) -> None:
        """Remove all sessions."""
        for broker_id in list(self._sessions):
            self.drop(broker_id)

    async def _probe_until_refused(self, broker_id: int) -> None:
        """Probe the broker's address until it refuses connections, then end the session. The next
        heartbeat cancels this task."""
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
