"""What a producer's batch must comply with before a partition's leader appends it.

A batch is checked by its header alone, in the order and with the error codes of Kafka's
`UnifiedLog` and `LogValidator`. Only the header's first and largest timestamps are checked. Records
are decoded only for a compacted topic, where every record must have a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from trimtab.broker.refused import Refused
from trimtab.config import Value
from trimtab.errors import CorruptData, ErrorCode
from trimtab.records import NO_TIMESTAMP
from trimtab.server.turns import Steps
from trimtab.storage.log import Log
from trimtab.wire.batch_cy import BatchHeader, CorruptBatch, read_header, scan_records, verify
from trimtab.wire.batch_header import is_cut_short
from trimtab.wire.compression import Compression, TooLarge

MAX_AT_FAULT = 10_000
"""Records of a refused batch that the response names at most: a small batch may hold millions."""


class BatchRules:
    """The rules of one partition.

    Args:
        partition: its name, for messages.
        config: the topic's options (`trimtab.config.TOPIC`), all of them.
        now_ms: wall time in milliseconds.

    Attributes:
        is_compacted: whether every record must have a key.
        max_message_bytes: of the largest batch.
        stamps: whether the broker writes its own time into batches (LogAppendTime).
    """

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_log",
        "_name",
        "_now_ms",
        "is_compacted",
        "max_message_bytes",
        "stamps",
    )

    def __init__(
        self, partition: str, log: Log, config: Mapping[str, Value], now_ms: Callable[[], int]
    ) -> None:
        self._name = partition
        self._log = log
        self._now_ms = now_ms
        self.max_message_bytes = cast(int, config["max.message.bytes"])
        self._after_ms = cast(int, config["message.timestamp.after.max.ms"])
        self._before_ms = cast(int, config["message.timestamp.before.max.ms"])
        self.is_compacted = "compact" in cast("tuple[str, ...]", config["cleanup.policy"])
        self.stamps = config["message.timestamp.type"] == "LogAppendTime"

    def check(self, records: memoryview, allows_zstd: bool) -> BatchHeader:
        """Check the one batch of a client's produce request by its header; returns the header.

        Raises:
            Refused: the batch breaks a rule.
        """
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
        if header.size > self.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self._name}: the batch has {header.size} bytes, which exceeds "
                f"max.message.bytes={self.max_message_bytes}.",
            )
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
        if not self.stamps:
            self._check_timestamps(header)
        return header

    def _check_timestamps(self, header: BatchHeader) -> None:
        """Check the first record's timestamp and the batch's largest: those in the header."""
        now = self._now_ms()
        if header.max_timestamp - now > self._after_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self._name}: timestamp {header.max_timestamp} is more than "
                f"message.timestamp.after.max.ms={self._after_ms} ahead of the broker's {now}.",
                is_wrong_time=lambda time: time - now > self._after_ms,
            )
        if header.base_timestamp != NO_TIMESTAMP and now - header.base_timestamp > self._before_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self._name}: timestamp {header.base_timestamp} is more than "
                f"message.timestamp.before.max.ms={self._before_ms} behind the broker's {now}.",
                is_wrong_time=lambda time: now - time > self._before_ms,
            )

    def find_times(self, records: memoryview, is_wrong: Callable[[int], bool]) -> Steps[list[int]]:
        """The indexes of a refused batch's records whose timestamps are wrong, as far as it can be
        decoded. Yields where other requests may be served."""
        header = read_header(records, 0)
        base = header.base_timestamp
        found: list[int] = []
        place = 0
        try:
            limit = self._log.config.unpacked_limit
            for number, read in enumerate(scan_records(records, 0, header, False, limit)):
                if number:
                    yield
                found += [
                    each for each, (_, time, _) in enumerate(read, place) if is_wrong(base + time)
                ]
                place += len(read)
                if len(found) >= MAX_AT_FAULT:
                    break
        except CorruptData:
            pass  # the batch is refused anyway
        return found[:MAX_AT_FAULT]

    def check_keys(self, records: memoryview, allows_zstd: bool) -> Steps[None]:
        """Check that every record of a batch for a compacted topic has a key. `check` does not, as
        this may take long. Yields where other requests may be served.

        Raises:
            Refused: a record has no key, the batch breaks another rule, or decompresses to more
                than the limit (MESSAGE_TOO_LARGE: producers then split the batch, KIP-126).
        """
        header = self.check(records, allows_zstd)
        keyless: list[int] = []
        place = 0
        limit = self._log.config.unpacked_limit
        try:
            for number, found in enumerate(scan_records(records, 0, header, False, limit)):
                if number:
                    yield
                keyless += [each for each, (*_, keyed) in enumerate(found, place) if not keyed]
                place += len(found)
                if len(keyless) >= MAX_AT_FAULT:
                    break
        except TooLarge as error:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self._name}: {error} of a compacted topic; send smaller batches.",
            ) from error
        except CorruptData as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{self._name}: {error}") from error
        if keyless:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self._name}: Compacted topic cannot accept message without key.",
                keyless[:MAX_AT_FAULT],
            )
