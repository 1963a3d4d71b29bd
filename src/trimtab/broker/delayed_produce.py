"""Produce requests that wait until their batches are on every replica in sync (acks=all)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trimtab.errors import ErrorCode
from trimtab.wire.messages.produce import PartitionProduceResponse, ProduceResponse

if TYPE_CHECKING:
    from trimtab.broker.partition import Partition


class DelayedProduce:
    """One request.

    Args:
        response: the answer as it is if all goes well.
        timeout_s: after which what is not committed is answered with REQUEST_TIMED_OUT.

    Attributes:
        answer: the response, once every partition's part of it is known.
    """

    __slots__ = ("_missing", "_response", "_timer", "answer")

    def __init__(self, response: ProduceResponse, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._response = response
        self._missing: dict[int, PartitionProduceResponse] = {}
        self._timer = loop.call_later(timeout_s, self._time_out)
        self.answer: asyncio.Future[Any] = loop.create_future()
        # Cancelled from outside when its connection is lost.
        self.answer.add_done_callback(self._stop)

    def wait_for(
        self, partition: Partition, next_offset: int, part: PartitionProduceResponse
    ) -> None:
        """This part of the answer holds once everything before `next_offset` is committed."""
        assert partition.leadership is not None
        key = id(part)
        self._missing[key] = part

        def done(is_committed: bool) -> None:
            leadership = partition.leadership  # perhaps of a later epoch
            if not is_committed or leadership is None:
                self._settle(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif len(leadership.maximal_isr) < leadership.effective_min_isr:
                self._settle(key, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            else:
                self._settle(key, ErrorCode.NONE)

        partition.leadership.wait(next_offset, done)

    def _settle(self, key: int, code: ErrorCode) -> None:
        part = self._missing.pop(key, None)
        if part is None:
            return
        if code is not ErrorCode.NONE:
            part.error_code = code
            part.error_message = code.name
        if not self._missing and not self.answer.done():
            self.answer.set_result(self._response)

    def _time_out(self) -> None:
        for key in tuple(self._missing):
            self._settle(key, ErrorCode.REQUEST_TIMED_OUT)

    def _stop(self, _: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        self._missing.clear()
