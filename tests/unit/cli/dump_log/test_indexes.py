from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.dump_log.conftest import FIRST, Dump, flip
from trimtab.kafka.wire.batch_cy import BatchBuilder


@pytest.fixture
def index(directory: Path) -> Path:
    return directory / f"{FIRST}.index"


@pytest.fixture
def time_index(directory: Path) -> Path:
    return directory / f"{FIRST}.timeindex"


def entries_of(path: Path, form: str) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack(form, path.read_bytes()))


def test_entries_are_shown_and_agree_with_the_batches(
    dump: Dump, index: Path, time_index: Path
) -> None:
    found = dump("--files", index, time_index)
    assert (found.code, found.errors) == (0, [])
    offsets, times = entries_of(index, ">ii"), entries_of(time_index, ">qi")
    assert len(offsets) > 10
    assert found.lines == [
        f"Dumping {index}",
        *(f"offset: {offset} position: {position}" for offset, position in offsets),
        f"Dumping {time_index}",
        *(f"timestamp: {time} offset: {offset}" for time, offset in times),
    ]


def test_offsets_are_those_of_the_log_and_not_of_the_file(dump: Dump, directory: Path) -> None:
    last = sorted(directory.glob("*.index"))[-1]
    found = dump("--files", last, last.with_suffix(".timeindex"), "--json")
    assert (found.code, found.errors) == (0, [])
    first = json.loads(found.lines[0])
    assert first["kind"] == "offset"
    assert first["offset"] > int(last.stem) > 0
    timed = json.loads(found.lines[-1])
    assert (timed["kind"], timed["offset"]) == ("timestamp", 271)


def test_verify_only_prints_no_entries(dump: Dump, index: Path) -> None:
    assert dump("--files", index, "--verify-index-only").lines == [f"Dumping {index}"]


def test_sanity_is_checked_without_entries(dump: Dump, index: Path, time_index: Path) -> None:
    found = dump("--files", index, time_index, "--index-sanity-check")
    assert found.code == 0
    assert found.lines[1::2] == [
        f"{index} passed sanity check.",
        f"{time_index} passed sanity check.",
    ]


def set_entry(path: Path, number: int, form: str, *values: int, skip: int = 0) -> int:
    at = number * (8 if path.suffix == ".index" else 12)
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at + skip, *values)
    path.write_bytes(content)
    return at


Damage = Callable[[Path], int]
DAMAGES: list[tuple[str, str, Damage]] = [
    (".index", "ends with offset", lambda path: set_entry(path, 1, ">i", 1 + _first(path, 1))),
    (".index", "ends with offset", lambda path: set_entry(path, 1, ">i", _first(path, 1) - 1)),
    (".index", "the segment has no batch at position", lambda path: _shift(path, 1)),
    (".index", "is outside the segment of", lambda path: set_entry(path, 2, ">i", 2**30, skip=4)),
    (".index", "is outside the segment of", lambda path: set_entry(path, 2, ">i", -5, skip=4)),
    (".index", "but entries rise", lambda path: _swap(path)),
    (".index", "3 bytes at the end: entries have 8", lambda path: _add(path, b"\1\2\3")),
    (".timeindex", "no batch ends with offset", lambda path: set_entry(path, 1, ">i", 54, skip=8)),
    (".timeindex", "has the largest timestamp", lambda path: set_entry(path, 1, ">q", 1_000_999)),
    (
        ".timeindex",
        "the segment has no batch that ends with offset",
        lambda path: _add(path, struct.pack(">qi", 9_000_000, 9000)),
    ),
]


def _first(path: Path, number: int) -> int:
    return entries_of(path, ">ii")[number][0]


def _shift(path: Path, number: int) -> int:
    _, position = entries_of(path, ">ii")[number]
    set_entry(path, number, ">i", position + 3, skip=4)
    return number * 8


def _swap(path: Path) -> int:
    entries = entries_of(path, ">ii")
    set_entry(path, 0, ">ii", *entries[2])
    set_entry(path, 2, ">ii", *entries[0])
    return 8


def _add(path: Path, content: bytes) -> int:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + content)
    return size


@pytest.mark.parametrize("words", [(), ("--verify-index-only",)])
@pytest.mark.parametrize(("suffix", "said", "damage"), DAMAGES)
def test_a_wrong_entry_is_named_with_its_position(
    dump: Dump, directory: Path, suffix: str, said: str, damage: Damage, words: tuple[str, ...]
) -> None:
    path = directory / f"{FIRST}{suffix}"
    at = damage(path)
    found = dump("--files", path, *words)
    assert found.code == 1
    assert found.errors[0].startswith(f"{path}, position {at}: ")
    assert said in " ".join(found.errors)


def test_room_for_more_entries_is_no_damage(dump: Dump, index: Path) -> None:
    """Apache Kafka's brokers allocate indexes in advance."""
    count = len(entries_of(index, ">ii"))
    _add(index, bytes(800))
    found = dump("--files", index)
    assert (found.code, len(found.lines)) == (0, 1 + count)


def test_an_entry_of_time_zero_at_the_first_offset_is_an_entry(dump: Dump, tmp_path: Path) -> None:
    builder = BatchBuilder(1000)
    builder.append(0, None, b"v", [])
    (tmp_path / f"{FIRST}.log").write_bytes(builder.build())
    path = tmp_path / f"{FIRST}.timeindex"
    path.write_bytes(bytes(12))
    assert dump("--files", path) == (0, [f"Dumping {path}", "timestamp: 0 offset: 0"], [])


def test_zeros_between_entries_are_damage(dump: Dump, index: Path) -> None:
    at = set_entry(index, 3, ">ii", 0, 0)
    found = dump("--files", index)
    assert found.code == 1
    assert f"{index}, position {at}: " in found.errors[0]


def test_an_index_that_falls_fails_the_sanity_check(dump: Dump, time_index: Path) -> None:
    count = len(entries_of(time_index, ">qi"))
    at = set_entry(time_index, count - 1, ">qi", 5, 300)
    found = dump("--files", time_index, "--index-sanity-check")
    assert found.code == 1
    assert found.errors[0].startswith(f"{time_index}, position {at}: the last entry, (5, 300), ")


def test_an_index_without_its_segment_is_damage(dump: Dump, index: Path) -> None:
    index.with_suffix(".log").unlink()
    found = dump("--files", index)
    assert found.code == 1
    assert found.errors == [
        f"{index}, position 0: its segment {index.with_suffix('.log')} cannot be read: No such "
        "file or directory"
    ]


def test_an_empty_index_is_said_to_be_empty(dump: Dump, index: Path) -> None:
    index.write_bytes(b"")
    found = dump("--files", index)
    assert (found.code, found.lines[1:]) == (0, [f"{index} is empty."])


def test_damage_in_the_segment_is_no_reason_to_fail(dump: Dump, directory: Path) -> None:
    flip(directory / f"{FIRST}.log", 16, 9)
    found = dump("--files", directory / f"{FIRST}.timeindex")
    assert found.code == 1
    assert "the segment has no batch that ends with offset" in found.errors[0]
