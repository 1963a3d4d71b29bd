"""Markers that end transactions (`trimtab.kafka.wire.end_markers`)."""

from contextlib import suppress

import pytest

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_header, read_headers, verify
from trimtab.kafka.wire.batch_header import stamp_crc
from trimtab.kafka.wire.compaction_cy import set_delete_horizon
from trimtab.kafka.wire.end_markers import EndMarker, build_marker, read_marker


@pytest.mark.kip(98)
@pytest.mark.parametrize("marker", [EndMarker(True, 0), EndMarker(False, 2**31 - 1)])
def test_a_marker_is_read_as_it_was_written(marker: EndMarker) -> None:
    data = build_marker(2**62, 32767, marker, 2**41)
    header = verify(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**62, 32767, -1)
    assert header.is_control
    assert header.is_transactional
    assert header.record_count == 1
    assert header.max_timestamp == 2**41
    assert read_marker(data, 0, header) == marker
    assert read_marker(b"before" + data, 6, header) == marker


def test_its_bytes_are_those_of_kafka() -> None:
    data = build_marker(7, 3, EndMarker(True, 5), 1000)
    assert data[61:] == bytes.fromhex("20 00 00 00 08 00000001 0c 0000 00000005 00")


def test_a_marker_with_a_delete_horizon_is_still_one() -> None:
    data = build_marker(7, 3, EndMarker(False, 5), 1000)
    kept = bytes(set_delete_horizon(data, 0, read_header(data), 2**45))
    assert read_marker(kept, 0, read_headers(kept)[0]) == EndMarker(False, 5)


def test_an_emptied_batch_has_no_marker() -> None:
    data = build_marker(7, 3, EndMarker(False, 5), 1000)
    assert read_marker(data, 0, read_header(data)._replace(record_count=0)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\2", b"\0\0\0\0\0\5"),
        (b"\0\0\0", b"\0\0\0\0\0\5"),
        (None, b"\0\0\0\0\0\5"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\5"),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (b"\0\0\0\1", None),
    ],
)
def test_other_control_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    builder = BatchBuilder(1 << 10)
    builder.append(0, key, value, [])
    data = builder.build(producer_id=1, producer_epoch=0, is_control=True)
    with pytest.raises(CorruptData, match="control batch at offset 0: no end of a transaction"):
        read_marker(data, 0, read_header(data))


def test_every_cut_and_every_wrong_length_is_refused_or_read() -> None:
    """Whatever the bytes are, nothing beyond the batch is read, and no other error escapes."""
    whole = build_marker(7, 3, EndMarker(True, 5), 1000)
    header = read_header(whole)
    for at in range(61, len(whole) - 1):
        with pytest.raises(CorruptData):
            read_marker(whole[:at], 0, header)
        for byte in (0x00, 0x7E, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[at] = byte
            stamp_crc(changed, 0, len(changed))
            with suppress(CorruptData):
                read_marker(changed, 0, header)
