"""How far a broker has followed the controller's log, kept in the broker's own directory.

A controller's directory that was lost, or put back from an old copy, holds another history than the
one its brokers have acted on. To follow it would be to drop what was created since. So a broker
keeps the offset and the CRC of the last batch that it has replayed: a log that does not hold this
very batch is not the one it has followed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from trimtab.errors import CorruptData
from trimtab.storage.storage import Storage

_FILE = ".trimtab_replayed"


class Replayed(NamedTuple):
    """A batch of the controller's log: the offset of its first record, and its CRC."""

    base_offset: int
    crc: int


NOTHING = Replayed(-1, 0)
"""Of a broker that has not followed any controller yet."""


def read_replayed(storage: Storage) -> Replayed:
    """What a broker's directory says; `NOTHING` if it says nothing, or the file is damaged.

    Raises:
        StorageError: the disk failed.
    """
    try:
        found = json.loads(storage.read_file(_FILE) or b"{}")
        return Replayed(int(found["baseOffset"]), int(found["crc"]))
    except (ValueError, KeyError, TypeError):
        return NOTHING


def write_replayed(storage: Storage, replayed: Replayed, durable: bool) -> None:
    """Keep it.

    Raises:
        StorageError: the disk failed; the file is as it was.
    """
    content = {"version": 0, "baseOffset": replayed.base_offset, "crc": replayed.crc}
    storage.write_file(_FILE, json.dumps(content).encode("ascii"), durable=durable)


def refuse_other_history(broker_id: int, what: str) -> CorruptData:
    """The error of a broker whose controller has another history; `what` says how it is seen."""
    return CorruptData(
        f"broker {broker_id} has followed another log of the controller: {what}. The controller's "
        "directory was lost, is an old copy, or is that of another cluster. No log was touched: "
        "put the newest copy back, or stop all nodes and rebuild it with `trimtab recover`"
    )
