"""Tokens for OAUTHBEARER from options that are texts, as Java's clients take them.

    sasl.oauthbearer.token.endpoint.url   https://…  a token for the client's credentials (KIP-768)
                                          file:…     a token that another program keeps there
    sasl.jaas.config                      unsecuredLoginStringClaim_sub="alice": a token without a
                                          signature, for tests (KIP-255)

Source: Kafka's `OAuthBearerLoginCallbackHandler`, `ClientCredentialsJwtRetriever`,
`HttpJwtRetriever`, `OAuthBearerUnsecuredLoginCallbackHandler`; RFC 6749, 4.4.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from trimtab.client.network.authentication import Token, TokenSource, is_token
from trimtab.client.network.jaas import read_jaas
from trimtab.client.network.tls import TlsSettings, make_tls_context
from trimtab.kafka.errors import AuthenticationFailed, Unavailable, UsageError
from trimtab.kafka.options import Password
from trimtab.threads.clock import wall_clock

MODULE: Final = "OAuthBearerLoginModule"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_URL = "sasl.oauthbearer.token.endpoint.url"
_ENDPOINT_HANDLERS = (
    f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
)
_UNSECURED_HANDLER = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
HANDLERS: Final = (*_ENDPOINT_HANDLERS, _UNSECURED_HANDLER)
"""Java's classes that do what is done here; naming one of them changes nothing."""

_UNSECURED = "unsecuredLogin"
_OF_JAAS = ("clientId", "clientSecret", "scope", "ssl.truststore.location", "ssl.truststore.type")
_EXPECTED = (
    f'{_PACKAGE}.{MODULE} required clientId="…" clientSecret="…" scope="…"; with {_URL}, or for'
    f' tests {_PACKAGE}.{MODULE} required unsecuredLoginStringClaim_sub="…";'
)
_UNRETRYABLE = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505}
)
"""Statuses that another attempt does not change: Kafka's list."""

_LIFETIME_SECONDS = 3600
_MOST_REASON = 200


class Login(NamedTuple):
    """The options of OAUTHBEARER; a text that is not given is empty.

    Attributes:
        backoff: seconds before the second attempt; doubled with each.
        patience: seconds for all attempts together (`sasl.login.retry.backoff.max.ms`).
    """

    kind: str
    jaas: Password | None
    handler: str
    url: str
    client_id: str
    client_secret: Password | None
    scope: str
    encodes_header: bool
    connect_timeout: float
    read_timeout: float
    backoff: float
    patience: float


def token_source(login: Login) -> tuple[TokenSource, dict[str, str]]:
    """Where tokens come from, and the SASL extensions (KIP-342) that go with them.

    Raises:
        UsageError: an option is missing, unknown, or contradicts another one.
    """
    jaas = read_jaas(login.jaas, "OAUTHBEARER", MODULE, _EXPECTED) if login.jaas else {}
    is_unsecured = any(name.startswith(_UNSECURED) for name in jaas)
    if login.handler and login.handler not in HANDLERS:
        raise UsageError(_unknown_handler(login))
    if is_unsecured and (login.url or login.handler in _ENDPOINT_HANDLERS):
        raise UsageError(
            f"{login.kind} option sasl.jaas.config has unsecuredLogin… options, for tokens without"
            f" a signature, but a token endpoint is given, too: keep one of them"
        )
    if is_unsecured:
        _refuse_unknown(jaas, (), _UNSECURED)
        return _unsecured(jaas), _extensions(jaas, f"{_UNSECURED}Extension_")
    if not login.url:
        raise UsageError(
            f"{login.kind} option {_URL} is missing: sasl.mechanism=OAUTHBEARER needs it, or"
            " sasl.oauthbearer.token, a callable that returns a token, or (token, lifetime in"
            f" seconds), or sasl.jaas.config={_EXPECTED.partition('tests ')[2]}"
        )
    _refuse_unknown(jaas, _OF_JAAS, "extension_")
    return _endpoint(login, jaas), _extensions(jaas, "extension_")


def _unknown_handler(login: Login) -> str:
    name = login.handler
    if "msk" in name:
        return f"{login.kind} option sasl.login.callback.handler.class={name}: {MSK}"
    return (
        f"{login.kind} option sasl.login.callback.handler.class={name!r}: a class of Java's cannot"
        f" be run; leave it out, or name {_ENDPOINT_HANDLERS[0]}, whose work is done here"
    )


MSK: Final = (
    "AWS_MSK_IAM is not built: it needs requests signed with AWS credentials. Brokers of MSK take"
    " such tokens by OAUTHBEARER, too: in Python give sasl.mechanism=OAUTHBEARER and, as"
    " sasl.oauthbearer.token, a function that returns a token of aws-msk-iam-sasl-signer-python;"
    " Spark's options, which are texts, cannot name one: use SCRAM-SHA-512 or certificates there"
)


def _refuse_unknown(jaas: Mapping[str, str], known: tuple[str, ...], prefix: str) -> None:
    unknown = [name for name in jaas if name not in known and not name.startswith(prefix)]
    if unknown:
        raise UsageError(
            f"sasl.jaas.config: {', '.join(sorted(unknown))} is not for trimtab here; expected:"
            f" {_EXPECTED}"
        )


_NAME = re.compile(r"[A-Za-z]+")
_TEXT = re.compile(r"[\x21-\x7E \t\r\n]+")


def _extensions(jaas: Mapping[str, str], prefix: str) -> dict[str, str]:
    found = {
        name.removeprefix(prefix): value for name, value in jaas.items() if name.startswith(prefix)
    }
    for name, value in found.items():
        if not _NAME.fullmatch(name) or name == "auth" or not _TEXT.fullmatch(value):
            raise UsageError(
                f"sasl.jaas.config: {prefix}{name}: a SASL extension has a name of letters other"
                " than auth, and a printable value"
            )
    return found


# --- Tokens without a signature


def _unsecured(jaas: Mapping[str, str]) -> TokenSource:
    claims: dict[str, Any] = {}
    makers: dict[str, Callable[[str], Any]] = {
        "StringClaim_": str,
        "NumberClaim_": _number,
        "ListClaim_": lambda text: text[1:].split(text[0]) if len(text) > 1 else [],
    }
    for name, value in jaas.items():
        for kind, make in makers.items():
            claim = name.removeprefix(_UNSECURED + kind)
            if claim == name:
                continue
            if claim in ("iat", "exp", ""):
                raise UsageError(f"sasl.jaas.config: {name}: iat and exp are set from the clock")
            claims[claim] = make(value)
    principal = jaas.get(f"{_UNSECURED}PrincipalClaimName", "").strip() or "sub"
    if not claims.get(principal) or not isinstance(claims[principal], str):
        raise UsageError(
            f"sasl.jaas.config: {_UNSECURED}StringClaim_{principal} is missing: it names the user"
        )
    lifetime = _number(jaas.get(f"{_UNSECURED}LifetimeSeconds", str(_LIFETIME_SECONDS)))
    if lifetime <= 0:
        raise UsageError(f"sasl.jaas.config: {_UNSECURED}LifetimeSeconds must be above 0")

    async def make_token() -> Token:
        now = wall_clock()
        parts = ({"alg": "none"}, {"exp": now + lifetime, "iat": now, **claims})
        text = ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
            for part in parts
        )
        return f"{text}.", lifetime

    return make_token


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"sasl.jaas.config: {text!r} is not a number") from None


# --- Tokens from an endpoint or a file


class _Refused(Exception):
    """The endpoint has refused: another attempt would fail, too."""


def _endpoint(login: Login, jaas: Mapping[str, str]) -> TokenSource:
    parts = urlsplit(login.url)
    if parts.scheme == "file":
        return _file(login, parts.path)
    try:
        port = parts.port
    except ValueError:
        port = -1
    shown = f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}{parts.path}"
    is_clean = parts.username is None and login.url.isascii() and login.url.isprintable()
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or not is_clean:
        raise UsageError(
            f"{login.kind} option {_URL} must be https://HOST/PATH, http://… for tests, or"
            " file:/PATH, without a user or spaces in it"
        )
    client_id = login.client_id or jaas.get("clientId", "")
    secret = login.client_secret or Password(jaas.get("clientSecret", ""))
    if not client_id or not secret.text:
        name = "id" if not client_id else "secret"
        raise UsageError(
            f"{login.kind} option sasl.oauthbearer.client.credentials.client.{name} is missing:"
            f" {_URL} needs it, or client{name.capitalize()} in sasl.jaas.config"
        )
    tls = None
    if parts.scheme == "https":
        kind = jaas.get("ssl.truststore.type", "PEM")
        if kind != "PEM":
            raise UsageError(f"sasl.jaas.config: ssl.truststore.type={kind}: must be PEM")
        tls = make_tls_context(TlsSettings(jaas.get("ssl.truststore.location", "")))
    scope = (login.scope or jaas.get("scope", "")).strip()
    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}

    def ask() -> Token:
        from trimtab.client.network.tokens import MAX_BODY_BYTES, Address, NoAnswer, post

        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            status, body = post(
                Address(parts.hostname or "", port, path, tls),
                urlencode(form).encode(),
                {
                    "Accept": "application/json",
                    "Authorization": _basic(client_id, secret, login.encodes_header),
                    "Cache-Control": "no-cache",
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                login.connect_timeout,
                login.read_timeout,
            )
        except NoAnswer as error:
            raise Unavailable(f"the token endpoint {shown}: {error}") from error
        if status in (200, 201):
            if len(body) == MAX_BODY_BYTES:
                raise _Refused(
                    f"the token endpoint {shown} answers with {len(body)} bytes and more"
                )
            return _token_of(body, shown)
        why = _reason(body).replace(secret.text, "[hidden]")
        text = f"the token endpoint {shown} answers with status {status}{why and ': '}{why}"
        if status in _UNRETRYABLE:
            raise _Refused(text)
        raise Unavailable(text)

    return _with_retries(ask, login)


def _file(login: Login, path: str) -> TokenSource:
    def read() -> Token:
        from trimtab.client.network.tokens import NoAnswer, read_file

        try:
            return _with_lifetime(read_file(path), None, f"{_URL}={login.url}")
        except NoAnswer as error:
            raise Unavailable(f"{_URL}={login.url} cannot be read: {error}") from error

    return _with_retries(read, login)


def _with_retries(ask: Callable[[], Token], login: Login) -> TokenSource:
    async def fetch() -> Token:
        loop = asyncio.get_running_loop()
        until = loop.time() + login.patience
        wait = login.backoff
        while True:
            try:
                return await loop.run_in_executor(None, ask)
            except _Refused as error:
                raise AuthenticationFailed(str(error)) from None
            except Unavailable:
                if loop.time() + wait >= until:
                    raise
            await asyncio.sleep(wait)
            wait *= 2

    return fetch


def _basic(client_id: str, secret: Password, encodes: bool) -> str:
    words = (client_id, secret.text)
    text = ":".join(map(quote_plus, words) if encodes else words)
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def _token_of(body: bytes, shown: str) -> Token:
    answer = _object(body)
    token = answer.get("access_token")
    found = token.strip() if isinstance(token, str) else ""
    return _with_lifetime(found, answer.get("expires_in"), f"the answer of {shown}")


def _with_lifetime(token: str, expires_in: object, where: str) -> Token:
    """The token with the seconds until its claim `exp`; else with what the endpoint says."""
    if not is_token(token):
        raise _Refused(f"{where} has no token")
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = _object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except binascii.Error:
        claims = {}
    end = claims.get("exp")
    left = end - wall_clock() if isinstance(end, int | float) else expires_in
    return (token, float(left)) if isinstance(left, int | float) and left > 0 else token


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(body: bytes) -> str:
    """The endpoint's reason (RFC 6749, 5.2), made harmless for a log."""
    answer = _object(body)
    said = [answer.get(name) for name in ("error", "error_description", "errorSummary")]
    text = ", ".join(each for each in said if isinstance(each, str))[:_MOST_REASON]
    return "".join(each if each.isprintable() else " " for each in text)
