"""How a process divides its descriptors (`trimtab.runtime.descriptors`)."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from trimtab.runtime.descriptors import share


@pytest.mark.parametrize(
    ("limit", "files", "connections"),
    [(256, 64, 128), (1024, 256, 704), (1 << 20, 512, (1 << 20) - 576), (20, 8, 8)],
)
def test_neither_files_nor_connections_get_all(limit: int, files: int, connections: int) -> None:
    assert share(limit) == (files, connections)


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400));"
        "from trimtab.runtime.descriptors import share_out_descriptors;"
        "print(share_out_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "Descriptors(files=100, connections=236) (400, 400)\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100
