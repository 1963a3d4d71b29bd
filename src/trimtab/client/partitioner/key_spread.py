"""How evenly keys spread records over partitions, without a cluster: `key_skew`.

keys ─▶ hashes ─┬─▶ amounts by partition, for each number of partitions ─┐
                └─▶ the heaviest keys (a sketch) ────────────────────────┴─▶ KeySkew

Memory does not grow with the number of keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil, floor, isfinite
from typing import Any, Final, TypeAlias
from zlib import crc32

from trimtab.balance.evenness import Evenness, judge_evenness
from trimtab.balance.heavy_hitters_cy import HeavyHitters
from trimtab.client.partitioner.key_spread_cy import count_by_partition, count_heaviest
from trimtab.client.partitioner.murmur2_cy import murmur2_column
from trimtab.kafka.arguments import checked_integer
from trimtab.kafka.errors import UsageError
from trimtab.kafka.notebook import to_table

KeyPartitioner: TypeAlias = Callable[[bytes, int], int]
"""A partition from a key and the number of partitions."""

Key: TypeAlias = "bytes | bytearray | memoryview | str | None"

MURMUR2: Final = "murmur2"
CONSISTENT: Final = "consistent"

_ROWS_AT_ONCE: Final = 65_536
_KEPT: Final = 1000
"""Keys that are counted: one with more than a thousandth of the whole is always found."""
MOST_PARTITIONS: Final = 1_000_000
_NAMED: Final = 10
_BLAMED: Final = 0.05
"""Of the mean of all partitions: a key with less is not to blame for anything."""
_CONFIDENCE: Final = 0.995


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """One of the heaviest keys.

    Attributes:
        key: its bytes.
        share: of all keyed records (or bytes), 0 to 1; a lower bound.
        partition: where it goes.
    """

    key: bytes
    share: float
    partition: int

    def __str__(self) -> str:
        return f"{show_key(self.key)} ({self.share:.1%})"


@dataclass(frozen=True, slots=True)
class KeySkew:
    """How evenly keys spread records over a topic's partitions.

    Attributes:
        evenness: "even", "uneven", or "unclear" if the sample is too small to tell.
        records: keyed records in the sample.
        without_key: records without a key, which the partitioner spreads; not counted otherwise.
        partitions: of the topic.
        worst: the largest partition that is allowed, as a multiple of the mean.
        ratio: the largest partition, as a multiple of the mean.
        partition: the number of the largest partition.
        heaviest: the heaviest keys, at most ten, heaviest first.
        blamed: those that go to the largest partition, and have 5 % of the mean or more, at most
            ten.
        keys: the number of different keys; None if there are more than a thousand.
        enough: about how many records decide it; at least those of the sample.
        ratios: the largest partition's multiple of the mean, by number of partitions.
    """

    evenness: Evenness
    records: int
    without_key: int
    partitions: int
    worst: float
    ratio: float
    partition: int
    heaviest: Sequence[HeavyKey]
    blamed: Sequence[HeavyKey]
    keys: int | None
    enough: int
    ratios: Mapping[int, float]

    @property
    def most_partitions(self) -> int | None:
        """The largest number of partitions with which the heaviest key alone is within `worst`;
        None if that is more than this many."""
        if not self.heaviest or self.heaviest[0].share * self.partitions <= self.worst:
            return None
        return max(1, floor(self.worst / self.heaviest[0].share))

    def __str__(self) -> str:
        return "\n".join(_explain(self))

    def _repr_html_(self) -> str:
        """What it says, and the heaviest keys, in a notebook."""
        title, *notes = _explain(self)
        keys = [(show_key(key.key), f"{key.share:.1%}", key.partition) for key in self.heaviest]
        return to_table(title, ("key", "share", "partition"), keys, notes)


def key_skew(
    keys: Iterable[Key] | Mapping[Any, int],
    *,
    partitions: int,
    worst: float = 1.3,
    weights: Iterable[int] | None = None,
    partitioner: str | KeyPartitioner = MURMUR2,
    confidence: float = _CONFIDENCE,
    tried: Iterable[int] = (),
) -> KeySkew:
    """How evenly a sample of keys would spread a topic's records; needs no cluster.

    Args:
        keys: the keys of a sample of records, one for each record, as they are or as text (UTF-8);
            None for a record without a key. Or a mapping of keys to their numbers of records.
        partitions: of the topic.
        worst: the largest share that a partition may have, as a multiple of the mean; above 1.
        weights: the records' bytes, to judge by bytes; by default each record counts 1.
        partitioner: "murmur2" as Java's clients, trimtab's and librdkafka's `murmur2_random`;
            "consistent" as librdkafka's default for records with keys (CRC-32); or a function
            `(key, partitions) -> partition`.
        confidence: how sure "even" and "uneven" must be, 0.5 to 1. At 0.995 at most 5 of 1,000
            samples say what is not so. The records must be a random sample of the topic's.
        tried: other numbers of partitions to compute.

    Raises:
        UsageError: an argument has a wrong type or value, or no record has a key.
    """
    if hasattr(keys, "to_pylist"):  # Arrow's scalars are no bytes
        keys = keys.to_pylist()
    if isinstance(keys, Mapping):
        if weights is not None:
            raise UsageError("weights are for single keys, and keys is a mapping, which has them")
        weights = keys.values()
        is_counted = True
    else:
        is_counted = weights is None
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise UsageError(
            f"keys={keys!r} is one key or none: give a list of the keys of many records"
        )
    spread = KeySpread(partitions, tried, partitioner, is_counted)
    spread.count_keys(keys, weights)
    return spread.judge(worst, confidence)


class KeySpread:
    """Counts keys, a part at a time.

    Args:
        is_counted: whether weights are numbers of records, and not their sizes.
    """

    def __init__(
        self,
        partitions: int,
        tried: Iterable[int] = (),
        partitioner: str | KeyPartitioner = MURMUR2,
        is_counted: bool = True,
    ) -> None:
        numbers = [partitions, *tried]
        for number in numbers:
            if not 1 <= checked_integer("partitions", number) <= MOST_PARTITIONS:
                raise UsageError(f"partitions={number}: give a number from 1 to {MOST_PARTITIONS}")
        if not callable(partitioner) and partitioner not in (MURMUR2, CONSISTENT):
            raise UsageError(
                f"partitioner={partitioner!r} is not known: give {MURMUR2}, {CONSISTENT}, or a "
                "function (key, partitions) -> partition"
            )
        self._partitions = partitions
        self._partitioner = partitioner
        self._is_counted = is_counted
        self._amounts = {number: bytearray(8 * number) for number in numbers}
        self._hitters = HeavyHitters(_KEPT)
        self._records = self._without_key = 0
        self._squares = 0.0

    def count_keys(self, keys: Iterable[Key], weights: Iterable[int] | None = None) -> None:
        """Count one record of each key, or as many records or bytes as the weights say.

        Raises:
            UsageError: a key or a weight has a wrong type or value, or there are not as many of
                both.
        """
        rest = iter(keys)
        weighing = None if weights is None else iter(weights)
        row = 0
        while some := list(islice(rest, _ROWS_AT_ONCE)):
            data = bytearray()
            ends = array("i", bytes(4))
            for each in some:
                if each is None:
                    pass
                elif isinstance(each, str):
                    data += each.encode()
                elif isinstance(each, (bytes, bytearray, memoryview)):
                    data += each
                else:
                    raise UsageError(
                        f"key {row + len(ends) - 1} is {each!r}, of type {type(each).__name__}: "
                        "give bytes as your producer's serializer makes them, text, or None"
                    )
                ends.append(len(data))
            counts = _read_weights(weighing, len(some), row)
            row += len(some)
            without_key = 0
            for at, each in enumerate(some):
                if each is None:
                    without_key += counts[at] if self._is_counted else 1
                    counts[at] = 0
            self.count_column(data, bytearray(ends), bytearray(counts), without_key)
        if weighing is not None and next(weighing, None) is not None:
            raise UsageError(f"there are more weights than the {row} keys")

    def count_column(
        self, data: bytearray, offsets: bytearray, weights: bytearray, without_key: int = 0
    ) -> None:
        """Count a column of keys.

        Args:
            data, offsets: the keys one after the other, and where each begins and the last one
                ends, int32.
            weights: of the rows, int64; 0 leaves a row out.
            without_key: records that have none, to report.

        Raises:
            UsageError: the partitioner returned what is no partition.
        """
        rows = len(weights) // 8
        keyed, total, squares = count_heaviest(self._hitters, data, offsets, weights, rows)
        self._records += total if self._is_counted else keyed
        self._squares += squares
        self._without_key += without_key
        for number, column in self._place(data, offsets, rows):
            count_by_partition(self._amounts[number], number, column, weights, rows)

    @property
    def records(self) -> int:
        """Records with keys."""
        return self._records

    def find_shares(self) -> list[float]:
        """The part of each of the topic's partitions in what has been counted. What has no key is
        spread evenly.

        Raises:
            UsageError: nothing was counted.
        """
        sums = memoryview(self._amounts[self._partitions]).cast("q").tolist()
        total = sum(sums)
        if not total:
            raise UsageError("no record of the sample has a key: there is nothing to forecast")
        without = self._without_key / (self._without_key + self._records)
        return [each / total * (1 - without) + without / len(sums) for each in sums]

    def judge(self, worst: float = 1.3, confidence: float = _CONFIDENCE) -> KeySkew:
        """What has been counted, and whether it is even.

        Raises:
            UsageError: nothing was counted, or a number is out of its range.
        """
        worst, confidence = _check_number("worst", worst), _check_number("confidence", confidence)
        if worst <= 1:
            raise UsageError(
                f"worst={worst}: the largest partition has at least the mean: give 1.3"
            )
        if not 0.5 < confidence < 1:
            raise UsageError(f"confidence={confidence}: give a number between 0.5 and 1")
        sums = memoryview(self._amounts[self._partitions]).cast("q").tolist()
        total = sum(sums)
        if not total:
            raise UsageError(
                f"none of {self._without_key} records has a key and a weight: there is nothing to"
                " judge; records without a key are spread by the partitioner"
            )
        largest = max(sums)
        count = self._records if self._is_counted else total * total / self._squares
        evenness, enough = judge_evenness(
            largest / total * count, count, self._partitions, worst, confidence
        )
        if evenness is Evenness.UNCLEAR:  # in records, of which some weigh more than others
            enough = ceil(enough / count * self._records)
        heaviest, blamed, keys = self._find_heaviest(total, sums.index(largest))
        return KeySkew(
            evenness,
            self._records,
            self._without_key,
            self._partitions,
            worst,
            largest * self._partitions / total,
            sums.index(largest),
            heaviest,
            blamed,
            keys,
            max(self._records, enough),
            {
                number: max(memoryview(amounts).cast("q").tolist()) * number / total
                for number, amounts in sorted(self._amounts.items())
            },
        )

    def _find_heaviest(
        self, total: int, largest: int
    ) -> tuple[list[HeavyKey], list[HeavyKey], int | None]:
        """The heaviest keys, those of them in the largest partition, and the number of keys."""
        kept = sorted(self._hitters, key=lambda item: (-item[1].amount, item[0]))
        found: list[HeavyKey] = []
        blamed: list[HeavyKey] = []
        for key, hitter in kept:
            partition = self._partition_of(key)
            heavy = HeavyKey(key, hitter.amount / total, partition)
            if len(found) < _NAMED:
                found.append(heavy)
            in_mean = heavy.share * self._partitions
            if partition == largest and in_mean >= _BLAMED and len(blamed) < _NAMED:
                blamed.append(heavy)
        return found, blamed, None if self._hitters.floor else len(kept)

    def _partition_of(self, key: bytes) -> int:
        column = next(self._place(bytearray(key), bytearray(array("i", (0, len(key)))), 1))[1]
        return (memoryview(column).cast("i")[0] & 0x7FFFFFFF) % self._partitions

    def _place(
        self, data: bytearray, offsets: bytearray, rows: int
    ) -> Iterator[tuple[int, bytearray]]:
        """For each number of partitions, what to divide by it: the hash of each key, or its
        partition. The topic's number comes first."""
        if self._partitioner == MURMUR2:
            hashes = murmur2_column(data, offsets, rows)
            yield from ((number, hashes) for number in self._amounts)
            return
        whole, ends = bytes(data), memoryview(offsets).cast("i")
        keys = [whole[start:end] for start, end in pairwise(ends)]
        for number in self._amounts:
            if self._partitioner == CONSISTENT:
                column = array("i", (crc32(key) % number for key in keys))
            else:
                column = array("i", (self._ask(key, number) for key in keys))
            yield number, bytearray(column)

    def _ask(self, key: bytes, partitions: int) -> int:
        assert callable(self._partitioner)
        chosen = self._partitioner(key, partitions)
        if type(chosen) is not int or not 0 <= chosen < partitions:
            raise UsageError(
                f"the partitioner returned {chosen!r} for key {show_key(key)} and {partitions} "
                f"partitions: it must return a number from 0 to {partitions - 1}"
            )
        return chosen


def key_text(key: bytes) -> str:
    """A key as text; in hexadecimal, after 0x, if it is none."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()
    return text if text.isprintable() else "0x" + key.hex()


def show_key(key: bytes) -> str:
    """A key for people: in quotes if it is text."""
    text = key_text(key)
    return repr(text) if text.encode() == key else text


def _show_partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _read_weights(weighing: Iterator[int] | None, rows: int, first: int) -> array[int]:
    if weighing is None:
        return array("q", (1,)) * rows
    some = list(islice(weighing, rows))
    if len(some) < rows:
        raise UsageError(f"there are {first + len(some)} weights and more keys: give one for each")
    try:
        read = array("q", some)
    except (TypeError, OverflowError) as error:
        raise UsageError(
            f"a weight between {first} and {first + rows} is no whole number: {error}"
        ) from error
    if min(read) < 0:
        row = first + next(at for at, each in enumerate(read) if each < 0)
        raise UsageError(f"weight {row} is {min(read)}: give 0 or more")
    return read


def _check_number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise UsageError(f"{name}={value!r}: give a number")
    return value


def _explain(skew: KeySkew) -> Iterator[str]:
    """What a person needs to know, a line each."""
    kind = f"{skew.records:,} records with keys on {_show_partitions(skew.partitions)}"
    ratio = f"partition {skew.partition} has {skew.ratio:.2f} times the mean"
    match skew.evenness:
        case Evenness.EVEN:
            yield f"even: {kind}: {ratio}, {skew.worst} is allowed"
        case Evenness.UNEVEN:
            yield f"uneven: {kind}: {ratio}, only {skew.worst} is allowed"
        case _:
            yield (
                f"unclear: {kind}: {ratio}, {skew.worst} is allowed, and so few records cannot tell"
                f" that from chance: give about {skew.enough:,}"
            )
    if skew.without_key:
        yield f"{skew.without_key:,} more records have no key; the partitioner spreads those"
    if skew.evenness is Evenness.EVEN:
        return
    if skew.evenness is Evenness.UNEVEN and skew.blamed:
        yield f"to blame in partition {skew.partition}: {', '.join(map(str, skew.blamed[:5]))}"
    if skew.most_partitions is not None:
        yield (
            f"with more than {_show_partitions(skew.most_partitions)} the key "
            f"{skew.heaviest[0]} is too much for one alone"
        )
    if skew.keys is not None and skew.keys < 20 * skew.partitions:
        yield f"{skew.keys} different keys are few for {_show_partitions(skew.partitions)}"
    others = {number: each for number, each in skew.ratios.items() if number != skew.partitions}
    if others:
        shown = ", ".join(f"{number}: {each:.2f}" for number, each in others.items())
        yield f"with other numbers of partitions: {shown}"
