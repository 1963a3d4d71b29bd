from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trimtab.cli import main
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.end_markers import EndMarker, build_marker

FIRST = "00000000000000000000"


class Dumped(NamedTuple):
    code: int
    lines: list[str]
    errors: list[str]


Dump = Callable[..., Dumped]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    """A function that runs `trimtab dump-log`."""

    def dump(*words: object) -> Dumped:
        code = main(["dump-log", *map(str, words)])
        shown = capsys.readouterr()
        return Dumped(code, shown.out.splitlines(), shown.err.splitlines())

    return dump


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of 90 batches of three records in two segments, the first 30 batches with gzip; then an
    aborted transaction."""
    storage = DirectoryStorage(tmp_path)
    config = LogConfig(segment_bytes=40_000, index_interval_bytes=2000)
    log = Log(storage, "flights-0", config, lambda: 0)

    def append(data: bytearray) -> None:
        view = memoryview(data)
        log.append(view, 7, read_headers(view))

    for i in range(90):
        builder = BatchBuilder(1 << 20, Compression.GZIP if i < 30 else Compression.NONE)
        for j in range(3):
            headers = [("h", b"1"), ("g", None)] if j == 0 else []
            builder.append(1_000_000 + 10 * i + j, b"key", b"%d" % i * 100, headers)
        append(bytearray(builder.build(producer_id=9, producer_epoch=1, base_sequence=3 * i)))
    builder = BatchBuilder(1 << 20)
    builder.append(2_000_000, None, b"a\x1b\xff\n", [])
    append(
        bytearray(
            builder.build(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
        )
    )
    append(build_marker(5, 0, EndMarker(False, 3), 2_000_001))
    log.close()
    storage.close()
    return tmp_path / "flights-0"


@pytest.fixture
def segment(directory: Path) -> Path:
    return directory / f"{FIRST}.log"


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)
