from __future__ import annotations

import subprocess
import sys

import crc32c as package

from trimtab.kafka.wire.checksum import crc32c


def test_it_is_castagnoli() -> None:
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(memoryview(bytes([0xFF]) * 32)) == 0x62A8AB43
    assert crc32c(b"6789", crc32c(b"12345")) == package.crc32c(b"123456789")


def test_a_broker_imports_no_package_metadata() -> None:
    code = (
        "import sys, trimtab.cli.broker, trimtab.cli.controller\n"
        "print([name for name in ('importlib.metadata', 'email', 'zipfile')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
