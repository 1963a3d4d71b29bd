"""Which partitions' queues may be sent, by broker, at a cost per event and not per queue.

    first batch ─▶ lingers ──▶ due, in a line for its leader ──▶ sent ──▶ idle, or in line again
                     │  ▲        │ ▲                  ▲
          complete ──┘  └─ backs off  └─ held: order ─┘ something of it came back

A queue is in one of these places. What happens to it moves it from one to another, in O(log n) for
the clock's sake and O(1) otherwise; a broker that takes nothing costs nothing, as its line is not
looked at until it takes again. Nothing here knows of connections, requests or sequences.

Lines are served in order, and a queue that has been served goes to the end of its line: so whoever
found no room in one request is first in the next (Kafka's `drainIndex`, KAFKA-13834).

Source: `RecordAccumulator.ready` and `drain`, which scan every queue instead.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import PartitionQueue

NO_LEADER = -1

_IDLE, _LINGERING, _BACKING_OFF, _DUE, _HELD = range(5)


class _Place:
    """Where one queue is.

    Attributes:
        leader: the broker in whose line it stands when it is due.
        due: loop time at which it becomes due, while it lingers or backs off.
        alarm: the earliest loop time at which the clock looks at it; infinite if it will not.
    """

    __slots__ = ("alarm", "due", "leader", "queue", "state")

    def __init__(self, queue: PartitionQueue, leader: int) -> None:
        self.queue = queue
        self.leader = leader
        self.state = _IDLE
        self.due = math.inf
        self.alarm = math.inf


class Schedule:
    """The places of all queues of one producer.

    Args:
        linger: seconds that a batch waits for more records (`linger.ms`).
        leader_of: the node id of a queue's leader, -1 if there is none; asked once for each queue.
            Later leaders are told with `move`.
    """

    def __init__(self, linger: float, leader_of: Callable[[PartitionQueue], int]) -> None:
        self._linger = linger
        self._leader_of = leader_of
        self._places: dict[PartitionQueue, _Place] = {}
        self._lines: dict[int, OrderedDict[_Place, None]] = {}
        self._lingering: dict[_Place, None] = {}
        self._held: dict[_Place, None] = {}
        self._clock: list[tuple[float, int, _Place]] = []
        self._alarms = 0
        self._is_hurried = linger <= 0

    # what happens to queues

    def review(self, queue: PartitionQueue, now: float) -> None:
        """Find a queue its place: its oldest batch is new, complete, came back, or is gone."""
        place = self._places.get(queue)
        if place is None:
            place = self._places[queue] = _Place(queue, self._leader_of(queue))
        batches = queue.batches
        if not batches:
            self._leave(place)
            return
        head = batches[0]
        if head.attempts:
            if head.not_before <= now:
                self._line_up(place)
            else:
                self._wait(place, _BACKING_OFF, head.not_before)
        elif self._is_hurried or queue.head_is_complete:
            self._line_up(place)
        else:
            due = head.created + self._linger
            if due <= now:
                self._line_up(place)
            else:
                self._wait(place, _LINGERING, due)

    def served(self, queue: PartitionQueue, now: float) -> None:
        """A batch was taken from a queue that was due: if it has more, it goes to the end."""
        place = self._places[queue]
        self._leave(place)
        if queue.batches:
            self.review(queue, now)

    def hold(self, queue: PartitionQueue) -> None:
        """A queue that is due may not be sent yet. `review` or `release` lines it up again."""
        place = self._places[queue]
        self._leave(place)
        place.state = _HELD
        self._held[place] = None

    def release(self) -> None:
        """Everything that is held may be due: line it up again."""
        held, self._held = self._held, {}
        for place in held:
            place.state = _IDLE
            self._line_up(place)

    def hurry(self, is_hurried: bool) -> None:
        """Whether nothing lingers from now on: somebody flushes, closes, or waits for memory."""
        self._is_hurried = is_hurried or self._linger <= 0
        if self._is_hurried and self._lingering:
            lingering, self._lingering = self._lingering, {}
            for place in lingering:
                place.state = _IDLE
                self._line_up(place)

    def move(self, queue: PartitionQueue, leader: int) -> bool:
        """A queue's partition has this leader; whether that is news."""
        place = self._places.get(queue)
        if place is None or place.leader == leader:
            return False
        is_due = place.state == _DUE
        if is_due:
            self._leave(place)
        place.leader = leader
        if is_due:
            self._line_up(place)
        return True

    def forget(self, topic: str) -> None:
        """A topic's queues are out of use; if it comes into use again it has others."""
        for queue in [queue for queue in self._places if queue.topic == topic]:
            self._leave(self._places.pop(queue))

    def advance(self, now: float) -> float:
        """Line up what has lingered or backed off for long enough.

        Returns:
            Loop time from which there is something to advance again; infinite if there is not.
        """
        clock = self._clock
        while clock:
            alarm, _, place = clock[0]
            is_waiting = place.state == _LINGERING or place.state == _BACKING_OFF
            if is_waiting and alarm > now and place.due <= alarm:
                return alarm
            heapq.heappop(clock)
            if alarm != place.alarm:
                continue  # an earlier alarm has taken this one's part
            place.alarm = math.inf
            if is_waiting:
                if place.due <= now:
                    self._line_up(place)
                else:
                    self._set_alarm(place)
        return math.inf

    # who is due

    @property
    def lines(self) -> list[int]:
        """The brokers for which something is due; -1 stands for the partitions without leader."""
        return [leader for leader, line in self._lines.items() if line]

    def length(self, leader: int) -> int:
        """How many queues are due for a broker."""
        line = self._lines.get(leader)
        return len(line) if line is not None else 0

    def first(self, leader: int) -> PartitionQueue:
        """The queue whose turn it is among those that are due for a broker; there must be one."""
        return next(iter(self._lines[leader])).queue

    # places

    def _line_up(self, place: _Place) -> None:
        if place.state == _DUE:
            return
        self._leave(place)
        place.state = _DUE
        line = self._lines.get(place.leader)
        if line is None:
            line = self._lines[place.leader] = OrderedDict()
        line[place] = None

    def _wait(self, place: _Place, state: int, due: float) -> None:
        self._leave(place)
        place.state = state
        place.due = due
        if state == _LINGERING:
            self._lingering[place] = None
        if due < place.alarm:
            self._set_alarm(place)

    def _leave(self, place: _Place) -> None:
        state = place.state
        if state == _DUE:
            del self._lines[place.leader][place]
        elif state == _LINGERING:
            del self._lingering[place]
        elif state == _HELD:
            del self._held[place]
        place.state = _IDLE

    def _set_alarm(self, place: _Place) -> None:
        # One entry for each queue, mostly: one whose time has not come is set again then.
        place.alarm = place.due
        self._alarms += 1
        heapq.heappush(self._clock, (place.due, self._alarms, place))
