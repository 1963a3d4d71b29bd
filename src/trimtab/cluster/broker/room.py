"""Bounds what a broker remembers as a coordinator, over all partitions that it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.cluster.coordinator.room import Usage
from trimtab.cluster.server.turns import Steps, in_turns

_INTERVAL_S: Final = 1.0
"""Between two counts."""

_log = logging.getLogger(__name__)


class Headroom:
    """Whether there is room for more.

    It counts, in steps, when something is to be admitted and the last count is a second old. Until
    the next count it adds what it has admitted.

    Args:
        measure: counts what there is.
        limits: the most of it now.
        options: the names of the options with the limits.
    """

    def __init__(
        self,
        measure: Callable[[], Steps[Usage]],
        limits: Callable[[], Usage],
        options: Sequence[str],
    ) -> None:
        self._measure = measure
        self._limits = limits
        self._options = options
        self._counted = Usage()
        self._since = Usage()
        """What was admitted since the last count began."""
        self._next_s = 0.0
        self._counting: asyncio.Task[None] | None = None
        self._has_warned = False

    def admit(self, more: Usage) -> str | None:
        """Take note of what is about to be remembered; returns why there is no room for it."""
        loop = asyncio.get_running_loop()
        if self._counting is None and loop.time() >= self._next_s:
            self._next_s = loop.time() + _INTERVAL_S
            self._counting = loop.create_task(self._count())
        wanted = self._counted.plus(self._since).plus(more)
        for option, most, there, added in zip(
            self._options, self._limits(), wanted, more, strict=True
        ):
            if added and there > most:
                reason = (
                    f"the coordinator has no room: it would remember {there}, and {option} of its "
                    f"broker is {most}; delete what is not used, or raise the option"
                )
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning("a request was refused, and perhaps more: %s", reason)
                return reason
        self._since = self._since.plus(more)
        return None

    def close(self) -> None:
        """Count no more."""
        if self._counting is not None:
            self._counting.cancel()

    async def _count(self) -> None:
        before = self._since
        try:
            self._counted = await in_turns(self._measure())
            self._since = Usage(
                *(now - then for now, then in zip(self._since, before, strict=True))
            )
            self._has_warned = False
        finally:
            self._counting = None
