"""Snapshots of a cluster that earlier reports left: from them follow growth and lag's direction.

Tests: test_command.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from trimtab.spark.load.snapshots import Snapshot, SnapshotFrames

RECALLED: Final = 10
"""How many snapshots are looked at, the newest: what a disk did a year ago says little."""


def remember(snapshot: Snapshot, directory: Path) -> None:
    """Add a snapshot: a Parquet file for each of its tables, by the time that it was taken."""
    from trimtab.spark.load.snapshots import to_tables

    file = snapshot.brokers[0][0].strftime("%Y%m%dT%H%M%S.%fZ.parquet")
    for name, table in zip(snapshot._fields, to_tables(snapshot), strict=True):
        (directory / name).mkdir(parents=True, exist_ok=True)
        write_parquet(table, directory / name / file)


def recall(session: SparkSession, directory: Path) -> SnapshotFrames:
    """The newest snapshots; their files are read here, and once.

    Raises:
        UsageError: a file of theirs cannot be read.
    """
    from trimtab.spark.load.inputs import to_frame
    from trimtab.spark.load.snapshots import SCHEMAS, SnapshotFrames

    names = sorted(path.name for path in (directory / "brokers").glob("*.parquet"))[-RECALLED:]
    return SnapshotFrames(
        *(
            to_frame(session, _read([directory / table / name for name in names]), schema)
            for table, schema in zip(SnapshotFrames._fields, SCHEMAS, strict=True)
        )
    )


def write_parquet(table: pa.Table, path: Path) -> None:
    """A table as a file that is there whole or not at all."""
    import pyarrow.parquet as parquet

    part = path.with_name(f".{path.name}.part")
    parquet.write_table(table, part)
    os.replace(part, path)


def _read(paths: list[Path]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    tables = []
    for path in paths:
        try:
            # Not of a directory: its name would be taken for a column of a data set.
            tables.append(parquet.ParquetFile(path).read())
        except (OSError, pa.ArrowException) as error:
            raise UsageError(
                f"cannot read the snapshot {path}: {error}. Delete the files of that name"
            ) from error
    return pa.concat_tables(tables)
