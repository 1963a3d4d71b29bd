"""The type of a handler: a plain function from a request to its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from trimtab.cluster.server.turns import Steps
    from trimtab.kafka.wire.framing import RequestHeader

Handler: TypeAlias = "Callable[[RequestHeader, Any], Any | Awaitable[Any] | Steps[Any] | None]"
"""Returns the response; an awaitable of it, if something must happen first; or None to send none. A
handler whose work grows with the request returns `Steps`, which end with one of these. They yield
about every millisecond, and other requests may change the handler's data between two steps."""


class CloseConnection(Exception):
    """Close the connection instead of answering.

    Args:
        reason: is logged.
        response: is sent first, if there is one.
    """

    def __init__(self, reason: str, response: object = None) -> None:
        super().__init__(reason)
        self.response = response
