"""A partition that this broker leads: what may be appended to it and what may be read from it.

A batch is judged by its header alone, in the order and with the codes of Kafka's `UnifiedLog` and
`LogValidator`; no record is opened, except for a topic that is compacted, where every record must
have a key. So the timestamps that are checked are the batch's first and largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from trimtab.broker.log import Log
from trimtab.broker.producer_state import ACCEPTED
from trimtab.broker.purgatory import DelayedFetch
from trimtab.broker.storage import BytesLike
from trimtab.config import Value
from trimtab.errors import CorruptData, ErrorCode
from trimtab.records import NO_TIMESTAMP
from trimtab.wire.batch_cy import (
    BatchHeader,
    CorruptBatch,
    read_header,
    read_records,
    stamp_append_time,
    verify,
)
from trimtab.wire.compression import Compression


class Refused(Exception):
    """A batch or a read that this partition refuses. Becomes a code in the response."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class Appended(NamedTuple):
    """Where a batch is. `log_append_time` is -1 where the producer's own times count."""

    base_offset: int
    log_append_time: int


class Partition:
    """One partition.

    Every partition has one replica, so a record is committed as soon as it is appended: the high
    watermark is the log's end.

    Args:
        config: the topic's options (`trimtab.config.TOPIC`), all of them.
        now_ms: wall time in milliseconds.
    """

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_compacted",
        "_max_message_bytes",
        "_now_ms",
        "_stamps",
        "index",
        "leader_epoch",
        "log",
        "topic",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        leader_epoch: int,
        log: Log,
        config: Mapping[str, Value],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.log = log
        self.watchers: dict[DelayedFetch, None] = {}
        self._now_ms = now_ms
        self._max_message_bytes = cast(int, config["max.message.bytes"])
        self._after_ms = cast(int, config["message.timestamp.after.max.ms"])
        self._before_ms = cast(int, config["message.timestamp.before.max.ms"])
        self._stamps = config["message.timestamp.type"] == "LogAppendTime"
        self._compacted = "compact" in cast("tuple[str, ...]", config["cleanup.policy"])

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    def append(self, records: memoryview, allows_zstd: bool) -> Appended:
        """Append the one batch of a client's produce request.

        Its offset and leader epoch are stamped in place. A batch that an idempotent producer sent
        before is not stored again; the answer says where it is.

        Raises:
            Refused: the batch breaks a rule.
            StorageError: the disk failed.
        """
        header = self._check_batch(records, allows_zstd)
        if header.producer_id >= 0:
            verdict = self.log.producers.check(header)
            if verdict is not ACCEPTED:
                if verdict.duplicate is None:
                    raise Refused(verdict.error, f"{self}: {verdict.detail}")
                stored = verdict.duplicate
                return Appended(
                    stored.first_offset, stored.timestamp if self._stamps else NO_TIMESTAMP
                )
        if self._stamps:
            stamp_append_time(records, 0, self._now_ms())
            header = read_header(records)
        info = self.log.append(records, self.leader_epoch, [header])
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher.add(self, header.size)
        return Appended(info.first_offset, info.log_append_time)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Whether the client means this leader: an epoch of -1 means any (KIP-320).

        Raises:
            Refused: the client knows an older or a newer one.
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def read(self, offset: int, max_bytes: int, min_one: bool) -> BytesLike:
        """Whole batches from the one that holds `offset`, up to the high watermark.

        Raises:
            Refused: OFFSET_OUT_OF_RANGE, it lies before the log's start or beyond its end.
            CorruptData: what is stored is damaged.
            StorageError: the disk failed.
        """
        log = self.log
        end = log.log_end_offset
        if not log.log_start_offset <= offset <= end:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == end:
            return b""
        return log.read(offset, max_bytes, min_one, end)

    def wake(self) -> None:
        """Have every fetch that waits for this partition answered."""
        for watcher in tuple(self.watchers):
            watcher.complete()

    def _check_batch(self, records: memoryview, allows_zstd: bool) -> BatchHeader:
        try:
            header = verify(records, is_client_batch=True)
        except CorruptBatch as error:
            raise Refused(error.code, f"{self}: {error}") from error
        if header.size != len(records):
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: {len(records) - header.size} bytes follow the batch; Produce from "
                "version 3 on takes exactly one batch per partition.",
            )
        if header.size > self._max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self}: the batch has {header.size} bytes, which exceeds "
                f"max.message.bytes={self._max_message_bytes}.",
            )
        if header.base_offset:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: the base offset of a producer's batch is 0, not {header.base_offset}.",
            )
        if not allows_zstd and header.compression is Compression.ZSTD:
            raise Refused(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"{self}: zstd needs Produce version 7 or later.",
            )
        if header.is_transactional:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{self}: the batch is transactional, but these brokers do not serve transactions "
                "yet; use a producer without transactional.id.",
            )
        if not self._stamps:
            self._check_timestamps(header)
        if self._compacted:
            self._check_keys(records)
        return header

    def _check_timestamps(self, header: BatchHeader) -> None:
        now = self._now_ms()
        if header.max_timestamp - now > self._after_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self}: timestamp {header.max_timestamp} is more than "
                f"message.timestamp.after.max.ms={self._after_ms} ahead of the broker's {now}.",
            )
        if header.base_timestamp != NO_TIMESTAMP and now - header.base_timestamp > self._before_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self}: timestamp {header.base_timestamp} is more than "
                f"message.timestamp.before.max.ms={self._before_ms} behind the broker's {now}.",
            )

    def _check_keys(self, records: memoryview) -> None:
        try:
            keyless = any(
                record.key is None for record in read_records(self.topic, self.index, records, 0)
            )
        except CorruptData as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{self}: {error}") from error
        if keyless:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: Compacted topic cannot accept message without key.",
            )
