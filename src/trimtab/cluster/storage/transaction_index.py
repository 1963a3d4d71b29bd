"""The aborted transactions of one segment: those whose markers it holds (`.txnindex`).

    version (int16), producer id, first offset, last offset, last stable offset (int64 each)

The entries rise by last offset, the marker's. A fetch of committed records (KIP-98) is answered
with the transactions to leave out. An entry's last stable offset tells how far a search has to go:
every transaction that ends later begins there or after it.

Source: Kafka's `TransactionIndex` and `AbortedTxn`. The format has no CRC. It is in a file of its
own, `.txnindex.crc`, which Kafka ignores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct

from trimtab.cluster.storage.open_transactions import EndedTransaction
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchHeader
from trimtab.kafka.wire.checksum import crc32c
from trimtab.kafka.wire.sentinels import NO_OFFSET

_ENTRY = Struct(">hqqqq")
ABORTED_BYTES = _ENTRY.size
"""Bytes of an entry."""
_VERSION = 0


def encode_aborted(aborted: Iterable[EndedTransaction]) -> bytes:
    """The content of the file."""
    return b"".join(_ENTRY.pack(_VERSION, *each) for each in aborted)


def write_aborted(
    storage: Storage,
    path: str,
    crc_path: str,
    aborted: Iterable[EndedTransaction],
    durable: bool = False,
) -> None:
    """Write the file, and its CRC into the one beside it."""
    content = encode_aborted(aborted)
    storage.write_file(path, content, durable)
    storage.write_file(crc_path, _encode_crc(content), durable)


def read_aborted(
    storage: Storage, path: str, crc_path: str, base_offset: int
) -> list[EndedTransaction]:
    """The transactions in a file, none if it is missing. Without the file of its CRC, which Kafka
    does not write, only the entries themselves are checked.

    Raises:
        CorruptData: the file is damaged.
    """
    content, crc = (
        storage.read_file(file_path) if storage.exists(file_path) else None
        for file_path in (path, crc_path)
    )
    try:
        if crc is not None and crc != _encode_crc(content or b""):
            raise CorruptData(f"its bytes do not have the CRC in {crc_path}")
        return decode_aborted(content or b"", base_offset)
    except CorruptData as error:
        raise CorruptData(f"{path}: {error}") from error


def _encode_crc(content: bytes) -> bytes:
    return b"%08x\n" % crc32c(content)


def decode_aborted(content: bytes, base_offset: int) -> list[EndedTransaction]:
    """The transactions in a file.

    Args:
        base_offset: the segment's.

    Raises:
        CorruptData: the file ends within an entry, or its entries cannot be those of the segment.
    """
    if len(content) % _ENTRY.size:
        raise CorruptData(f"{len(content)} bytes are no whole entries of {_ENTRY.size}")
    aborted = []
    end_offset = base_offset
    for version, *fields in _ENTRY.iter_unpack(content):
        entry = EndedTransaction(*fields)
        if (
            version != _VERSION
            or not 0 <= entry.first_offset < entry.last_offset
            or entry.last_offset < end_offset
            or not entry.producer_id >= 0 <= entry.last_stable_offset
        ):
            raise CorruptData(f"{entry} of version {version} cannot be behind {end_offset}")
        aborted.append(entry)
        end_offset = entry.last_offset + 1
    return aborted


class AbortedBatches:
    """Tells which batches of a log belong to aborted transactions. It is asked in their order.

    Args:
        aborted: the aborted transactions with records in these batches.
    """

    def __init__(self, aborted: Iterable[EndedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._ends: dict[int, int] = {}

    def __contains__(self, header: BatchHeader) -> bool:
        coming, ends = self._coming, self._ends
        while coming and coming[0].first_offset <= header.base_offset:
            ended = coming.popleft()
            ends[ended.producer_id] = ended.last_offset
        end = ends.get(header.producer_id, NO_OFFSET)
        return header.is_transactional and header.base_offset < end


def find_aborted(
    segments: Iterable[Sequence[EndedTransaction]], offset: int, end_offset: int
) -> list[EndedTransaction]:
    """The aborted transactions with records from `offset` up to before `end_offset`.

    Args:
        segments: the entries of the segment that holds `offset`, and of each that follows.
    """
    found = []
    for aborted in segments:
        for transaction in aborted:
            if transaction.last_offset >= offset and transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return found
    return found
