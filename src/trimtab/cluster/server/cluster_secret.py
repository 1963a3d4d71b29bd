"""How nodes know each other: who knows the cluster's secret is one of its nodes.

    node                            listener
    SaslHandshake, SaslAuthenticate ─▶ ◀─ challenge        SCRAM-SHA-256 (`kafka/wire/scram.py`)
    SaslAuthenticate(proof)         ─▶ ◀─ proof of the listener's node
    requests of nodes               ─▶

A node says which node it means, and signs that: so a program that listens at the address of a
node that is gone cannot pass the exchange on to another one. It sends nothing else before the other
side has proven itself, and takes only short frames from it.

Clients need not log in: they are not nodes. A client that does, with the file that has the secret,
counts as a node: so Java's tools may write the marker that ends a hanging transaction.

Only what happens on the way stays open until there is TLS: who can change the packets between two
nodes can change what they say after their proofs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from trimtab.cluster.server.request import CloseConnection, Handler
from trimtab.cluster.server.secret_file import MECHANISM, USER
from trimtab.kafka.errors import AuthenticationFailed, ErrorCode
from trimtab.kafka.options import Password
from trimtab.kafka.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.kafka.wire.schema import Request
from trimtab.kafka.wire.scram import HASHES, LEAST_ITERATIONS, ScramClient, ScramServer, make_nonce

if TYPE_CHECKING:
    from trimtab.kafka.wire.framing import RequestHeader

Response = TypeVar("Response")

CONTROLLER = "controller"
"""The name of the controller, of which a cluster has one."""
HANDSHAKE = SaslHandshakeRequest.api_key
HANDSHAKE_SINCE = 1
"""In version 0 tokens without a header would follow."""

_HASH = HASHES[MECHANISM]
_TO = "to="
_SALT_BYTES = 16
_MOST_BYTES = 2048
"""No message is as long."""


class Ask(Protocol):
    """Sends one request over the connection whose other end must prove itself."""

    def __call__(self, request: Request[Response], /) -> Awaitable[Response]: ...


class Caller(Protocol):
    """A connection to a listener.

    Attributes:
        is_node: whether the other side has proven that it is a node.
        login: while it lasts.
    """

    is_node: bool
    login: NodeLogin | None


def name_broker(broker_id: int) -> str:
    """The name of a broker among the nodes."""
    return f"broker-{broker_id}"


class ClusterSecret:
    """The secret of a cluster, which its nodes have in common.

    Args:
        text: cannot be guessed: it must be random.
        make_nonce: as `trimtab.kafka.wire.scram.make_nonce`; a simulation passes a seeded one.
    """

    def __init__(self, text: str, make_nonce: Callable[[], str] = make_nonce) -> None:
        self._password = Password(text)
        self._make_nonce = make_nonce
        self._salt = hashlib.sha256(b"salt" + text.encode()).digest()[:_SALT_BYTES]

    async def log_in(self, ask: Ask, whom: str) -> None:
        """Prove to a node that this is one, and have it prove itself.

        Args:
            whom: the name of the node that is meant.

        Raises:
            AuthenticationFailed: it does not know the secret, refuses, or is another node.
        """
        client = ScramClient(
            *(_HASH, USER, self._password.text, self._make_nonce()),
            extension=f"{_TO}{whom}",
            most_iterations=LEAST_ITERATIONS,  # a false server has this loop compute no more
        )
        shaken, first = await asyncio.gather(  # together, to wait once
            ask(SaslHandshakeRequest(mechanism=MECHANISM)),
            ask(SaslAuthenticateRequest(auth_bytes=client.begin())),
        )
        if shaken.error_code:
            raise AuthenticationFailed(f"it refuses {MECHANISM} with code {shaken.error_code}")
        proof = client.answer(_accepted(first))
        assert proof is not None
        client.answer(_accepted(await ask(SaslAuthenticateRequest(auth_bytes=proof))))

    def begin_login(self, name: str) -> NodeLogin:
        """A node of this name is asked to let another one in."""
        return NodeLogin(
            ScramServer(_HASH, USER, self._password.text, self._salt, self._make_nonce()), name
        )


def _accepted(response: SaslAuthenticateResponse) -> bytes:
    if response.error_code:
        raise AuthenticationFailed(f"{response.error_message}")
    return response.auth_bytes


class NodeLogin:
    """One node's login at another, as seen by that one.

    Attributes:
        is_done: whether the other side has proven that it is a node.
    """

    def __init__(self, scram: ScramServer, name: str) -> None:
        self._scram = scram
        self._name = name
        self._is_begun = False
        self.is_done = False

    def answer(self, message: bytes) -> bytes:
        """The answer to the other side's message.

        Raises:
            AuthenticationFailed: it is no node of this cluster, or means another node.
        """
        if self._is_begun:
            last = self._scram.finish(message)
            self.is_done = True
            return last
        self._is_begun = True
        first = self._scram.begin(message)
        if self._scram.extension not in ("", f"{_TO}{self._name}"):
            raise AuthenticationFailed(f"this is {self._name}")
        return first


def login_handlers(
    secret: ClusterSecret, name: str, serving: Callable[[], Caller | None]
) -> dict[int, Handler]:
    """What a listener needs to let nodes in.

    Args:
        name: of the node that listens.
        serving: the connection whose request is being handled.
    """

    def shake(header: RequestHeader, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        connection = serving()
        assert connection is not None
        if connection.is_node or connection.login is not None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request.mechanism != MECHANISM:
            raise CloseConnection(
                f"{request.mechanism[:32]!r} is no SASL mechanism of this listener",
                SaslHandshakeResponse(
                    error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=[MECHANISM]
                ),
            )
        connection.login = secret.begin_login(name)
        return SaslHandshakeResponse(mechanisms=[MECHANISM])

    def authenticate(
        header: RequestHeader, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        connection = serving()
        assert connection is not None
        login = connection.login
        if login is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate follows an accepted SaslHandshake.",
                auth_bytes=b"",
            )
        try:
            answer = login.answer(bytes(request.auth_bytes[:_MOST_BYTES]))
        except AuthenticationFailed as error:
            raise CloseConnection(
                f"failed login of a node: {error}",
                SaslAuthenticateResponse(
                    error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                    error_message=f"Authentication failed: {error}.",
                    auth_bytes=b"",
                ),
            ) from None
        if login.is_done:
            connection.is_node, connection.login = True, None
        return SaslAuthenticateResponse(auth_bytes=answer)

    return {HANDSHAKE: shake, SaslAuthenticateRequest.api_key: authenticate}
