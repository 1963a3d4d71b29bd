from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli.dump_log.log_file import LogFile
from trimtab.kafka.errors import CorruptData


def test_a_file_is_read_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "0012-3.log"
    path.write_bytes(b"abcdef")
    with LogFile(str(path)) as file:
        assert (file.base_offset, file.size) == (12, 6)
        assert (file.read(2, 3), file.read()) == (b"cde", b"abcdef")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match="cannot be read: No such file"):
        LogFile(str(tmp_path / "0.log"))


def test_a_full_output_is_not_mistaken_for_an_unreadable_file(segment: Path) -> None:
    words = [sys.executable, "-m", "trimtab", "dump-log", "--files", str(segment)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ}
        )
    assert done.returncode == 1
    assert done.stderr == ("trimtab dump-log: cannot write the output: No space left on device\n")
