"""Draws the pictures of docs/partitioners.md and docs/keys.md: `python -m website.pictures`.

Each picture of a partitioner is of a small model: a producer gets a record at each tick, and each
of three brokers works on one batch at a time. It explains how a partitioner chooses; it measures
nothing. The picture of keys is of the producer's own code, without a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from lab import drawing
from lab.benchmarks.hot_keys import place_keys
from trimtab.cli.plot import Layout

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "partitioners"
KEYS = FOLDER.parent / "keys.svg"
KEY_PARTITIONS = 4
TICKS = 36
TURN = 4  # records that a partition gets at once, in place of batch.size
QUICK, SLOW = 3, 12  # ticks for which a broker works on a batch


class Batch(NamedTuple):
    """Records that were put into one partition, one after the other."""

    partition: int
    first: int
    records: int


class Brokers:
    """When each broker will have worked off what it was sent; broker 0 is slow."""

    def __init__(self) -> None:
        self.ticks = (SLOW, QUICK, QUICK)
        self.free_at = [0, 0, 0]

    def send(self, broker: int, now: int) -> None:
        self.free_at[broker] = self.expect(broker, now)

    def expect(self, broker: int, now: int) -> int:
        return max(self.free_at[broker], now) + self.ticks[broker]


def round_robin() -> Iterator[Batch]:
    yield from (Batch(tick % 3, tick, 1) for tick in range(TICKS))


def sticky() -> Iterator[Batch]:
    brokers, partition, first = Brokers(), 0, 0
    for tick in range(TICKS):
        if brokers.free_at[partition] <= tick:
            brokers.send(partition, tick)
            yield Batch(partition, first, tick + 1 - first)
            partition, first = (partition + 1) % 3, tick + 1
    if first < TICKS:
        yield Batch(partition, first, TICKS - first)


def in_turns(choose: Callable[[Brokers, int, list[int]], int]) -> Iterator[Batch]:
    brokers, got = Brokers(), [0, 0, 0]
    for tick in range(0, TICKS, TURN):
        partition = choose(brokers, tick, got)
        brokers.send(partition, tick)
        got[partition] += TURN
        yield Batch(partition, tick, TURN)


def uniform() -> Iterator[Batch]:
    order = [1, 0, 2, 2, 1, 0, 0, 2, 1]
    return in_turns(lambda brokers, tick, got: order[tick // TURN])


def adaptive() -> Iterator[Batch]:
    random = Random(21)

    def choose(brokers: Brokers, tick: int, got: list[int]) -> int:
        waiting = [
            -(-max(0, free - tick) // ticks)
            for free, ticks in zip(brokers.free_at, brokers.ticks, strict=True)
        ]
        weights = [max(waiting) + 1 - each for each in waiting]
        return random.choices(range(3), weights)[0]

    return in_turns(choose)


def strict() -> Iterator[Batch]:
    def choose(brokers: Brokers, tick: int, got: list[int]) -> int:
        behind = [each for each in range(3) if got[each] == min(got)]
        return min(behind, key=lambda each: brokers.expect(each, tick))

    return in_turns(choose)


def free() -> Iterator[Batch]:
    def choose(brokers: Brokers, tick: int, got: list[int]) -> int:
        return min(range(3), key=lambda each: (brokers.expect(each, tick), got[each]))

    return in_turns(choose)


def rack_aware() -> Iterator[Batch]:
    """Broker 1 has the producer's rack, and is down for a third of the time."""
    for turn, tick in enumerate(range(0, TICKS, TURN)):
        yield Batch(1 if not 3 <= turn < 6 else (0, 2, 0)[turn - 3], tick, TURN)


PICTURES = {
    "round-robin": (round_robin, ("0, slow", "broker 1", "broker 2")),
    "sticky": (sticky, ("0, slow", "broker 1", "broker 2")),
    "uniform": (uniform, ("0, slow", "broker 1", "broker 2")),
    "adaptive": (adaptive, ("0, slow", "broker 1", "broker 2")),
    "strict": (strict, ("0, slow", "broker 1", "broker 2")),
    "free": (free, ("0, slow", "broker 1", "broker 2")),
    "rack-aware": (rack_aware, ("0, rack a", "1, rack b", "2, rack c")),
}


def draw(name: str) -> str:
    """The picture as SVG: a row for each broker, and a box for each batch."""
    choose, brokers = PICTURES[name]
    ticks = [SLOW if "slow" in broker else QUICK for broker in brokers]
    free_at, waits, batches = [0, 0, 0], 0, []
    for partition, first, records in choose():
        complete = first + records
        acknowledged = max(free_at[partition], complete) + ticks[partition]
        free_at[partition] = acknowledged
        waits += sum(acknowledged - tick for tick in range(first, complete))
        batches.append(drawing.Batch(partition, first, records, acknowledged))
    note = f"time →   a record waits {waits / TICKS:.0f} ticks on average"
    drawn = drawing.draw_batches(brokers, batches, TICKS, note, f"{name}: batches by broker")
    return drawing.to_document(drawn)


def draw_keys() -> str:
    """Bytes by partition of keys by Zipf's law: by hash, split and moved."""
    weights = [rank**-1.2 for rank in range(1, 501)]
    keys = Random(3).choices([b"key-%d" % number for number in range(500)], weights, k=120_000)
    bars = []
    for title, mode in (("by the key's hash", ""), ("split", "split"), ("move", "move")):
        loads = place_keys(keys, mode, KEY_PARTITIONS)
        fullest = (
            f"{title}: the fullest has {max(loads) * len(loads) / sum(loads):.1f} times the mean"
        )
        sizes = {str(partition): float(load) for partition, load in enumerate(loads)}
        shares = {name: size / sum(loads) for name, size in sizes.items()}
        bars.append(drawing.Bar(fullest, shares, sizes))
    highlighted = max(bars[0].sizes, key=bars[0].sizes.__getitem__)
    names = {name: f"partition {name}" for name in bars[0].sizes}
    described = "Bytes of each partition: by hash, split, moved"
    return drawing.to_document(
        drawing.draw_shares(bars, names, highlighted, None, described, Layout(480, 0, 52))
    )


if __name__ == "__main__":
    KEYS.write_text(draw_keys(), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        (FOLDER / f"{picture}.svg").write_text(draw(picture), encoding="utf-8")
