"""A network in memory: named hosts, servers, links between them, and faults."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from trimtab.kafka.errors import UsageError
from trimtab.sim.connection import (
    Address,
    Stream,
    Transport,
    VirtualConnection,
    VirtualSocket,
    name,
)
from trimtab.sim.loop import VirtualLoop
from trimtab.sim.trace import Trace

ANY: Final = "*"
"""All hosts, in `set_link`, `cut`, `heal` and `reset`."""

_FIRST_CLIENT_PORT = 32768
_FIRST_FREE_SERVER_PORT = 49152
_THIS_HOST = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """Delay and bandwidth between two ends, in both directions.

    Args:
        latency_ms_min: smallest one-way delay, ms, ≥ 0.
        latency_ms_mean: mean one-way delay, ms, ≥ latency_ms_min. The part above the minimum is
            exponentially distributed. Bytes never overtake earlier bytes of their connection.
        bytes_per_second: bandwidth of each direction, > 0, shared by all connections between
            two hosts.
        late_share: the part of what is sent, 0 to 1, that takes `late_ms` longer.
        late_ms: ms, ≥ 0.
    """

    latency_ms_min: float = 0.1
    latency_ms_mean: float = 0.25
    bytes_per_second: float = math.inf
    late_share: float = 0.0
    late_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.latency_ms_min <= self.latency_ms_mean < math.inf:
            raise UsageError(
                f"latency_ms_min={self.latency_ms_min}, latency_ms_mean={self.latency_ms_mean}: "
                "give 0 <= latency_ms_min <= latency_ms_mean, finite"
            )
        if not (0 <= self.late_share <= 1 and 0 <= self.late_ms < math.inf):
            raise UsageError(
                f"late_share={self.late_share}, late_ms={self.late_ms}: give a share from 0 to 1, "
                "and 0 ms or more"
            )
        if not self.bytes_per_second > 0:
            raise UsageError(f"bytes_per_second={self.bytes_per_second}: give more than 0")

    def draw_latency(self, random: Random) -> float:
        """One delay, seconds."""
        latency_ms = self.latency_ms_min
        tail = self.latency_ms_mean - self.latency_ms_min
        if tail:
            latency_ms += random.expovariate(1.0) * tail
        if self.late_share and random.random() < self.late_share:
            latency_ms += self.late_ms
        return latency_ms / 1000


class Network:
    """The servers and connections of all hosts on one `VirtualLoop`.

    A host exists as soon as it is named. Methods name an end by its host (`"broker-0"`), by host
    and port (`"127.0.0.1:9092"`, for a server), or by `ANY`.

    Args:
        loop: creates its connections and servers in this network from now on.
        random: draws the delays.
        trace: gets a line for each connection, refusal, read, end, cut, heal and reset.
    """

    connect_timeout_s: float = 127.0
    """Timeout of a connection attempt over a cut route: as Linux's, after six repeated SYNs."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Trace) -> None:
        loop.network = self
        self.loop: Final = loop
        self.trace: Final = trace
        self._random = random
        self._host = loop.host
        self._links: dict[tuple[str, str], NetworkLink] = {(ANY, ANY): NetworkLink()}
        self._cuts: dict[tuple[str, str], None] = {}
        self._healed = asyncio.Event()
        self._lane_free_at: dict[tuple[str, str], float] = {}
        self.version = 0
        self.holding: dict[Stream, None] = {}
        self._links_of_hosts: dict[tuple[str, str], NetworkLink] = {}
        """Links that were looked up; empty while a setting names a port."""
        self._links_name_ports = False
        self._servers: dict[Address, Server] = {}
        self._connections: dict[int, VirtualConnection] = {}
        self._connections_made = 0
        self._next_client_port = _FIRST_CLIENT_PORT
        self._next_server_port = _FIRST_FREE_SERVER_PORT

    @property
    def host(self) -> str:
        """The host of the current task: the one given to `at`, or `localhost`."""
        return self._host.get()

    @property
    def servers(self) -> list[str]:
        """`host:port` of every server that is bound, in the order of binding."""
        return [name(address) for address in self._servers]

    def connections_from(self, host: str) -> list[tuple[str, str]]:
        """The connections that a host has made, in the order of creation: its own end, and the
        other host. `cut` and `heal` take them."""
        ends = [(each.client.own, each.client.peer) for each in self._connections.values()]
        return [(name(own), peer[0]) for own, peer in ends if own[0] == host]

    @contextlib.contextmanager
    def at(self, host: str) -> Iterator[None]:
        """Run the block, and the tasks and servers that it starts, on this host."""
        token = self._host.set(host)
        try:
            yield
        finally:
            self._host.reset(token)

    # Conditions and faults -----------------------------------------------------------------

    def set_link(self, a: str, b: str, link: NetworkLink) -> None:
        """Set the link between two ends; if several settings match, the last one set applies."""
        for pair in ((a, b), (b, a)):
            self._links.pop(pair, None)
            self._links[pair] = link
        self._links_name_ports = self._links_name_ports or ":" in a + b
        self._links_of_hosts.clear()
        self._change()

    def cut(self, a: str, b: str = ANY, one_way: bool = False) -> None:
        """Deliver nothing between two ends until `heal`; bytes are kept, as TCP retransmits them.

        Args:
            one_way: cut only the direction from `a` to `b`.
        """
        self._cuts[a, b] = None
        if not one_way:
            self._cuts[b, a] = None
        self.trace.append(f"cut {a} {'>' if one_way else '-'} {b}")
        self._change()

    def heal(self, a: str = ANY, b: str = ANY) -> None:
        """End the cut with these names; without names, end all cuts."""
        if a == b == ANY:
            self._cuts.clear()
        else:
            self._cuts.pop((a, b), None)
            self._cuts.pop((b, a), None)
        self.trace.append(f"heal {a} - {b}")
        self._change()
        self._healed.set()
        self._healed = asyncio.Event()

    def reset(self, a: str = ANY, b: str = ANY) -> int:
        """Reset the connections between two ends now; bytes in flight are lost.

        `connection_lost` of both protocols gets a ConnectionResetError.

        Returns:
            The number of connections reset.
        """
        self.trace.append(f"reset {a} - {b}")
        broken = [
            connection
            for connection in self._connections.values()
            if _matches(a, b, connection.client.own, connection.client.peer)
            or _matches(b, a, connection.client.own, connection.client.peer)
        ]
        for connection in broken:
            connection.reset()
        return len(broken)

    # Used by the loop ----------------------------------------------------------------------

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        local_address: Address | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """See `VirtualLoop.create_connection`."""
        client, address = self._client_address(local_address), (host, port)
        await self._travel(client, address)
        server = self._servers.get(address)
        if server is None or not server.is_serving():
            self.trace.append(f"refused {name(client)} > {name(address)}")
            await self._travel(address, client)
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"Connect call failed {address}: no server listens there"
            )
        self._connections_made += 1
        connection = VirtualConnection(self, self._connections_made, client, address)
        self._connections[connection.number] = connection
        self.trace.append(f"c{connection.number} {name(client)} > {name(address)}")
        server.accept(connection.server)
        try:
            await self._travel(address, client)
            protocol = protocol_factory()
            connection.client.start(protocol)
        except BaseException:
            connection.client.abort()  # For instance cancelled: no caller will get the transport.
            raise
        return connection.client, protocol

    def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        hosts: Sequence[str | None],
        port: int,
    ) -> Server:
        """See `VirtualLoop.create_server`; the server does not serve yet."""
        names = [self.host if host is None or host in _THIS_HOST else host for host in hosts]
        if port == 0:
            while any((host, self._next_server_port) in self._servers for host in names):
                self._next_server_port += 1
            port = self._next_server_port
            self._next_server_port += 1
        addresses = [(host, port) for host in names]
        for address in addresses:
            if address in self._servers:
                raise OSError(errno.EADDRINUSE, f"another server listens on {name(address)}")
        server = Server(self, protocol_factory, addresses)
        self._servers.update(dict.fromkeys(addresses, server))
        return server

    # Used by connections and servers -------------------------------------------------------

    def route(self, source: Address, target: Address) -> tuple[NetworkLink, bool]:
        """The link from source to target, and whether it is cut. Valid until `version` changes."""
        key = (source[0], target[0])
        link = self._links_of_hosts.get(key)
        if link is None:
            link = self._link_between(source, target)
            if not self._links_name_ports:
                self._links_of_hosts[key] = link
        return link, self._is_cut(source, target)

    def _link_between(self, source: Address, target: Address) -> NetworkLink:
        return next(
            link for (a, b), link in reversed(self._links.items()) if _matches(a, b, source, target)
        )

    def _is_cut(self, source: Address, target: Address) -> bool:
        cuts = self._cuts
        if not cuts:
            return False
        targets = (ANY, target[0], name(target))
        return any((a, b) in cuts for a in (ANY, source[0], name(source)) for b in targets)

    def draw_arrival(self, link: NetworkLink, source: Address, target: Address, size: int) -> float:
        """The arrival time of bytes sent now, in virtual seconds."""
        departure = self.loop.time()
        if link.bytes_per_second != math.inf:
            lane = (source[0], target[0])
            departure = max(departure, self._lane_free_at.get(lane, 0.0))
            departure += size / link.bytes_per_second
            self._lane_free_at[lane] = departure
        return departure + link.draw_latency(self._random)

    def forget(self, connection: VirtualConnection) -> None:
        self._connections.pop(connection.number, None)

    def unbind(self, addresses: Sequence[Address]) -> None:
        for address in addresses:
            del self._servers[address]

    def _change(self) -> None:
        self.version += 1
        for stream in tuple(self.holding):
            stream.release_if_open()

    def _client_address(self, local_address: Address | None) -> Address:
        host, port = local_address or (self.host, 0)
        if port == 0:
            port = self._next_client_port
            self._next_client_port += 1
        return host, port

    async def _travel(self, source: Address, target: Address) -> None:
        """Wait as long as a packet travels; if the route is cut, until `heal`.

        Raises:
            TimeoutError: the route is cut for longer than `connect_timeout_s`.
        """
        deadline = self.loop.time() + self.connect_timeout_s
        while True:
            await asyncio.sleep(self.route(source, target)[0].draw_latency(self._random))
            if not self.route(source, target)[1]:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await self._healed.wait()
            except TimeoutError:
                self.trace.append(f"timed out {name(source)} > {name(target)}")
                raise TimeoutError(
                    errno.ETIMEDOUT, f"the route from {name(source)} to {name(target)} is cut"
                ) from None


class Server(asyncio.AbstractServer):
    """Listens on one port of one or more virtual hosts; created by `VirtualLoop.create_server`.

    `wait_closed` waits until all connections have ended, as in asyncio since Python 3.12.
    """

    def __init__(
        self,
        network: Network,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        addresses: Sequence[Address],
    ) -> None:
        self._network = network
        self._protocol_factory = protocol_factory
        self._addresses = addresses
        self._context = contextvars.copy_context()
        self._transports: dict[Transport, None] = {}
        self._is_serving = False
        self._is_closed = False
        self._all_ended = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def sockets(self) -> tuple[VirtualSocket, ...]:
        return () if self._is_closed else tuple(VirtualSocket(own) for own in self._addresses)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"server on {name(self._addresses[0])} is closed")
        self._is_serving = True

    async def serve_forever(self) -> None:
        await self.start_serving()
        try:
            await self._closed.wait()
            raise asyncio.CancelledError
        finally:
            self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._is_serving = False
        self._network.unbind(self._addresses)
        self._closed.set()
        self._note_end()

    def close_clients(self) -> None:
        for transport in list(self._transports):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self._transports):
            transport.abort()

    async def wait_closed(self) -> None:
        await self._all_ended.wait()

    def accept(self, transport: Transport) -> None:
        """Create a protocol for a new connection, soon, in the server's context."""
        self._transports[transport] = None
        transport.context = self._context.copy()
        self._network.loop.call_soon(self._start, transport, context=transport.context)

    def _start(self, transport: Transport) -> None:
        if self._is_closed:  # asyncio drops such a connection, too
            self._transports.pop(transport, None)
            self._note_end()
            transport.abort()
            return
        try:
            transport.start(self._protocol_factory(), self)
        except Exception as error:
            self._network.loop.call_exception_handler(
                {
                    "message": f"a connection to {name(transport.own)} could not be accepted",
                    "exception": error,
                    "transport": transport,
                }
            )
            transport.abort()

    def detach(self, transport: Transport) -> None:
        self._transports.pop(transport, None)
        self._note_end()

    def _note_end(self) -> None:
        if self._is_closed and not self._transports:
            self._all_ended.set()


def _matches(a: str, b: str, source: Address, target: Address) -> bool:
    return _is_named(source, a) and _is_named(target, b)


def _is_named(end: Address, called: str) -> bool:
    return called in (ANY, end[0]) or called == name(end)
