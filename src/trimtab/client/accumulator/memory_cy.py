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
class Place:
    """One waiting sender's place in the queue for memory.

    Attributes:
        size: bytes to reserve for it.
        served: a future that ends when they are reserved, or with an error when the producer is
            closed.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.served: Future[None] = Future()


@cython.final
@cython.cclass
class BufferMemory:
    """The used and reserved memory, and the senders that wait for some.

    Args:
        size: the limit in bytes.

    Attributes:
        used: bytes that batches hold.
        room: up to which `used` may grow without waiting; -1 if senders wait, or it is shut.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.used = 0
        self.room = size
        self._set_aside = 0
        self._is_shut = False
        self._line: deque[Place] = deque()
        self._served: set[Place] = set()  # memory is reserved for these

    @property
    def waiting(self) -> int:
        """How many senders wait."""
        return len(self._line)

    @cython.cfunc
    def has_room(self, size: cython.longlong) -> cython.bint:
        if self.used + size <= self.room:
            return True
        # If no memory is used, one record may exceed the limit.
        return self.used == 0 and self._set_aside == 0 and not self._line

    @cython.cfunc
    def shut(self, is_shut: cython.bint) -> Any:
        """Refuse all new records (True), or accept them again (False)."""
        self._is_shut = is_shut
        return self._measure()

    @cython.cfunc
    def give_back(self, size: cython.longlong) -> Any:
        self.used -= size
        return self._serve() if self._line else None

    @cython.cfunc
    def stand(self, place: Place) -> Any:
        self._line.append(place)
        return self._serve()

    @cython.cfunc
    def leave(self, place: Place) -> Any:
        """Remove a place, served or not; does nothing if it was removed before."""
        if place in self._served:
            self._served.remove(place)
            self._set_aside -= place.size
        elif place in self._line:
            self._line.remove(place)
        else:
            return None
        return self._serve()

    @cython.cfunc
    def send_away(self, error: Any) -> Any:
        """Fail all waiting senders with this error."""
        while self._line:
            self._line.popleft().served.set_exception(error)
        return self._measure()

    @cython.cfunc
    @cython.locals(place=Place)
    def _serve(self) -> Any:
        """Reserve memory for the first waiting senders, as far as it suffices."""
        while self._line:
            place = self._line[0]
            held: cython.longlong = self.used + self._set_aside
            if held > 0 and held + place.size > self.size:
                break
            self._served.add(place)
            self._set_aside += place.size
            self._line.popleft()
            place.served.set_result(None)
        return self._measure()

    @cython.cfunc
    def mend(self, used: cython.longlong) -> Any:
        """Recompute the state from `used`, `_line` and `_served`, after an interrupted change."""
        self.used = used
        self._line = deque([place for place in self._line if place not in self._served])
        self._set_aside = sum([place.size for place in self._served])
        for place in self._served:
            if not place.served.done():
                place.served.set_result(None)
        return self._serve()

    def _measure(self) -> None:
        self.room = -1 if self._is_shut or self._line else self.size - self._set_aside
