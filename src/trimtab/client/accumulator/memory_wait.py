"""The wait of one call for buffer memory."""

from __future__ import annotations

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.memory_cy import MemoryRequest


class MemoryWait:
    """One call's wait for buffer memory: a `send`, or a table.

    `request` is stored before it is queued, so that an interrupted call can still withdraw it.

    Attributes:
        request: the request for memory, granted or not; None while the call does not wait.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self.request: MemoryRequest | None = None

    def begin_wait(self, size: int) -> MemoryRequest:
        self.request = request = MemoryRequest(size)
        self._accumulator.queue_for_memory(request)
        return request

    def end_wait(self) -> None:
        if self.request is not None:
            self._accumulator.cancel_memory_request(self.request)
            self.request = None
