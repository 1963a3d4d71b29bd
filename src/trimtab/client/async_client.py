"""What the asynchronous clients have alike: their options, and how they are closed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeAlias

from trimtab.client.network.options import Options
from trimtab.client.network.session import Session
from trimtab.kafka.arguments import refuse_copying
from trimtab.threads.unclosed import close_when_collected

Close: TypeAlias = Callable[[float | None], Coroutine[Any, Any, object]]
"""Closes a client that its user did not close, within so many seconds; None for no limit."""


class AsyncClient:
    """A client of an event loop. If nobody closes it, it is closed when it is garbage-collected.

    Args:
        close: closes what the client consists of; must not refer to the client.
        unsent: returns how many records it holds.
    """

    def __init__(
        self,
        session: Session,
        close: Callable[[], Coroutine[Any, Any, object]],
        unsent: Callable[[], int] = lambda: 0,
    ) -> None:
        self._session = session
        self._close = close
        self._keep_open = close_when_collected(self, session.options.name_of(self), close, unsent)

    __reduce_ex__ = refuse_copying

    def __repr__(self) -> str:
        return self._describe(self, self._session.is_closed)

    def _describe(self, client: object, is_closed: bool) -> str:
        """The repr of `client`, which is this one or wraps it."""
        state = ["closed"] if is_closed else self._state()
        return f"<{', '.join([self.options.name_of(client), *state])}>"

    def _state(self) -> list[str]:
        """What a repr tells of the client besides its name."""
        return []

    @property
    def options(self) -> Options:
        """Its checked options."""
        return self._session.options

    def _leave_closing(self) -> Close:
        """Leave closing the client, if its user does not, to the caller. Returns what closes it;
        that does not refer to the client."""
        self._keep_open()
        close = self._close
        return lambda timeout: close()

    async def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if not self._session.is_closed:
            self._session.is_closed = True
            self._keep_open()
            await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self.close()
