"""The format `trimtab`, in whose processes a bench kills: importing this puts the hook in place.

Spark pickles the writers by reference, so every process that plans, writes or commits imports this.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from trimtab.spark.source import TrimtabDataSource
from trimtab.spark.write import exactly_once
from trimtab.spark.write.sink import TopicStreamWriter, make_stream_writer

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
    for victim in json.loads(taken.read_text()) or [os.getpid()]:
        os.kill(victim, signal.SIGKILL)


class Writer(TopicStreamWriter):
    """One whose copies put the hook in place."""

    def __init__(self, writer: TopicStreamWriter, directory: str) -> None:
        self.__dict__.update(writer.__dict__)
        self.directory = directory
        _watch(directory)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _watch(self.directory)


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
        return Writer(make_stream_writer(self.options, schema), self.options[OPTION])
