# mypy: allow-untyped-decorators, no-warn-return-any
"""The memory that a producer's batches may hold (`buffer.memory`), and the line for it.

    room ──▶ used ──▶ given back ──▶ set aside for who stands first ──▶ used
                                          ▲
    no room: stand in line ───────────────┘   first come, first served

What counts is what batches really hold, so that a producer's memory stays within the limit but for
one batch's growth. All of it is changed under the accumulator's lock.

Source: `org.apache.kafka.clients.producer.internals.BufferPool`.
"""

from collections import deque
from concurrent.futures import Future
from typing import Any

import cython


@cython.final
@cython.cclass
class Place:
    """A place in the line.

    Attributes:
        size: bytes that are set aside when its turn comes.
        served: a future that ends then, or with an error when the producer is closed.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.served: Future[None] = Future()


@cython.final
@cython.cclass
class BufferMemory:
    """How much is used, and who waits for it.

    Args:
        size: bytes in all.

    Attributes:
        used: bytes that batches hold.
        room: what `used` may come to without standing in line; -1 if there is a line.
    """

    def __init__(self, size: cython.longlong) -> None:
        self.size = size
        self.used = 0
        self.room = size
        self._set_aside = 0
        self._is_shut = False
        self._line: deque[Place] = deque()
        self._served: set[Place] = set()  # for whom memory is set aside

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    @cython.cfunc
    def has_room(self, size: cython.longlong) -> cython.bint:
        if self.used + size <= self.room:
            return True
        # Nothing is held: then a record may be larger than the whole.
        return self.used == 0 and self._set_aside == 0 and not self._line

    @cython.cfunc
    def shut(self, is_shut: cython.bint) -> Any:
        """Leave no room for anything new, whatever is free; or again what there is."""
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
        """Give up a place, served or not; does nothing if it was left."""
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
        """End the wait of all who stand in line, with this error."""
        while self._line:
            self._line.popleft().served.set_exception(error)
        return self._measure()

    @cython.cfunc
    @cython.locals(place=Place)
    def _serve(self) -> Any:
        """Set memory aside for those who stand first, as far as it goes."""
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
        """Derive all from what batches hold and who stands where: a change was interrupted."""
        self.used = used
        self._line = deque([place for place in self._line if place not in self._served])
        self._set_aside = sum([place.size for place in self._served])
        for place in self._served:
            if not place.served.done():
                place.served.set_result(None)
        return self._serve()

    def _measure(self) -> None:
        self.room = -1 if self._is_shut or self._line else self.size - self._set_aside
