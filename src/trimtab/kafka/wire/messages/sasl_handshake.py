"""SaslHandshake (API 17): which SASL mechanism the connection will authenticate with."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.types import int16, string


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Propose a mechanism. v1 says that SaslAuthenticate requests follow, not bare SASL tokens."""

    mechanism: string


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """Whether the broker accepts the mechanism, and the ones that it supports."""

    error_code: int16 = 0
    mechanisms: list[string] = field(default_factory=list)
