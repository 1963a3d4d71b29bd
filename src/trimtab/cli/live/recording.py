"""Snapshots of a cluster's load as a file: a JSON object on each line, compressed.

A line has what the cluster was like at one time; of topics, replicas and leaders only those that
have changed since the line before. A file whose end is missing is read up to there.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trimtab.balance.cluster_load import BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import Goal, find_level_plan, find_levels
from trimtab.balance.limits import PartitionLimits
from trimtab.client.collector import PlanView, Snapshot
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.tails import Share, Tail
from trimtab.client.measure.watch import Answers
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_LEADER

FILE: Final = "recording.jsonl.gz"
"""The name in a directory."""
_HEAD: Final = {"trimtab": "recording", "version": 1}
_EVERY_S: Final = 2.0
_PARTITIONS_A_SECOND: Final = 1000
"""A recording of more partitions has fewer lines: with 40,000 one each 40 s, 25 MB in an hour."""


class Recorder:
    """Appends snapshots to a new file, one each two seconds at most.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = gzip.open(path, "wb", compresslevel=6)  # noqa: SIM115
            self._write(_HEAD)
        except OSError as error:
            raise UsageError(f"--record {path}: {error.strerror}: name a file to write") from error
        self._topics: Mapping[str, TopicView] = {}
        self._last_s = -math.inf

    def write(self, snapshot: Snapshot) -> None:
        """Raises:
        OSError: it cannot be written; the file is closed.
        """
        partitions = sum(view.partition_count for view in snapshot.topics.values())
        every_s = max(_EVERY_S, partitions / _PARTITIONS_A_SECOND)
        if self._file.closed or snapshot.taken_s < self._last_s + 0.9 * every_s:
            return
        try:
            self._write(to_json(snapshot, self._topics))
        except OSError:
            self._file.close()
            raise
        self._topics, self._last_s = snapshot.topics, snapshot.taken_s

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush(zlib.Z_SYNC_FLUSH)  # so that a killed process leaves whole lines


def read_recording(path: Path) -> Iterator[Snapshot]:
    """The snapshots of a recording, without plans.

    Args:
        path: a file, or a directory that has one named `recording.jsonl.gz`.

    Raises:
        UsageError: it cannot be read, or is no recording.
    """
    file_path = path / FILE if path.is_dir() else path
    topics: dict[str, TopicView] = {}
    number = 0
    try:
        with gzip.open(file_path, "rb") as file:
            with refusing_malformed(file_path, 1):
                head = json.loads(file.readline())
                if {name: head.get(name) for name in _HEAD} != _HEAD:
                    raise UsageError(f"{file_path} is no recording of this version of trimtab")
            while True:
                try:
                    line = file.readline()
                except EOFError:  # its writer was killed
                    return
                if not line.endswith(b"\n"):
                    return
                number += 1
                with refusing_malformed(file_path, number + 1):
                    snapshot = from_json(json.loads(line), topics, number)
                yield snapshot
    except FileNotFoundError:
        raise UsageError(
            f"{file_path} does not exist: write one with trimtab dashboard --record FILE"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{file_path} cannot be read: {error}") from error


@contextmanager
def refusing_malformed(path: Path, line: int) -> Iterator[None]:
    """Refuse what a line has that no recorder has written: a file that was damaged, or edited."""
    try:
        yield
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UsageError(f"{path}, line {line}: no recording: {error!r}") from error


def find_recorded_plan(snapshot: Snapshot) -> Snapshot:
    """A snapshot of a recording with the plan for its load."""
    load = snapshot.metered.load
    plan = find_level_plan(load, Goal(without_leaders=frozenset(snapshot.slow.slow)))
    return snapshot._replace(plan=PlanView(1, load.measured_s, plan))


def to_json(snapshot: Snapshot, before: Mapping[str, TopicView]) -> dict[str, Any]:
    """A snapshot for JSON.

    Args:
        before: the topics of the line before.
    """
    metered, slow = snapshot.metered, snapshot.slow
    rates: dict[str, list[Any]] = {
        name: [None] * view.partition_count for name, view in snapshot.topics.items()
    }
    for each in metered.load.partitions:
        topic, index = each.partition
        rates[topic][index] = [
            round(each.bytes_in),
            round(each.bytes_out),
            each.size,
            round(metered.records_in.get(each.partition, 0.0), 2),
        ]
    return {
        "at": snapshot.taken_s,
        "cluster": snapshot.cluster_id,
        "brokers": [[*broker] for broker in metered.load.brokers.values()],
        "topics": {
            name: [view.topic_id.hex(), view.is_internal, [[*each] for each in view.partitions]]
            for name, view in snapshot.topics.items()
            if view != before.get(name)
        },
        "gone": [name for name in before if name not in snapshot.topics],
        "rates": {name: rows for name, rows in rates.items() if any(rows)},
        "moving": [[*each] for each in metered.load.moving],
        "left_out": [[*each, why] for each, why in metered.left_out.items()],
        "unknown": [*metered.unknown],
        "volumes": [[id, *volume] for id, volume in snapshot.volumes.items()],
        "limits": snapshot.limits and [snapshot.limits.per_broker, snapshot.limits.per_cluster],
        "slow": [[[id, why] for id, why in named.items()] for named in slow],
        "answers": [[id, *answers] for id, answers in snapshot.answers.items()],
        "lags": [[each.group, *each.partition, *each[2:]] for each in snapshot.lags],
        "tails": [
            [*partition, *tail[:3], [[*key] for key in tail.keys], [[*id] for id in tail.producers]]
            for partition, tail in snapshot.tails.items()
        ],
    }


def from_json(line: Mapping[str, Any], topics: dict[str, TopicView], number: int) -> Snapshot:
    """A snapshot from JSON.

    Args:
        topics: of the lines before; is changed to those of this one.
    """
    brokers = {row[0]: BrokerState(*row) for row in line["brokers"]}
    for name in line["gone"]:
        del topics[name]
    for name, (id, is_internal, rows) in line["topics"].items():
        views = tuple(
            PartitionView(leader, epoch, *(tuple(each) for each in replicas))
            for leader, epoch, *replicas in rows
        )
        topics[name] = TopicView(
            name,
            bytes.fromhex(id),
            is_internal,
            views,
            tuple(each.leader for each in views),
            tuple(brokers[each.leader].rack if each.leader in brokers else None for each in views),
            tuple(index for index, each in enumerate(views) if each.leader != NO_LEADER),
        )
    partitions: list[PartitionLoad] = []
    records_in: dict[TopicPartition, float] = {}
    for name in sorted(line["rates"]):
        for index, rates in enumerate(line["rates"][name]):
            if rates is None:
                continue
            partition, view = TopicPartition(name, index), topics[name].partitions[index]
            bytes_in, bytes_out, size, records_in[partition] = rates
            isr = frozenset(view.in_sync_replicas)
            partitions.append(
                PartitionLoad(partition, view.replicas, view.leader, isr, bytes_in, bytes_out, size)
            )
    moving = frozenset(TopicPartition(*each) for each in line["moving"])
    load = ClusterLoad(brokers, partitions, moving, line["at"])
    left_out = {TopicPartition(topic, index): why for topic, index, why in line["left_out"]}
    slow = SlowBrokers(*(dict(named) for named in line["slow"]))
    return Snapshot(
        number,
        line["at"],
        line["cluster"],
        MeteredLoad(load, records_in, left_out, line["unknown"]),
        find_levels(load),
        dict(topics),
        {id: (total, usable) for id, total, usable in line["volumes"]},
        line["limits"] and PartitionLimits(*line["limits"]),
        slow,
        {id: Answers(*answers) for id, *answers in line["answers"]},
        [
            PartitionLag(group, TopicPartition(topic, index), *rest)
            for group, topic, index, *rest in line["lags"]
        ],
        {
            TopicPartition(topic, index): Tail(
                records,
                batches,
                size,
                tuple(Share(*each) for each in keys),
                tuple(Share(*each) for each in producers),
            )
            for topic, index, records, batches, size, keys, producers in line["tails"]
        },
    )
