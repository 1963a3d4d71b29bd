"""Keys that are too heavy: bytes by partition with `partitioner.hot.keys`, beside hashing, Partial
Key Grouping and D-Choices.

Each way places the same records of 100 bytes, of 100 partitions: keys by Zipf's law (exponents 0.8
to 2.0), the same with keys that are others after each quarter, the flights' carriers, and the words
of Python's own standard library. `split` and `move` are the producer's own code, without a broker;
the rivals are rebuilt here from their papers, with loads that they know exactly:

- Partial Key Grouping (Nasir et al., 2015): each key has two partitions, the less loaded gets it;
- D-Choices (Nasir et al., 2016): keys above 1 / (5 x partitions) have d partitions, with d large
  enough that they can fill them evenly; others two.

Behind consumers of equal speed the fullest partition decides how much can be sent, so throughput is
the mean divided by the largest, and its gain over hashing is printed. Then the CPU of `append`.
"""

from __future__ import annotations

import io
import sysconfig
import threading
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from lab.benchmarks.report import progress, report
from lab.demo.flights import fetch_archive, read_flights
from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key
from trimtab.client.partitioner.split_records import candidates
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.spark.session.cache import cache_directory

PARTITIONS = 100
KEYS = 100_000
MOST = 1_000_000
BATCH = 16_384
VALUE = bytes(100)
EXPONENTS = (0.8, 1.0, 1.2, 1.4, 1.6, 2.0)
Way = Callable[[Sequence[bytes]], list[int]]


def run(runs: int, records: int) -> None:
    """Place up to a million records in each case; `runs` of the CPU."""
    count = min(records, MOST)
    for name, keys in _cases(count):
        hashed = _ratio(_hash(keys))
        for way, place in WAYS.items():
            progress(f"hot_keys: {name}, {way}")
            ratio = _ratio(place(keys))
            report(
                *("hot_keys", f"max / mean of bytes, {name}, {way}", "x", [ratio]),
                *("hashing", [hashed]),
                more_is_better=False,
                note=f"throughput behind equal consumers: {hashed / ratio:.2f} x hashing's",
            )
    for exponent in (0.8, 1.4):
        keys = _zipf(exponent, count, 1)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(runs):
            progress(f"hot_keys: CPU, Zipf {exponent}")
            for seconds, mode in ((ours, "split"), (theirs, "")):
                begin = time.process_time()
                place_keys(keys, mode)
                seconds.append(1e6 * (time.process_time() - begin) / count)
        report(
            *("hot_keys", f"CPU of a record, Zipf {exponent}, split", "us", ours),
            *("hashing", theirs),
            more_is_better=False,
        )


def _cases(count: int) -> Iterator[tuple[str, list[bytes]]]:
    for exponent in EXPONENTS:
        yield f"Zipf {exponent}", _zipf(exponent, count, 1)
    drifting = [b"%d-" % era + key for era in range(4) for key in _zipf(1.4, count // 4, era)]
    yield "Zipf 1.4, other keys after each quarter", drifting
    yield "flights", [each.key for each in read_flights(fetch_archive(cache_directory()))]
    yield "words of Python's library", _words(count)


def _zipf(exponent: float, count: int, seed: int) -> list[bytes]:
    weights = [rank**-exponent for rank in range(1, KEYS + 1)]
    return Random(seed).choices([b"key-%d" % number for number in range(KEYS)], weights, k=count)


def _words(count: int) -> list[bytes]:
    """The names in the standard library's source, in order."""
    found: list[bytes] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tokens = tokenize.tokenize(io.BytesIO(path.read_bytes()).readline)
        found += [each.string.encode() for each in tokens if each.type == tokenize.NAME]
        if len(found) >= count:
            break
    return found[:count]


def _ratio(loads: list[int]) -> float:
    return max(loads) * len(loads) / sum(loads)


def _hash(keys: Sequence[bytes]) -> list[int]:
    loads = [0] * PARTITIONS
    for key, number in Counter(keys).items():
        loads[partition_for_key(key, PARTITIONS)] += number
    return loads


def _two_choices(keys: Sequence[bytes]) -> list[int]:
    loads = [0] * PARTITIONS
    pairs = {key: candidates(murmur2(key), PARTITIONS, 2) for key in set(keys)}
    for key in keys:
        first, second = pairs[key]
        loads[first if loads[first] <= loads[second] else second] += 1
    return loads


def _d_choices(keys: Sequence[bytes]) -> list[int]:
    counts = Counter(keys)
    head = [
        (key, number / len(keys))
        for key, number in counts.most_common()
        if number * 5 * PARTITIONS >= len(keys)
    ]
    choices = _needed_choices([share for _, share in head])
    heavy = {key: candidates(murmur2(key), PARTITIONS, choices) for key, _ in head}
    light = {key: candidates(murmur2(key), PARTITIONS, 2) for key in counts if key not in heavy}
    loads = [0] * PARTITIONS
    for key in keys:
        chosen = min(heavy.get(key) or light[key], key=loads.__getitem__)
        loads[chosen] += 1
    return loads


def _needed_choices(shares: list[float]) -> int:
    """The least d for which each prefix of the head fits into the partitions that it may use."""
    rest = 1 - sum(shares)
    for choices in range(2, PARTITIONS):
        prefix, fits = 0.0, True
        for number, share in enumerate(shares, 1):
            prefix += share
            used = PARTITIONS - PARTITIONS * ((PARTITIONS - 1) / PARTITIONS) ** (number * choices)
            others = sum(shares[number:]) * (used / PARTITIONS) ** choices
            light = rest * (used / PARTITIONS) ** 2
            fits = fits and prefix + others + light <= used / PARTITIONS + 1e-4
        if fits:
            return choices
    return PARTITIONS


def place_keys(keys: Sequence[bytes], mode: str, partitions: int = PARTITIONS) -> list[int]:
    """Bytes by partition of records that are placed as a producer does; batches are acknowledged
    as they become full.

    Args:
        mode: split or move; empty for the hash alone.
    """
    accumulator: Any = Accumulator(
        batch_size=BATCH,
        buffer_memory=1 << 40,
        max_request_size=1 << 20,
        compression=0,
        ignores_keys=False,
        make_partitioner=lambda: BuiltInPartitioner(BuiltInOptions(BATCH, False), Random(1)),
        untreated=["topic"] if mode else (),
        now=time.monotonic,
        wall_clock=time.time,
        lock=threading.RLock(),
        wake=lambda: None,
        on_callback_error=lambda error: None,
    )
    accumulator.update_topic(_view(partitions))
    if mode:
        accumulator.treat_keys("topic", mode, 0, Random(1))
    append, queues = accumulator.append, accumulator.topic("topic").queues
    for index, key in enumerate(keys):
        append("topic", VALUE, key, None, None, 1)
        if index % 20_000 == 0:
            for queue in queues:
                while len(queue.batches) > 1:
                    accumulator.complete(accumulator.take_batch(queue), 0, -1)
    return [queue.given_bytes for queue in queues]


def _view(partitions: int) -> TopicView:
    numbers = range(partitions)
    return TopicView(
        "topic",
        bytes(16),
        False,
        tuple(PartitionView(0, 0, (0,), (0,), ()) for _ in numbers),
        (0,) * partitions,
        (None,) * partitions,
        tuple(numbers),
    )


WAYS: dict[str, Way] = {
    "partial key grouping": _two_choices,
    "D-Choices": _d_choices,
    "split": lambda keys: place_keys(keys, "split"),
    "move": lambda keys: place_keys(keys, "move"),
}
