"""One consumer in its own process: reads a topic from its beginning. Prints a JSON line.

usage: python -m lab.benchmarks.consumer_loop CLIENT ADDRESS TOPIC PARTITIONS RECORDS BYTES

The time includes the lookup of the first offsets, but neither imports nor the first connection.
Every client assigns all partitions, without a group, and looks at each value; so the loop checks
that exactly RECORDS records with values of BYTES came first.

It imports a client only when it runs it: kafkarrow's is run by a Python without trimtab.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

AT_ONCE = 500
"""Records in a list at most, the default of `max.poll.records`."""


class Job(NamedTuple):
    """What to read."""

    address: str
    topic: str
    partitions: int
    records: int


Count = tuple[int, int]
"""Records, and bytes of their values."""
Loop = Callable[[], Count]


def _iterate(consumer: Any, job: Job) -> Count:
    count = size = 0
    for record in consumer:
        size += len(record.value)
        count += 1
        if count == job.records:
            break
    return count, size


def _trimtab(job: Job) -> Any:
    from trimtab.client.blocking.consumer import Consumer

    consumer = Consumer(job.address, auto_offset_reset="earliest")
    assigned = [(job.topic, partition) for partition in range(job.partitions)]
    consumer.end_offsets(assigned)
    consumer.assign(assigned)
    return consumer


def prepare_trimtab(job: Job) -> Loop:
    consumer = _trimtab(job)
    return lambda: _iterate(consumer, job)


def prepare_trimtab_lists(job: Job) -> Loop:
    consumer = _trimtab(job)

    def loop() -> Count:
        count = size = 0
        while count < job.records:
            records = consumer.poll(max_records=min(AT_ONCE, job.records - count))
            for record in records:
                size += len(record.value)
            count += len(records)
        return count, size

    return loop


def prepare_trimtab_columns(job: Job) -> Loop:
    consumer = _trimtab(job)
    consumer.pause(*consumer.assignment())
    consumer.arrow(timeout_ms=0)  # pyarrow's initialization
    consumer.resume(*consumer.assignment())

    def loop() -> Count:
        count = size = 0
        while count < job.records:
            table = consumer.arrow()
            # The last table may have more than is wanted.
            values = table.column("value").slice(0, job.records - count)
            size += sum(_bytes_of(chunk) for chunk in values.chunks)
            count += len(values)
        return count, size

    return loop


def prepare_trimtab_asyncio(job: Job) -> Loop:
    from trimtab.client.consumer import AsyncConsumer

    assigned = [(job.topic, partition) for partition in range(job.partitions)]

    async def start() -> AsyncConsumer:
        consumer = AsyncConsumer(job.address, auto_offset_reset="earliest")
        await consumer.end_offsets(assigned)
        consumer.assign(assigned)
        return consumer

    async def loop(consumer: AsyncConsumer) -> Count:
        count = size = 0
        async for record in consumer:
            size += len(record.value)
            count += 1
            if count == job.records:
                break
        return count, size

    return _on_loop(start, loop)


def _confluent(job: Job) -> tuple[Any, list[Any]]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": "bench",  # required, though nobody joins it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.list_topics(job.topic, timeout=30)
    return consumer, [
        TopicPartition(job.topic, partition, OFFSET_BEGINNING)
        for partition in range(job.partitions)
    ]


def prepare_confluent(job: Job) -> Loop:
    consumer, assigned = _confluent(job)

    def loop() -> Count:
        consumer.assign(assigned)
        poll = consumer.poll
        count = size = 0
        while count < job.records:
            message = poll(1.0)
            if message is not None and message.error() is None:
                size += len(message.value())
                count += 1
        return count, size

    return loop


def prepare_confluent_lists(job: Job) -> Loop:
    consumer, assigned = _confluent(job)

    def loop() -> Count:
        consumer.assign(assigned)
        count = size = 0
        while count < job.records:
            messages = consumer.consume(min(AT_ONCE, job.records - count), 1.0)
            for message in messages:
                size += len(message.value())
            count += len(messages)
        return count, size

    return loop


def _aiokafka(job: Job) -> Callable[[], Any]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def start() -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=job.address, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
        return consumer

    return start


def prepare_aiokafka(job: Job) -> Loop:
    async def loop(consumer: Any) -> Count:
        count = size = 0
        async for record in consumer:
            size += len(record.value)
            count += 1
            if count == job.records:
                break
        await consumer.stop()
        return count, size

    return _on_loop(_aiokafka(job), loop)


def prepare_aiokafka_lists(job: Job) -> Loop:
    async def loop(consumer: Any) -> Count:
        count = size = 0
        while count < job.records:
            most = min(AT_ONCE, job.records - count)
            for records in (await consumer.getmany(timeout_ms=1000, max_records=most)).values():
                for record in records:
                    size += len(record.value)
                count += len(records)
        await consumer.stop()
        return count, size

    return _on_loop(_aiokafka(job), loop)


def prepare_kafka_python(job: Job) -> Loop:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=job.address, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    consumer.partitions_for_topic(job.topic)

    def loop() -> Count:
        consumer.assign([TopicPartition(job.topic, number) for number in range(job.partitions)])
        return _iterate(consumer, job)

    return loop


def prepare_kafkarrow(job: Job) -> Loop:
    from kafkarrow import ConsumerManager, SourceTopic  # type: ignore[import-not-found]

    def loop() -> Count:
        manager = ConsumerManager(
            config={"bootstrap.servers": job.address, "group.id": "bench"},
            topics=[SourceTopic.from_earliest(job.topic)],
        )
        count = size = 0
        while count < job.records:
            values = manager.poll(timeout_ms=1000).column("value").slice(0, job.records - count)
            size += _bytes_of(values)
            count += len(values)
        return count, size

    return loop


def _bytes_of(values: Any) -> int:
    """The bytes in a binary array, without a look at each."""
    import struct

    _, offsets, _ = values.buffers()
    if not len(values):
        return 0
    (first,) = struct.unpack_from("=i", offsets, 4 * values.offset)
    (end,) = struct.unpack_from("=i", offsets, 4 * (values.offset + len(values)))
    return int(end - first)


def _on_loop(start: Callable[[], Any], loop: Callable[[Any], Any]) -> Loop:
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    consumer = runner.run(start())
    return lambda: runner.run(loop(consumer))


CLIENTS: dict[str, Callable[[Job], Loop]] = {
    "trimtab": prepare_trimtab,
    "trimtab lists": prepare_trimtab_lists,
    "trimtab columns": prepare_trimtab_columns,
    "trimtab asyncio": prepare_trimtab_asyncio,
    "confluent-kafka": prepare_confluent,
    "confluent-kafka lists": prepare_confluent_lists,
    "aiokafka": prepare_aiokafka,
    "aiokafka lists": prepare_aiokafka_lists,
    "kafka-python": prepare_kafka_python,
    "kafkarrow": prepare_kafkarrow,
}


def main() -> None:
    client, address, topic, partitions, records, size = sys.argv[1:]
    loop = CLIENTS[client](Job(address, topic, int(partitions), int(records)))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    begin = _memory("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    count, octets = loop()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if count != int(records) or octets != count * int(size):
        raise SystemExit(f"{client} read {count} records with {octets} bytes")
    peak = _memory("VmHWM") - begin
    print(json.dumps({"seconds": wall, "cpu_seconds": cpu, "peak_bytes": peak}))


def _memory(name: str) -> int:
    """A line of the process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


if __name__ == "__main__":
    main()
