"""What a small micro-batch takes: our source beside Spark's own Kafka connector, in one session.

Both read the same topic of four partitions, on our cluster, into nothing and into another topic.
Of each there are two figures, medians of a stream's micro-batches once it is under way:

* `micro_batch_s`: the whole trigger, over a backlog that is read `BATCH_ROWS` records at a time.
* `latency_s`: at a trickle, from the moment that a few records are acknowledged to the progress of
  the micro-batch that has read them. The look for new records is part of it.

Exit code 1: ours takes more than 0.1 s longer to read, or more than 0.15 s longer with a sink.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.benchmarks.jars import CONNECTOR_VERSION, connector_config
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import RECORD_BYTES, Topics
from lab.processes import Trimtab
from trimtab import Producer
from trimtab.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RIVAL = f"spark-sql-kafka-0-10 {CONNECTOR_VERSION}"
TASKS = 4
BATCHES = 12
FIRST_BATCHES = 4
"""Micro-batches that are not counted: processes start."""
BATCH_ROWS = 2_000
TRICKLE_ROWS = 40
LOOK_S = 0.005
PATIENCE_S = 120.0
MORE_S = {"nothing": 0.1, "a topic": 0.15}
"""By sink, how much longer than the connector's ours may take."""


def run(runs: int, records: int) -> None:
    config, note = connector_config()
    kinds = ["trimtab"] if note else ["trimtab", "kafka"]
    seconds: dict[tuple[str, str, str], list[float]] = {}
    session = start_session("benchmarks", memory="1g", config=config)
    try:
        with Trimtab() as side, closing(_Bench(session, side.address)) as bench:
            for number in range(-1, runs):
                progress(f"micro_batch: {'warming up' if number < 0 else f'run {number + 1}'}")
                for sink in MORE_S:
                    for kind in kinds:
                        for metric, took in (
                            ("micro_batch_s", bench.read_backlog(kind, sink)),
                            ("latency_s", bench.read_trickle(kind, sink)),
                        ):
                            if number >= 0:
                                seconds.setdefault((metric, sink, kind), []).append(took)
    finally:
        stop_session(session)
    is_good = True
    for sink, more in MORE_S.items():
        for metric in ("micro_batch_s", "latency_s"):
            ours = seconds[metric, sink, "trimtab"]
            theirs = seconds.get((metric, sink, "kafka"), [])
            report(
                *("micro_batch", f"{metric}, {TASKS} tasks into {sink}", "s"),
                *(ours, RIVAL, theirs),
                more_is_better=False,
                note=note,
            )
            if theirs:
                is_good &= statistics.median(ours) <= statistics.median(theirs) + more
    if not is_good:
        raise SystemExit(1)


class _Bench:
    """Streams over one cluster."""

    def __init__(self, session: SparkSession, address: str) -> None:
        self._session = session
        self._producer = Producer(address, linger_ms=20)
        self._address = address
        self._topics = Topics(address)
        self._backlog = self._topics.create(TASKS)
        self._send(self._backlog, (FIRST_BATCHES + BATCHES) * BATCH_ROWS)

    def close(self) -> None:
        self._producer.close()

    def read_backlog(self, kind: str, sink: str) -> float:
        """Seconds of a micro-batch."""
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_ROWS)}
        with self._start(kind, sink, self._backlog, options, availableNow=True) as query:
            query.awaitTermination()
            took = [
                each["durationMs"]["triggerExecution"] / 1000
                for each in query.recentProgress
                if each["numInputRows"] > 0
            ]
        if len(took) != FIRST_BATCHES + BATCHES:
            raise RuntimeError(f"{kind}: {len(took)} micro-batches")
        return float(statistics.median(took[FIRST_BATCHES:]))

    def read_trickle(self, kind: str, sink: str) -> float:
        """Seconds from records to the end of their micro-batch."""
        topic = self._topics.create(TASKS)
        took = []
        options = {"startingOffsets": "earliest"}
        with self._start(kind, sink, topic, options, processingTime="0 seconds") as query:
            for number in range(FIRST_BATCHES + BATCHES):
                self._send(topic, TRICKLE_ROWS)
                began = time.perf_counter()
                self._await_rows(query, topic, (number + 1) * TRICKLE_ROWS)
                took.append(time.perf_counter() - began)
        self._topics.delete(topic)
        return float(statistics.median(took[FIRST_BATCHES:]))

    @contextmanager
    def _start(
        self, kind: str, sink: str, topic: str, options: dict[str, str], **trigger: Any
    ) -> Iterator[StreamingQuery]:
        reader = self._session.readStream.format(kind).options(**options)
        reader = reader.option("kafka.bootstrap.servers", self._address)
        frame = reader.option("subscribe", topic).load().select("key", "value")
        with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as directory:
            writer = frame.writeStream.option("checkpointLocation", str(Path(directory) / "c"))
            target = ""
            if sink == "nothing":
                writer = writer.format("noop")
            else:
                target = self._topics.create(TASKS)
                writer = writer.format(kind).option("kafka.bootstrap.servers", self._address)
                writer = writer.option("topic", target)
            query = writer.trigger(**trigger).start()
            try:
                yield query
            finally:
                query.stop()
                if target:
                    self._topics.delete(target)

    def _await_rows(self, query: StreamingQuery, topic: str, count: int) -> None:
        """Until the micro-batches that are done have read so many records of the topic."""
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            last = query.lastProgress
            ends = last and last["sources"][0]["endOffset"]
            if ends and sum(json.loads(ends)[topic].values()) >= count:
                return
            if not query.isActive:
                raise RuntimeError(f"the query ended: {query.exception()}")
            time.sleep(LOOK_S)
        raise RuntimeError(f"{count} records were not read within {PATIENCE_S:g} s")

    def _send(self, topic: str, count: int) -> None:
        """Acknowledged when this returns, and appended at once if they are few."""
        for number in range(count):
            self._producer.send(topic, bytes(RECORD_BYTES), partition=number % TASKS)
        self._producer.flush()
