"""SASL: the mechanisms, and the authentication of one connection.

    client                                    broker
    SaslHandshake(mechanism)         ─▶  ◀─   accepted, or the broker's mechanisms
    SaslAuthenticate(first message)  ─▶  ◀─   challenge
    SaslAuthenticate(answer)         ─▶  ◀─   outcome, and the session's lifetime (KIP-368)

A mechanism's `Exchange` creates the messages. They are never logged, and never in an error.

Source: RFC 4616 (PLAIN), 7628 (OAUTHBEARER); Kafka's `SaslClientAuthenticator` and
`OAuthBearerSaslClient`. SCRAM is in `trimtab.kafka.wire.scram`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from trimtab.kafka.errors import AuthenticationFailed, ErrorCode, Unavailable, error_code
from trimtab.kafka.options import Password
from trimtab.kafka.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest
from trimtab.kafka.wire.schema import Request
from trimtab.kafka.wire.scram import HASHES, ScramClient

Token: TypeAlias = str | tuple[str, float]
"""An OAuth bearer token, alone or with the seconds for which it is valid."""
TokenSource: TypeAlias = Callable[[], Token | Awaitable[Token]]
Response = TypeVar("Response")

_TOKEN_REFRESH_FACTOR = 0.8
"""The fraction of a token's lifetime after which the next token is requested (Kafka's default for
`sasl.login.refresh.window.factor`)."""


class Ask(Protocol):
    """Sends one request over the connection that is being authenticated."""

    def __call__(self, request: Request[Response], /) -> Awaitable[Response]: ...


class Exchange(Protocol):
    """One authentication by one mechanism."""

    def begin(self) -> bytes:
        """The first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to a challenge; None if the exchange is complete.

        Raises:
            AuthenticationFailed: the broker did not prove itself, or refuses; without its name.
        """


class Credentials(Protocol):
    """A client's credentials, for any number of connections."""

    @property
    def mechanism(self) -> str:
        """Its name in SASL."""

    async def start(self) -> Exchange:
        """A new exchange.

        Raises:
            Unavailable: a token, for example, cannot be obtained now.
        """


class Plain(NamedTuple):
    """PLAIN: user and password, not encrypted. Only for connections with TLS."""

    username: str
    password: Password
    mechanism: str = "PLAIN"

    async def start(self) -> Exchange:
        return _SingleMessage(f"\0{self.username}\0{self.password.text}".encode())


class Scram(NamedTuple):
    """SCRAM: both sides prove that they know the password, and none sends it.

    Attributes:
        mechanism: a key of `trimtab.kafka.wire.scram.HASHES`.
        make_nonce: returns printable text without commas, different at each call.
    """

    mechanism: str
    username: str
    password: Password
    make_nonce: Callable[[], str]

    async def start(self) -> Exchange:
        return ScramClient(
            HASHES[self.mechanism], self.username, self.password.text, self.make_nonce()
        )


class OAuthBearer:
    """OAUTHBEARER: a token from `source`, kept until 80 % of its lifetime is over.

    A plain `source` runs on another thread, so that it may wait; one that is `async` runs on the
    client's loop. A token without a lifetime is requested for each authentication.

    Args:
        extensions: what the broker is told beside the token (KIP-342).
    """

    mechanism = "OAUTHBEARER"

    def __init__(self, source: TokenSource, extensions: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._extensions = "".join(
            f"{name}={value}\x01" for name, value in (extensions or {}).items()
        )
        self._token = ""
        self._renew_at = 0.0
        self._asking = asyncio.Lock()

    async def start(self) -> Exchange:
        async with self._asking:  # many brokers, one token
            if asyncio.get_running_loop().time() >= self._renew_at:
                await self._renew()
            message = f"n,,\x01auth=Bearer {self._token}\x01{self._extensions}\x01"
            return _SingleMessage(message.encode())

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if inspect.iscoroutinefunction(self._source):
                given = await self._source()
            else:
                given = await loop.run_in_executor(None, self._source)
        except (AuthenticationFailed, Unavailable):  # of a token endpoint
            raise
        except Exception as error:  # from the caller's code
            raise Unavailable(f"sasl.oauthbearer.token raised {error!r}") from error
        token, lifetime = (given, 0.0) if isinstance(given, str) else _checked_token(given)
        if not is_token(token):
            raise AuthenticationFailed("sasl.oauthbearer.token returned something that is no token")
        self._token = token
        self._renew_at = loop.time() + lifetime * _TOKEN_REFRESH_FACTOR


def is_token(text: str) -> bool:
    """Whether the text can be sent as a token."""
    return text != "" and text.isascii() and text.isprintable() and " " not in text


def _checked_token(given: object) -> tuple[str, float]:
    match given:
        case (str(token), int() | float() as lifetime) if lifetime > 0:
            return token, float(lifetime)
    raise AuthenticationFailed(
        f"sasl.oauthbearer.token returned a {type(given).__name__} that is neither a string nor"
        " (token, seconds it is good for)"
    )


class _SingleMessage:
    """A mechanism in which the client sends one message."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    def begin(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # A broker that refuses OAUTHBEARER first sends the reason as a challenge.
        raise AuthenticationFailed(_refusal(challenge))


def _refusal(challenge: bytes) -> str:
    try:
        said = json.loads(challenge)
    except ValueError:
        said = None
    status = said.get("status") if isinstance(said, dict) else None
    return f"the token was refused ({status if isinstance(status, str) else 'no reason given'})"


async def authenticate(ask: Ask, credentials: Credentials, broker: str) -> float:
    """Authenticate one connection.

    Args:
        ask: sends over that connection.
        broker: names the broker in errors.

    Returns:
        The seconds after which the broker requires re-authentication; 0 for never.

    Raises:
        AuthenticationFailed: the broker refuses the credentials, or does not prove itself.
        Unavailable: the connection was lost, or a token cannot be obtained now.
    """
    mechanism = credentials.mechanism
    handshake = await ask(SaslHandshakeRequest(mechanism=mechanism))
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        has = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationFailed(
            f"{broker} does not do sasl.mechanism={mechanism} on this listener; it does {has}"
        )
    if handshake.error_code != ErrorCode.NONE:
        raise AuthenticationFailed(
            f"{broker} refuses SASL: {error_code(handshake.error_code).name}; is its listener"
            " SASL_PLAINTEXT or SASL_SSL, as security.protocol says?"
        )
    exchange = await credentials.start()
    message: bytes | None = exchange.begin()
    lifetime = 0.0
    try:
        while message is not None:
            response = await ask(SaslAuthenticateRequest(auth_bytes=message))
            if response.error_code != ErrorCode.NONE:
                raise _refused(response)
            lifetime = response.session_lifetime_ms / 1000
            message = exchange.answer(response.auth_bytes)
    except AuthenticationFailed as error:
        raise AuthenticationFailed(f"{broker}, {mechanism}: {error}") from None
    return lifetime


def _refused(response: SaslAuthenticateResponse) -> AuthenticationFailed:
    code = error_code(response.error_code)
    return AuthenticationFailed(
        f"{code.name} ({int(code)}): {response.error_message or 'no reason'}"
    )
