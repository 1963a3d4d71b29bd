"""Which partitions' queues are due to be sent, by broker, without scanning all queues.

    first batch ─▶ lingering ──▶ due, listed for its leader ──▶ sent ──▶ idle, or due again
                     │  ▲          │ ▲                ▲
          complete ──┘  └─ backing off └─ held: order ─┘ a batch of it came back

If batches gather while their broker is busy, the due queues whose oldest batch may still grow are
listed apart: they are sent only if the broker has room.

A queue is always in one of these states, and events move it between them. A move costs O(log n) if
it sets an alarm, otherwise O(1). A broker that accepts no batches costs nothing: its list is not
read until it accepts some. This module does not know connections, requests or sequences.

Each broker's due queues are sent in order, and a queue goes to the end once one of its batches is
sent. So a queue that found no room in one request is first in the next (Kafka's `drainIndex`,
KAFKA-13834).

Source: `RecordAccumulator.ready` and `drain`, which scan every queue instead.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import PartitionQueue


_IDLE, _LINGERING, _BACKING_OFF, _DUE, _GATHERING, _HELD = range(6)


class _ScheduledQueue:
    """One queue and its state.

    Attributes:
        leader: the broker that it is due for.
        due: loop time at which it becomes due, while it lingers or backs off.
        alarm: loop time of its earliest alarm; infinite if it has none.
    """

    __slots__ = ("alarm", "due", "leader", "queue", "state")

    def __init__(self, queue: PartitionQueue, leader: int) -> None:
        self.queue = queue
        self.leader = leader
        self.state = _IDLE
        self.due = math.inf
        self.alarm = math.inf


class Schedule:
    """The states of all queues of one producer.

    Args:
        linger: seconds that a batch waits for more records (`linger.ms`).
        gathers: whether due batches that are not complete wait for room.
        leader_of: returns the node id of a queue's leader, -1 if there is none; called once per
            queue. `move` sets later leaders.
    """

    def __init__(
        self, linger: float, leader_of: Callable[[PartitionQueue], int], gathers: bool = False
    ) -> None:
        self._least_linger = self._linger = linger
        self._gathers = gathers
        self._leader_of = leader_of
        self._scheduled: dict[PartitionQueue, _ScheduledQueue] = {}
        self._due: dict[int, OrderedDict[_ScheduledQueue, None]] = {}
        self._gathering: dict[int, OrderedDict[_ScheduledQueue, None]] = {}
        self._lingering: dict[_ScheduledQueue, None] = {}
        self._held: dict[_ScheduledQueue, None] = {}
        self._clock: list[tuple[float, int, _ScheduledQueue]] = []
        self._alarms = 0
        self._is_hurried = False

    # events

    def review(self, queue: PartitionQueue, now: float) -> None:
        """Set a queue's state again: its oldest batch is new, complete, back, or gone."""
        scheduled = self._scheduled.get(queue)
        if scheduled is None:
            scheduled = self._scheduled[queue] = _ScheduledQueue(queue, self._leader_of(queue))
        batches = queue.batches
        if not batches:
            self._make_idle(scheduled)
            return
        head = batches[0]
        if head.attempts:
            if head.not_before <= now:
                self._make_due(scheduled)
            else:
                self._wait(scheduled, _BACKING_OFF, head.not_before)
        elif self._is_hurried or queue.head_is_complete:
            self._make_due(scheduled)
        elif self._linger <= 0:
            self._ripen(scheduled)
        else:
            due = head.created + self._linger
            if due <= now:
                self._ripen(scheduled)
            else:
                self._wait(scheduled, _LINGERING, due)

    def served(self, queue: PartitionQueue, now: float) -> None:
        """A batch was taken from a due queue. If the next one is due too, the queue moves to the
        end."""
        scheduled = self._scheduled[queue]
        self._make_idle(scheduled)
        if queue.batches:
            self.review(queue, now)

    def hold(self, queue: PartitionQueue) -> None:
        """A due queue may not be sent yet; `review` or `release` makes it due again."""
        scheduled = self._scheduled[queue]
        self._make_idle(scheduled)
        scheduled.state = _HELD
        self._held[scheduled] = None

    def release(self) -> None:
        """Make all held queues due again."""
        held, self._held = self._held, {}
        for scheduled in held:
            scheduled.state = _IDLE
            self._make_due(scheduled)

    def hurry(self, is_hurried: bool) -> None:
        """Set whether batches are sent without lingering or gathering: during a flush, a close, or
        a wait for memory."""
        self._is_hurried = is_hurried
        if is_hurried:
            for waiting in (self._lingering, *self._gathering.values()):
                for scheduled in list(waiting):
                    self._make_due(scheduled)

    def linger(self, seconds: float) -> None:
        """Have batches that begin from now on wait for this long, but at least `linger.ms`."""
        self._linger = max(self._least_linger, seconds)

    def move(self, queue: PartitionQueue, leader: int) -> bool:
        """Set the leader of a queue's partition; returns whether it changed."""
        scheduled = self._scheduled.get(queue)
        if scheduled is None or scheduled.leader == leader:
            return False
        state = scheduled.state
        if state in (_DUE, _GATHERING):
            self._make_idle(scheduled)
        scheduled.leader = leader
        if state == _DUE:
            self._make_due(scheduled)
        elif state == _GATHERING:
            self._ripen(scheduled)
        return True

    def forget(self, topic: str) -> None:
        """Remove a topic's queues; if the topic is used again, it has new ones."""
        for queue in [queue for queue in self._scheduled if queue.topic == topic]:
            self._make_idle(self._scheduled.pop(queue))

    def advance(self, now: float) -> float:
        """Make due the queues that have lingered or backed off for long enough.

        Returns:
            Loop time at which the next one may become due; infinite if none waits.
        """
        clock = self._clock
        while clock:
            alarm, _, scheduled = clock[0]
            is_waiting = scheduled.state == _LINGERING or scheduled.state == _BACKING_OFF
            if is_waiting and alarm > now and scheduled.due <= alarm:
                return alarm
            heapq.heappop(clock)
            if alarm != scheduled.alarm:
                continue  # an earlier alarm replaced this one
            scheduled.alarm = math.inf
            if is_waiting:
                if scheduled.due <= now:
                    self._ripen(scheduled)
                else:
                    self._set_alarm(scheduled)
        return math.inf

    # due queues

    @property
    def due_brokers(self) -> list[int]:
        """The brokers for which queues are due, or gather; -1 for queues without leader."""
        due = [leader for leader, queues in self._due.items() if queues]
        if self._gathers:
            due += [n for n, queues in self._gathering.items() if queues and not self._due.get(n)]
        return due

    def length(self, leader: int, has_room: bool = True) -> int:
        """How many queues are due for a broker that has room for batches that gather, or not."""
        length = len(self._due.get(leader, ()))
        if self._gathers and has_room:
            length += len(self._gathering.get(leader, ()))
        return length

    def due(self, leader: int, has_room: bool = True) -> Iterator[PartitionQueue]:
        """The queues that are due for a broker now, each once: call `served` or `hold` for each
        before the next.

        Those that gather come first, and only if the broker has room: complete batches are also
        sent without.
        """
        lists = (self._gathering, self._due) if self._gathers and has_room else (self._due,)
        # Only as many as there are now: those that are due again come to the end of a list.
        now = [(listed[leader], len(listed[leader])) for listed in lists if leader in listed]
        for queues, count in now:
            for _ in range(count):
                yield next(iter(queues)).queue

    # states

    def _make_due(self, scheduled: _ScheduledQueue) -> None:
        self._list(scheduled, _DUE, self._due)

    def _ripen(self, scheduled: _ScheduledQueue) -> None:
        """It has lingered, or backed off, for long enough."""
        queue = scheduled.queue
        if self._gathers and not (queue.head_is_complete or queue.batches[0].attempts):
            self._list(scheduled, _GATHERING, self._gathering)
        else:
            self._make_due(scheduled)

    def _list(
        self,
        scheduled: _ScheduledQueue,
        state: int,
        lists: dict[int, OrderedDict[_ScheduledQueue, None]],
    ) -> None:
        if scheduled.state == state:
            return
        self._make_idle(scheduled)
        scheduled.state = state
        queues = lists.get(scheduled.leader)
        if queues is None:
            queues = lists[scheduled.leader] = OrderedDict()
        queues[scheduled] = None

    def _wait(self, scheduled: _ScheduledQueue, state: int, due: float) -> None:
        self._make_idle(scheduled)
        scheduled.state = state
        scheduled.due = due
        if state == _LINGERING:
            self._lingering[scheduled] = None
        if due < scheduled.alarm:
            self._set_alarm(scheduled)

    def _make_idle(self, scheduled: _ScheduledQueue) -> None:
        state = scheduled.state
        if state == _DUE:
            del self._due[scheduled.leader][scheduled]
        elif state == _GATHERING:
            del self._gathering[scheduled.leader][scheduled]
        elif state == _LINGERING:
            del self._lingering[scheduled]
        elif state == _HELD:
            del self._held[scheduled]
        scheduled.state = _IDLE

    def _set_alarm(self, scheduled: _ScheduledQueue) -> None:
        # Mostly one entry per queue: an alarm that rings too early is set again then.
        scheduled.alarm = scheduled.due
        self._alarms += 1
        heapq.heappush(self._clock, (scheduled.due, self._alarms, scheduled))
