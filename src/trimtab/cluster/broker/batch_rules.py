"""What a producer's batch must comply with before a partition's leader appends it.

A batch is checked in the order and with the error codes of Kafka's `UnifiedLog` and
`LogValidator`: first its header, then every record's offset, timestamp and, in a compacted topic,
key. What a client may have got wrong in the header without harm is made right, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.config import TOPIC
from trimtab.cluster.server.turns import Steps
from trimtab.cluster.storage.log import Log
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.options import Config
from trimtab.kafka.records import NO_TIMESTAMP, TimestampType
from trimtab.kafka.wire.batch_cy import (
    BatchHeader,
    CorruptBatch,
    read_header,
    scan_records,
    survey_records,
    verify,
)
from trimtab.kafka.wire.batch_header import CODEC_MASK, TRANSACTIONAL, correct, is_cut_short
from trimtab.kafka.wire.compaction_cy import build_like
from trimtab.kafka.wire.compression import Compression, TooLarge

_CLIENTS_BITS = CODEC_MASK | TRANSACTIONAL
"""The attributes that a client decides. Kafka, too, sets the others itself."""
MAX_AT_FAULT = 10_000
"""Records of a refused batch that the response names at most: a small batch may hold millions."""


class BatchRules:
    """The rules of one partition.

    Args:
        partition: its name, for messages.
        config: the topic's options (`trimtab.cluster.config.TOPIC`), all of them.
        now_ms: wall time in milliseconds.

    Attributes:
        is_compacted: whether every record must have a key.
        max_message_bytes: of the largest batch.
        stamps: whether the broker writes its own time into batches (LogAppendTime).
    """

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_codec",
        "_level",
        "_log",
        "_name",
        "_now_ms",
        "is_compacted",
        "max_message_bytes",
        "stamps",
    )

    def __init__(self, partition: str, log: Log, config: Config, now_ms: Callable[[], int]) -> None:
        self._name = partition
        self._log = log
        self._now_ms = now_ms
        self.max_message_bytes = config.integer("max.message.bytes")
        self._after_ms = config.integer("message.timestamp.after.max.ms")
        self._before_ms = config.integer("message.timestamp.before.max.ms")
        self.is_compacted = "compact" in config.words("cleanup.policy")
        self.stamps = config["message.timestamp.type"] == "LogAppendTime"
        self._codec, self._level = _read_codec(config)

    def admit(
        self, records: memoryview, allows_zstd: bool
    ) -> Steps[tuple[memoryview, BatchHeader]]:
        """Check the one batch of a client's produce request; returns the batch to store, and its
        header. Yields where other requests may be served.

        The largest timestamp and the attributes are made right in `records`: Java's consumer and
        retention rely on them. If the topic has a codec (`compression.type`), the batch returned
        has it.

        Raises:
            Refused: the batch breaks a rule. One that decompresses to more than the limit is
                refused (MESSAGE_TOO_LARGE: producers then split it, KIP-126) if its records have to
                be read later, by compaction, or compressed again; otherwise its header is believed.
        """
        header = self._check_header(records, allows_zstd)
        is_other_codec = self._codec not in (None, header.attributes & CODEC_MASK)
        try:
            survey = yield from survey_records(records, 0, header, self._log.config.unpacked_limit)
        except TooLarge as error:
            if self.is_compacted or is_other_codec:
                raise Refused(
                    ErrorCode.MESSAGE_TOO_LARGE, f"{self._name}: {error}; send smaller batches."
                ) from error
            self._check_timestamps(header, header.base_timestamp, header.max_timestamp)
            return records, header
        except CorruptData as error:
            raise Refused(ErrorCode.INVALID_RECORD, f"{self._name}: {error}") from error
        self._check_timestamps(header, survey.min_timestamp, survey.max_timestamp)
        if self.is_compacted and survey.keyless:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self._name}: Compacted topic cannot accept message without key.",
                (yield from self._find(records, header, lambda _, is_keyed: not is_keyed)),
            )
        attributes = header.attributes & _CLIENTS_BITS
        newest = survey.max_timestamp
        if is_other_codec:
            attributes = attributes & ~CODEC_MASK | cast(int, self._codec)
            records = memoryview(
                build_like(
                    header,
                    attributes,
                    header.base_timestamp,
                    newest,
                    header.record_count,
                    survey.records,
                    self._level,
                )
            )
            header = read_header(records)
            self._check_size(header)
        elif (attributes, newest) != (header.attributes, header.max_timestamp):
            correct(records, 0, header, attributes, newest)
            header = read_header(records)
        return records, header

    def _check_header(self, records: memoryview, allows_zstd: bool) -> BatchHeader:
        try:
            header = verify(records, is_client_batch=True)
        except CorruptBatch as error:
            # CORRUPT_MESSAGE makes clients retry, which helps after damage on the way, but not if
            # the client built an incomplete batch.
            code = ErrorCode.INVALID_RECORD if is_cut_short(records, 0) else error.code
            raise Refused(code, f"{self._name}: {error}") from error
        if header.size != len(records):
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self._name}: {len(records) - header.size} bytes follow the batch; Produce from "
                "version 3 on takes exactly one batch per partition.",
            )
        self._check_size(header)
        if header.base_offset:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self._name}: the base offset of a producer's batch is 0, not "
                f"{header.base_offset}.",
            )
        if not allows_zstd and header.compression is Compression.ZSTD:
            raise Refused(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"{self._name}: zstd needs Produce version 7 or later.",
            )
        return header

    def _check_size(self, header: BatchHeader) -> None:
        if header.size > self.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self._name}: the batch has {header.size} bytes, which exceeds "
                f"max.message.bytes={self.max_message_bytes}.",
            )

    def _check_timestamps(self, header: BatchHeader, oldest: int, newest: int) -> None:
        now = self._now_ms()
        if self.stamps:
            if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                raise Refused(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"{self._name}: the batch claims LogAppendTime, which only brokers set.",
                )
            return
        if newest - now > self._after_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self._name}: timestamp {newest} is more than "
                f"message.timestamp.after.max.ms={self._after_ms} ahead of the broker's {now}.",
                is_wrong_time=lambda time: time - now > self._after_ms,
            )
        if oldest != NO_TIMESTAMP and now - oldest > self._before_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self._name}: timestamp {oldest} is more than "
                f"message.timestamp.before.max.ms={self._before_ms} behind the broker's {now}.",
                is_wrong_time=lambda time: time != NO_TIMESTAMP and now - time > self._before_ms,
            )

    def find_times(self, records: memoryview, is_wrong: Callable[[int], bool]) -> Steps[list[int]]:
        """The indexes of a refused batch's records whose timestamps are wrong, as far as it can be
        decoded. Yields where other requests may be served."""
        header = read_header(records, 0)
        base = header.base_timestamp
        return self._find(records, header, lambda time, _: is_wrong(base + time))

    def _find(
        self, records: memoryview, header: BatchHeader, is_wrong: Callable[[int, bool], bool]
    ) -> Steps[list[int]]:
        """The indexes of some records, by their timestamp deltas and whether they have keys."""
        found: list[int] = []
        place = 0
        try:
            limit = self._log.config.unpacked_limit
            for number, read in enumerate(scan_records(records, 0, header, limit)):
                if number:
                    yield
                found += [
                    each
                    for each, (_, time, keyed) in enumerate(read, place)
                    if is_wrong(time, keyed)
                ]
                place += len(read)
                if len(found) >= MAX_AT_FAULT:
                    break
        except CorruptData:
            pass  # the batch is refused anyway
        return found[:MAX_AT_FAULT]


def _read_codec(config: Config) -> tuple[Compression | None, int | None]:
    """The codec in which batches are stored, None for the producer's, and its level."""
    name = config.text("compression.type")
    if name == "producer":
        return None, None
    if name in ("uncompressed", "snappy"):
        return (Compression.SNAPPY if name == "snappy" else Compression.NONE), None
    level = config.integer(f"compression.{name}.level")
    is_default = level == TOPIC[f"compression.{name}.level"].default
    return Compression[name.upper()], None if is_default else level
