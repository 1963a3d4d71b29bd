"""KIP-74's guarantees: the size of fetch responses, fairness between partitions, and their cost.

1. 1,000 partitions of 1 MiB each, fetched with `max_bytes` 50 MiB: bytes of the largest response,
   and the peak of the broker's resident memory above its start. Compared with Apache Kafka.
2. 20 partitions that always have more records, fetched with `max_bytes` of one batch: the most
   fetches until a partition is served, or served again; in a session (KIP-227), and by a client
   that rotates its partitions without one. Compared with Apache Kafka.
3. A new replica of those 1,000 partitions, with responses limited to 1 MiB: seconds until all are
   in sync, and by how many bytes the first partition was ahead of the last. trimtab only.

The exit code is 1 if a guarantee does not hold.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.hostile_clients import BlockingConnection
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress, report
from lab.processes import Broker, Trimtab, nodes_of, peak_mib, reset_peak, resident_mib
from trimtab import Admin, Producer
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
MANY, FEW = 1_000, 20
PARTITION_BYTES = 1024 * 1024
BATCH_BYTES = 64 * 1024
MAX_BYTES = 50 * 1024 * 1024
HEADER_BYTES = 120
"""Bytes that a partition may add to a response besides its records."""
BIG_FETCHES = 40
SMALL_FETCHES = 12 * FEW
MOST_FETCHES = FEW + 1

RESPONSE_MAX_BYTES = 1024 * 1024
REPLICA_OPTIONS = (
    f"replica.fetch.response.max.bytes={RESPONSE_MAX_BYTES}",
    f"replica.fetch.max.bytes={BATCH_BYTES}",
)
_FETCH_VERSION = 12  # the last version with topic names
_REASSIGN_VERSION = 0
_LOG_DIRS_VERSION = 1
_PATIENCE_S = 300
_TICK_S = 0.1


def run(runs: int, records: int) -> None:
    del records
    wrong = []
    sizes, peaks, gaps = _measure(Trimtab(), runs)
    try:
        find_java()
        kafka_jars()
        their_sizes, their_peaks, their_gaps = _measure(ApacheKafka(), runs)
        note = ""
    except RivalMissing as missing:
        their_sizes, their_peaks, their_gaps = [], [], {kind: [] for kind in gaps}
        note = str(missing)
    limit = MAX_BYTES + MANY * HEADER_BYTES
    if max(sizes) > limit:
        wrong.append(f"a response of {max(sizes):.0f} bytes; max_bytes={MAX_BYTES}")
    report(
        *("fetch", f"largest response, {MANY} partitions, max_bytes {MAX_BYTES}", "bytes"),
        *(sizes, RIVAL, their_sizes),
        more_is_better=False,
        note=note,
    )
    report(
        *("fetch", "memory above that at rest, at the peak", "MiB"),
        *(peaks, RIVAL, their_peaks),
        more_is_better=False,
        note=note,
    )
    for kind, numbers in gaps.items():
        if max(numbers) > MOST_FETCHES:
            wrong.append(f"{max(numbers):.0f} fetches until a partition was served ({kind})")
        report(
            *("fetch", f"fetches until each of {FEW} partitions is served, {kind}", "fetches"),
            *(numbers, RIVAL, their_gaps[kind]),
            more_is_better=False,
            note=note,
        )
    wrong += _measure_follower()
    for each in wrong:
        progress(f"fetch: WRONG: {each}")
    if wrong:
        raise SystemExit(1)


def _measure(side: Broker, runs: int) -> tuple[list[float], list[float], dict[str, list[float]]]:
    sizes: list[float] = []
    peaks: list[float] = []
    gaps: dict[str, list[float]] = {"in a session": [], "rotating, without one": []}
    with side, Admin(side.address) as admin:
        progress(f"fetch: {side.name}, {MANY} partitions")
        admin.create_topic("many", MANY)
        _fill(side.address, "many", range(MANY))
        admin.create_topic("few", FEW)
        _fill(side.address, "few", range(FEW))
        broker = _broker_pid(side)
        with BlockingConnection(("127.0.0.1", side.port)) as line:
            for number in range(runs):
                progress(f"fetch: {side.name}, run {number + 1} of {runs}")
                size, peak = _fetch_many(line, broker)
                sizes.append(size)
                peaks.append(peak)
                gaps["in a session"].append(_longest_wait(_serve_session(line)))
                gaps["rotating, without one"].append(_longest_wait(_serve_rotating(line)))
    return sizes, peaks, gaps


def _broker_pid(side: Broker) -> int:
    if isinstance(side, Trimtab):
        return nodes_of(side.supervisor_pid)["broker-0"]
    return side.pids[0]


def _fill(address: str, topic: str, partitions: Iterable[int]) -> None:
    value = bytes(BATCH_BYTES - 200)
    with Producer(address, batch_size=BATCH_BYTES // 2, linger_ms=0) as producer:
        for _ in range(PARTITION_BYTES // BATCH_BYTES):
            for partition in partitions:
                producer.send(topic, value, partition=partition)


# -- size of a response


def _fetch_many(line: BlockingConnection, broker: int) -> tuple[float, float]:
    """The largest of many responses, and how far memory rose meanwhile."""
    reset_peak(broker)
    before = resident_mib(broker)
    largest = 0
    first = 0
    for _ in range(BIG_FETCHES):
        partitions = [(first + each) % MANY for each in range(MANY)]
        response = _fetch(line, "many", [(each, 0) for each in partitions], MAX_BYTES)
        largest = max(largest, line.response_bytes)
        served = sum(1 for _ in _served(response))
        first = (first + served) % MANY
    return largest, peak_mib(broker) - before


def _serve_session(line: BlockingConnection) -> Iterator[list[int]]:
    """The partitions served by each fetch of a session; requests name only partitions whose fetch
    offset has changed."""
    offsets = dict.fromkeys(range(FEW), 0)
    named = list(offsets.items())
    session_id, epoch = 0, 0
    for _ in range(SMALL_FETCHES):
        response = _fetch(line, "few", named, BATCH_BYTES, session_id, epoch)
        session_id, epoch = response.session_id, epoch + 1
        served = list(_served(response))
        yield served
        for partition in served:
            offsets[partition] += 1
        named = [(partition, offsets[partition]) for partition in served]


def _serve_rotating(line: BlockingConnection) -> Iterator[list[int]]:
    """The partitions served by each fetch, if served partitions move to the end of the request."""
    offsets = dict.fromkeys(range(FEW), 0)
    for _ in range(SMALL_FETCHES):
        response = _fetch(line, "few", list(offsets.items()), BATCH_BYTES)
        served = list(_served(response))
        yield served
        for partition in served:
            offsets[partition] = offsets.pop(partition) + 1


def _longest_wait(fetches: Iterator[list[int]]) -> int:
    """The most fetches until a partition is served, from the start or its last service."""
    last = dict.fromkeys(range(FEW), 0)
    longest = number = 0
    for number, served in enumerate(fetches, 1):
        for partition in served:
            longest = max(longest, number - last[partition])
            last[partition] = number
    return max(longest, *(number - each for each in last.values()))


def _fetch(
    line: BlockingConnection,
    topic: str,
    offsets: Iterable[tuple[int, int]],
    max_bytes: int,
    session_id: int = 0,
    session_epoch: int = -1,
) -> Any:
    partitions = [
        FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES)
        for each, offset in offsets
    ]
    return line.ask(
        FetchRequest(
            max_wait_ms=5000,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
        ),
        _FETCH_VERSION,
    )


def _served(response: FetchResponse) -> Iterator[int]:
    if response.error_code:
        raise RuntimeError(f"the fetch was refused with code {response.error_code}")
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code:
                raise RuntimeError(f"partition {data.partition_index}: code {data.error_code}")
            if data.records:
                yield data.partition_index


# -- a follower


def _measure_follower() -> list[str]:
    """What went wrong."""
    progress(f"fetch: a new replica of {MANY} partitions")
    with Trimtab(brokers=2, config=REPLICA_OPTIONS) as side, Admin(side.address) as admin:
        admin.create_topic("many", assignment={each: [0] for each in range(MANY)})
        _fill(side.address, "many", range(MANY))
        follower = nodes_of(side.supervisor_pid)["broker-1"]
        reset_peak(follower)
        before = resident_mib(follower)
        with (
            BlockingConnection(("127.0.0.1", side.port)) as to_leader,
            BlockingConnection(("127.0.0.1", side.port + 1)) as to_follower,
        ):
            began = time.monotonic()
            _reassign(to_leader, "many", [0, 1])
            ahead = 0
            while True:
                sizes = _sizes(to_follower, "many")
                ahead = max(ahead, max(sizes) - min(sizes))
                in_sync = admin.describe_topics(["many"])["many"].partitions
                if all(len(each.in_sync_replicas) == 2 for each in in_sync):
                    break
                if time.monotonic() - began > _PATIENCE_S:
                    return [f"not all {MANY} partitions are in sync after {_PATIENCE_S} s"]
                time.sleep(_TICK_S)
            seconds = time.monotonic() - began
        peak = peak_mib(follower) - before
    limit = f"responses of {RESPONSE_MAX_BYTES} bytes"
    for metric, value, unit in (
        (f"{MANY} partitions caught up, {limit}", seconds, "s"),
        (f"how far the first replica was ahead of the last, {limit}", ahead, "bytes"),
        (f"the follower's memory above that at rest, {limit}", peak, "MiB"),
    ):
        report("fetch", metric, unit, [value], RIVAL, [], more_is_better=False)
    return []


def _reassign(line: BlockingConnection, topic: str, replicas: list[int]) -> None:
    response = line.ask(
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(partition_index=each, replicas=replicas)
                        for each in range(MANY)
                    ],
                )
            ]
        ),
        _REASSIGN_VERSION,
    )
    refused = {part.error_code for each in response.responses for part in each.partitions}
    if response.error_code or refused - {0}:
        raise RuntimeError(f"the reassignment was refused: {response.error_code}, {refused}")


def _sizes(line: BlockingConnection, topic: str) -> list[int]:
    """Bytes of each partition of a topic on one broker; 0 if the broker has no bytes of it."""
    response = line.ask(DescribeLogDirsRequest(topics=None), _LOG_DIRS_VERSION)
    sizes = [0] * MANY
    for each in (found for result in response.results for found in result.topics):
        if each.name == topic:
            for partition in each.partitions:
                sizes[partition.partition_index] = partition.partition_size
    return sizes
