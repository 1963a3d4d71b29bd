# mypy: allow-untyped-decorators, no-warn-return-any
"""The memory that a producer's batches may hold (`buffer.memory`), and the senders waiting for it.

    free ──▶ used ──▶ free ──▶ reserved for the first waiting sender ──▶ used
                                     ▲
    none free: wait in a queue ──────┘   first in, first out

It counts the memory that batches hold, not the bytes in them, so that a producer exceeds the limit
by one batch's growth at most. All of this changes under the accumulator's lock.

Source: `org.apache.kafka.clients.producer.internals.BufferPool`.
"""

from collections import deque
from concurrent.futures import Future
from typing import Any

import cython


@cython.final
@cython.cclass
class MemoryRequest:
    """A `send` call's request for buffer memory, waiting or granted.

    Attributes:
        size: bytes to reserve.
        granted: a future that ends when the bytes are reserved, or with an error when the producer
            is closed.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.granted: Future[None] = Future()


@cython.final
@cython.cclass
class BufferMemory:
    """The used and reserved memory, and the queue of requests.

    Args:
        size: the limit in bytes.

    Attributes:
        used: bytes that batches hold.
        room: the value up to which `used` may grow without waiting; -1 while senders wait, or
            after `shut(True)`.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.used = 0
        self.room = size
        self._reserved = 0
        self._is_shut = False
        self._queue: deque[MemoryRequest] = deque()
        self._granted: set[MemoryRequest] = set()

    @property
    def waiting(self) -> int:
        """The number of requests that are not granted."""
        return len(self._queue)

    @cython.cfunc
    def has_room(self, size: cython.longlong) -> cython.bint:
        if self.used + size <= self.room:
            return True
        # If no memory is used, one record may exceed the limit.
        return self.used == 0 and self._reserved == 0 and not self._queue

    @cython.cfunc
    def shut(self, is_shut: cython.bint) -> Any:
        """Refuse all new records (True), or accept them again (False)."""
        self._is_shut = is_shut
        return self._update_room()

    @cython.cfunc
    def release(self, size: cython.longlong) -> Any:
        self.used -= size
        return self._grant() if self._queue else None

    @cython.cfunc
    def enqueue(self, request: MemoryRequest) -> Any:
        self._queue.append(request)
        return self._grant()

    @cython.cfunc
    def remove(self, request: MemoryRequest) -> Any:
        """Withdraw a request and its reservation; does nothing if it was removed before."""
        if request in self._granted:
            self._granted.remove(request)
            self._reserved -= request.size
        elif request in self._queue:
            self._queue.remove(request)
        else:
            return None
        return self._grant()

    @cython.cfunc
    def fail_waiting(self, error: Any) -> Any:
        """Fail all waiting senders with this error."""
        while self._queue:
            self._queue.popleft().granted.set_exception(error)
        return self._update_room()

    @cython.cfunc
    @cython.locals(request=MemoryRequest)
    def _grant(self) -> Any:
        """Reserve memory for the first requests, as long as it suffices."""
        while self._queue:
            request = self._queue[0]
            held: cython.longlong = self.used + self._reserved
            if held > 0 and held + request.size > self.size:
                break
            self._granted.add(request)
            self._reserved += request.size
            self._queue.popleft()
            request.granted.set_result(None)
        return self._update_room()

    @cython.cfunc
    def repair(self, used: cython.longlong) -> Any:
        """Recompute the state from `used`, `_queue` and `_granted`, after an interrupted change."""
        self.used = used
        self._queue = deque([request for request in self._queue if request not in self._granted])
        self._reserved = sum([request.size for request in self._granted])
        for request in self._granted:
            if not request.granted.done():
                request.granted.set_result(None)
        return self._grant()

    def _update_room(self) -> None:
        self.room = -1 if self._is_shut or self._queue else self.size - self._reserved
