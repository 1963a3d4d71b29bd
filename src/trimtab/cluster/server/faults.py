"""Faults injected on purpose, to test clients: slow responses, and connections that are silent.

A network that is cut ends no connection. So a connection that is cut stays open: its bytes wait, in
both directions, until the network is healed.

    connection ◀─▶ socket            healthy
    connection ◀─▶ _Silence  socket  cut: `_Silence` is the transport of one, and the protocol of
                                     the other
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeAlias

from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.framing import FrameProtocol

Address: TypeAlias = tuple[str, int]

_RECEIVED_BYTES = 64 * 1024


class BrokerFaults:
    """The faults of one broker; none at first. They outlive the broker's process.

    Attributes:
        produce_delay_s: the delay of every response to a produce request.
    """

    __slots__ = ("_connections", "_cut", "_is_cut_off", "_silences", "produce_delay_s")

    def __init__(self) -> None:
        self.produce_delay_s = 0.0
        self._connections: dict[FrameProtocol, Address | None] = {}
        self._cut: set[Address] = set()
        self._is_cut_off = False
        self._silences: dict[FrameProtocol, _Silence] = {}

    def slow(self, produce_ms: float) -> None:
        """Delay the response to every produce request by `produce_ms` milliseconds; 0 ends it.

        During the delay the connection is not served: with 20 ms a connection carries at most 50
        produce requests per second, as in KIP-794's measurements.

        Raises:
            UsageError: a negative time.
        """
        if not 0 <= produce_ms < 86_400_000:
            raise UsageError(
                f"produce_ms={produce_ms}: must be milliseconds, at least 0 and less than a day"
            )
        self.produce_delay_s = produce_ms / 1000

    def cut(self, other: Address | None = None) -> None:
        """Silence the broker's connections until `heal`, also those that are opened later.

        Args:
            other: only those that it has opened to this address; None for all, in both directions.
        """
        if other is None:
            self._is_cut_off = True
        else:
            self._cut.add(other)
        for connection, address in self._connections.items():
            self._silence(connection, address)

    def heal(self) -> None:
        """End every `cut`: the bytes that have waited are sent and received. Connections that were
        closed meanwhile end for the other side as well."""
        self._is_cut_off = False
        self._cut.clear()
        silences, self._silences = self._silences, {}
        for silence in silences.values():
            silence.end_silence()

    def opened(self, connection: FrameProtocol, other: Address | None = None) -> None:
        """Register a new connection, which the broker has opened to the address `other`, or another
        side to the broker."""
        if connection.transport is None:
            return  # lost already
        self._connections[connection] = other
        self._silence(connection, other, is_new=True)

    def lost(self, connection: FrameProtocol) -> None:
        """Remove a connection."""
        self._connections.pop(connection, None)

    def _silence(
        self, connection: FrameProtocol, other: Address | None, is_new: bool = False
    ) -> None:
        if not (self._is_cut_off or other in self._cut) or connection in self._silences:
            return
        socket = connection.transport
        if socket is not None and not socket.is_closing():
            reads = is_new or socket.is_reading()  # a new one may not have begun to
            self._silences[connection] = _Silence(connection, socket, reads)


class _Silence(asyncio.Transport, asyncio.BufferedProtocol):
    """Keeps a connection and its socket apart until `end_silence`; neither notices the other's
    close."""

    def __init__(self, connection: FrameProtocol, socket: asyncio.Transport, reads: bool) -> None:
        super().__init__()
        self._connection = connection
        self._socket = socket
        self._reads = reads
        self._unsent: list[Any] = []
        self._received = bytearray()
        self._buffer = bytearray()
        self._is_closed = False
        self._is_lost = False
        self._error: Exception | None = None
        socket.pause_reading()
        socket.set_protocol(self)
        connection.transport = self
        connection.pause_writing()

    def end_silence(self) -> None:
        """Join them again."""
        connection, socket = self._connection, self._socket
        if self._is_closed:
            socket.abort()
        elif self._is_lost:
            connection.connection_lost(self._error)
        else:
            connection.transport = socket
            socket.set_protocol(connection)
            if socket.is_closing():
                return
            if self._reads:
                socket.resume_reading()
            socket.writelines(self._unsent)
            connection.resume_writing()
            self._pass_on()

    def _pass_on(self) -> None:
        received = memoryview(self._received)
        while received:
            buffer = self._connection.get_buffer(-1)
            count = min(len(buffer), len(received))
            buffer[:count] = received[:count]
            received = received[count:]
            self._connection.buffer_updated(count)

    # The connection's transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def write(self, data: Any) -> None:
        self._unsent.append(data)

    def writelines(self, parts: Iterable[Any]) -> None:
        self._unsent += parts

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._unsent.clear()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    # The socket's protocol. It may still send what was written before. uvloop's reads once if it is
    # new, as it cannot be paused before.

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(_RECEIVED_BYTES)
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._received += self._buffer[:count]
        self._socket.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._error = error
