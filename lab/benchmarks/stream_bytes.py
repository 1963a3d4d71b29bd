"""A stream whose batches are bounded in bytes: 1 KB and 1 MB records, most in one partition.

Records of 1,000 B and of 1,000,000 B in 16 partitions, 93 % of them in one. At first one in a
thousand is large, in the end each is: a count of records says less and less about bytes. Two
streams read all of it with Trigger.AvailableNow: ours with `maxBytesPerTrigger`, Spark's own Kafka
connector with `maxOffsetsPerTrigger` at the count that is as many bytes on average; on our cluster
and on Apache Kafka.

Each line of ours says: the largest and smallest batch in parts of the limit, in bytes of the log
(the last batch is what is left, and does not count as the smallest); `over`, the batches that were
larger than the limit and no single record batch; `late`, by how many batches a partition waited
longer than it takes to save its turns for its next record batch (1 where several are due at once);
what the driver read to know the sizes, in parts of the topic; and how long it planned. Of the
connector the bytes are those of the values. Environment: `MB` (80), `LIMIT_MB` (8), `SOURCES`
(`auto`, or `auto,probe`).

Exit code 1: a batch was larger than the limit, a partition more than 1 late, or records were
missing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import CONNECTOR_VERSION, RivalMissing, connector_config
from lab.benchmarks.report import progress
from lab.benchmarks.workload import Topics
from lab.processes import Trimtab
from trimtab import Producer
from trimtab.spark.session import start_session, stop_session
from trimtab.spark.stream.offsets import STATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MB = int(os.environ.get("MB", "80")) * 1_000_000
LIMIT = int(os.environ.get("LIMIT_MB", "8")) * 1_000_000
SOURCES = os.environ.get("SOURCES", "auto").split(",")
PARTITIONS = 16
SMALL, LARGE = 1_000, 1_000_000
IN_ONE = 0.93
PATIENCE_S = 600


class Read(NamedTuple):
    """What one stream has read.

    Attributes:
        batches: of each batch bytes by partition.
        pieces: of each partition its record batches, first offsets to bytes; empty for the rival.
        begun: of each batch where each partition stood.
    """

    batches: list[dict[int, int]]
    pieces: dict[int, dict[int, int]]
    begun: list[dict[int, int]]
    records: int
    planning_ms: list[int]
    driver_bytes: int
    source: str


def run(runs: int, records: int) -> None:
    config, note = connector_config()
    is_good = True
    session = start_session("benchmarks", memory="2g", config=config)
    try:
        for side in (Trimtab, ApacheKafka):
            try:
                with side() as broker:
                    is_good &= _measure(session, broker.name, broker.address, bool(config), note)
            except RivalMissing as missing:
                print(json.dumps({"stage": "stream_bytes", "note": str(missing)}), flush=True)
    finally:
        stop_session(session)
    if not is_good:
        raise SystemExit(1)


def _measure(session: SparkSession, name: str, address: str, has_rival: bool, note: str) -> bool:
    topic = Topics(address).create(PARTITIONS)
    progress(f"stream_bytes: writing {MB // 1_000_000} MB to {name}")
    count, size = _fill(address, topic)
    is_good = True
    for source in SOURCES:
        progress(f"stream_bytes: {name}, sizeSource={source}")
        options = {"maxBytesPerTrigger": str(LIMIT), "sizeSource": source, "includeBatches": "true"}
        ours = _stream(session, "trimtab", address, topic, options)
        line = _judge(ours) | {
            "cluster": name,
            "records": ours.records,
            "missing": count - ours.records,
        }
        print(json.dumps(line), flush=True)
        is_good &= not line["missing"]
        if source != "probe":
            is_good &= not line["over"] and line["late"] <= 1
    if has_rival:
        progress(f"stream_bytes: {name}, Spark's connector")
        most = max(LIMIT * count // size, 1)
        theirs = _stream(session, "kafka", address, topic, {"maxOffsetsPerTrigger": str(most)})
        ratios = _ratios(theirs)
        line = {
            "stage": "stream_bytes",
            "cluster": name,
            "side": f"spark-sql-kafka-0-10 {CONNECTOR_VERSION}",
            "batches": len(ratios),
            "max_to_limit": max(ratios),
            "min_to_limit": min(ratios[:-1] or ratios),
            "plan_ms_median": _median(theirs.planning_ms),
        }
        print(json.dumps(line), flush=True)
    else:
        print(json.dumps({"stage": "stream_bytes", "cluster": name, "note": note}), flush=True)
    return is_good


def _fill(address: str, topic: str) -> tuple[int, int]:
    """Write the topic; how many records, and their bytes."""
    random = Random(1)
    count = size = 0
    values = {SMALL: random.randbytes(SMALL), LARGE: random.randbytes(LARGE)}
    with Producer(address, linger_ms=0, max_request_size=2 * LARGE) as producer:
        while size < MB:
            part_large = 0.001 ** (1 - size / MB)
            length = LARGE if random.random() < part_large else SMALL
            partition = 0 if random.random() < IN_ONE else random.randrange(1, PARTITIONS)
            producer.send(topic, values[length], partition=partition)
            count += 1
            size += length
    return count, size


def _stream(
    session: SparkSession, kind: str, address: str, topic: str, options: Mapping[str, str]
) -> Read:
    batches: list[dict[int, int]] = []
    pieces: dict[int, dict[int, int]] = {number: {} for number in range(PARTITIONS)}
    begun: list[dict[int, int]] = []
    records = 0
    ours = kind == "trimtab"

    def keep(frame: DataFrame, _: int) -> None:
        nonlocal records
        if ours:
            rows = frame.groupBy("partition", "batchBaseOffset").agg(
                {"batchBytes": "first", "offset": "count"}
            )
            columns = ["partition", "batchBaseOffset", "first(batchBytes)", "count(offset)"]
        else:
            columns = ["partition", "offset", "length(value)", "1"]
            rows = frame
        sizes: Counter[int] = Counter()
        starts: dict[int, int] = {}
        for partition, first, size, number in rows.selectExpr(*map(_quoted, columns)).collect():
            sizes[partition] += size
            starts[partition] = min(first, starts.get(partition, first))
            records += number
            if ours:
                pieces[partition][first] = size
        batches.append(dict(sizes))
        begun.append(starts)

    reader = session.readStream.format(kind).option("kafka.bootstrap.servers", address)
    if ours:
        reader = reader.schema("partition int, offset long, batchBaseOffset long, batchBytes int")
    frame = reader.options(**options).option("startingOffsets", "earliest")
    with _directory() as checkpoint:
        query = (
            frame.option("subscribe", topic)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(PATIENCE_S):
            query.stop()
            raise RuntimeError(f"{kind} did not end within {PATIENCE_S} s")
        told = [each for each in query.recentProgress if each.numInputRows]
    state: dict[str, Any] = {}
    if ours:
        latest: Any = told[-1].sources[0].latestOffset
        state = (json.loads(latest) if isinstance(latest, str) else latest)[STATE]
    return Read(
        batches,
        pieces,
        begun,
        records,
        [each.durationMs["latestOffset"] for each in told],
        state.get("driverBytes", 0),
        state.get("sizeSource", ""),
    )


def _quoted(column: str) -> str:
    return f"`{column}`" if column.startswith(("first(", "count(")) else column


def _judge(read: Read) -> dict[str, Any]:
    ratios = _ratios(read)
    total = sum(sum(each.values()) for each in read.pieces.values())
    return {
        "stage": "stream_bytes",
        "side": f"trimtab, sizes by {read.source}",
        "batches": len(ratios),
        "max_to_limit": max(ratios),
        "min_to_limit": min(ratios[:-1] or ratios),
        "over": sum(
            sum(sizes.values()) > LIMIT and not _is_single(read, index)
            for index, sizes in enumerate(read.batches)
        ),
        "late": _find_latest(read),
        "driver_read": round(read.driver_bytes / total, 3),
        "plan_ms_median": _median(read.planning_ms),
        "plan_ms_max": max(read.planning_ms),
    }


def _ratios(read: Read) -> list[float]:
    return [round(sum(sizes.values()) / LIMIT, 3) for sizes in read.batches if sizes]


def _is_single(read: Read, index: int) -> bool:
    """Whether a batch consists of one record batch."""
    sizes = read.batches[index]
    if len(sizes) != 1:
        return False
    (partition,) = sizes
    return sizes[partition] == read.pieces[partition][read.begun[index][partition]]


def _find_latest(read: Read) -> int:
    """By how many batches a partition waited longer than its share of the limit explains."""
    left = {number: dict(sorted(each.items())) for number, each in read.pieces.items()}
    waited: Counter[int] = Counter()
    worst = -len(read.batches)
    for sizes in read.batches:
        active = [number for number, each in left.items() if each]
        share = LIMIT // max(len(active), 1)
        for number in active:
            waited[number] += 1
            following = next(iter(left[number].values()))
            if number not in sizes:
                worst = max(worst, waited[number] - -(-following // share))
                continue
            waited[number] = 0
            taken = 0
            while taken < sizes[number]:
                taken += left[number].pop(next(iter(left[number])))
    return worst


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name:
        yield Path(name)


if __name__ == "__main__":
    run(1, 0)
