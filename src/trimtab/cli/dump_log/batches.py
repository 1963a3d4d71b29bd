"""Prints the batches of a segment, or of a snapshot of metadata, and their records."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from os.path import basename
from struct import Struct
from typing import Any, Final, NamedTuple

from trimtab.cli.dump_log.decoders import DECODERS, escape, show_message, write_json
from trimtab.cli.dump_log.findings import Findings
from trimtab.cli.dump_log.log_file import LogFile
from trimtab.cli.results import write_fields
from trimtab.cli.table import show_count
from trimtab.cluster.metadata.batches import find_snapshot_id
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record, TimestampType
from trimtab.kafka.wire.batch_cy import HEADER_BYTES, MAGIC, BatchHeader, read_header, read_records
from trimtab.kafka.wire.batch_header import CODEC_MASK, CONTROL, check_crc
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.end_markers import decode_marker
from trimtab.kafka.wire.messages.control_records import (
    CONTROL_RECORDS,
    ControlRecordType,
    decode_control_key,
    decode_control_record,
)
from trimtab.kafka.wire.sentinels import NO_SEQUENCE

_CHUNK: Final = 1 << 20
_LENGTH: Final = Struct(">8xi")
_BEFORE_LENGTH_ENDS: Final = 12
_LEAST: Final = 14
"""The least length of a batch of any version, after its field."""
_MAGIC_AT: Final = 16
_DELETE_HORIZON: Final = 0x40
_FLAGS: Final = 22
_INT32: Final = 2**31
_KRAFT_NAMES: Final[Mapping[int, str]] = {
    ControlRecordType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlRecordType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlRecordType.KRAFT_VERSION: "KRaftVersion",
    ControlRecordType.KRAFT_VOTERS: "KRaftVoters",
}

Report = Callable[[int, str], None]
"""Called with the position of damage, and what it is."""


class DumpedBatch(NamedTuple):
    """A batch in a file.

    Attributes:
        problem: why it cannot be trusted: its CRC is wrong; empty if all is well.
    """

    position: int
    header: BatchHeader
    data: memoryview
    problem: str


def read_batches(file: LogFile, end: int | None, report: Report) -> Iterator[DumpedBatch]:
    """The batches of a file, one after the other; a large one is read as a whole.

    A batch of another version, or with an impossible header, is reported and left out. The file is
    read up to where no batch can be found any more, which is reported.

    Args:
        end: batches that end after this position are left out; None for the end of the file.
    """
    size = file.size
    position, chunk, start = 0, memoryview(b""), 0
    while position < size:
        at = position - start
        if len(chunk) - at < min(HEADER_BYTES, size - position):
            chunk, start, at = memoryview(file.read(position, _CHUNK)), position, 0
        if len(chunk) - at < _BEFORE_LENGTH_ENDS:
            report(
                position, f"{show_count(size - position, 'byte')} at the end of the file: no batch"
            )
            return
        length = _LENGTH.unpack_from(chunk, at)[0]
        whole = _BEFORE_LENGTH_ENDS + length
        if length < _LEAST:
            rest = f"the {size - position} bytes from here on are no batches"
            report(position, f"a batch of the length {length}: {rest}")
            return
        if position + whole > size:
            report(
                position,
                f"the file ends within a batch: of its {whole} bytes {size - position} are there",
            )
            return
        if end is not None and position + whole > end:
            return
        if len(chunk) - at < whole:
            chunk = memoryview(file.read(position, max(whole, _CHUNK)))
            start, at = position, 0
        data = chunk[at : at + whole]
        found = _open(position, data, report)
        if found is not None:
            yield found
        position += whole


def _open(position: int, data: memoryview, report: Report) -> DumpedBatch | None:
    if len(data) <= _MAGIC_AT or data[_MAGIC_AT] != MAGIC:
        version = f"version {data[_MAGIC_AT]}" if len(data) > _MAGIC_AT else "no version"
        report(
            position, f"a batch of {version}: only version {MAGIC} is read (Kafka 0.11 or later)"
        )
        return None
    try:
        header = read_header(data)
    except CorruptData as error:
        report(position, _without_place(error))
        return None
    problem = ""
    try:
        check_crc(data, 0, header)
    except CorruptData as error:
        problem = _without_place(error)
        report(position, problem)
    return DumpedBatch(position, header, data, problem)


def _without_place(error: CorruptData) -> str:
    """The error without "batch at byte 0", as the batch was read alone."""
    return f"the batch {str(error).removeprefix('batch at byte 0 ')}"


def dump_batches(file: LogFile, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print the batches of a .log or .checkpoint file; with --deep-iteration their records, too."""
    path = file.path
    first = _say_start(file, findings)

    def report(position: int, what: str) -> None:
        findings.report(path, position, what)

    problems = findings.problems
    order = _Order(first, report)
    records = RecordDump(arguments, report)
    for batch in read_batches(file, arguments.max_bytes, report):
        order.check(batch)
        fields = show_batch(batch)
        lines = [write_batch(fields, _name_time(batch.header))]
        if records.is_wanted:
            dumped = records.dump(batch)
            fields["records"] = [shown for shown, _ in dumped]
            lines += [line for _, line in dumped]
        findings.show("batch", fields, "\n".join(lines))
    if order.gaps and findings.problems == problems:
        findings.note(path, order.describe())


def show_batch(batch: DumpedBatch) -> dict[str, object]:
    """A batch, without its records, for JSON."""
    header = batch.header
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": add_to_sequence(header.base_sequence, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp if header.attributes & _DELETE_HORIZON else None,
        "position": batch.position,
        "timestampType": header.timestamp_type.name,
        "maxTimestamp": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "codec": _name_codec(header),
        "crc": header.crc,
        "isValid": not batch.problem,
    }


def write_batch(shown: Mapping[str, Any], time: str) -> str:
    """The line of a batch, as Kafka's tool prints it.

    Args:
        shown: what `show_batch` returns.
        time: what the batch's timestamps say: CreateTime or LogAppendTime.
    """
    fields = {**shown, "deleteHorizonMs": write_optional(shown["deleteHorizonMs"])}
    del fields["timestampType"]
    names = {"maxTimestamp": time, "codec": "compresscodec", "isValid": "isvalid"}
    return write_fields(fields, names)


def add_to_sequence(sequence: int, delta: int) -> int:
    """The sequence `delta` records later; sequences wrap from 2^31 - 1 to 0, and -1 is none."""
    return NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + delta) % _INT32


def write_optional(value: int | None) -> str:
    """As Java writes an OptionalLong."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _name_codec(header: BatchHeader) -> str:
    codec = header.attributes & CODEC_MASK
    return Compression(codec).name.lower() if codec in list(Compression) else str(codec)


def _name_time(header: BatchHeader) -> str:
    is_append = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return "LogAppendTime" if is_append else "CreateTime"


class RecordDump:
    """Shows the records of batches as the options ask for it.

    Attributes:
        is_wanted: whether records are shown at all.
    """

    def __init__(self, arguments: argparse.Namespace, report: Report) -> None:
        self._decode = DECODERS[arguments.decoder]
        self._has_data = arguments.print_data_log or arguments.decoder is not None
        self._is_bare = arguments.skip_record_metadata
        self._report = report
        self.is_wanted = arguments.deep_iteration or self._has_data

    def dump(self, batch: DumpedBatch) -> list[tuple[dict[str, object], str]]:
        """Each record for JSON, and its line. Damage is reported."""
        header = batch.header
        if header.is_control and self._is_bare:
            return []
        try:
            records = read_any_records(batch)
        except CorruptData as error:
            if not batch.problem:
                self._report(batch.position, f"the records of the batch cannot be read: {error}")
            return []
        return [self._dump_record(batch, record) for record in records]

    def _dump_record(self, batch: DumpedBatch, record: Record) -> tuple[dict[str, object], str]:
        header = batch.header
        shown: dict[str, object] = {}
        words = []
        if not self._is_bare:
            delta = record.offset - header.base_offset
            sequence = add_to_sequence(header.base_sequence, delta)
            names = [name for name, _ in record.headers]
            sizes = [-1 if data is None else len(data) for data in (record.key, record.value)]
            shown = {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "keySize": sizes[0],
                "valueSize": sizes[1],
                "sequence": sequence,
                "headerKeys": names,
            }
            line = {**shown, "headerKeys": f"[{','.join(map(escape, names))}]"}
            words = [write_fields(line, {"timestamp": _name_time(header)})]
        try:
            if header.is_control:
                shown["control"], text = show_control(record, batch)
                words.append(text)
            elif self._has_data:
                data = self._decode(record)
                shown.update(data.fields)
                words += data.words
        except CorruptData as error:
            self._report(batch.position, f"record {record.offset} of the batch: {error}")
        return shown, f"| {' '.join(words)}"


def read_any_records(batch: DumpedBatch) -> list[Record]:
    """The records of a batch, also of a control batch. The CRC is not checked.

    Raises:
        CorruptData: they are malformed.
    """
    data = batch.data
    if batch.header.is_control:
        # `read_records` leaves out control batches, so clear the bit in a copy.
        data = memoryview(bytearray(data))
        data[_FLAGS] &= ~CONTROL
    return read_records("", 0, data, 0, check_crcs=False)


def show_control(record: Record, batch: DumpedBatch) -> tuple[dict[str, object], str]:
    """A control record for JSON, and as Kafka's tool prints it.

    Raises:
        CorruptData: it is malformed.
    """
    number = decode_control_key(record.key)
    kind = ControlRecordType(number).name if number in list(ControlRecordType) else "UNKNOWN"
    if number in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        epoch = decode_marker(record.key, record.value).coordinator_epoch
        return (
            {"type": kind, "coordinatorEpoch": epoch},
            f"endTxnMarker: {kind} coordinatorEpoch: {epoch}",
        )
    if number not in CONTROL_RECORDS:
        return {"type": kind, "number": number}, f"controlType: {kind}({number})"
    message = decode_control_record(record.key, record.value)
    shown = show_message(message, message.version)
    name = _KRAFT_NAMES.get(number)
    text = f"controlType: {kind}({number})" if name is None else f"{name} {write_json(shown)}"
    return {"type": kind, "data": shown}, text


def _say_start(file: LogFile, findings: Findings) -> int:
    """Print where the file begins; returns the least offset that it may have."""
    snapshot = find_snapshot_id(basename(file.path))
    if snapshot is None:
        findings.say(f"Log starting offset: {file.base_offset}")
        return file.base_offset
    findings.say(f"Snapshot end offset: {snapshot.end_offset}, epoch: {snapshot.epoch}")
    return 0


class _Order:
    """Checks what no CRC covers: offsets and leader epochs."""

    def __init__(self, first: int, report: Report) -> None:
        self._base = self._next = first
        self._epoch = -1
        self._report = report
        self.gaps = 0
        self._gap = (0, 0)

    def check(self, batch: DumpedBatch) -> None:
        header = batch.header
        offset, epoch = header.base_offset, header.leader_epoch
        if offset < self._next or header.last_offset - self._base >= _INT32:
            self._report(
                batch.position,
                f"the batch has offset {offset}, but the batches before it end with "
                f"{self._next - 1}",
            )
        elif offset > self._next:
            if not self.gaps:
                self._gap = (self._next, offset)
            self.gaps += 1
        if epoch < self._epoch:
            self._report(
                batch.position,
                f"the batch has leader epoch {epoch}, but the batch before it {self._epoch}",
            )
        self._epoch = epoch
        self._next = header.next_offset

    def describe(self) -> str:
        missing, found = self._gap
        more = f", and {self.gaps - 1} more" if self.gaps > 1 else ""
        return (
            f"offset {missing} is followed by {found}{more}: such gaps are normal if the topic is "
            "compacted"
        )
