"""What a log tells of an append, and of an offset that it does not have."""

from __future__ import annotations

from typing import NamedTuple

from trimtab.errors import KafkaError


class AppendInfo(NamedTuple):
    """Where batches were stored. Offsets are inclusive; times in ms, -1 for none.
    `log_append_time` is -1 if the records keep their producer's timestamps."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int


class OffsetOutOfRange(KafkaError):
    """An offset that the log does not have: on the wire OFFSET_OUT_OF_RANGE (1)."""

    def __init__(self, directory: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"{directory}: offset {offset} is not within {start}..{end}")
