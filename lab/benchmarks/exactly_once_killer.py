"""The format `trimtab`, in whose processes a bench kills: importing this puts the hook in place.

Spark pickles the writers by reference, so every process that plans, writes or commits imports this.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from trimtab.spark.source import TrimtabDataSource
from trimtab.spark.write import exactly_once
from trimtab.spark.write.sink import AtLeastOnce
from trimtab.spark.write.stream_sink import TopicStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

NAME = "trimtab_under_fire"
OPTION = "kafka.client.id"
"""It reaches all processes; the bench puts the directory with its orders there."""

_directory = Path()


def reached(point: str) -> None:
    """Kill what the order names, if it is for this point; an order is carried out once."""
    order = _directory / f"{point}.order"
    taken = _directory / f"{point}.{os.getpid()}.taken"
    try:
        order.rename(taken)
    except OSError:
        return
    given: Order = json.loads(taken.read_text())
    if given["stall"]:
        time.sleep(given["stall"])
        return
    victims = [_executor()] if given["executor"] else given["victims"]
    for victim in victims or [os.getpid()]:
        os.kill(victim, signal.SIGKILL)


class Order(TypedDict):
    """What happens to who comes to a point first.

    Attributes:
        victims: processes that are killed; none: the one that came.
        executor: whether its executor is killed instead; for tasks.
        stall: seconds for which it stands still instead, and lives on; 0: it is killed.
    """

    victims: list[int]
    executor: bool
    stall: float


def _executor() -> int:
    """The JVM over this task's process: that is forked from a daemon, which the JVM has started."""
    daemon = os.getppid()
    fields = Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1])


class Writer(TopicStreamWriter):
    """One whose copies put the hook in place."""

    def __init__(self, writer: TopicStreamWriter, directory: str) -> None:
        self.__dict__.update(writer.__dict__)
        self.directory = directory
        _watch(directory)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if isinstance(self._guarantee, AtLeastOnce):  # which has no steps of its own
            reached("task begins")
            message = super().write(_watched(iterator))
            reached("task has sent")
            return message
        return super().write(iterator)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _watch(self.directory)


def _watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        reached("task has begun")
        yield batch.slice(batch.num_rows // 2)


def _watch(directory: str) -> None:
    global _directory
    _directory = Path(directory)
    exactly_once.reached = reached


class KilledDataSource(TrimtabDataSource):
    """The format under fire."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802
        return Writer(TopicStreamWriter(self.options, schema), self.options[OPTION])
