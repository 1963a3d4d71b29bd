"""Opens connections: resolves a broker's name, tries its addresses, does the TLS handshake.

broker ─▶ addresses of its name ─▶ socket ─▶ TLS ─▶ `Connection.open` ─▶ open connection
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from random import Random

from trimtab.client.network.certificates import explain_certificate, tls_reason
from trimtab.client.network.connection import Connection, ConnectionOptions, Node
from trimtab.kafka.errors import AuthenticationFailed, Unavailable

logger = logging.getLogger("trimtab.client")


class Connector:
    """Opens one client's connections.

    Args:
        bootstrap: the brokers of `bootstrap.servers`, with negative ids.
        on_lost: called with each connection that is lost.
        on_connect: called when a socket is connected, before the broker is authenticated to.

    Attributes:
        bootstrap: as given, or with canonical names once `make_bootstrap_canonical` has run.
        is_canonical: whether the bootstrap names need not be replaced, or were replaced.
    """

    def __init__(
        self,
        bootstrap: list[Node],
        options: ConnectionOptions,
        random: Random,
        on_lost: Callable[[Connection], None],
        on_connect: Callable[[], object],
    ) -> None:
        self.bootstrap = bootstrap
        self.is_canonical = not options.canonical_bootstrap
        self._options = options
        self._random = random
        self._on_lost = on_lost
        self._on_connect = on_connect
        self._untried: dict[int, list[str]] = {}
        """By node id, the addresses to try before the name is resolved again."""

    def forget(self, node_id: int) -> None:
        """Resolve this broker's name again before the next connection to it."""
        self._untried.pop(node_id, None)

    async def connect(self, node: Node, failures: int) -> Connection:
        """Connect to the first of the name's addresses that answers (KIP-302).

        The remaining addresses are kept, and tried first after the connection is lost.

        Args:
            failures: failed attempts since the last success; each doubles the time-out.

        Raises:
            Unavailable: no address accepts a connection; names the broker and what to check.
            AuthenticationFailed: the broker refuses our credentials, or its certificate is not
                accepted.
        """
        timeout = self._options.connect_timeout
        if failures:
            most = max(timeout, self._options.connect_timeout_max)
            jitter = 0.8 + 0.4 * self._random.random()
            timeout = min(timeout * 2.0 ** min(failures, 20), most) * jitter
        untried = self._untried.pop(node.id, None) or await self._resolve(node, timeout)
        while True:
            address = untried.pop(0)
            try:
                connection = await self._open_at(node, address, timeout)
            except Unavailable as error:
                if not untried:
                    raise
                logger.debug("%s, next address: %s", error, untried[0])
            else:
                self._untried[node.id] = untried
                return connection

    async def _resolve(self, node: Node, timeout: float) -> list[str]:
        if _is_address(node.host):
            return [node.host]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(node.host, node.port)
        except TimeoutError:
            raise Unavailable(
                self._explain(node, f"its name did not resolve within {timeout:g} s")
            ) from None
        except (OSError, UnicodeError, RuntimeError) as error:
            # asyncio resolves in threads, and begins none while the process ends: RuntimeError.
            why = getattr(error, "strerror", None) or str(error)
            raise Unavailable(self._explain(node, f"its name does not resolve ({why})")) from error
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _open_at(self, node: Node, address: str, timeout: float) -> Connection:
        try:
            async with asyncio.timeout(timeout):
                connection = await self._connect_to(node, address)
                self._on_connect()
                try:
                    await connection.open()
                except BaseException:
                    connection.abort()
                    raise
                return connection
        except TimeoutError:
            at = "" if address == node.host else f" at {address}"
            raise Unavailable(f"{node} did not accept a connection{at} in time") from None
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(explain_certificate(str(node), error)) from error
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                raise Unavailable(self._explain(node, tls_reason(error))) from error
            raise AuthenticationFailed(
                f"{node} and this client cannot agree on TLS: {tls_reason(error)}; see"
                " security.protocol, ssl.keystore.location and ssl.enabled.protocols"
            ) from error
        except OSError as error:
            raise Unavailable(self._explain(node, str(error))) from error

    async def _connect_to(self, node: Node, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(node, self._options, self._on_lost)
        tls = self._options.tls
        if tls is None:
            await loop.create_connection(lambda: connection, address, node.port)
            return connection
        # In two steps: if a handshake fails or is cancelled, `create_connection(ssl=...)` keeps the
        # socket open for an orderly end of TLS, possibly until after the loop is closed.
        plain, _ = await loop.create_connection(asyncio.Protocol, address, node.port)
        try:
            encrypted = await loop.start_tls(plain, connection, tls, server_hostname=node.host)
        except BaseException:
            plain.abort()
            raise
        assert encrypted is not None
        connection.connection_made(encrypted)
        return connection

    async def make_bootstrap_canonical(self) -> None:
        """Replace each bootstrap name by the canonical names of its addresses.

        A name that does not resolve stays as it is; the attempt to connect to it then fails.
        """
        loop = asyncio.get_running_loop()
        servers: dict[tuple[str, int], None] = {}
        for seed in self.bootstrap:
            try:
                found = await loop.getaddrinfo(seed.host, seed.port)
                addresses = dict.fromkeys(address for *_, address in found)
                names = [
                    (await loop.getnameinfo((str(address[0]), seed.port)))[0]
                    for address in addresses
                ]
            except (OSError, UnicodeError) as error:
                logger.warning("bootstrap server %s has no canonical name: %s", seed, error)
                names = [seed.host]
            servers.update(dict.fromkeys((name, seed.port) for name in names))
        self.is_canonical = True
        self.bootstrap = [
            Node(-1 - index, host, port) for index, (host, port) in enumerate(servers)
        ]

    def _explain(self, node: Node, why: str) -> str:
        text = f"{node} cannot be reached: {why}"
        if node.id >= 0:
            seeds = ", ".join(f"{seed.host}:{seed.port}" for seed in self.bootstrap)
            text += (
                f" (the cluster advertises {node.host}:{node.port}, bootstrap was {seeds};"
                " if that name or port is not for this network, correct advertised.listeners)"
            )
        elif self._options.tls is not None:
            text += f" (security.protocol={self._options.security_protocol}: is its listener TLS?)"
        return text


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
