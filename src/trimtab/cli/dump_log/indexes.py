"""Prints the indexes of a segment, and compares them with the batches of the segment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from trimtab.cli.dump_log.findings import Findings
from trimtab.cli.dump_log.log_file import LogFile
from trimtab.cli.table import show_count
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import HEADER_BYTES, BatchHeader, read_header

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_PIECE: Final = 1 << 16


class LogHeaders:
    """The headers of a .log file, read where an index points to."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self.size = file.size
        self._start = 0
        self._piece = b""

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch at a position.

        Raises:
            CorruptData: there is none.
        """
        at = position - self._start
        if not 0 <= at <= len(self._piece) - HEADER_BYTES:
            self._piece = self._file.read(position, _PIECE)
            self._start, at = position, 0
        header = read_header(memoryview(self._piece)[at:])
        if position + header.size > self.size:
            raise CorruptData("the file ends within a batch")
        return header

    def headers(self, position: int) -> Iterator[BatchHeader]:
        """The headers from a position on, up to the file's end or to damage."""
        while position < self.size:
            try:
                header = self.header_at(position)
            except CorruptData:
                return
            yield header
            position += header.size


class Index:
    """An index file.

    Attributes:
        base: the offset in its name, to which its entries are relative.
        entries: each entry's position in the file, and its two numbers.
    """

    def __init__(self, file: LogFile, form: Struct, findings: Findings) -> None:
        self.path = file.path
        self.log_path = f"{os.path.splitext(self.path)[0]}.log"
        self.base = file.base_offset
        self._findings = findings
        content = file.read()
        whole = len(content) - len(content) % form.size
        if whole != len(content):
            self.report(
                whole,
                f"{show_count(len(content) - whole, 'byte')} at the end: entries have {form.size}",
            )
        self.entries = [
            (number * form.size, first, second)
            for number, (first, second) in enumerate(form.iter_unpack(content[:whole]))
        ]
        self._drop_room(form)

    def report(self, position: int, what: str) -> None:
        self._findings.report(self.path, position, what)

    def _drop_room(self, form: Struct) -> None:
        """Drop the zeros at the end: a broker of Apache Kafka makes an index larger than its
        entries while it writes the segment."""
        kept = len(self.entries)
        while kept > 1 and self.entries[kept - 1][1:] == (0, 0):
            kept -= 1
        del self.entries[kept:]

    def open_log(self) -> LogFile:
        """The segment's file.

        Raises:
            CorruptData: it cannot be read.
        """
        try:
            return LogFile(self.log_path)
        except CorruptData as error:
            raise CorruptData(f"its segment {self.log_path} {error}") from error

    def check_sanity(self) -> None:
        """What a broker checks when it starts: the last entry is not before the first."""
        first, last = (self.entries[at] if self.entries else (0, 0, 0) for at in (0, -1))
        if last[1] < first[1] or min(last[1:]) < 0:
            self.report(last[0], f"the last entry, {last[1:]}, is before the first, {first[1:]}")
        else:
            self._findings.show(
                "index", {"entries": len(self.entries)}, f"{self.path} passed sanity check."
            )

    def check_order(self, before: tuple[int, int], entry: tuple[int, int, int]) -> None:
        """Report an entry whose numbers do not rise."""
        if not (before[0] < entry[1] and before[1] < entry[2]):
            self.report(entry[0], f"the entry {entry[1:]} follows {before}, but entries rise")


def dump_index(file: LogFile, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print a .index file: of some batches their last offset and their position."""
    index = Index(file, _OFFSET_ENTRY, findings)
    with index.open_log() as log:
        segment = LogHeaders(log)
        if not index.entries:
            findings.say(f"{index.path} is empty.")
        elif arguments.index_sanity_check:
            index.check_sanity()
        else:
            before = (-1, -1)
            for entry in index.entries:
                at, relative, position = entry
                index.check_order(before, entry)
                before = (relative, position)
                problem = _compare(segment, index.base + relative, position)
                if problem:
                    index.report(at, problem)
                if not arguments.verify_index_only:
                    shown = {"offset": index.base + relative, "position": position}
                    findings.show("offset", shown)


def _compare(segment: LogHeaders, offset: int, position: int) -> str:
    """Why there is no batch that ends with this offset at this position; empty if there is."""
    if not 0 <= position < segment.size:
        return f"position {position} is outside the segment of {segment.size} bytes"
    try:
        last = segment.header_at(position).last_offset
    except CorruptData:
        return f"the segment has no batch at position {position}"
    if last != offset:
        return f"the batch at position {position} ends with offset {last}, not {offset}"
    return ""


def dump_time_index(file: LogFile, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print a .timeindex file: rising largest timestamps, and the last offsets of their batches."""
    index = Index(file, _TIME_ENTRY, findings)
    with index.open_log() as log:
        segment = LogHeaders(log)
        if arguments.index_sanity_check:
            index.check_sanity()
        else:
            batches = segment.headers(0)
            batch = next(batches, None)
            before = (-1, -1)
            for entry in index.entries:
                at, timestamp, relative = entry
                offset = index.base + relative
                if before == (-1, -1) or (before[0] < timestamp and before[1] < relative):
                    while batch is not None and batch.last_offset < offset:
                        batch = next(batches, None)
                    problem = _compare_time(batch, offset, timestamp)
                    if problem:
                        index.report(at, problem)
                else:
                    index.check_order(before, entry)
                before = (timestamp, relative)
                if not arguments.verify_index_only:
                    findings.show("timestamp", {"timestamp": timestamp, "offset": offset})


def _compare_time(batch: BatchHeader | None, offset: int, timestamp: int) -> str:
    """Why the batch does not end with this offset and have this largest timestamp."""
    if batch is None:
        return f"the segment has no batch that ends with offset {offset}"
    if batch.last_offset != offset:
        return f"no batch ends with offset {offset}; the next one ends with {batch.last_offset}"
    if batch.max_timestamp != timestamp:
        return (
            f"the batch that ends with offset {offset} has the largest timestamp "
            f"{batch.max_timestamp}, not {timestamp}"
        )
    return ""
