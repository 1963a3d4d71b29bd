"""Log lines while a broker or the metadata cannot be reached, at growing intervals."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger("trimtab.client")

_FIRST_INTERVAL = 1.0
_LONGEST_INTERVAL = 60.0


@dataclass(slots=True)
class _Outage:
    since: float
    next_line: float
    interval: float = _FIRST_INTERVAL
    attempts: int = 0
    is_logged: bool = False


class OutageLog:
    """One client's outages, in lines of level INFO. Times are the loop's, in seconds.

    Args:
        client: its `client.id`.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._outages: dict[str, _Outage] = {}

    def failed(
        self, subject: str, why: object, wait: float, now: float, patience: float = 0.0
    ) -> None:
        """An attempt to reach `subject` has failed.

        Args:
            wait: seconds until the next attempt.
            patience: seconds until the first line.
        """
        outage = self._outages.get(subject)
        if outage is None:
            outage = self._outages[subject] = _Outage(now, now + patience)
        outage.attempts += 1
        if now < outage.next_line:
            return
        outage.next_line = now + outage.interval
        outage.interval = min(2 * outage.interval, _LONGEST_INTERVAL)
        outage.is_logged = True
        logger.info(
            "%s: %s; attempt %d, for %.1f s, the next in %.2g s at the earliest",
            *(self._client, why, outage.attempts, now - outage.since, wait),
        )

    def reached(self, subject: str, now: float) -> None:
        """`subject` is reached; logged if the outage was logged."""
        outage = self._outages.pop(subject, None)
        if outage is not None and outage.is_logged:
            logger.info(
                "%s: %s is reached again after %d failed attempts in %.1f s",
                *(self._client, subject, outage.attempts, now - outage.since),
            )
