"""What a handler is: a plain function from a request to its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from trimtab.server.turns import Steps
    from trimtab.wire.framing import RequestHeader

Handler: TypeAlias = "Callable[[RequestHeader, Any], Any | Awaitable[Any] | Steps[Any] | None]"
"""The response at once where it is known at once; an awaitable where something must happen first;
None where none is sent. One whose work grows with the request returns `Steps` to any of these: it
yields every millisecond, and between two steps others may change what it looks at."""


class CloseConnection(Exception):
    """There is no answer that the client would understand; says why."""
