"""How an admin client sends requests: to which broker, and when it may repeat them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from trimtab.client.async_client import AsyncClient
from trimtab.client.network.connection import Connection
from trimtab.client.network.session import Session
from trimtab.kafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    UsageError,
    error_code,
)
from trimtab.kafka.wire.messages.metadata import MetadataResponse
from trimtab.kafka.wire.schema import Request

K = TypeVar("K")
T = TypeVar("T")
Response = TypeVar("Response")

_REFUSED_FOR_NOW: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class FinalError(Exception):
    """Wraps an error that must not be retried, although its kind is retriable."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(str(error))
        self.error = error


class Calls:
    """Sends one admin client's requests."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def timeout_ms(self) -> int:
        """How long a broker may take for a request (`request.timeout.ms`)."""
        return int(self.session.options.integer("request.timeout.ms"))

    async def retry(
        self, what: str, attempt: Callable[[], Awaitable[T]], timeout: float | None = None
    ) -> T:
        """The result of `attempt`, repeated with back-off while its error is retriable.

        Args:
            what: completes the error message "cannot …".
            timeout: seconds for all attempts; `default.api.timeout.ms` if None.
        """
        session = self.session
        session.check_open()
        longest = session.timeout if timeout is None else timeout
        last: KafkaError | None = None
        failures = 0
        try:
            async with asyncio.timeout(longest):
                while True:
                    try:
                        return await attempt()
                    except FinalError as final:
                        raise final.error from None
                    except KafkaError as error:
                        if isinstance(error, BrokerError) and not error.retriable:
                            raise
                        if not isinstance(error, BrokerError | Unavailable):
                            raise
                        last = error
                    await asyncio.sleep(session.backoff.wait(failures, session.random))
                    failures += 1
        except TimeoutError:
            waited = f"within {longest:g} s"
            if timeout is None:
                waited += " (default.api.timeout.ms)"
            if isinstance(last, BrokerError):
                raise BrokerError(last.code, f"{last.detail}; {waited}", last.subject) from None
            why = last or session.connections.describe_silence()
            raise Unavailable(f"cannot {what} {waited}: {why}") from None

    async def fetch_metadata(self, topics: list[str] | None) -> MetadataResponse:
        return await self.session.metadata.fetch(topics)

    async def connect_any(self) -> Connection:
        return await self.session.connections.connect_any()

    async def connect_to_controller(self) -> Connection:
        await self.fetch_metadata([])
        controller = self.session.metadata.controller_id
        if controller < 0:
            return await self.connect_any()
        return await self.session.connections.connect(controller)

    async def connect_to_broker(self, broker: int) -> Connection:
        """The connection to a certain broker, for requests that only it can answer.

        Raises:
            UsageError: no live broker has this id.
        """
        await self.fetch_metadata([])
        nodes = self.session.metadata.nodes
        if broker not in nodes:
            alive = ", ".join(map(str, sorted(nodes)))
            raise UsageError(f"broker {broker} is not alive; alive are {alive}")
        return await self.session.connections.connect(broker)

    async def send_once(
        self, connection: Connection, request: Request[Response], look: str = "topics()"
    ) -> Response:
        """Send a request that must not be sent twice: if it may have taken effect, its error is
        final.

        Args:
            look: the call that shows whether it took effect.
        """
        version = connection.version_of(type(request))
        try:
            return await connection.request(request, version)
        except Unavailable as error:
            raise FinalError(
                Unavailable(f"{error}; the request may have taken effect: check with {look}")
            ) from None


class Family(AsyncClient):
    """A family of an admin client's methods."""

    _calls: Calls


def may_be_sent_again(error: BrokerError) -> bool:
    """Whether a change was refused with an error after which it can be sent again."""
    return error.code in _REFUSED_FOR_NOW


def sort_answers(
    answers: Iterable[tuple[K, BrokerError | None]],
    missing: dict[K, Any],
    done: list[K],
    refusals: dict[K, BrokerError],
) -> None:
    """Sort a request's changes into those done and those refused; both are missing no longer.

    Raises:
        BrokerError: the first error after which a change can be sent again.
    """
    again: BrokerError | None = None
    for change, error in answers:
        if error is not None and may_be_sent_again(error):
            again = again or error
            continue
        missing.pop(change, None)
        if error is None:
            done.append(change)
        else:
            refusals[change] = error
    if again is not None:
        raise again


def raise_change_error(error: BrokerError | None) -> None:
    """Raise the error of a change, if any; final unless it can be sent again."""
    if error is not None and may_be_sent_again(error):
        raise error
    if error is not None:
        raise FinalError(error)


def check_change(code: int, message: str | None, subject: str) -> None:
    """Raise the error of a change that a response holds, as `raise_change_error` does."""
    raise_change_error(read_error(code, message, subject))


def read_error(code: int, message: str | None, subject: str) -> BrokerError | None:
    """The error that a response holds, if any."""
    if code == ErrorCode.NONE:
        return None
    return BrokerError(error_code(code), message or "", subject)


def check(code: int, message: str | None, subject: str) -> None:
    """Raise the error that a response holds, if any."""
    error = read_error(code, message, subject)
    if error is not None:
        raise error


def unknown_topic(name: str) -> BrokerError:
    return BrokerError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic", f"topic {name}"
    )
