"""The last replayed metadata batch on a broker's disk (`trimtab.cluster.metadata.replayed`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.metadata.replayed import NOTHING, Replayed, read_replayed, write_replayed


def test_a_written_batch_is_read_back(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    assert read_replayed(storage) == NOTHING
    write_replayed(storage, Replayed(17, 2**32 - 1), durable=True)
    assert read_replayed(storage) == (17, 2**32 - 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"baseOffset": 3}', b"\0" * 40, b"\xff"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    storage = DirectoryStorage(tmp_path)
    storage.write_file(".trimtab_replayed", content)
    assert read_replayed(storage) == NOTHING
