"""How a process divides its descriptors (`trimtab.cluster.disk.descriptors`)."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cluster.disk.descriptors import share


@pytest.mark.parametrize(
    ("limit", "files", "connections"),
    [
        (256, 64, 128),
        (1024, 256, 704),
        (524_288, 131_072, 524_288 - 131_072 - 64),
        (20, 8, 8),
    ],
)
def test_neither_files_nor_connections_get_all(limit: int, files: int, connections: int) -> None:
    assert share(limit) == (files, connections)


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400));"
        "from trimtab.cluster.disk.descriptors import share_out_descriptors;"
        "print(share_out_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "Descriptors(files=100, connections=236) (400, 400)\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100


def test_nodes_in_a_program_share_its_limit_and_leave_it() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096));"
        "from trimtab.cluster.disk.descriptors import files_per_storage;"
        "print(*map(files_per_storage, (1, 4, 1000)), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "256 64 8 (1024, 4096)\n"


def test_a_process_with_few_descriptors_writes_to_more_files(tmp_path: Path) -> None:
    code = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
        "from trimtab.cluster.disk.descriptors import share_out_descriptors;"
        "from trimtab.cluster.disk.files import DirectoryStorage;"
        "storage = DirectoryStorage(sys.argv[1], max_open_files=share_out_descriptors().files);"
        "files = [storage.open(str(number)) for number in range(1_000)];"
        "[file.append(bytes([turn])) for turn in range(3) for file in files];"
        "print(storage.open_files, {file.read(0, 9) for file in files})"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert said.stdout == "64 {b'\\x00\\x01\\x02'}\n"
