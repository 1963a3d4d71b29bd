"""Who produces and consumes where: a CSV file for a load report's traffic between racks."""

from __future__ import annotations

import csv
from typing import Final

from trimtab.kafka.errors import UsageError

Client = tuple[str, str, str, float, bool]
"""A row of `trimtab.spark.load.CLIENTS`."""

_COLUMNS: Final = ("topic", "kind", "rack", "share", "isNear")


def read_clients(path: str) -> list[Client]:
    """The rows of a file; the first line names the columns: topic,kind,rack,share,isNear.

    Raises:
        UsageError: the file cannot be read, or a row of it is no client.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if tuple(reader.fieldnames or ()) != _COLUMNS:
                raise UsageError(
                    f"{path}: the first line is {','.join(reader.fieldnames or ())!r}: "
                    f"write {','.join(_COLUMNS)}"
                )
            return [_read_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV file in UTF-8: {error}") from error


def _read_row(row: dict[str, str | None], where: str) -> Client:
    values = [row[name] for name in _COLUMNS]
    if None in row or None in values:
        raise UsageError(f"{where}: a row has {len(_COLUMNS)} cells: {','.join(_COLUMNS)}")
    topic, kind, rack, share, is_near = (value or "" for value in values)
    if kind not in ("produce", "consume"):
        raise UsageError(f"{where}: kind {kind!r}: write produce or consume")
    try:
        weight = float(share)
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise UsageError(f"{where}: share {share!r}: write a number above 0, such as 1 or 0.25")
    if is_near not in ("true", "false"):
        raise UsageError(f"{where}: isNear {is_near!r}: write true or false")
    return topic, kind, rack, weight, is_near == "true"
