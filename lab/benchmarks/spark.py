"""Reading a topic into Spark: our data source beside Spark's own Kafka connector.

All read the same topic of our cluster in the same Spark session, by turns: ours, the connector as
it comes, and the connector with more records in each poll, which is its best tuning. A row counts
only when its value has crossed the connector (lengths are summed).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lab.benchmarks.jars import CONNECTOR_VERSION, connector_config
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import RECORD_BYTES, Topics, run_producer_loop
from lab.processes import Trimtab
from trimtab.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP_RUNS = 2
RIVAL = f"spark-sql-kafka-0-10 {CONNECTOR_VERSION}"


class Reader(NamedTuple):
    """A format and the options it reads with."""

    name: str
    format: str
    options: Mapping[str, str]


OURS = Reader("trimtab", "trimtab", {})
RIVALS = (
    Reader(f"{RIVAL}, default", "kafka", {}),
    Reader(f"{RIVAL}, tuned", "kafka", {"kafka.max.poll.records": "20000"}),
)


def run(runs: int, records: int) -> None:
    config, note = connector_config()
    readers = [OURS, *RIVALS] if config else [OURS]
    with Trimtab() as broker:
        topic = Topics(broker.address).create()
        progress(f"spark: writing {records} records")
        run_producer_loop("confluent-kafka", broker, records, {"batch.size": 131072}, topic)
        session = start_session("benchmarks", memory="2g", config=config)
        try:
            rates: dict[str, list[float]] = {each.name: [] for each in (OURS, *RIVALS)}
            for number in range(-WARM_UP_RUNS, runs):
                progress(
                    f"spark: run {number + 1} of {runs}" if number >= 0 else "spark: warming up"
                )
                for reader in readers:
                    rate = _read(session, reader, broker.address, topic, records)
                    if number >= 0:
                        rates[reader.name].append(rate)
        finally:
            stop_session(session)
    for rival in RIVALS:
        report(
            *("spark", f"rows_per_s, {records} records of {RECORD_BYTES} B", "rows/s"),
            *(rates[OURS.name], rival.name, rates[rival.name]),
            more_is_better=True,
            note=note,
        )


def _read(session: SparkSession, reader: Reader, address: str, topic: str, records: int) -> float:
    """Rows a second of one read of the whole topic."""
    began = time.perf_counter()
    source = session.read.format(reader.format).options(**reader.options)
    frame = source.option("kafka.bootstrap.servers", address).option("subscribe", topic).load()
    row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size").collect()[0]
    seconds = time.perf_counter() - began
    if (row.n, row.size) != (records, records * RECORD_BYTES):
        raise RuntimeError(f"{reader.name} read {row.n} rows of {records}, {row.size} bytes")
    return records / seconds
