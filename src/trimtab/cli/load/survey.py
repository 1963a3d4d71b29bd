"""A cluster's load in tables, computed by Spark, and in the few figures that a report shows.

Tests: test_command.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from trimtab.cli.load.history import recall, remember
from trimtab.cli.load.reading import Reading
from trimtab.cli.table import show_bytes, show_count

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from trimtab.cli.load.clients import Client
    from trimtab.spark.load.snapshots import Snapshot

_SHOWN_TOPICS: Final = 4
"""Topics whose partitions are drawn, and that have a colour of their own over time."""
_KEY_LENGTH: Final = 60


class SurveyRequest(NamedTuple):
    """What a report is about.

    Attributes:
        client: the options of clients, by dotted name.
        topics: those that are read; snapshots are of all.
        snapshot: of the cluster, just now.
        reading: which offsets.
        window: the length of time windows, such as "1 hour".
        keys: "text", "hash" or "none": what hot keys are known by.
        clients: who produces and consumes where, as far as is known.
        cost_per_gb: between racks.
        top: rows of a table that are shown, and hot keys of a topic.
        history: the directory with earlier snapshots; this one is added.
        denied: the errors of requests that the client is not authorized to send.
    """

    client: Mapping[str, Any]
    topics: Sequence[str]
    snapshot: Snapshot
    reading: Reading
    window: str
    keys: str
    clients: Sequence[Client]
    cost_per_gb: float
    top: int
    history: Path
    denied: Sequence[str] = ()


class Tables(NamedTuple):
    """The load tables; see `trimtab.spark.load`. `totals` and `skew` are those without windows."""

    partition_load: pa.Table
    topic_skew: pa.Table
    hot_keys: pa.Table | None
    rack_traffic: pa.Table
    broker_capacity: pa.Table
    group_lag: pa.Table | None
    findings: pa.Table
    totals: pa.Table
    skew: pa.Table


class _Collected(NamedTuple):
    """A computed table, on the driver and as a frame of these same rows."""

    table: pa.Table
    frame: DataFrame


class Summary(TypedDict):
    """`summary.json`: what the report shows. Rows are those of the tables, the largest first.

    `partitions` has every partition's bytes of the topics that are drawn, `times` the bytes of
    each window by topic, "" for all topics that are not drawn.
    """

    trimtab: str
    cluster: str
    taken_at: str
    read: dict[str, Any]
    findings: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    partitions: dict[str, list[int]]
    times: list[dict[str, Any]]
    hot_keys: list[dict[str, Any]]
    racks: list[dict[str, Any]]
    brokers: list[dict[str, Any]]
    groups: list[dict[str, Any]]


def survey(session: SparkSession, request: SurveyRequest, say: Callable[[str], None]) -> Tables:
    """Compute every table; the topics are read once, and once more for hot keys.

    `say` is called with each step, as it begins.

    Each table is brought to the driver when it is computed, and the tables after it are computed
    from there: no query repeats another one, and the number of Spark's jobs does not grow with
    topics, partitions and groups. (A cache is not enough: a server of Spark Connect may analyze the
    same plan again, and not find its result.)
    """
    from trimtab.spark import load
    from trimtab.spark.load import snapshots
    from trimtab.spark.load.inputs import to_arrow, to_frame

    def collect(frame: DataFrame) -> _Collected:
        table = frame.toArrow()
        return _Collected(table, to_frame(session, table, frame.schema))

    remember(request.snapshot, request.history)
    past = recall(session, request.history)
    wanted = set(request.topics)
    rows = [row for row in request.snapshot.partitions if row[1] in wanted]
    partitions = to_frame(session, to_arrow(rows, snapshots.PARTITIONS), snapshots.PARTITIONS)
    clients = to_frame(session, to_arrow(request.clients, load.CLIENTS), load.CLIENTS)
    about = f"{show_count(len(request.topics), 'topic')}, about {show_bytes(request.reading.bytes)}"
    steps = 2 if request.keys == "none" else 3
    say(f"[1/{steps}] Reading sizes and times of {about} …")
    windows = collect(
        load.partition_load(_read(session, request, load.RECORDS), partitions, request.window)
    )
    keys = None
    if request.keys != "none":
        say(f"[2/{steps}] Counting keys …")
        schema = load.KEYS if request.keys == "text" else load.KEY_HASHES
        sketches = load.key_sketches(_read(session, request, schema))
        keys = collect(load.hot_keys(sketches, request.top))
    say(f"[{steps}/{steps}] Tables of topics, racks, brokers and groups …")
    with _joined_in_place(session):
        totals = collect(load.roll_up(windows.frame))
        skew = collect(load.topic_skew(totals.frame, partitions))
        racks = collect(load.rack_traffic(totals.frame, partitions, clients, request.cost_per_gb))
        capacity = collect(
            load.broker_capacity(past.brokers, past.replicas, past.directories, past.partitions)
        )
        lag = None
        if request.snapshot.group_offsets:
            lag = collect(load.group_lag(past.group_offsets, past.offsets, windows.frame))
        found = load.findings(
            load=totals.frame,
            skew=skew.frame,
            keys=None if keys is None else keys.frame,
            racks=racks.frame,
            capacity=capacity.frame,
            lag=None if lag is None else lag.frame,
        )
        return Tables(
            partition_load=windows.table,
            topic_skew=load.topic_skew(windows.frame, partitions).toArrow(),
            hot_keys=None if keys is None else keys.table,
            rack_traffic=racks.table,
            broker_capacity=capacity.table,
            group_lag=None if lag is None else lag.table,
            findings=found.toArrow(),
            totals=totals.table,
            skew=skew.table,
        )


@contextmanager
def _joined_in_place(session: SparkSession) -> Iterator[None]:
    """Let Spark join small frames of one partition where they are.

    By default each join is preceded by a job that broadcasts one side, and which side that is (or
    whether any) depends on their sizes.
    """
    name = "spark.sql.autoBroadcastJoinThreshold"
    before = session.conf.get(name)
    session.conf.set(name, "-1")
    try:
        yield
    finally:
        assert before is not None  # Spark has a default
        session.conf.set(name, before)


def summarize(request: SurveyRequest, tables: Tables, cluster: str, version: str) -> Summary:
    """What the report shows; its size does not grow with the topics."""
    snapshot = request.snapshot
    wanted = set(request.topics)
    counts: dict[str, int] = {}
    for row in snapshot.partitions:
        counts[row[1]] = counts.get(row[1], 0) + 1
    topics = sorted(tables.skew.to_pylist(), key=lambda row: -row["TotalBytes"])
    drawn = [row["topic"] for row in topics[:_SHOWN_TOPICS]]
    sizes = {topic: [0] * counts[topic] for topic in drawn}
    for row in tables.totals.select(["topic", "partition", "TotalBytes"]).to_pylist():
        if row["topic"] in sizes:
            sizes[row["topic"]][row["partition"]] = row["TotalBytes"]
    leaders: dict[int, int] = {}
    for row in tables.totals.select(["leader", "TotalBytes"]).to_pylist():
        leaders[row["leader"]] = leaders.get(row["leader"], 0) + row["TotalBytes"]
    lag = [] if tables.group_lag is None else tables.group_lag.to_pylist()
    keys = [] if tables.hot_keys is None else tables.hot_keys.to_pylist()
    taken = snapshot.brokers[0][0]
    return {
        "trimtab": version,
        "cluster": cluster,
        "taken_at": taken.isoformat(timespec="seconds"),
        "read": {
            "topics": len(request.topics),
            "partitions": sum(counts[topic] for topic in request.topics),
            "empty_topics": len(request.topics) - len(topics),
            "records": sum(row["TotalRecords"] for row in topics),
            "bytes": sum(row["TotalBytes"] for row in topics),
            "share": request.reading.share,
            "window": request.window,
            "cost_per_gb": request.cost_per_gb,
            "keys": request.keys,
            "clients": len(request.clients),
            "without_leader": sum(row[3] < 0 for row in snapshot.partitions if row[1] in wanted),
            "denied": list(request.denied),
        },
        "findings": tables.findings.to_pylist(),
        "topics": topics[: request.top],
        "partitions": sizes,
        "times": _sum_times(tables.partition_load, drawn),
        "hot_keys": [
            {**row, "key": _show_key(row)}
            for row in sorted(keys, key=lambda row: -row["ShareOfRecords"])[: request.top]
        ],
        "racks": _sum_racks(tables.rack_traffic.to_pylist(), request.top),
        "brokers": [
            {
                **row,
                "takenAt": row["takenAt"].isoformat(),
                "LedBytes": leaders.get(row["broker"], 0),
            }
            for row in tables.broker_capacity.to_pylist()
        ],
        "groups": [
            {**row, "takenAt": row["takenAt"].isoformat()}
            for row in sorted(lag, key=lambda row: (row["Status"] == "OK", -row["LagRecords"]))
        ][: request.top],
    }


def _read(session: SparkSession, request: SurveyRequest, schema: str) -> DataFrame:
    from trimtab.spark.load.inputs import to_arrow, to_frame

    offsets = request.reading.offsets
    if not offsets:
        return to_frame(session, to_arrow([], schema), schema)
    assigned: dict[str, list[int]] = {}
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in offsets.items():
        assigned.setdefault(topic, []).append(partition)
        starting.setdefault(topic, {})[str(partition)] = start
        ending.setdefault(topic, {})[str(partition)] = end
    options = {f"kafka.{name}": str(value) for name, value in request.client.items()}
    # Retention may delete records while the topics are read.
    reader = session.read.schema(schema).format("trimtab").option("failOnDataLoss", "false")
    reader = reader.options(**options).option("assign", json.dumps(assigned))
    reader = reader.option("startingOffsets", json.dumps(starting))
    return reader.option("endingOffsets", json.dumps(ending)).load()


def _sum_times(table: pa.Table, drawn: Sequence[str]) -> list[dict[str, Any]]:
    """Bytes of each window: of the topics that are drawn, and of all others together."""
    import pyarrow as pa
    import pyarrow.compute as compute

    windows = table.column("window").combine_chunks()
    starts = compute.struct_field(windows, "start").cast(pa.timestamp("us", "UTC"))
    summed = (
        pa.table(
            {"start": starts, "topic": table.column("topic"), "bytes": table.column("TotalBytes")}
        )
        .group_by(["start", "topic"])
        .aggregate([("bytes", "sum")])
    )
    times: dict[datetime, dict[str, int]] = {}
    for row in summed.to_pylist():
        topic = row["topic"] if row["topic"] in drawn else ""
        sums = times.setdefault(row["start"], {})
        sums[topic] = sums.get(topic, 0) + row["bytes_sum"]
    return [{"start": start.isoformat(), "bytes": times[start]} for start in sorted(times)]


def _sum_racks(rows: list[dict[str, Any]], top: int) -> list[dict[str, Any]]:
    """All topics together, what costs most first."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["kind"], row["fromRack"], row["toRack"])
        empty = {"kind": key[0], "fromRack": key[1], "toRack": key[2]}
        each = sums.setdefault(key, {**empty, "GB": 0.0, "Cost": 0.0, "SavableCost": 0.0})
        for name in ("GB", "Cost", "SavableCost"):
            each[name] += row[name]
    return sorted(sums.values(), key=lambda each: (-each["Cost"], -each["GB"]))[:top]


def _show_key(row: Mapping[str, Any]) -> str:
    if "key" not in row:
        return f"hash {row['keyHash']}"
    try:
        text = str(row["key"], "utf-8")
    except UnicodeDecodeError:
        text = "0x" + row["key"].hex()
    return text if len(text) <= _KEY_LENGTH else text[: _KEY_LENGTH - 1] + "…"
