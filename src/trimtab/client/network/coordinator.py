"""Requests to the coordinator of a group or a transactional id, also while it moves.

    ask ─▶ FindCoordinator ─▶ request ─▶ response, or an error that is not retriable
                 ▲               │
                 └── retriable error, no answer: again, with back-off

Source: KIP-98, KIP-699; `TransactionManager.TxnRequestHandler`, `AbstractCoordinator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from random import Random
from typing import TypeAlias, TypeVar

from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.connections import Connections
from trimtab.kafka.errors import (
    BrokerError,
    CorruptData,
    ErrorCode,
    KafkaError,
    Unavailable,
    error_code,
)
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from trimtab.kafka.wire.schema import Request

logger = logging.getLogger("trimtab.client")

Response = TypeVar("Response")

_SEVERAL_KEYS_SINCE = 4
_CONCURRENT_BACKOFF = 0.002
"""Seconds until the first retry while the previous transaction is being ended, which takes
milliseconds: less than `retry.backoff.ms` (KAFKA-5482). Doubled with each retry."""
_PATIENCE = 1.0
"""Seconds until the log says that a coordinator refuses: one that has just moved does at first."""
_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Verdict: TypeAlias = tuple[ErrorCode, str]
"""The error code of a response, and the group, id or partition that it is about."""


class CoordinatorKind(IntEnum):
    """The type of a key in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


async def find_coordinators(
    connection: Connection, kind: CoordinatorKind, keys: Sequence[str]
) -> list[Coordinator]:
    """The coordinator of each key, or why there is none: in one request, or one for each key from
    brokers before Kafka 3.0 (KIP-699)."""
    version = connection.version_of(FindCoordinatorRequest)
    if version >= _SEVERAL_KEYS_SINCE:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        return (await connection.request(request, version)).coordinators
    answers = await asyncio.gather(
        *(
            connection.request(FindCoordinatorRequest(key=key, key_type=kind), version)
            for key in keys
        )
    )
    return [
        Coordinator(
            key=key,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
            error_code=answer.error_code,
            error_message=answer.error_message,
        )
        for key, answer in zip(keys, answers, strict=True)
    ]


class CoordinatorLink:
    """Sends requests to the coordinator of one key. Finds it before the first request, and again
    after it has moved.

    Args:
        key: a group's id or a transactional id.
        backoff: between attempts.
        finder: connections over which to ask which broker the coordinator is; the same if None.

    Attributes:
        trouble: the last error of the request that is being repeated; None without an error.
        unanswered: how many requests were sent and not answered; they may still arrive.
    """

    def __init__(
        self,
        connections: Connections,
        kind: CoordinatorKind,
        key: str,
        backoff: Backoff,
        random: Random,
        finder: Connections | None = None,
    ) -> None:
        self.trouble: KafkaError | None = None
        self.unanswered = 0
        self._connections = connections
        self._finder = finder or connections
        self._kind = kind
        self._key = key
        self._backoff = backoff
        self._concurrent_backoff = Backoff(
            min(_CONCURRENT_BACKOFF, backoff.initial), backoff.maximum
        )
        self._random = random
        self._node_id: int | None = None
        self._connection: Connection | None = None

    def __str__(self) -> str:
        name = "group" if self._kind is CoordinatorKind.GROUP else "transactional id"
        return f"{name} {self._key}"

    def feature(self, name: str) -> int:
        """The cluster's level of a feature (`Connection.feature`); 0 before the first request."""
        return 0 if self._connection is None else self._connection.feature(name)

    def version_of(self, request: type[Request[Response]]) -> int:
        """The newest version that both speak; -1 before the first request."""
        return -1 if self._connection is None else self._connection.version_of(request)

    def disconnect(self) -> None:
        """Close the connection: a request that waits for others at the coordinator holds up all
        that follow it on the same connection."""
        if self._connection is not None:
            self._connection.close()

    async def ask(
        self,
        request: type[Request[Response]],
        make: Callable[[int], Request[Response]],
        judge: Callable[[Response], Verdict],
        *,
        at_most: int | None = None,
        timeout: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Response:
        """Send a request until the coordinator has carried it out; returns that response.

        Args:
            request: the class of the request.
            make: the request, for a version.
            judge: the error of a response: ErrorCode.NONE if all of the request was carried out.
            at_most: the newest version to use; None for the newest that both speak.
            timeout: seconds to wait for each response; `request.timeout.ms` if None.
            check: called before each attempt; raises if the request is no longer wanted.

        Raises:
            BrokerError: the response, or FindCoordinator's, has an error that is not retriable.
            AuthenticationFailed: no broker accepts this client.
        """
        attempts, now = 0, asyncio.get_running_loop().time
        outages, named = self._connections.outages, f"the coordinator of {self}"
        try:
            while True:
                check()
                backoff = self._backoff
                try:
                    connection = await self._connect()
                    version = connection.version_of(request, at_most)
                    sent = make(version)
                    self.unanswered += 1
                    response = await connection.request(sent, version, timeout)
                    self.unanswered -= 1
                    code, subject = judge(response)
                    if code is ErrorCode.NONE:
                        outages.reached(named, now())
                        return response
                    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                        backoff = self._concurrent_backoff
                    raise BrokerError(code, "", subject or str(self))
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    if error.code in _MOVED:
                        self._node_id = None
                    self.trouble = error
                except (Unavailable, CorruptData) as error:
                    self._node_id = None
                    self.trouble = error
                wait = backoff.wait(attempts, self._random)
                if isinstance(self.trouble, BrokerError):  # `Connections` logs the others
                    outages.failed(named, self.trouble, wait, now(), _PATIENCE)
                logger.debug("asking the coordinator of %s again: %s", self, self.trouble)
                await asyncio.sleep(wait)
                attempts += 1
        finally:
            self.trouble = None
            outages.forget(named)

    async def _connect(self) -> Connection:
        if self._node_id is None:
            self._node_id = await self._find()
        self._connection = await self._connections.connect(self._node_id)
        return self._connection

    async def _find(self) -> int:
        connection = await self._finder.connect_any()
        if self._kind is CoordinatorKind.TRANSACTION and not connection.serves(EndTxnRequest):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.node} serves no transactions; leave transactional.id out, or use"
                " Apache Kafka",
                str(self),
            )
        answers = await find_coordinators(connection, self._kind, [self._key])
        if not answers:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no answer", str(self))
        (found,) = answers
        code = error_code(found.error_code)
        if code is not ErrorCode.NONE:
            raise BrokerError(code, found.error_message or "", str(self))
        self._connections.update([Node(found.node_id, found.host, found.port)])
        return found.node_id
