"""Work that a node does from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

_log = logging.getLogger(__name__)


async def repeat(
    interval_s: float, work: Callable[[], Awaitable[None] | None], name: str
) -> NoReturn:
    """Do the work again and again until cancelled, each time after the interval.

    An error is logged and ends only this time's work: the node would otherwise go on without it,
    and nobody would notice.

    Args:
        name: of the work and its node, for the log.
    """
    while True:
        await asyncio.sleep(interval_s)
        try:
            if (working := work()) is not None:
                await working
        except Exception:
            _log.exception("%s failed; it is tried again in %g s", name, interval_s)
