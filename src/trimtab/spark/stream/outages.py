"""Errors of the cluster that may pass: a stream rides them out. Spark ends it on any exception."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable

logger = logging.getLogger(__name__)

OUTAGE_SECONDS: Final = 300.0
"""How long errors that may pass are ridden out before they end the query."""

_RETRY_SECONDS: Final = 0.2

T = TypeVar("T")


class Outages:
    """The errors of one stream's driver.

    Args:
        clock: seconds, monotonic.
        wait: waits for a number of seconds.
    """

    def __init__(self, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._clock = clock
        self._wait = wait
        self._since: float | None = None
        self._has_answered = False

    @property
    def is_one(self) -> bool:
        """Whether the cluster is waited for."""
        return self._since is not None

    def note_answer(self) -> None:
        """The cluster has been reached: from now on it is waited for."""
        self._has_answered = True

    def attempt(self, action: Callable[[], T]) -> T | None:
        """What `action` returns; None if it fails in a way that may pass.

        Raises:
            KafkaError: one that does not, or that has not passed within `OUTAGE_SECONDS`.
        """
        try:
            result = action()
        except KafkaError as error:
            if not (self._has_answered and may_pass(error)):
                raise
            now = self._clock()
            if self._since is None:
                self._since = now
                logger.warning("the stream waits for the cluster: %s", error)
            elif now - self._since > OUTAGE_SECONDS:
                raise
            return None
        self._has_answered = True
        if self._since is not None:
            logger.warning("the stream goes on after %.1f s", self._clock() - self._since)
            self._since = None
        return result

    def insist(self, action: Callable[[], T]) -> T:
        """What `action` returns, however often it takes."""
        while True:
            result = self.attempt(lambda: (action(),))
            if result is not None:
                return result[0]
            self._wait(_RETRY_SECONDS)


def may_pass(error: KafkaError) -> bool:
    """Whether asking again may do."""
    if isinstance(error, BrokerError):
        # Out of range: somebody deletes records just now; the next look finds out what is left.
        return error.retriable or error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    return isinstance(error, Unavailable)
