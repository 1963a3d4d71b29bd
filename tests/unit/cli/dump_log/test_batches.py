from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.dump_log.conftest import FIRST, Dump, flip
from trimtab.cluster.metadata.batches import SnapshotId, write_snapshot
from trimtab.kafka.wire.batch_cy import BatchBuilder, restamp
from trimtab.kafka.wire.messages.metadata_records import NoOpRecord, TopicRecord


def last_segment(directory: Path) -> Path:
    return sorted(directory.glob("*.log"))[-1]


def position_of(dump: Dump, path: Path, offset: int) -> int:
    """Where the batch with this base offset is."""
    (found,) = (
        int(line.partition(" position: ")[2].split()[0])
        for line in dump("--files", path).lines
        if line.startswith(f"baseOffset: {offset} ")
    )
    return found


def test_a_line_says_what_a_batch_is(dump: Dump, segment: Path) -> None:
    found = dump("--files", segment)
    assert found.lines[:2] == [f"Dumping {segment}", "Log starting offset: 0"]
    line, _, crc = found.lines[2].partition(" crc: ")
    size = int(line.partition(" size: ")[2].split()[0])
    assert line == (
        "baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 0 lastSequence: 2 producerId: 9 "
        "producerEpoch: 1 partitionLeaderEpoch: 7 isTransactional: false isControl: false "
        "deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1000002 "
        f"size: {size} magic: 2 compresscodec: gzip"
    )
    assert crc.endswith(" isvalid: true")
    assert f" position: {size} " in found.lines[3]
    assert (found.code, found.errors) == (0, [])


def test_batches_of_every_segment_follow_each_other(dump: Dump, directory: Path) -> None:
    segments = sorted(directory.glob("*.log"))
    assert len(segments) == 2
    found = dump("--files", f"{segments[0]},{segments[1]}")
    offsets = [line.split()[1] for line in found.lines if line.startswith("baseOffset")]
    assert offsets == [*(str(3 * i) for i in range(90)), "270", "271"]
    assert (found.code, found.errors) == (0, [])


def test_deep_iteration_shows_records_without_their_data(dump: Dump, segment: Path) -> None:
    found = dump("--files", segment, "--deep-iteration")
    assert found.lines[3] == (
        "| offset: 0 CreateTime: 1000000 keySize: 3 valueSize: 100 sequence: 0 headerKeys: [h,g]"
    )
    assert found.lines[4].endswith(" sequence: 1 headerKeys: []")


def test_data_is_text_without_what_would_control_a_terminal(dump: Dump, directory: Path) -> None:
    found = dump("--files", last_segment(directory), "--print-data-log")
    assert found.lines[-3] == (
        "| offset: 270 CreateTime: 2000000 keySize: -1 valueSize: 4 sequence: 0 headerKeys: [] "
        "payload: a\\x1b�\\x0a"
    )


def test_a_marker_is_shown_with_its_coordinators_epoch(dump: Dump, directory: Path) -> None:
    found = dump("--files", last_segment(directory), "--deep-iteration")
    assert found.lines[-1].endswith(
        "sequence: -1 headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 3"
    )


def test_without_metadata_a_record_is_its_key_and_value(dump: Dump, directory: Path) -> None:
    words = ("--print-data-log", "--skip-record-metadata")
    found = dump("--files", last_segment(directory), *words)
    records = [line for line in found.lines if line.startswith("|")]
    assert records[0].startswith("| key: key payload: ")
    assert records[-1] == "| payload: a\\x1b�\\x0a"


def test_json_has_the_same_with_numbers_as_numbers(dump: Dump, directory: Path) -> None:
    path = last_segment(directory)
    found = dump("--files", path, "--print-data-log", "--json")
    *_, data, marker = map(json.loads, found.lines)
    assert (data["file"], data["kind"], data["baseOffset"]) == (str(path), "batch", 270)
    assert (data["timestampType"], data["maxTimestamp"]) == ("CREATE_TIME", 2_000_000)
    assert (data["isTransactional"], data["isValid"], data["codec"]) == (True, True, "none")
    assert data["deleteHorizonMs"] is None
    (record,) = data["records"]
    assert (record["key"], record["valueBase64"], record["headerKeys"]) == (None, "YRv/Cg==", [])
    assert marker["records"][0]["control"] == {"type": "ABORT", "coordinatorEpoch": 3}


def test_max_bytes_ends_a_file_before_the_batch_that_exceeds_them(
    dump: Dump, segment: Path
) -> None:
    second = position_of(dump, segment, 3)
    third = position_of(dump, segment, 6)
    for limit, count in ((second, 1), (third - 1, 1), (third, 2)):
        found = dump("--files", segment, "--max-bytes", limit)
        assert sum(line.startswith("baseOffset") for line in found.lines) == count
        assert (found.code, found.errors) == (0, [])


def test_a_batch_larger_than_a_read_is_found_whole(dump: Dump, tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    content = b""
    for offset in range(3):
        builder = BatchBuilder(4 << 20)
        builder.append(1, None, b"x" * (1_500_000 if offset == 1 else 700_000), [])
        batch = builder.build()
        restamp(batch, 0, offset, 0)
        content += batch
    path.write_bytes(content)
    found = dump("--files", path, "--deep-iteration")
    assert [line.split()[2] for line in found.lines if line.startswith("| ")] == ["0", "1", "2"]
    assert (found.code, found.errors) == (0, [])


# damage


@pytest.mark.parametrize("deep", [False, True])
def test_a_flipped_byte_is_named_and_the_rest_is_shown(
    dump: Dump, segment: Path, deep: bool
) -> None:
    at = position_of(dump, segment, 6)
    flip(segment, at + 70)
    found = dump("--files", segment, *(["--deep-iteration"] if deep else []))
    assert found.code == 1
    (error,) = found.errors
    assert error.startswith(f"{segment}, position {at}: the batch has CRC 0x")
    valid = {
        line.split()[1]: line.endswith("isvalid: true")
        for line in found.lines
        if line.startswith("baseOffset")
    }
    assert [offset for offset, is_valid in valid.items() if not is_valid] == ["6"]
    assert "9" in valid


def test_a_file_that_was_cut_is_named_with_the_bytes_that_are_left(
    dump: Dump, segment: Path
) -> None:
    at = position_of(dump, segment, 6)
    for left in (1, 11, 12, 60, 61, 100):
        content = segment.read_bytes()[: at + left]
        cut = segment.with_name(f"{left:020d}.log")
        cut.write_bytes(content)
        found = dump("--files", cut)
        assert found.code == 1
        assert f"{cut}, position {at}: " in found.errors[-1]
        assert f"{left} " in found.errors[-1].partition(" position ")[2]


def test_an_impossible_length_ends_the_file(dump: Dump, segment: Path) -> None:
    at = position_of(dump, segment, 6)
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes()[:at] + bytes(size - at))
    found = dump("--files", segment, "--json")
    assert found.code == 1
    assert json.loads(found.lines[-1]) == {
        "file": str(segment),
        "kind": "problem",
        "position": at,
        "problem": f"a batch of the length 0: the {size - at} bytes from here on are no batches",
    }
    assert found.errors == [f"{segment}, position {at}: {json.loads(found.lines[-1])['problem']}"]


def test_a_batch_of_another_version_is_named_and_left_out(dump: Dump, segment: Path) -> None:
    at = position_of(dump, segment, 6)
    flip(segment, at + 16, 2)
    found = dump("--files", segment)
    assert found.errors == [
        f"{segment}, position {at}: a batch of version 0: only version 2 is read (Kafka 0.11 or "
        "later)"
    ]


def test_damage_in_what_no_crc_covers_is_found(dump: Dump, segment: Path) -> None:
    at = position_of(dump, segment, 6)
    flip(segment, at + 7, 7)  # the base offset: 6 becomes 1
    flip(segment, at + 15, 3)  # the leader epoch: 7 becomes 4
    found = dump("--files", segment)
    assert found.code == 1
    assert found.errors == [
        f"{segment}, position {at}: the batch has offset 1, but the batches before it end with 5",
        f"{segment}, position {at}: the batch has leader epoch 4, but the batch before it 7",
    ]


def test_an_offset_before_the_files_is_found(dump: Dump, segment: Path) -> None:
    later = segment.with_name("00000000000000000002.log")
    later.write_bytes(segment.read_bytes())
    found = dump("--files", later)
    assert found.errors[0] == (
        f"{later}, position 0: the batch has offset 0, but the batches before it end with 1"
    )


def test_a_gap_is_told_but_is_no_damage(dump: Dump, segment: Path) -> None:
    first, second = position_of(dump, segment, 3), position_of(dump, segment, 6)
    content = segment.read_bytes()
    segment.write_bytes(content[:first] + content[second:])
    found = dump("--files", segment)
    assert found.code == 0
    assert found.errors == [
        f"{segment}: offset 3 is followed by 6: such gaps are normal if the topic is compacted"
    ]


def test_malformed_records_under_a_right_crc_are_named(dump: Dump, tmp_path: Path) -> None:
    from trimtab.kafka.wire.batch_header import stamp_crc

    builder = BatchBuilder(1000)
    builder.append(1, b"k", b"v", [])
    batch = bytearray(builder.build())
    batch[61] = 0x7E  # the record's length
    stamp_crc(batch, 0, len(batch))
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    found = dump("--files", path, "--deep-iteration")
    assert found.code == 1
    assert f"{path}, position 0: the records of the batch cannot be read: " in found.errors[0]
    assert dump("--files", path).code == 0


def test_a_snapshot_of_metadata_is_shown_with_its_header_and_footer(
    dump: Dump, tmp_path: Path
) -> None:
    snapshot = SnapshotId(1000, 3)
    path = tmp_path / snapshot.name
    records = [TopicRecord(name="flights", topic_id=bytes(15) + b"\7"), NoOpRecord()]
    path.write_bytes(b"".join(write_snapshot(records, snapshot, 77, 88)))
    found = dump("--files", path, "--cluster-metadata-decoder")
    assert (found.code, found.errors) == (0, [])
    assert found.lines[1] == "Snapshot end offset: 1000, epoch: 3"
    assert found.lines[3].endswith('SnapshotHeader {"version":0,"lastContainedLogTimestamp":77}')
    assert found.lines[5].endswith(
        'payload: {"type":"TOPIC_RECORD","version":0,"data":{"name":"flights",'
        '"topicId":"AAAAAAAAAAAAAAAAAAAABw"}}'
    )
    assert found.lines[-1].endswith('SnapshotFooter {"version":0}')
