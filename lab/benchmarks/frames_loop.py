"""One reader in its own process: builds a frame of a topic. Prints a JSON line.

usage: python -m lab.benchmarks.frames_loop CLIENT FRAME ADDRESS TOPIC PARTITIONS RECORDS

FRAME is polars, duckdb or pandas; the frame has the columns key, value, partition, offset and
timestamp. Time and memory include connecting, but not imports.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lab.processes import peak_mib, reset_peak, resident_mib

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
CHUNK = 100_000
"""Records that a loop over messages collects before it makes columns of them."""
_PATIENCE_S = 60


class Job(NamedTuple):
    """What to read."""

    address: str
    topic: str
    partitions: int
    records: int


Columns = dict[str, list[Any]]


def _trimtab(job: Job, frame: str) -> Any:
    import trimtab

    scan = trimtab.read(job.topic, job.address, columns=COLUMNS)
    if frame == "polars":
        return scan.to_polars().collect()
    if frame == "pandas":
        return importlib.import_module("pandas").DataFrame.from_arrow(scan)
    connection = importlib.import_module("duckdb").connect()
    scan.to_duckdb(connection).create("flights")
    return connection


def _confluent_chunks(job: Job) -> Iterator[Columns]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": job.address, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(job.topic, number, 0) for number in range(job.partitions)])
    left = job.records
    while left:
        messages: list[Any] = []
        while len(messages) < min(CHUNK, left):
            messages += consumer.consume(min(CHUNK, left) - len(messages), _PATIENCE_S)
        left -= len(messages)
        yield {
            "key": [each.key() for each in messages],
            "value": [each.value() for each in messages],
            "partition": [each.partition() for each in messages],
            "offset": [each.offset() for each in messages],
            "timestamp": [each.timestamp()[1] for each in messages],
        }
    consumer.close()


def _aiokafka_chunks(job: Job) -> Iterator[Columns]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    with asyncio.Runner() as runner:
        consumer: Any = None

        async def start() -> None:
            nonlocal consumer
            consumer = AIOKafkaConsumer(
                bootstrap_servers=job.address, auto_offset_reset="earliest", group_id=None
            )
            await consumer.start()
            consumer.assign([TopicPartition(job.topic, each) for each in range(job.partitions)])

        async def get(limit: int) -> list[Any]:
            found = await consumer.getmany(timeout_ms=_PATIENCE_S * 1000, max_records=limit)
            return [record for records in found.values() for record in records]

        runner.run(start())
        left = job.records
        while left:
            records: list[Any] = []
            while len(records) < min(CHUNK, left):
                records += runner.run(get(min(CHUNK, left) - len(records)))
            left -= len(records)
            yield {name: [getattr(each, name) for each in records] for name in COLUMNS}
        runner.run(consumer.stop())


def _build(chunks: Iterator[Columns], frame: str) -> Any:
    """A frame of columns that a loop over messages has collected."""
    module = importlib.import_module(frame)
    if frame == "polars":
        schema = {"key": module.Binary, "value": module.Binary, "partition": module.Int32}
        schema |= {"offset": module.Int64, "timestamp": module.Int64}
        return module.concat([module.DataFrame(each, schema) for each in chunks])
    if frame == "pandas":
        return module.concat([module.DataFrame(each) for each in chunks], ignore_index=True)
    import pyarrow as pa

    kinds = [pa.binary(), pa.binary(), pa.int32(), pa.int64(), pa.int64()]
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    connection = module.connect()
    for index, each in enumerate(chunks):
        chunk = pa.table(each, schema)
        connection.register("chunk", chunk)
        verb = "INSERT INTO" if index else "CREATE TABLE"
        connection.execute(f"{verb} flights {'' if index else 'AS'} FROM chunk")
    return connection


def _tributary(job: Job, frame: str) -> Any:
    connection = importlib.import_module("duckdb").connect()
    connection.execute("LOAD tributary")
    connection.execute(
        'CREATE TABLE flights AS SELECT partition, "offset", message AS value'
        f" FROM tributary_scan_topic('{job.topic}', \"bootstrap.servers\" := '{job.address}')"
    )
    return connection


CLIENTS: dict[str, Callable[[Job, str], Any]] = {
    "trimtab": _trimtab,
    "confluent-kafka": lambda job, frame: _build(_confluent_chunks(job), frame),
    "aiokafka": lambda job, frame: _build(_aiokafka_chunks(job), frame),
    "tributary": _tributary,
}


MODULES = {
    "trimtab": ("trimtab.client.blocking.scan", "trimtab.client.blocking.frames"),
    "confluent-kafka": ("confluent_kafka",),
    "aiokafka": ("aiokafka",),
    "tributary": (),
}


def _check(built: Any, frame: str, records: int) -> None:
    """Every record is there, once: their offsets are those of a topic filled in turns."""
    if frame == "duckdb":
        rows, values = built.execute("SELECT count(*), count(value) FROM flights").fetchone()
    else:
        rows, values = len(built), int(built["value"].count())
    if (rows, values) != (records, records):
        raise RuntimeError(f"{rows} rows, {values} values, but there are {records} records")


def main() -> None:
    client, frame, address, topic, partitions, records = sys.argv[1:]
    job = Job(address, topic, int(partitions), int(records))
    for name in (frame, "pyarrow.compute", *MODULES[client]):
        importlib.import_module(name)
    reset_peak(os.getpid())
    before, cpu, began = resident_mib(os.getpid()), time.process_time(), time.perf_counter()
    built = CLIENTS[client](job, frame)
    told = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": peak_mib(os.getpid()) - before,
        "frame_mib": resident_mib(os.getpid()) - before,
    }
    _check(built, frame, job.records)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
