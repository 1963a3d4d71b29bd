"""Temporary errors of the cluster: a stream waits until they are over.

Spark would end the query on any exception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable

logger = logging.getLogger(__name__)

OUTAGE_SECONDS: Final = 300.0
"""A temporary error ends the query if it lasts longer than this."""

_RETRY_SECONDS: Final = 0.2

T = TypeVar("T")


class Outages:
    """Waits for the cluster, for one stream's driver.

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
        """Whether the last request failed with a temporary error."""
        return self._since is not None

    def note_answer(self) -> None:
        """The cluster was reached: from now on, temporary errors do not end the query."""
        self._has_answered = True

    def attempt(self, action: Callable[[], T]) -> T | None:
        """The result of `action`; None if it raises a temporary error.

        Raises:
            KafkaError: the error is not temporary, has lasted for `OUTAGE_SECONDS`, or the cluster
                was never reached.
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
            logger.warning("the stream continues after %.1f s", self._clock() - self._since)
            self._since = None
        return result

    def insist(self, action: Callable[[], T]) -> T:
        """The result of `action`, which is repeated after temporary errors; raises as `attempt`."""
        while True:
            result = self.attempt(lambda: (action(),))
            if result is not None:
                return result[0]
            self._wait(_RETRY_SECONDS)


def may_pass(error: KafkaError) -> bool:
    """Whether a repetition may succeed."""
    if isinstance(error, BrokerError):
        # Out of range: records are being deleted; the next attempt reads the new offsets first.
        return error.retriable or error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    return isinstance(error, Unavailable)
