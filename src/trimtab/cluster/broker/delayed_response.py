"""Responses that wait for followers: Produce with acks=all, until every in-sync replica has the
batches; DeleteRecords, until every live replica has deleted the records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trimtab.kafka.errors import ErrorCode


class DelayedResponse:
    """The response to one request, some partitions of which must wait.

    A part is the response for one partition.

    Args:
        response: the response if all parts succeed.
        refuse: called with a part that fails and the error code to write into it.

    Attributes:
        answer: resolves to the response once all parts are settled.
    """

    __slots__ = ("_missing", "_refuse", "_response", "_timer", "answer")

    def __init__(self, response: Any, refuse: Callable[[Any, ErrorCode], None]) -> None:
        self._response = response
        self._refuse = refuse
        self._missing: dict[int, Any] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Cancelled from outside when its connection is lost.
        self.answer.add_done_callback(self._stop)

    def hold(self, part: Any) -> None:
        """Do not answer before this part is settled."""
        self._missing[id(part)] = part

    def settle(self, part: Any, code: ErrorCode) -> None:
        """A part has succeeded (NONE) or failed; ignored after the time-out."""
        if self._missing.pop(id(part), None) is None:
            return
        if code is not ErrorCode.NONE:
            self._refuse(part, code)
        self._answer()

    def start(self, timeout_s: float) -> None:
        """All parts have been added: answer when each is settled.

        Args:
            timeout_s: after this time unsettled parts fail with REQUEST_TIMED_OUT.
        """
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        self._answer()

    def _answer(self) -> None:
        if self._timer is not None and not self._missing and not self.answer.done():
            self.answer.set_result(self._response)

    def _time_out(self) -> None:
        for part in tuple(self._missing.values()):
            self.settle(part, ErrorCode.REQUEST_TIMED_OUT)

    def _stop(self, _: asyncio.Future[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._missing.clear()
