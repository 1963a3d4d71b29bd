"""The sizes in bytes of what a stream reads next, looked up by a thread of the driver.

    Scan or Probe ─▶ Sizes (a thread) ─▶ KnownSizes ─▶ admission

While Spark runs a batch, the thread looks up the sizes for the next ones. Its memory is bounded,
because small record batches that follow one another are stored as one piece.

| source | exact | cost |
|---|---|---|
| `Scan` (`scan`) | per record batch | the driver reads every byte, too |
| `Probe` (`probe`) | no, but gives the error | reads a few record batches |
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from trimtab.kafka.errors import KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.known_sizes import KnownSizes
from trimtab.spark.stream.size_sources.contract import POLL_MS, SizeRequest, SizeSource

_RETRY_SECONDS: Final = 0.2


class Sizes:
    """Looks up sizes in a thread of its own, which ends with the process.

    Args:
        make_source: creates the source; called in that thread.
        limit: bytes of a micro-batch. Sizes are looked up for about twice as many bytes.
        grain: neighbouring record batches of together at most this many bytes are one piece.
    """

    def __init__(self, make_source: Callable[[], SizeSource], limit: int, grain: int) -> None:
        self._make_source = make_source
        self._changed = threading.Condition()
        self._horizon = KnownSizes(limit, grain)
        self._error: Exception | None = None
        self._has_ended = False
        self._source: SizeSource | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="trimtab-sizes", daemon=True)
        self._thread.start()

    @property
    def source_name(self) -> str:
        """The kind of source in use; empty until it is known."""
        return "" if self._source is None else self._source.name

    @property
    def bytes_read(self) -> int:
        """Bytes that the driver has read to find sizes."""
        return 0 if self._source is None else self._source.bytes_read

    def follow(
        self, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Set the stream's position to `start`, and the partitions' end offsets to `ends`."""
        with self._changed:
            self._horizon.follow(start, ends)
            self._changed.notify_all()

    def pieces(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Piece]]:
        """The sizes known now of each partition, up to these offsets."""
        with self._changed:
            known = self._horizon.partitions
            return {p: known[p].until(end) for p, end in ends.items() if p in known}

    def await_fair(self, limit: int, timeout: float) -> bool:
        """Wait until enough is known to divide `limit` bytes fairly among all partitions.

        Returns:
            Whether it is known before the time is up.

        Raises:
            KafkaError: the source's error; the thread keeps trying.
        """
        with self._changed:
            self._horizon.watch(limit)
            return self._await(lambda: self._horizon.is_fair, timeout)

    def await_known(self, ends: Mapping[TopicPartition, int], timeout: float) -> bool:
        """Wait until everything up to these offsets is known; like `await_fair`."""
        with self._changed:
            self._horizon.must_know(ends)
            self._changed.notify_all()
            try:
                return self._await(lambda: self._horizon.is_all_known, timeout)
            finally:
                self._horizon.must_know({})

    def knows(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether everything between these offsets is known."""
        with self._changed:
            known = self._horizon.partitions
            return all(
                p in known and known[p].start <= begins[p] and known[p].known_to >= end
                for p, end in ends.items()
            )

    @property
    def known(self) -> int:
        """Known bytes that the stream has not read, of all partitions."""
        with self._changed:
            return sum(ahead.size for ahead in self._horizon.partitions.values())

    def close(self) -> None:
        """End the thread, and wait for it for up to half a second."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(2 * POLL_MS / 1000)

    def _await(self, is_done: Callable[[], bool], timeout: float) -> bool:
        done = self._changed.wait_for(lambda: self._error is not None or is_done(), timeout)
        error = self._error
        if not self._has_ended:
            self._error = None
        if error is not None:
            raise error
        return done

    def _run(self) -> None:
        try:
            self._learn_all()
        except Exception as error:  # otherwise a call that waits for sizes would never return
            with self._changed:
                self._error, self._has_ended = error, True
                self._changed.notify_all()
        finally:
            if self._source is not None:
                self._source.close()

    def _learn_all(self) -> None:
        horizon = self._horizon
        wanted: dict[TopicPartition, SizeRequest] = {}  # this thread's copy
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(horizon.wanted))
                if self._is_closed:
                    return
                changed = horizon.changed
                horizon.changed = set()
                for partition in changed:
                    if partition in horizon.wanted:
                        wanted[partition] = horizon.wanted[partition]
                    else:
                        wanted.pop(partition, None)
            try:
                if self._source is None:
                    self._source = self._make_source()
                found = self._source.find(wanted, changed)
            except KafkaError as error:
                with self._changed:
                    horizon.changed |= changed  # the source may have missed them
                    self._error = error
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_closed, _RETRY_SECONDS)
            else:
                with self._changed:
                    horizon.tail(self._source.tails)
                    horizon.learn(found)
                    self._changed.notify_all()
