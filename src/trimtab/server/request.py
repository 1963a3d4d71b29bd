"""What a handler is: a plain function from a request to its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from trimtab.wire.framing import RequestHeader

Handler: TypeAlias = "Callable[[RequestHeader, Any], Any | Awaitable[Any] | None]"
"""The response at once where it is known at once; an awaitable where something must happen first;
None where none is sent."""


class CloseConnection(Exception):
    """There is no answer that the client would understand; says why."""
