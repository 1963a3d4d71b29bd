"""Fetch sessions: the partitions of a client's fetches, kept between requests (KIP-227).

    FetchSession ──▶ FetchSlot: one partition ──reads within the budget──▶ Partition
         │                            ▲──────────────notifies─────────────────┘
         ├──▶ FetchPass, while the slots are read
         └──▶ DelayedFetch, while a fetch waits

A full fetch (one that names all its partitions) creates a `FetchSession`. If the client wants no
session, the object lives as long as that request. Otherwise the cache keeps it, and the client's
next requests name only the partitions to add, change or remove.

An idle partition costs nothing. A slot whose partition may have changed is in the session's `ready`
set, and a fetch reads only the ready slots, in the session's order. Every slot that is not ready
watches its partition. When the partition notifies it and no fetch waits, the slot becomes ready and
stops watching: a client that is gone costs a partition one call, not one for each append.

Source: Kafka's `FetchSession`, `FetchContext` and `ReplicaManager.readFromLog`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import cast

from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.cluster.broker.fetch_slot import FetchPass, FetchSlot
from trimtab.cluster.broker.partition import Watcher
from trimtab.cluster.broker.purgatory import DelayedFetch
from trimtab.cluster.server.turns import Pace, Steps, in_order
from trimtab.kafka.wire.fetch_limits import FetchBudget
from trimtab.kafka.wire.messages.fetch import FetchTopic, ForgottenTopic, PartitionData
from trimtab.kafka.wire.sentinels import INITIAL_EPOCH, NO_SESSION

PARTITIONS_PER_STEP = 150
"""Partitions that a fetch reads before other requests are served."""

_by_rank = attrgetter("rank")


class FetchSession:
    """The partitions of one client's fetches, in the order in which they are served.

    Attributes:
        id: `NO_SESSION` until the cache keeps it.
        epoch: the session epoch that the next request must have.
        reader: who fetches.
        uses_topic_ids: whether requests name topics by id.
        slots: by topic and partition.
        ready: the slots whose partitions have changed, or may have, since the last response.
        waiting: the fetch that waits for these partitions; None while there is none.
        interrupted: the pass over its slots that other requests interrupt at the moment.
        is_kept: whether it is in the cache; then its slots also watch between requests.
        is_watching: whether slots that are read watch their partitions.
        created_s, used_s: the loop's time when the cache took it, and when it was last used.
    """

    __slots__ = (
        "_last_rank",
        "_most_ready",
        "created_s",
        "epoch",
        "id",
        "interrupted",
        "is_kept",
        "is_watching",
        "reader",
        "ready",
        "slots",
        "used_s",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(self, reader: FetchReader) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.reader = reader
        self.uses_topic_ids = reader.uses_topic_ids
        self.slots: dict[tuple[str | bytes, int], FetchSlot] = {}
        self.ready: set[FetchSlot] = set()
        self.waiting: DelayedFetch | None = None
        self.interrupted: FetchPass | None = None
        self.is_kept = False
        self.is_watching = False
        self.created_s = 0.0
        self.used_s = 0.0
        self._last_rank = 0
        self._most_ready = 0

    # -- which partitions

    def update(self, topics: Iterable[FetchTopic], pace: Pace) -> Steps[None]:
        """Add or update the partitions that a request names. New ones go to the tail, the others
        keep their place. A partition named twice has the first place and the last values."""
        slots = self.slots
        ready = self.ready
        for fetch_topic in topics:
            topic = fetch_topic.topic_id if self.uses_topic_ids else fetch_topic.topic
            if pace.spend():
                yield
            for wanted in fetch_topic.partitions:
                if pace.spend():
                    yield
                key = (topic, wanted.partition)
                slot = slots.get(key)
                if slot is None:
                    self._last_rank += 1
                    slot = slots[key] = FetchSlot(self, topic, wanted, self._last_rank)
                else:
                    slot.request(wanted)
                ready.add(slot)
        self._most_ready = max(self._most_ready, len(ready))

    def forget(self, topics: Iterable[ForgottenTopic], pace: Pace) -> Steps[None]:
        """Remove the partitions that a request names as forgotten."""
        for forgotten_topic in topics:
            topic = forgotten_topic.topic_id if self.uses_topic_ids else forgotten_topic.topic
            if pace.spend():
                yield
            for index in forgotten_topic.partitions:
                if pace.spend():
                    yield
                slot = self.slots.pop((topic, index), None)
                if slot is not None:
                    slot.unwatch()
                    self.ready.discard(slot)

    # -- reading

    def read(self, budget: FetchBudget, is_full: bool, pace: Pace) -> Steps[FetchPass]:
        """Read the slots once, in the session's order: all, or those that are ready.

        If a partition changes after this pass has read it, and before the pass is over, the pass
        `ends_wait`.
        """
        reading = FetchPass(self.reader, budget, is_full)
        slots = list(self.slots.values()) if is_full else (yield from self._ready_in_order())
        for number, slot in enumerate(slots):
            if pace.spend():
                if is_full and not self.is_watching:  # notice changes of the slots read so far
                    self.is_watching = True
                    for read in cast("list[FetchSlot]", slots)[:number]:
                        read.watch()
                self.interrupted = reading
                yield
                self.interrupted = None
            data = slot.read(reading)
            if data is not None:
                reading.answers.append((slot, data))
        return reading

    def _ready_in_order(self) -> Steps[Iterable[FetchSlot]]:
        """The ready slots, in the session's order."""
        ready = self.ready
        if len(ready) > self._most_ready:
            self._most_ready = len(ready)
        elif len(ready) < self._most_ready // 8:
            # A set does not shrink when elements leave, and iteration visits the empty places.
            self.ready = ready = set(ready)
            self._most_ready = len(ready)
        # The set itself may change between two steps.
        return in_order(list(ready) if len(ready) > PARTITIONS_PER_STEP else ready, _by_rank)

    # -- waiting

    def available(self) -> dict[Watcher, int]:
        """Bytes available to each slot, whatever the limit of the response: a response with no room
        for the next whole batch must not wait for more."""
        return {slot: slot.available() for slot in self.ready}

    def wait(self, delayed: DelayedFetch) -> None:
        """Have the slots notify this fetch of changes."""
        self.waiting = delayed
        if not self.is_watching:
            self.is_watching = True
            for slot in self.slots.values():
                slot.watch()

    def stop_waiting(self, delayed: DelayedFetch | None) -> None:
        """The fetch does not wait any more; ignored if another one does."""
        if self.waiting is delayed:
            self.waiting = None

    # -- answering

    def answered(self, slot: FetchSlot, data: PartitionData) -> None:
        """A slot's response is about to be sent. A slot that sent records goes to the tail, so that
        no partition starves when responses are limited in size (KAFKA-12330)."""
        if data.records:
            self._last_rank += 1
            slot.rank = self._last_rank
        if not slot.answered(data):
            self.ready.discard(slot)
            slot.watch()

    # -- life

    def begin_session(self, session_id: int, now_s: float) -> None:
        """The cache keeps the session under this id. Slots that are not ready begin to watch their
        partitions in `answered`."""
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.is_kept = self.is_watching = True
        self.created_s = self.used_s = now_s

    def resume(self, reader: FetchReader, next_epoch: int, now_s: float) -> None:
        """Another request continues the session; the one after it must have `next_epoch`. If its
        reader may read other replicas or offsets than the previous one, all partitions become
        ready."""
        if not reader.reads_like(self.reader):
            for slot in self.slots.values():
                slot.recheck()
            self.ready.update(self.slots.values())
            self._most_ready = len(self.ready)
        self.reader = reader
        self.epoch = next_epoch
        self.used_s = now_s
        if self.waiting is not None:
            # This request came over another connection: the client has given up the waiting one,
            # which will be answered with INVALID_FETCH_SESSION_EPOCH.
            self.waiting.complete()

    def close(self) -> None:
        """Stop watching. A waiting fetch is answered with the records available now."""
        self.is_kept = False
        if self.is_watching:
            self.is_watching = False
            for slot in self.slots.values():
                slot.unwatch()
        if self.waiting is not None:
            self.waiting.complete()
        else:
            # Break the cycle between slots and session; otherwise only the collector frees them.
            self.slots.clear()
            self.ready.clear()
