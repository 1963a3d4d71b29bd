"""Who gets what of a topic with another key, by a sample of its records."""

from __future__ import annotations

import argparse
from random import Random
from typing import TYPE_CHECKING, Final

import numpy

from trimtab.cli.key_columns import count_batch
from trimtab.cli.skew import KeySource, read_partitioner
from trimtab.client.partitioner.key_spread import KeySpread
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.balance.what_if import Floats

_SAMPLED: Final = 200_000


def read_keys(arguments: argparse.Namespace) -> dict[str, KeyShares]:
    """The shares by topic of `--key TOPIC:COLUMN,…`.

    Raises:
        UsageError: it is written otherwise, or `--sample` goes with none.
    """
    found = {}
    for text in arguments.key:
        topic, _, columns = text.rpartition(":")
        if not topic or not columns:
            raise UsageError(f"--key {text}: write TOPIC:COLUMN, such as flights:user")
        found[topic] = KeyShares(arguments, columns)
    if arguments.sample is not None and not found:
        raise UsageError("--sample goes with --key TOPIC:COLUMN")
    return found


class KeyShares:
    """The shares of partitions with this key: see `changes.Shares`. A topic's records weigh their
    bytes, those of a file 1 each; the sample might have been another one."""

    def __init__(self, arguments: argparse.Namespace, columns: str) -> None:
        self._arguments = arguments
        self._columns = columns
        self._spreads: dict[int, KeySpread] = {}

    def __call__(self, topic: str, count: int, random: Random) -> Floats:
        """Raises:
        UsageError: there is no such file, topic or column, or it is no key.
        """
        if count not in self._spreads:
            self._spreads[count] = self._read(topic, count)
        spread = self._spreads[count]
        records = max(1, spread.records)
        draws = numpy.random.default_rng(random.getrandbits(64))
        shares: Floats = draws.multinomial(records, spread.find_shares()) / records
        return shares

    def _read(self, topic: str, count: int) -> KeySpread:
        given = self._arguments
        weight = None if given.sample else "bytes"
        wanted = {"source": given.sample or topic, "key": self._columns, "weight": weight}
        source = KeySource(argparse.Namespace(**{**vars(given), **wanted, "max_records": _SAMPLED}))
        if len(source.key) > 1 and given.key_format != "text":
            raise UsageError(f"--key-format {given.key_format} is for a key of one column")
        spread = KeySpread(count, (), read_partitioner(given.partitioner), weight is None)
        for batch in source.read([*source.key, *source.weight]):
            count_batch(spread, batch, source.key, given.key_format, weight)
        return spread
