"""Log lines about what cannot be reached, a broker or the metadata, at growing intervals."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger("trimtab.client")

_FIRST_INTERVAL = 1.0
_LONGEST_INTERVAL = 300.0
_SERIOUS = 3.0
"""Seconds after which an outage is worth a warning; many end before, as when a broker restarts."""


@dataclass(slots=True)
class _Outage:
    since: float
    next_line: float
    interval: float = _FIRST_INTERVAL
    attempts: int = 0
    is_logged: bool = False


class OutageLog:
    """One client's outages: INFO at first, WARNING from their third second on. Times are the
    loop's, in seconds.

    Args:
        client: its `client.id`.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._outages: dict[str, _Outage] = {}

    def failed(
        self,
        subject: str,
        why: object,
        wait: float,
        now: float,
        patience: float = 0.0,
        since: float | None = None,
    ) -> None:
        """An attempt to reach `subject` has failed.

        Args:
            wait: seconds until the next attempt.
            patience: seconds until the first line.
            since: when the attempt began; `now` if None.
        """
        outage = self._outages.get(subject)
        if outage is None:
            began = now if since is None else since
            outage = self._outages[subject] = _Outage(began, began + patience)
        outage.attempts += 1
        if now < outage.next_line:
            return
        is_serious = now - outage.since >= _SERIOUS
        outage.next_line = now + outage.interval
        if not is_serious:
            outage.next_line = min(outage.next_line, outage.since + _SERIOUS)
        outage.interval = min(2 * outage.interval, _LONGEST_INTERVAL)
        outage.is_logged = True
        logger.log(
            logging.WARNING if is_serious else logging.INFO,
            "%s: %s; attempt %d, for %.1f s, the next in %.2g s at the earliest",
            *(self._client, why, outage.attempts, now - outage.since, wait),
        )

    def forget(self, subject: str) -> None:
        """Nobody tries to reach `subject` any more."""
        self._outages.pop(subject, None)

    def reached(self, subject: str, now: float) -> None:
        """`subject` is reached; logged if the outage was logged."""
        outage = self._outages.pop(subject, None)
        if outage is not None and outage.is_logged:
            logger.info(
                "%s: %s is reached again after %d failed attempts in %.1f s",
                *(self._client, subject, outage.attempts, now - outage.since),
            )
