# mypy: allow-untyped-decorators, no-warn-return-any
"""The keys of a topic that are treated, as they are too heavy for their own partition.

    KeyWatch (a sample of the keys) ─▶ HotKeys.look: which keys, and where to
    a record of such a key ─▶ TreatedKey: the queue that it goes to, and its header

Split: a key's records go to several partitions, each time to the one that was given least. Moved: a
key's records go to another partition, once all earlier ones are acknowledged.

All of this happens under the accumulator's lock.
"""

import heapq
from collections import deque
from typing import Any

import cython

from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    candidates,
    choices,
    write_moved,
    write_split,
)
from trimtab.kafka.wire.batch_cy import BatchBuilder, encode_headers

if cython.compiled:
    from cython.cimports.cpython.bytes import (
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
        PyBytes_GET_SIZE,
    )
    from cython.cimports.trimtab.kafka.wire.batch_cy import BatchBuilder  # type: ignore[no-redef]

# One record in so many is counted, at first and later.
_SAMPLED_FIRST = 8
_SAMPLED = 32
# A partition whose other records are within this part of the mean can still get its share.
_ROOM = 0.97
# Below this part of the mean nothing is done about a partition.
_TOO_MUCH = 1.02
# Samples that make a key's share certain enough to treat it.
_CERTAIN = 16
_MOST_TREATED = 1000
_FIRST_LOOK = 256
_LAST_LOOK = 512
# Samples after which everything counts half, at least; and for each partition, so that the share of
# a key that matters is certain.
_UNTIL_HALF = 4096
_UNTIL_HALF_A_PARTITION = 100
# So many keys at most, as others wait for the lock.
_MOVES_A_LOOK = 32
_SPLITS_A_LOOK = 16
# A partition that a key moves to then has at most this part of what the key's old one had before.
_CLEARLY = 0.95
# Looks after a move in which a key is not moved again.
_REST = 8
# Bytes that a split key gives to one partition before it chooses again: a part of what a partition
# got lately, within these bounds.
_TURN_PART = 32
_LEAST_TURN = 1024
_LONGEST_TURN = 16384
# A choice compares so many queues, and the next one begins so many further on: they overlap.
_COMPARED = cython.declare(cython.int, 16)
_ONWARD = cython.declare(cython.int, 13)
_SLOTS = cython.declare(cython.longlong, 0x3FFF)


@cython.final
@cython.cclass
class TreatedKey:
    """One treated key.

    Attributes:
        hash: its murmur2.
        queues: those that its records may go to, or went to; its own partition's first.
        placed: the bytes that each of them got of it, halved as the topic's are.
        held: batches of a moving key, which wait for its earlier records.
        target: the index in `queues` that it moves to; -1 if it does not move.
    """

    def __init__(
        self,
        key_hash: cython.longlong,
        moves: cython.bint,
        in_transactions: cython.bint,
        queues: list[PartitionQueue],
        before: float,
        sender: int,
    ) -> None:
        self.hash = key_hash
        self._moves = moves
        self.queues = queues
        self.placed = [0.0] * len(queues)
        self.placed[0] = before
        self.held: list[Batch] = []
        self.target = -1
        self.rest = 0
        self._sender = sender
        self._number = 0
        self._template = encode_headers([(SPLIT_HEADER, write_split(sender, 0, 0))])
        self._at = 0
        self._turn_left = 0
        self._turn_bytes = 0
        self._next = 0
        self._is_placing = False
        # First number and batch, of the batches whose outcome is open; settled ones leave late.
        self._window: deque[tuple[int, Batch]] = deque()
        self._oldest: Batch | None = None
        self._oldest_number = 0
        self._last: Batch | None = None
        # The batch with the header of its last move, until that is stored for good; and where the
        # key was before.
        self._marked: Batch | None = None
        self._is_lost = False
        self._in_transactions = in_transactions
        self._left = queues[0]
        self._mark_end = 0

    @property
    def is_sure(self) -> bool:
        """Whether the header of its last move is stored for good: then it may move again."""
        return self._marked is None

    @property
    def place(self) -> PartitionQueue:
        """The queue of its last record."""
        return self.queues[self._at]

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def turn(self) -> PartitionQueue | None:
        """The queue of its next record, if that need not be chosen. Runs no Python code."""
        queue = self.queues[self._at]
        if self._moves:
            return queue if self.target < 0 and self._marked is None else None
        if self._turn_left <= 0 or self._number == 0 or self._oldest is None or self._is_placing:
            return None
        if queue.node is None or queue._open is not self._last or self._oldest.is_done:
            return None
        return queue

    @cython.cfunc
    @cython.locals(octets=cython.p_uchar, index=cython.int, open_numbers=cython.longlong)
    def encoded_mark(self) -> bytes | None:
        """The headers of its next record, encoded, if `turn` returned a queue. Runs no Python
        code."""
        if self._moves:
            return None
        open_numbers = min(self._number - self._oldest_number, 0xFFFFFFFF)
        if not cython.compiled:
            mark = write_split(self._sender, self._number, open_numbers)
            return encode_headers([(SPLIT_HEADER, mark)])
        made = PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(self._template), PyBytes_GET_SIZE(self._template)
        )
        octets = cython.cast(cython.p_uchar, PyBytes_AS_STRING(made))
        octets += PyBytes_GET_SIZE(made) - 12
        for index in range(8):
            octets[index] = (self._number >> (56 - 8 * index)) & 0xFF
        for index in range(4):
            octets[8 + index] = (open_numbers >> (24 - 8 * index)) & 0xFF
        return made

    @cython.cfunc
    @cython.exceptval(check=False)
    def go_on(self, grown: cython.longlong) -> cython.void:
        """Count a record of so many bytes, which was appended to the queue of `turn`."""
        self._number += 1
        self._turn_left -= grown
        self._turn_bytes += grown

    @cython.cfunc
    @cython.locals(
        queue=PartitionQueue,
        index=cython.int,
        step=cython.int,
        count=cython.int,
        best=cython.int,
        least=cython.longlong,
        load=cython.longlong,
    )
    def choose(self, turn: cython.longlong, unavailable: Any) -> PartitionQueue:
        """The queue of a split key's next record: of the next sixteen, those whose leader is
        available, the one that was given least.

        Args:
            turn: bytes after which it chooses again.
        """
        queue = self.queues[self._at]
        if self._number == 0 or (self._turn_left > 0 and _is_available(queue, unavailable)):
            return queue
        self.end_turn()
        best = -1
        least = 0
        count = len(self.queues)
        for step in range(min(count, _COMPARED)):
            index = (self._next + step) % count
            queue = self.queues[index]
            load = queue.given_bytes - queue._given_before
            if (best < 0 or load < least) and _is_available(queue, unavailable):
                best = index
                least = load
        self._next = (self._next + _ONWARD) % count
        if best >= 0:
            self._at = best
        self._turn_left = turn
        return self.queues[self._at]

    @cython.cfunc
    def end_turn(self) -> Any:
        """Count what its present queue got of it."""
        self.placed[self._at] += self._turn_bytes
        self._turn_bytes = 0
        return None

    @cython.cfunc
    def split_mark(self) -> Any:
        """The header of its next record."""
        self._is_placing = True  # numbers grow in each partition: no other thread may pass
        number = self._number
        self._number = number + 1  # before the record is placed: none gets it twice
        self._forget_settled()
        first = number if self._oldest is None else self._oldest_number
        return SPLIT_HEADER, write_split(self._sender, number, number - first)

    @cython.cfunc
    def count_split(self, batch: Batch, grown: cython.longlong) -> Any:
        """A record with `split_mark` was appended to this batch, which grew."""
        self._is_placing = False
        self._turn_left -= grown
        self._turn_bytes += grown
        if batch is not self._last:
            self._last = batch
            self._window.append((self._number - 1, batch))
            self._forget_settled()
        return None

    # moving

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch)
    def begin_move(self, target: PartitionQueue, release: Any) -> Any:
        """Have further records wait until those in its present queue are acknowledged; then
        `release(key)` is called."""
        queue = self.queues[self._at]
        if target not in self.queues:
            self.queues.append(target)
            self.placed.append(0.0)
        self.target = self.queues.index(target)
        self.end_turn()
        self._window.clear()
        for batch in [*queue.in_flight, *queue.batches]:
            self._window.append((0, batch))
            batch._call_back(release, self)
        return None

    @cython.cfunc
    def is_quiet(self) -> cython.bint:
        """Whether all its earlier records are acknowledged, or have failed."""
        self._forget_settled()
        return self._oldest is None

    @cython.cfunc
    def moved_mark(self) -> Any:
        """The header of its next record if that is the first one in a new partition, or if the
        first one was lost; else None."""
        if self._marked is not None and not self._is_lost and self._marked._is_settled():
            if self._marked.failed_count:
                self._is_lost = True
            elif not self._in_transactions:
                self._marked = None
        if self.target < 0 and not self._is_lost:
            return None
        if self.target >= 0:
            self._left = self.queues[self._at]
        return MOVED_HEADER, write_moved(self._left.partition, self._left.stored_end)

    def end_transaction(self, is_committed: bool) -> None:
        """The records since the last call are visible now, or never will be."""
        if self._marked is None:
            return
        if not is_committed:
            self._is_lost = True
        elif not self._is_lost and self._marked._is_settled() and not self._marked.failed_count:
            self._marked = None

    @cython.cfunc
    def count_moved(self, batch: Batch, grown: cython.longlong, is_marked: cython.bint) -> Any:
        """A record was appended to this batch."""
        self._turn_bytes += grown
        if is_marked:
            self._marked = batch
            self._is_lost = False
        return None

    @cython.cfunc
    @cython.locals(builder=BatchBuilder, queue=PartitionQueue)
    def hold_marked(self, batch: Batch) -> Any:
        """A batch that is held begins with `moved_mark`."""
        builder = batch.builder
        self._marked = batch
        self._is_lost = False
        self._mark_end = builder.size  # the header is the last one of its only record
        return None

    @cython.cfunc
    @cython.locals(builder=BatchBuilder)
    def tell_end(self) -> Any:
        """Write into the held `moved_mark` where the old partition ends, as that is known now."""
        if self._marked in self.held:
            builder = self._marked.builder
            content = write_moved(self._left.partition, self._left.stored_end)
            builder._data[self._mark_end - len(content) : self._mark_end] = content
        return None

    @cython.cfunc
    def arrive(self) -> Any:
        """The move is done."""
        self.end_turn()
        self._at = self.target
        self.target = -1
        return None

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _forget_settled(self) -> Any:
        self._oldest = None
        while self._window:
            number, batch = self._window[0]
            if not batch._is_settled():
                self._oldest, self._oldest_number = batch, number
                break
            self._window.popleft()
        return None


@cython.cfunc
@cython.exceptval(check=False)
def _is_available(queue: PartitionQueue, unavailable: Any) -> cython.bint:
    return queue.node is not None and not (unavailable and queue.node.node_id in unavailable)


@cython.final
@cython.cclass
class HotKeys:
    """The treatment of one topic's keys.

    Args:
        topic_queues: the topic's queues.
        mode: "split", or "move".
        shards: among how many partitions a key is split; 0: as many as its share needs.
        random: for the numbers that tell senders apart.
        in_transactions: whether `end_transaction` is called.
        release: called with a key whose earlier records are acknowledged.

    Attributes:
        treated: by hash.
        turn: bytes that a split key gives to one partition before it chooses again.
    """

    def __init__(
        self,
        topic_queues: Any,
        mode: str,
        shards: int,
        random: Any,
        in_transactions: bool,
        release: Any,
    ) -> None:
        self.moves = mode == "move"
        self.treated: dict[int, TreatedKey] = {}
        self._shards = shards
        self._topic_queues = topic_queues
        self._random = random
        self._release = release
        self._in_transactions = in_transactions
        self._leaving: list[TreatedKey] = []
        self.reset()

    def reset(self) -> None:
        """Forget all keys, as the topic was created again or has another number of partitions. What
        a moving key holds is still sent to where it moves."""
        partitions = max(1, self._count())
        self._leaving = [key for key in (*self._leaving, *self.treated.values()) if key.held]
        self.treated = {}
        # By the last bits of the hash: one key of those that have them in common.
        self._slots: list[TreatedKey | None] = [None] * (_SLOTS + 1)
        self._look_at = self._next_look = _FIRST_LOOK
        self._faded_at = 0
        self.turn = _LEAST_TURN
        keys = self._topic_queues.keys
        keys.look_closer(max(256, min(8 * partitions, 8192)))
        keys.sample(_SAMPLED_FIRST)

    @cython.cfunc
    @cython.locals(key=TreatedKey)
    def find(self, key_hash: cython.longlong) -> TreatedKey | None:
        """The treated key with this hash. Runs no Python code."""
        key = self._slots[key_hash & _SLOTS]
        if key is None or key.hash == key_hash:
            return key
        return self.treated.get(key_hash)

    def places(self, key_hash: int) -> tuple[int, ...]:
        """The partitions that a treated key's records go to; none if it is not treated."""
        key = self.treated.get(key_hash)
        if key is None:
            return ()
        if self.moves:
            return (key.place.partition,)
        return tuple(queue.partition for queue in key.queues)

    @cython.locals(batch=Batch)
    def repair(self) -> list[Any]:
        """The batches that are held, counted again after an interrupted change."""
        found = []
        for key in [*self.treated.values(), *self._leaving]:
            for batch in key.held:
                batch._recount()
                found.append(batch)
        return found

    def end_transaction(self, is_committed: bool) -> None:
        """The records since the last call are visible now, or never will be."""
        for key in self.treated.values():
            key.end_transaction(is_committed)

    @cython.cfunc
    def is_due(self) -> cython.bint:
        """Whether enough was counted to look again."""
        return self._topic_queues.keys.counted >= self._look_at

    @cython.locals(key=TreatedKey)
    def look(self) -> None:
        """Choose the keys to treat, by the bytes that each partition was given lately.

        Costs O(partitions + keys that are watched + partitions of treated keys), every 512 samples
        or fewer.
        """
        watch = self._topic_queues.keys
        self._next_look = min(2 * self._next_look, max(_LAST_LOOK, 2 * self._count()))
        self._look_at = watch.counted + self._next_look
        if watch.counted >= _UNTIL_HALF:
            watch.sample(_SAMPLED)
        loads = self._loads()
        total = sum(loads)
        heavy = [
            (murmur2(kept) if isinstance(kept, bytes) else kept, share, partition)
            for kept, share, partition in watch.heaviest(least=_CERTAIN / max(1, watch.samples))
        ]
        if total > 0:
            part = int(total) // len(loads) // _TURN_PART
            self.turn = max(_LEAST_TURN, min(part, _LONGEST_TURN))
            if not self.moves and not self._shards:
                self._widen_grown(heavy)
            # What each partition has of keys that are not treated.
            rest = list(loads)
            for key in self.treated.values():
                key.end_turn()
                for queue, placed in zip(key.queues, key.placed, strict=True):
                    rest[queue.partition] -= placed
            if self.moves:
                self._choose_moves(heavy, rest, total)
            else:
                self._choose_splits(heavy, rest, total)
        if watch.counted - self._faded_at >= max(
            _UNTIL_HALF, _UNTIL_HALF_A_PARTITION * self._count()
        ):
            self._fade()

    def _count(self) -> int:
        """The topic's partitions; it may have had more, whose queues are still there."""
        return self._topic_queues._partition_count

    @cython.locals(queue=PartitionQueue)
    def _loads(self) -> list[float]:
        """Bytes by partition; what is older counts less."""
        loads = []
        for queue in self._topic_queues.queues[: self._count()]:
            loads.append(float(queue.given_bytes - queue._given_before))  # noqa: PERF401 - C fields
        return loads

    @cython.locals(queue=PartitionQueue, key=TreatedKey)
    def _fade(self) -> None:
        watch = self._topic_queues.keys
        self._faded_at = watch.counted
        watch.fade()
        for queue in self._topic_queues.queues:
            queue._given_before += (queue.given_bytes - queue._given_before) // 2
        for key in self.treated.values():
            key.placed = [placed / 2 for placed in key.placed]

    def _widen_grown(self, heavy: list[tuple[int, float, int]]) -> None:
        """Give keys that became heavier more partitions."""
        for key_hash, share, _ in heavy:
            key = self.treated.get(key_hash)
            count = choices(share, self._count())
            if key is not None and count > 1.25 * len(key.queues):
                self._widen(key, count)

    def _widen(self, key: TreatedKey, count: int) -> None:
        for partition in candidates(key.hash, self._count(), count)[len(key.queues) :]:
            key.queues.append(self._topic_queues.queues[partition])
            key.placed.append(0.0)

    def _treat(self, key_hash: int, share: float, partition: int, total: float) -> TreatedKey:
        queues = [self._topic_queues.queues[partition]]
        sender = self._random.getrandbits(64)
        key = TreatedKey(key_hash, self.moves, self._in_transactions, queues, share * total, sender)
        self.treated[key_hash] = key
        self._slots[key_hash & _SLOTS] = key
        return key

    def _choose_splits(
        self, heavy: list[tuple[int, float, int]], rest: list[float], total: float
    ) -> None:
        """Split the heaviest keys of a partition until its other records leave it some room."""
        mean = total / len(rest)
        too_full = {p for p, load in enumerate(rest) if load > _TOO_MUCH * mean}
        unavailable, left = self._topic_queues.unavailable(), _SPLITS_A_LOOK
        for key_hash, share, partition in heavy:
            if partition not in too_full or rest[partition] <= _ROOM * mean:
                continue
            # The first record that is split goes to the key's own partition.
            if left == 0 or not _is_available(self._topic_queues.queues[partition], unavailable):
                continue
            if key_hash in self.treated or len(self.treated) >= _MOST_TREATED:
                continue
            key = self._treat(key_hash, share, partition, total)
            left -= 1
            self._widen(key, min(self._shards or choices(share, len(rest)), len(rest)))
            rest[partition] -= share * total

    def _choose_moves(
        self, heavy: list[tuple[int, float, int]], rest: list[float], total: float
    ) -> None:
        """Move keys from the fullest partitions to the emptiest while that lowers the fullest."""
        mean = total / len(rest)
        keys: dict[int, list[tuple[int, float, int]]] = {}
        for key in self.treated.values():
            rest[key.place.partition if key.target < 0 else key.queues[key.target].partition] += (
                sum(key.placed)
            )
            key.rest = max(0, key.rest - 1)
        for key_hash, share, partition in heavy:
            known = self.treated.get(key_hash)
            if known is None or (known.target < 0 and known.is_sure and not known.rest):
                place = partition if known is None else known.place.partition
                keys.setdefault(place, []).append((key_hash, share, partition))
        unavailable = self._topic_queues.unavailable()
        empty = [
            (rest[queue.partition], queue.partition)
            for queue in self._topic_queues.queues[: self._count()]
            if _is_available(queue, unavailable)
        ]
        full = [(-rest[partition], partition) for partition in keys]
        heapq.heapify(empty)
        heapq.heapify(full)
        moves = 0
        while full and empty and moves < _MOVES_A_LOOK:
            source, target = full[0][1], empty[0][1]
            if rest[source] <= (2 - _ROOM) * mean:
                break
            # The move after which the fuller one of both is least full, and clearly less than now.
            most = _CLEARLY * rest[source] - rest[target]
            difference = rest[source] - rest[target]
            fitting = [each for each in keys[source] if each[1] * total <= most]
            if not fitting:
                heapq.heappop(full)
                continue
            chosen = min(fitting, key=lambda each: abs(each[1] * total - difference / 2))
            keys[source].remove(chosen)
            if not self._begin_move(chosen, target, total):
                continue
            moves += 1
            rest[source] -= chosen[1] * total
            rest[target] += chosen[1] * total
            heapq.heapreplace(full, (-rest[source], source))
            heapq.heapreplace(empty, (rest[target], target))

    @cython.locals(key=TreatedKey)
    def _begin_move(self, heavy: tuple[int, float, int], target: int, total: float) -> bool:
        key_hash, share, partition = heavy
        key = self.treated.get(key_hash)
        if key is None:
            if len(self.treated) >= _MOST_TREATED:
                return False
            key = self._treat(key_hash, share, partition, total)
        key.rest = _REST
        key.begin_move(self._topic_queues.queues[target], self._release)
        return True
