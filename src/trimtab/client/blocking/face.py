"""What the synchronous clients have alike: each wraps an asynchronous one on the loop thread.

class Admin(Face[AsyncAdmin]):
    topics = waits(AsyncAdmin.topics)  # on the loop thread; the caller waits for the result
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from trimtab.client.async_client import AsyncClient, Close
from trimtab.kafka.arguments import refuse_copying
from trimtab.kafka.errors import UsageError
from trimtab.threads.loop_thread import LoopThread

C = TypeVar("C", bound=AsyncClient)
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Face(Generic[C]):
    """A synchronous client. Any thread may use it, unless its class says otherwise."""

    _closed_error: ClassVar[str | None] = None
    """The error of calls after `close`; None for the loop thread's, which names the client."""

    _client: C
    _thread: LoopThread

    def _wrap(self, client: C, close: Close, thread: LoopThread) -> None:
        """Wrap a client, and have it closed if nobody closes it.

        The last step of a constructor: if Ctrl-C comes before its end, nothing is left to close.

        Args:
            close: what the client's `_leave_closing` has returned.
        """
        self._client = client
        self._thread = thread
        thread.entrust(self, client.options.name_of(self), close)

    __reduce_ex__ = refuse_copying

    def __repr__(self) -> str:
        return self._client._describe(self, self._thread.is_released)

    def _run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed_error is not None and self._thread.is_released:
            raise UsageError(self._closed_error)
        return self._thread.run(function, *args, **kwargs)

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        self._thread.close_client(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()


def waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Face[Any], P], T]:
    """A method of the wrapped client: it runs on the loop thread, and the caller waits for it."""

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = [_read_here(each) for each in args]
        named = {name: _read_here(each) for name, each in kwargs.items()}
        return face._run(method, face._client, *given, **named)  # type: ignore[arg-type]

    return call


def _read_here(argument: object) -> object:
    """A caller's generator may wait for a client, which is not possible on the loop thread."""
    return list(argument) if isinstance(argument, Iterator) else argument


def at_once(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Face[Any], P], T]:
    """A method of the wrapped client that does not wait: it runs on the caller's thread."""

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(face._client, *args, **kwargs)

    return call


def like(method: Callable[..., object]) -> Callable[[F], F]:
    """Give a method that is written for a face the documentation of the wrapped client's."""

    def document(written: F) -> F:
        written.__doc__ = method.__doc__
        return written

    return document
