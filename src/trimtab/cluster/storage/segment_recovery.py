"""Checks a segment's batches one by one, from its beginning to the first that is not whole."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from trimtab.cluster.storage.batch_file import BOUNDS, MAGIC_AT, BatchFile
from trimtab.cluster.storage.segment_indexes import GrowingIndexes
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import MAGIC, BatchHeader, verify

_VERIFY_CHUNK = 1024 * 1024
SEARCHED_BYTES = 1 << 20
"""Bytes after a torn batch that are searched for another whole batch."""

_LENGTH = Struct(">8xi")
_MAGIC_BYTE = bytes([MAGIC])


class RecoveredSegment(NamedTuple):
    """The result of `Segment.recover`.

    Attributes:
        end_offset: the offset after the last whole batch; the base offset if there is none.
        problem: why the file was truncated there; empty if it was not.
        is_torn: the only damage is an append that a crash interrupted.
    """

    end_offset: int
    problem: str = ""
    is_torn: bool = False


def check_batches(
    file: BatchFile,
    indexes: GrowingIndexes,
    seen: Callable[[BatchHeader, int], None],
    allows_gaps: bool,
    next_offset: int | None,
) -> tuple[RecoveredSegment, int]:
    """Check every batch, and note the whole ones in empty indexes. Calls `seen` with the header and
    position of each. Returns what was found, and the position at which the file must be truncated.

    A batch's CRC does not cover its base offset. So a batch after a gap must be confirmed by
    the offset of the next batch or segment; otherwise it counts as damaged.

    Args:
        allows_gaps: compaction may have left gaps, also before the last batch.
        next_offset: the base offset of the next segment; None for the last one.
    """
    end_offset = confirmed_offset = file.base_offset
    position = 0
    wanted = _VERIFY_CHUNK
    problem = ""
    last: tuple[BatchHeader, int] | None = None  # not confirmed yet

    def confirm() -> None:
        nonlocal last
        if last is not None:
            indexes.note(last[0], last[1], last[0].last_offset)
            seen(*last)
            last = None

    try:
        while position < file.size:
            chunk = file.read_bytes(position, wanted)
            at = 0
            while len(chunk) - at > BOUNDS.size:
                size = file.batch_size(chunk, position, at)
                if at + size > len(chunk):
                    break
                try:
                    header = verify(chunk, at)
                except CorruptData as error:
                    raise file.corrupt(position, str(error)) from error
                if header.base_offset < end_offset and header.base_offset >= confirmed_offset:
                    next_offset = header.base_offset
                file.check_offsets(position, header, end_offset)
                confirm()
                confirmed_offset = end_offset
                last = header, position
                end_offset = header.next_offset
                at += size
                position += size
            if not at and len(chunk) < wanted:
                raise file.corrupt(position, "the file ends within a batch")
            wanted = _VERIFY_CHUNK if at else size
    except CorruptData as error:
        problem = str(error)
    is_torn = bool(problem) and is_torn_append(
        file.read_bytes(position, SEARCHED_BYTES), file.size - position
    )
    if last is not None and last[0].base_offset > confirmed_offset:
        is_confirmed = allows_gaps if next_offset is None else end_offset <= next_offset
        if not is_confirmed:
            problem = str(
                file.corrupt(
                    last[1],
                    f"offset {last[0].base_offset} after {confirmed_offset - 1}, and the next "
                    "batch or segment does not confirm it",
                )
            )
            end_offset, position, last, is_torn = confirmed_offset, last[1], None, False
    confirm()
    return RecoveredSegment(end_offset, problem, is_torn), position


def is_torn_append(rest: bytes, left: int) -> bool:
    """Whether bytes are the beginning of a batch whose append a crash has interrupted: the file
    ends within the batch, and no whole batch follows.

    Args:
        rest: up to `SEARCHED_BYTES` from the end of the last whole batch on.
        left: bytes to the end of the file.
    """
    if len(rest) > MAGIC_AT and not left < _LENGTH.size + _LENGTH.unpack_from(rest)[0]:
        return False
    return not has_whole_batch(rest)


def has_whole_batch(data: bytes) -> bool:
    """Whether a whole batch begins anywhere in these bytes."""
    found = data.find(_MAGIC_BYTE, MAGIC_AT)
    while found >= 0:
        try:
            verify(data, found - MAGIC_AT)
        except CorruptData:
            found = data.find(_MAGIC_BYTE, found + 1)
        else:
            return True
    return False
