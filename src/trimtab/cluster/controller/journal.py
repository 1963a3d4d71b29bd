"""The controller's journal: the log `__cluster_metadata-0`, and the image replayed from it.

    append ─▶ image ─┐ at once                     ┌─▶ brokers
                     └▶ one batch, one fsync ─▶ end offset ─▶ responses

Records that are appended during an fsync are written together afterwards, as one batch with one
fsync. So a batch is on disk before the next is written, and only the last one can be torn. The
image is ahead of the disk: responses and brokers get records only after they are on disk. If the
disk fails the controller must stop, as the image cannot be rolled back.

Files, in Kafka's formats; `DumpLogSegments --cluster-metadata-decoder` can read them:

    <base offset>.log                  batches; every snapshot begins a new file
    <end offset>-<epoch>.checkpoint    the newest two snapshots; the log begins at the older one
    quorum-state                       the epoch, incremented by each start of the controller
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trimtab.cluster.metadata.batches import (
    TOPIC,
    SnapshotId,
    build_batch,
    find_snapshot_id,
    read_batches,
    read_snapshot,
    write_snapshot,
)
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_list import SegmentList
from trimtab.cluster.storage.segment_recovery import has_whole_batch
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchHeader, read_header
from trimtab.kafka.wire.messages.metadata_records import encode_record
from trimtab.kafka.wire.sentinels import NO_TIMESTAMP

DIRECTORY = f"{TOPIC}-0"

_WAY_BACK = (
    "from a copy, or rebuild the controller's directory from the brokers': stop all nodes and run "
    "`trimtab recover` (docs/recovery.md)"
)
_SUFFIX = ".log"
_INDEX_BYTES = 4096
_READ_BYTES = 1024 * 1024
_STATE = f"{DIRECTORY}/quorum-state"
_TEMPORARY = ".part"
_SNAPSHOTS_KEPT = 2
_MAX_EPOCH = 2**31 - 1

_log = logging.getLogger(__name__)


class Journal:
    """An append-only log of metadata records: opens that in a storage, or an empty one, and begins
    a new epoch.

    A torn last batch is truncated. A damaged snapshot is replaced by the one before it and the log.

    Args:
        node_id: the controller's id, written to `quorum-state`.
        now_ms: wall time in milliseconds.
        snapshot_bytes: bytes of log after which a snapshot is taken.

    Attributes:
        image: all records replayed, including those not on disk yet.
        epoch: the leader epoch of this run of the controller.
        next_offset: the offset of the next record.
        end_offset: every record before it is on disk.
        failure: the error that made the journal unusable; None if there was none.
        on_failure: called once if the disk fails, or records contradict the image. It must stop the
            controller: no request may be answered afterwards.

    Raises:
        CorruptData: a batch before the last one is damaged, or a part of the log is missing.
        StorageError: the disk failed.
    """

    def __init__(
        self, storage: Storage, node_id: int, now_ms: Callable[[], int], snapshot_bytes: int
    ) -> None:
        self._storage = storage
        self._node_id = node_id
        self._now_ms = now_ms
        self._snapshot_bytes = snapshot_bytes
        self._segments = SegmentList()
        self._snapshots: list[SnapshotId] = []
        self._pending: list[bytes] = []
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._unsnapshotted_bytes = 0
        self._last_timestamp_ms = NO_TIMESTAMP
        self._writer: asyncio.Task[None] | None = None
        self._snapshotter: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.image = ClusterImage()
        self.epoch = 0
        self.next_offset = 0
        self.end_offset = 0
        self.on_failure: Callable[[BaseException], None] | None = None
        self._recover()

    # Writing

    def append(self, records: Iterable[Any]) -> int:
        """Replay the records into the image, and begin to write them.

        Returns:
            The offset after them; wait for it with `reach` before answering.

        Raises:
            UsageError: a record cannot be encoded; none is appended.
            CorruptData: a record contradicts the image; the journal has failed.
        """
        if self.failure is not None:
            raise self.failure
        decided = list(records)
        values = [encode_record(record) for record in decided]
        try:
            for record in decided:
                self.image.replay(record)
        except BaseException as error:
            self._fail(error)  # some records may have been replayed, and cannot be rolled back
            raise
        self._pending += values
        self.next_offset += len(decided)
        if self._writer is None and self._pending:
            self._writer = asyncio.create_task(self._write())
        return self.next_offset

    async def reach(self, offset: int) -> None:
        """Return once every record before `offset` is on disk, even if it is not appended yet.

        Raises:
            StorageError: the disk failed.
        """
        if self.failure is not None:
            raise self.failure
        if self.end_offset < offset:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[reached] = offset
            try:
                await reached
            finally:
                self._waiting.pop(reached, None)

    async def close(self) -> None:
        """Write the pending records, and close the files."""
        if self._snapshotter is not None:
            self._snapshotter.cancel()
            await asyncio.gather(self._snapshotter, return_exceptions=True)
        if self._writer is not None:
            await self._writer
        for segment in self._segments:
            segment.close()

    def abort(self) -> None:
        """Stop writing at once."""
        for task in (self._snapshotter, self._writer):
            if task is not None:
                task.cancel()

    async def _write(self) -> None:
        try:
            while self._pending:
                values, self._pending = self._pending, []
                end_offset = self.next_offset
                now = self._now_ms()
                batch = build_batch(values, self.end_offset, self.epoch, now)
                self._unsnapshotted_bytes += len(batch)
                image = self.image.copy() if self._snapshot_is_due() else None
                active = self._segments.active
                active.append(batch, [read_header(batch)])
                await self._storage.flush([active.path(_SUFFIX)])
                self._last_timestamp_ms = now
                self._advance(end_offset)
                if image is not None:
                    self._begin_snapshot(image)
            self._writer = None
        except Exception as error:
            self._fail(error)

    def _advance(self, end_offset: int) -> None:
        self.end_offset = end_offset
        for reached, offset in self._waiting.items():
            if offset <= end_offset and not reached.done():
                reached.set_result(None)

    def _fail(self, error: BaseException) -> None:
        _log.critical("the journal cannot be written: %s", error)
        self.failure = error
        for reached in self._waiting:
            if not reached.done():
                reached.set_exception(error)
        if self.on_failure is not None:
            self.on_failure(error)

    # Reading

    @property
    def start_offset(self) -> int:
        """The offset of the oldest record in the log; older ones are only in the snapshot."""
        return self._segments.first_base_offset

    @property
    def snapshot(self) -> SnapshotId | None:
        """The newest snapshot."""
        return self._snapshots[-1] if self._snapshots else None

    def read(self, offset: int, max_bytes: int) -> bytes | memoryview | StoredRecords:
        """Whole batches as they are on disk, from the one that holds `offset` on.

        Args:
            offset: between start and end offset; at the end offset the result is empty.
            max_bytes: limits the result, but the first batch may be larger.
        """
        if offset >= self.end_offset:
            return b""
        place = self._segments.locate(offset)
        assert place is not None, "every record before the end offset is in a file"
        segment, position = place
        return segment.read(position, max_bytes, True, self.end_offset, segment.next_offset)[0]

    def read_snapshot(
        self, snapshot: SnapshotId, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """A piece of a snapshot, and the whole snapshot's size; None if it does not exist."""
        if snapshot not in self._snapshots:
            return None
        file = self._storage.open(f"{DIRECTORY}/{snapshot.name}")
        piece = file.read(position, max_bytes)
        size = file.size
        file.close()
        return piece, size

    # Snapshots

    def _snapshot_is_due(self) -> bool:
        return self._unsnapshotted_bytes >= self._snapshot_bytes and self._snapshotter is None

    def _begin_snapshot(self, image: ClusterImage) -> None:
        """Begin a snapshot of the image at the end offset, and a new file of the log there."""
        self._unsnapshotted_bytes = 0
        self._add_segment(self.end_offset)
        snapshot = SnapshotId(self.end_offset, self.epoch)
        self._snapshotter = asyncio.create_task(self._take_snapshot(image, snapshot))

    async def _take_snapshot(self, image: ClusterImage, snapshot: SnapshotId) -> None:
        path = f"{DIRECTORY}/{snapshot.name}"
        try:
            self._storage.delete(path + _TEMPORARY)
            file = self._storage.open(path + _TEMPORARY)
            for batch in write_snapshot(
                image.records(), snapshot, self._last_timestamp_ms, self._now_ms()
            ):
                file.append(batch)
                await asyncio.sleep(0)  # let other tasks run
            file.close()
            await self._storage.flush([path + _TEMPORARY])
            self._storage.rename(path + _TEMPORARY, path)
            await self._storage.flush([path])
            self._snapshots.append(snapshot)
            self._delete_snapshotted()
        except StorageError as error:
            # No harm is done: the log has all records, and the next snapshot may succeed.
            _log.error("no snapshot was taken end_offset=%d error=%s", snapshot.end_offset, error)
        finally:
            self._snapshotter = None

    def _delete_snapshotted(self) -> None:
        """Delete all snapshots but the newest two, and the log before the older of the two.

        The older one is kept so that brokers that are a little behind need no snapshot, and a
        damaged newest snapshot can be replaced.
        """
        if len(self._snapshots) < _SNAPSHOTS_KEPT:
            return
        dropped = self._snapshots[:-_SNAPSHOTS_KEPT]
        self._snapshots = self._snapshots[-_SNAPSHOTS_KEPT:]
        segments = self._segments
        segments.delete_removed()  # if that failed before: never leave a gap
        segments.remove_first(segments.index_of(self._snapshots[0].end_offset))
        segments.delete_removed()
        for snapshot in dropped:
            self._storage.delete(f"{DIRECTORY}/{snapshot.name}")

    # Recovery

    def _recover(self) -> None:
        base_offsets = []
        for name in self._storage.list(DIRECTORY):
            snapshot = find_snapshot_id(name)
            if snapshot is not None:
                self._snapshots.append(snapshot)
            elif name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal():
                base_offsets.append(int(name.removesuffix(_SUFFIX)))
            elif name.endswith(_TEMPORARY):
                self._storage.delete(f"{DIRECTORY}/{name}")
        self._snapshots.sort()
        self._load_snapshot()
        for offset in sorted(base_offsets) or [self.end_offset]:
            self._add_segment(offset)
        self._load_segments()
        self._begin_epoch()

    def _load_snapshot(self) -> None:
        while self._snapshots:
            snapshot = self._snapshots[-1]
            path = f"{DIRECTORY}/{snapshot.name}"
            image = ClusterImage()
            try:
                for record in read_snapshot(self._storage.read_file(path) or b""):
                    image.replay(record)
            except CorruptData as error:
                _log.error("a snapshot is damaged and not used path=%s error=%s", path, error)
                self._storage.rename(path, path + ".damaged")
                self._snapshots.pop()
                continue
            self.image = image
            self.epoch = snapshot.epoch
            self.end_offset = snapshot.end_offset
            break

    def _load_segments(self) -> None:
        offset = self.start_offset
        if offset > self.end_offset:
            raise CorruptData(
                f"{DIRECTORY}: the log begins at offset {offset}, and there is no whole snapshot "
                f"that ends there or later; restore one {_WAY_BACK}"
            )
        for segment in self._segments:
            if segment.base_offset != offset:
                raise CorruptData(
                    f"{segment.path(_SUFFIX)}: it begins where offset {offset} should be; restore "
                    f"the missing file {_WAY_BACK}"
                )
            for header, batch in self._recover_batches(segment):
                for _, record in read_batches(batch, self.end_offset):
                    self.image.replay(record)
                offset = header.next_offset
                self.end_offset = max(self.end_offset, offset)
                self.epoch = max(self.epoch, header.leader_epoch)
                self._last_timestamp_ms = header.max_timestamp
        if offset < self.end_offset:
            raise CorruptData(
                f"{DIRECTORY}: the log ends at offset {offset}, before its snapshot; restore the "
                f"missing file {_WAY_BACK}"
            )
        snapshotted = self._snapshots[-1].end_offset if self._snapshots else 0
        self._unsnapshotted_bytes = sum(
            segment.size for segment in self._segments if segment.base_offset >= snapshotted
        )
        self.next_offset = self.end_offset
        # The last batch may not have been fsynced before the crash.
        self._segments.active.flush()

    def _recover_batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of a file. Truncates a torn tail, if it is the log's last file.

        A partition's log can lose a damaged tail, as its other replicas have the records. This one
        is the only copy.

        Raises:
            CorruptData: a batch is damaged, other than by a torn last write.
        """
        position, offset = 0, segment.base_offset
        while position < segment.size:
            try:
                data, headers = segment.batches(position, _READ_BYTES, offset)
            except CorruptData as error:
                rest = segment.read_bytes(position, segment.size - position)
                if segment is not self._segments.active or has_whole_batch(rest):
                    raise CorruptData(f"{error}; restore the file {_WAY_BACK}") from error
                _log.warning("truncated a torn tail bytes=%d error=%s", len(rest), error)
                segment.truncate(position)
                return
            batches = memoryview(data)
            for header in headers:
                if header.base_offset != offset:
                    raise CorruptData(
                        f"{segment.path(_SUFFIX)}: no batch at position {position}: offset "
                        f"{header.base_offset} where {offset} should be; restore the file "
                        f"{_WAY_BACK}"
                    )
                yield header, batches[: header.size]
                batches = batches[header.size :]
                position += header.size
                offset = header.next_offset

    def _add_segment(self, base_offset: int) -> None:
        self._segments.activate(
            Segment(self._storage, DIRECTORY, base_offset, _INDEX_BYTES, self._now_ms())
        )

    def _begin_epoch(self) -> None:
        content = self._storage.read_file(_STATE)
        if content is not None:
            epoch = _read_epoch(content)
            if self.epoch > epoch:  # impossible: each start writes this file first
                raise CorruptData(
                    f"{_STATE} has epoch {epoch}, and the log epoch {self.epoch}; restore the "
                    f"file {_WAY_BACK}"
                )
            self.epoch = epoch
        self.epoch += 1
        state = {
            "clusterId": "",
            "leaderId": self._node_id,
            "leaderEpoch": self.epoch,
            "votedId": -1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": self._node_id}],
            "data_version": 0,
        }
        self._storage.write_file(_STATE, json.dumps(state, separators=(",", ":")).encode("ascii"))


def _read_epoch(content: bytes) -> int:
    """The epoch in `quorum-state`."""
    try:
        epoch = json.loads(content)["leaderEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptData(f"{_STATE}: {error!r}; restore the file {_WAY_BACK}") from error
    if not isinstance(epoch, int) or not 0 <= epoch < _MAX_EPOCH:
        raise CorruptData(f"{_STATE}: leaderEpoch={epoch!r}; restore the file {_WAY_BACK}")
    return epoch
