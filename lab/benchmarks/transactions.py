"""Transactions on three brokers, RF 3, min.insync.replicas 2: trimtab and Apache Kafka.

Both clusters run at the same time. On each, a producer of Java's and one of trimtab's commits
transactions of 1, 10 and 1,000 records, one after the other, with each client's default options.
Measures transactions per second and how long a commit takes: the call sends the records that are
still buffered, and waits for their acknowledgements and for the coordinator's answer.

Then Java's ConsumerPerformance and trimtab's consumer (in lists) read on each cluster a topic of
which 1 % of the transactions are aborted, with `read_committed` and `read_uncommitted`. The goal is
that read_committed has at least 90 % of the other's MB/s: a `ratio` of 0.9 or more. MB count the
values that the reader is given, so that read_committed, which is not given the aborted 1 %, has
99 % if both take the same time.

All runs alternate, after uncounted ones. There are RECORDS / 3,000 transactions in a run, and
7 x RECORDS records in the topic that is read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.consumer import run_consumer_performance
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.killable import killable_kafka, killable_trimtab
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import PARTITIONS, RECORD_BYTES, Topics
from trimtab import Producer

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
JAVAS_PRODUCER = f"Java's producer {KAFKA_VERSION}"
SOURCE = Path(__file__).parent / "java" / "TransactionLoop.java"
REPLICAS = 3
SIZES = (1, 10, 1_000)
"""Records of a transaction."""
ISOLATIONS = ("read_committed", "read_uncommitted")
CLUSTERS = ("trimtab", "Apache Kafka")
CLIENTS = ("trimtab", "Java")
_SHARE = 3_000
"""A run has one transaction for this many of the stage's records."""
_WARM_UP_SHARE = 2
"""A process first commits one uncounted transaction for this many measured ones."""
_READ_TIMES = 7
"""The topic that is read has as many times the stage's records: reading it takes about a second."""
_FILL_SIZE = 100
"""Records of a transaction in the topic that is read."""
_FILLERS = 4
"""Producers that write this topic, so that it has transactions that overlap."""
_ABORTED = 0.01
_MB = 1e6
_MIB = 2**20

Combination = tuple[str, str]
"""A cluster and a client."""
COMBINATIONS: tuple[Combination, ...] = tuple(product(CLUSTERS, CLIENTS))


class Committing(NamedTuple):
    """The results of one run of a producer."""

    transactions_per_second: float
    p50_ms: float
    p99_ms: float


class Filled(NamedTuple):
    """A topic to read; how many records of it are committed, and how many are aborted."""

    topic: str
    committed: int
    aborted: int

    def count(self, isolation: str) -> int:
        """The number of records that a reader is given."""
        return self.committed + (self.aborted if isolation == "read_uncommitted" else 0)


def run(runs: int, records: int) -> None:
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        report(
            *("transactions", "transactions_per_s", "transactions/s"),
            *([], RIVAL, []),
            more_is_better=True,
            note=str(missing),
        )
        return
    with ExitStack() as stack:
        addresses = {
            "trimtab": stack.enter_context(killable_trimtab()).address,
            "Apache Kafka": stack.enter_context(killable_kafka()).address,
        }
        _compare_commits(addresses, runs, max(10, records // _SHARE))
        _compare_reads(addresses, runs, records * _READ_TIMES)


# Commits


def _compare_commits(addresses: dict[str, str], runs: int, transactions: int) -> None:
    for size in SIZES:
        progress(f"transactions: {_records(size)}, warming up")
        for cluster, client in COMBINATIONS:
            _commit(client, addresses[cluster], size, transactions)
        found: dict[Combination, list[Committing]] = {each: [] for each in COMBINATIONS}
        for number in range(runs):
            for cluster, client in COMBINATIONS:
                progress(
                    f"transactions: {_records(size)}, {client}'s producer on {cluster},"
                    f" run {number + 1} of {runs}"
                )
                committing = _commit(client, addresses[cluster], size, transactions)
                found[cluster, client].append(committing)
        for metric, unit, attribute, more_is_better in (
            ("transactions_per_s", "transactions/s", "transactions_per_second", True),
            ("commit_p50_ms", "ms", "p50_ms", False),
            ("commit_p99_ms", "ms", "p99_ms", False),
        ):
            values = {
                each: [getattr(committing, attribute) for committing in found[each]]
                for each in COMBINATIONS
            }
            name = f"{metric}, {_records(size)}"
            for client in CLIENTS:
                report(
                    *("transactions", f"{name}, {client}'s producer", unit),
                    *(values["trimtab", client], RIVAL, values["Apache Kafka", client]),
                    more_is_better=more_is_better,
                )
            for cluster in CLUSTERS:
                report(
                    *("transactions", f"{name}, trimtab's producer on {cluster}", unit),
                    *(values[cluster, "trimtab"], JAVAS_PRODUCER, values[cluster, "Java"]),
                    more_is_better=more_is_better,
                )


def _commit(client: str, address: str, size: int, transactions: int) -> Committing:
    """Run a producer of transactions on a new topic, and check that every record is stored."""
    topics = Topics(address, REPLICAS)
    topic = topics.create()
    warm_up = transactions // _WARM_UP_SHARE
    arguments = [address, topic, *map(str, (size, RECORD_BYTES, transactions, warm_up))]
    if client == "Java":
        told = json.loads(run_java(str(SOURCE), *arguments).splitlines()[-1])
    else:
        told = _run_loop("send", *arguments)
    stored, sent = topics.count_records(topic), (transactions + warm_up) * size
    # Each transaction also stores a marker in each partition that has records of it, the last one
    # perhaps a little later.
    fewest, most = transactions + warm_up - 1, (transactions + warm_up) * min(size, PARTITIONS)
    if not sent + fewest <= stored <= sent + most:
        raise RuntimeError(f"{client}'s producer sent {sent} records; {address} holds {stored}")
    topics.delete(topic)
    percentiles = statistics.quantiles(told["commit_ms"], n=100, method="inclusive")
    return Committing(transactions / told["seconds"], percentiles[49], percentiles[98])


def _run_loop(*arguments: str) -> Any:
    """Run `lab.benchmarks.transaction_loop`; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.benchmarks.transaction_loop", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"transaction_loop {' '.join(arguments)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def _records(size: int) -> str:
    return "1 record" if size == 1 else f"{size:,} records"


# Reads


def _compare_reads(addresses: dict[str, str], runs: int, records: int) -> None:
    topics: dict[str, Filled] = {}
    for cluster, address in addresses.items():
        progress(f"transactions: {records} records into {cluster}")
        topics[cluster] = _fill(address, records)
    found: dict[tuple[str, str, str], list[float]] = {
        (*each, isolation): [] for each in COMBINATIONS for isolation in ISOLATIONS
    }
    for number in range(runs + 1):
        for key, rates in found.items():
            cluster, client, isolation = key
            what = f"run {number} of {runs}" if number else "warming up"
            progress(f"transactions: {isolation}, {client}'s consumer on {cluster}, {what}")
            rate = _read(client, addresses[cluster], topics[cluster], isolation)
            if number:
                rates.append(rate)
    for cluster, client in COMBINATIONS:
        report(
            *("transactions", f"read_committed mb_per_s, {client}'s consumer on {cluster}", "MB/s"),
            found[cluster, client, "read_committed"],
            f"read_uncommitted, {client}'s consumer on {cluster}",
            found[cluster, client, "read_uncommitted"],
            more_is_better=True,
            note="goal: a ratio of at least 0.9",
        )
    for isolation, client in product(ISOLATIONS, CLIENTS):
        report(
            *("transactions", f"{isolation} mb_per_s, {client}'s consumer", "MB/s"),
            found["trimtab", client, isolation],
            RIVAL,
            found["Apache Kafka", client, isolation],
            more_is_better=True,
        )


def _fill(address: str, records: int) -> Filled:
    """Write a topic in transactions of `_FILL_SIZE` records, each in one partition. The same ones
    are aborted at each call."""
    topic = Topics(address, REPLICAS).create()
    transactions = max(_FILLERS, records // _FILL_SIZE)
    aborted = set(Random(1).sample(range(transactions), max(1, round(transactions * _ABORTED))))

    def write(numbers: Sequence[int]) -> None:
        with Producer(address, transactional_id=f"{topic}-{numbers[0]}") as producer:
            producer.init_transactions()
            for number in numbers:
                is_aborted = number in aborted
                producer.begin_transaction()
                for _ in range(_FILL_SIZE):
                    value = bytes(_size(is_aborted))
                    producer.send(topic, value, partition=number % PARTITIONS)
                if is_aborted:
                    producer.flush()  # an abort drops the records that were not sent
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()

    with ThreadPoolExecutor(_FILLERS) as pool:
        list(pool.map(write, [range(each, transactions, _FILLERS) for each in range(_FILLERS)]))
    lost = len(aborted) * _FILL_SIZE
    return Filled(topic, transactions * _FILL_SIZE - lost, lost)


def _size(is_aborted: bool) -> int:
    """The bytes of a record's value: an aborted one is shorter, so that the sum of the bytes shows
    whether a reader was given exactly the right records."""
    return RECORD_BYTES - is_aborted


def _read(client: str, address: str, filled: Filled, isolation: str) -> float:
    """Read the topic from its beginning; returns MB/s.

    Raises RuntimeError if the reader was given other records than it should be.
    """
    wanted = filled.count(isolation)
    if client == "Java":
        return _read_with_java(address, filled.topic, wanted, isolation)
    told = _run_loop("read", address, filled.topic, str(PARTITIONS), str(wanted), isolation)
    aborted = wanted - filled.committed
    expected = filled.committed * _size(False) + aborted * _size(True)
    if told["bytes"] != expected:
        raise RuntimeError(f"{isolation} gave {told['bytes']} bytes, not {expected}, at {address}")
    return float(told["bytes"] / _MB / told["seconds"])


def _read_with_java(address: str, topic: str, wanted: int, isolation: str) -> float:
    """MB/s that ConsumerPerformance prints, without the time to join its group."""
    words = ("--command-property", f"isolation.level={isolation}")
    told = run_consumer_performance(address, topic, wanted, *words)
    if told["data.consumed.in.nMsg"] != wanted:
        raise RuntimeError(f"ConsumerPerformance read other records than {wanted}: {told}")
    return told["fetch.MB.sec"] * _MIB / _MB
