"""Snapshots of a cluster's metadata as rows: partitions, offsets, sizes, limits, groups.

    taken = take_snapshot({"bootstrap.servers": "127.0.0.1:9092"})
    frames = to_frames(spark, taken)
    load.append(frames.replicas, "/data/replicas")

Append a snapshot every minute or hour: growth and lag are computed from this history. All rows of a
snapshot have the same `takenAt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER
from trimtab.client.blocking.admin import Admin
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.spark.load.inputs import to_arrow, to_frame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from trimtab.client.topic_view import TopicView

K = TypeVar("K")
V = TypeVar("V")

PARTITIONS: Final = (
    "takenAt timestamp, topic string, partition int, leader int, rack string, "
    "replicas array<int>, replicaRacks array<string>, isr array<int>"
)
"""`leader` is -1 if there is none; `rack` is the leader's, null if it has none."""

OFFSETS: Final = "takenAt timestamp, topic string, partition int, earliest long, latest long"
"""`latest` is the offset of the next record, as kafka-get-offsets prints it. Partitions without a
leader have no row."""

BROKERS: Final = (
    "takenAt timestamp, broker int, host string, port int, rack string, "
    "maxBrokerPartitions long, maxPartitions long"
)
"""Live brokers, and their limits of KIP-578; null without a limit."""

DIRECTORIES: Final = (
    "takenAt timestamp, broker int, directory string, totalBytes long, usableBytes long"
)
"""Log directories; -1 bytes if the broker does not report them (before Kafka 3.3)."""

REPLICAS: Final = (
    "takenAt timestamp, broker int, directory string, topic string, partition int, bytes long, "
    "offsetLag long, isFuture boolean"
)
"""Replicas on disk, as kafka-log-dirs prints them."""

GROUP_OFFSETS: Final = (
    "takenAt timestamp, group string, topic string, partition int, committed long"
)
"""Offsets that consumer groups have committed."""


class Snapshot(NamedTuple):
    """Rows of each table, in the order of its columns."""

    partitions: Sequence[tuple[Any, ...]]
    offsets: Sequence[tuple[Any, ...]]
    brokers: Sequence[tuple[Any, ...]]
    directories: Sequence[tuple[Any, ...]]
    replicas: Sequence[tuple[Any, ...]]
    group_offsets: Sequence[tuple[Any, ...]]


class SnapshotFrames(NamedTuple):
    """The tables of a snapshot as DataFrames: `PARTITIONS`, `OFFSETS` and so on."""

    partitions: DataFrame
    offsets: DataFrame
    brokers: DataFrame
    directories: DataFrame
    replicas: DataFrame
    group_offsets: DataFrame


SCHEMAS: Final = (PARTITIONS, OFFSETS, BROKERS, DIRECTORIES, REPLICAS, GROUP_OFFSETS)


def take_snapshot(
    client: Mapping[str, object],
    topics: Iterable[str] | None = None,
    groups: Iterable[str] = (),
    now: datetime | None = None,
    denied: Callable[[BrokerError], None] | None = None,
) -> Snapshot:
    """Request the metadata; on the driver, with one connection per broker.

    Args:
        client: the admin client's options, such as `{"bootstrap.servers": ...}`.
        topics: the topics of the rows; None: all, including internal ones. The rows of replicas
            always have all topics.
        groups: the consumer groups whose committed offsets to include.
        now: the value of `takenAt`; None: the current time. Without a time zone it is local.
        denied: called with the error of each request that the client is not authorized to send
            (for log directories, brokers' limits, a group's offsets); the snapshot then lacks these
            rows, or the limits. None: the first such error is raised.

    Raises:
        BrokerError: a topic does not exist, or a request is not authorized.
        Unavailable: no broker answers.
    """
    at = datetime.now(UTC) if now is None else now.astimezone(UTC)

    def ask(request: Callable[[], dict[K, V]]) -> dict[K, V]:
        try:
            return request()
        except BrokerError as error:
            if denied is None or error.code not in _DENIED:
                raise
            denied(error)
            return {}

    with Admin(client) as admin:
        cluster = admin.cluster()
        racks = {node.id: node.rack for node in cluster.nodes}
        views = admin.describe_topics(topics)
        led = [(name, number) for name, view in views.items() for number in view.available]
        earliest = admin.list_offsets(led, at="earliest") if led else {}
        latest = admin.list_offsets(led, at="latest") if led else {}
        logs = ask(partial(admin.describe_log_dirs))
        committed = {group: ask(partial(admin.list_group_offsets, group)) for group in groups}
        # For all brokers or none, because the request needs a permission on the cluster.
        limits = ask(lambda: {node.id: _read_limits(admin, node.id) for node in cluster.nodes})
    return Snapshot(
        partitions=[row for view in views.values() for row in _describe(view, racks, at)],
        offsets=[
            (at, *partition, earliest[partition].offset, latest[partition].offset)
            for partition in sorted(latest)
        ],
        brokers=[
            (at, node.id, node.host, node.port, node.rack, *limits.get(node.id, (None, None)))
            for node in cluster.nodes
        ],
        directories=[
            (at, broker, directory.path, directory.total_bytes, directory.usable_bytes)
            for broker, directories in logs.items()
            for directory in directories
        ],
        replicas=[
            (at, broker, directory.path, *partition, log.size, log.offset_lag, log.is_future)
            for broker, directories in logs.items()
            for directory in directories
            for partition, log in directory.logs.items()
        ],
        group_offsets=[
            (at, group, *partition, committed_at.offset)
            for group, offsets in committed.items()
            for partition, committed_at in sorted(offsets.items())
        ],
    )


def to_frames(session: SparkSession, snapshot: Snapshot) -> SnapshotFrames:
    """A snapshot's rows as DataFrames."""
    return SnapshotFrames(
        *(
            to_frame(session, table, schema)
            for table, schema in zip(to_tables(snapshot), SCHEMAS, strict=True)
        )
    )


def to_tables(snapshot: Snapshot) -> list[pa.Table]:
    """A snapshot's rows as Arrow tables, in the order of `Snapshot`; without Spark."""
    return [to_arrow(rows, schema) for rows, schema in zip(snapshot, SCHEMAS, strict=True)]


def _describe(
    view: TopicView, racks: Mapping[int, str | None], at: datetime
) -> Iterable[tuple[Any, ...]]:
    for number, partition in enumerate(view.partitions):
        yield (
            at,
            view.name,
            number,
            partition.leader,
            view.racks[number],
            list(partition.replicas),
            [racks.get(replica) for replica in partition.replicas],
            list(partition.in_sync_replicas),
        )


def _read_limits(admin: Admin, broker: int) -> tuple[int | None, int | None]:
    """`max.broker.partitions` and `max.partitions`; None where the broker has no such limit."""
    values = {entry.name: entry.value for entry in admin.describe_configs("broker", broker)}
    per_broker, per_cluster = values.get(PER_BROKER), values.get(PER_CLUSTER)
    return _limit(per_broker), _limit(per_cluster)


def _limit(value: str | None) -> int | None:
    number = None if value is None else int(value)
    return None if number is None or number >= _NO_LIMIT else number


_DENIED: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)

_NO_LIMIT: Final = 2**63 - 1
"""What brokers say where there is none."""
