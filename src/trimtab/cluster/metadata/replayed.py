"""The last batch of the controller's log that a broker has replayed, kept in its data directory.

If a controller's directory was lost or restored from an old copy, its log lacks decisions that the
brokers have applied. A broker that replayed it would delete partitions created since. So a broker
stores the offset and the CRC of the last batch that it has replayed, and refuses a controller whose
log does not have this batch.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.sentinels import NO_OFFSET

_FILE = ".trimtab_replayed"


class Replayed(NamedTuple):
    """A batch of the controller's log: the offset of its first record, and its CRC."""

    base_offset: int
    crc: int


NOTHING = Replayed(NO_OFFSET, 0)
"""For a broker that has not replayed any batch yet."""


def read_replayed(storage: Storage) -> Replayed:
    """Read the last replayed batch from a directory; `NOTHING` if the file is missing or damaged.

    Raises:
        StorageError: the disk failed.
    """
    try:
        found = json.loads(storage.read_file(_FILE) or b"{}")
        return Replayed(int(found["baseOffset"]), int(found["crc"]))
    except (ValueError, KeyError, TypeError):
        return NOTHING


def write_replayed(storage: Storage, replayed: Replayed, durable: bool) -> None:
    """Write the last replayed batch.

    Raises:
        StorageError: the disk failed; the file is unchanged.
    """
    content = {"version": 0, "baseOffset": replayed.base_offset, "crc": replayed.crc}
    storage.write_file(_FILE, json.dumps(content).encode("ascii"), durable=durable)


def refuse_other_history(broker_id: int, what: str) -> CorruptData:
    """The error of a broker that has replayed another log than the controller's; `what` is the
    difference that was found."""
    return CorruptData(
        f"broker {broker_id} has followed another log of the controller: {what}. The controller's "
        "directory was lost, is an old copy, or is that of another cluster. No log was changed: "
        "put the newest copy back, or stop all nodes and rebuild it with `trimtab recover`"
    )
