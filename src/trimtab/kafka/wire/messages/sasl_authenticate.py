"""SaslAuthenticate (API 36): one step of an authentication, in the mechanism's own bytes."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.types import binary, int16, int64, string


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """The client's bytes of one step. v2 is flexible."""

    auth_bytes: binary


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The broker's bytes of one step, or why it refuses.

    v1 adds the time after which the client must authenticate again (KIP-368). v2 is flexible.
    """

    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    auth_bytes: binary
    # 0: for as long as the connection lasts.
    session_lifetime_ms: int64 = field(versions="1+", default=0, ignorable=True)
