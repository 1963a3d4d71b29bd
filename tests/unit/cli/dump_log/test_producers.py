from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.dump_log.conftest import Dump, flip


def test_producers_are_shown_with_their_last_batches(dump: Dump, directory: Path) -> None:
    path = sorted(directory.glob("*.snapshot"))[-1]
    found = dump("--files", path)
    assert (found.code, found.errors) == (0, [])
    assert found.lines[5] == (
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: -1 "
        "currentTxnFirstOffset: OptionalLong.empty lastTimestamp: 1000892 firstSequence: 267 "
        "lastSequence: 269 lastOffset: 269 offsetDelta: 2 timestamp: 1000892"
    )
    assert found.lines[6].startswith("producerId: 5 producerEpoch: 0 coordinatorEpoch: 3 ")
    shown = json.loads(dump("--files", path, "--json").lines[4])
    assert (shown["kind"], shown["lastSequence"], shown["currentTxnFirstOffset"]) == (
        "producer",
        269,
        None,
    )


def test_a_damaged_snapshot_is_named(dump: Dump, directory: Path) -> None:
    path = sorted(directory.glob("*.snapshot"))[-1]
    flip(path, 30)
    found = dump("--files", path)
    assert found.code == 1
    assert f"{path}, position 0: producer snapshot" in found.errors[0]
    path.write_bytes(b"\0")
    assert dump("--files", path).code == 1


def test_aborted_transactions_are_shown(dump: Dump, directory: Path) -> None:
    (path,) = directory.glob("*.txnindex")
    found = dump("--files", path)
    assert (found.code, found.errors) == (0, [])
    assert found.lines[1] == (
        "version: 0 producerId: 5 firstOffset: 270 lastOffset: 271 lastStableOffset: 272"
    )
    shown = json.loads(dump("--files", path, "--json").lines[0])
    assert (shown["kind"], shown["firstOffset"]) == ("aborted", 270)


def test_the_first_wrong_transaction_is_named_with_its_position(
    dump: Dump, directory: Path
) -> None:
    (path,) = directory.glob("*.txnindex")
    one = path.read_bytes()
    later = bytearray(one)
    for at in (17, 25, 33):  # the low bytes of the offsets
        later[at] += 10
    path.write_bytes(one + later + one + later)
    found = dump("--files", path)
    assert found.code == 1
    assert len(found.lines) == 3
    (error,) = found.errors
    assert error.startswith(f"{path}, position {2 * len(one)}: ")


def test_a_cut_file_of_transactions_is_named(dump: Dump, directory: Path) -> None:
    (path,) = directory.glob("*.txnindex")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:9])
    found = dump("--files", path)
    assert found.code == 1
    assert f"{path}, position {len(whole)}: " in found.errors[0]
