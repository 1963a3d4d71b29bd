"""One producer in its own process: a loop of sends, then a flush. Prints a JSON line.

usage: python -m lab.benchmarks.producer_loop CLIENT ADDRESS TOPIC RECORDS BYTES JSON

JSON has the producer's options, with Kafka's names. The time includes the flush, but not imports,
the connection and the fetch of metadata. `peak_mib` is the process's peak memory minus its memory
before the loop, which includes the input.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

Loop = Callable[[], None]
Stop = Callable[[], Coroutine[Any, Any, None]]

TABLE_ROWS = 250_000
BATCH_MESSAGES = 10_000
"""Records in each call of confluent-kafka's `produce_batch`."""


def prepare_trimtab(topic: str, records: int, value: bytes, options: dict[str, Any]) -> Loop:
    from trimtab.client.blocking.producer import Producer

    producer = Producer(**options)
    producer.send(topic, value).result()

    def loop() -> None:
        send = producer.send
        for _ in range(records):
            send(topic, value)
        producer.flush()

    return loop


class _Outcomes:
    """Delivery callbacks for both clients, which count their calls."""

    def __init__(self) -> None:
        self.count = 0

    def trimtab(self, delivery: Any) -> None:
        if delivery.exception() is None:
            self.count += 1

    def confluent(self, error: Any, message: Any) -> None:
        if error is None:
            self.count += 1

    def check(self, records: int) -> None:
        if self.count != records:
            raise RuntimeError(f"{self.count} of {records} records called back")


def prepare_trimtab_callbacks(
    topic: str, records: int, value: bytes, options: dict[str, Any]
) -> Loop:
    from trimtab.client.blocking.producer import Producer

    producer = Producer(**options)
    producer.send(topic, value).result()
    outcomes = _Outcomes()

    def loop() -> None:
        send, on_delivery = producer.send, outcomes.trimtab
        for _ in range(records):
            send(topic, value, on_delivery=on_delivery)
        producer.flush()
        outcomes.check(records)

    return loop


def prepare_trimtab_table(topic: str, records: int, value: bytes, options: dict[str, Any]) -> Loop:
    import pyarrow

    from trimtab.client.blocking.producer import Producer

    producer = Producer(**options)
    producer.send(topic, value).result()
    table = pyarrow.table({"value": [value] * min(records, TABLE_ROWS)})
    producer.send_table(topic, table.slice(0, 0)).result()  # pyarrow's initialization

    def loop() -> None:
        rest = records
        while rest > 0:
            sent = min(rest, TABLE_ROWS)
            producer.send_table(topic, table.slice(0, sent))
            rest -= sent
        producer.flush()

    return loop


def prepare_trimtab_asyncio(
    topic: str, records: int, value: bytes, options: dict[str, Any]
) -> Loop:
    from trimtab.client.producer import AsyncProducer

    async def start() -> tuple[Any, Stop]:
        producer = AsyncProducer(**options)
        await (await producer.send(topic, value))
        return producer, producer.close

    return _on_loop(start, topic, records, value)


def prepare_aiokafka(topic: str, records: int, value: bytes, options: dict[str, Any]) -> Loop:
    from aiokafka import AIOKafkaProducer

    acks = str(options.get("acks", "1"))
    renamed = {
        "bootstrap_servers": options["bootstrap.servers"],
        "acks": "all" if acks in ("-1", "all") else int(acks),
        **({"linger_ms": options["linger.ms"]} if "linger.ms" in options else {}),
        **({"max_batch_size": options["batch.size"]} if "batch.size" in options else {}),
    }

    async def start() -> tuple[Any, Stop]:
        producer = AIOKafkaProducer(**renamed)
        await producer.start()
        await producer.send_and_wait(topic, value)
        return producer, producer.stop

    return _on_loop(start, topic, records, value)


def _on_loop(
    start: Callable[[], Coroutine[Any, Any, tuple[Any, Stop]]],
    topic: str,
    records: int,
    value: bytes,
) -> Loop:
    """Run an asyncio client on uvloop; closing it flushes."""
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    producer, stop = runner.run(start())

    async def send_all() -> None:
        send = producer.send
        for _ in range(records):
            await send(topic, value)
        await stop()

    return lambda: runner.run(send_all())


def _confluent(topic: str, value: bytes, options: dict[str, Any]) -> Any:
    from confluent_kafka import Producer

    producer = Producer({"queue.buffering.max.messages": 1_000_000, "log_level": 0, **options})
    producer.produce(topic, value)
    producer.flush()
    return producer


def prepare_confluent(
    topic: str,
    records: int,
    value: bytes,
    options: dict[str, Any],
    outcomes: _Outcomes | None = None,
) -> Loop:
    producer = _confluent(topic, value, options)
    more = {} if outcomes is None else {"on_delivery": outcomes.confluent}

    def loop() -> None:
        produce, poll = producer.produce, producer.poll
        for number in range(records):
            while True:
                try:
                    produce(topic, value, **more)
                    break
                except BufferError:  # the queue is full; trimtab's `send` blocks instead
                    poll(0.01)
            if number % 1000 == 0:
                poll(0)
        producer.flush()
        if outcomes is not None:
            outcomes.check(records)

    return loop


def prepare_confluent_callbacks(
    topic: str, records: int, value: bytes, options: dict[str, Any]
) -> Loop:
    return prepare_confluent(topic, records, value, options, _Outcomes())


def prepare_confluent_batch(
    topic: str, records: int, value: bytes, options: dict[str, Any]
) -> Loop:
    producer = _confluent(topic, value, options)

    def loop() -> None:
        messages = [{"value": value} for _ in range(BATCH_MESSAGES)]
        rest = records
        while rest > 0:
            queued = producer.produce_batch(topic, messages[:rest])
            rest -= queued
            producer.poll(0 if queued == BATCH_MESSAGES else 0.01)
        producer.flush()

    return loop


CLIENTS: dict[str, Callable[[str, int, bytes, dict[str, Any]], Loop]] = {
    "trimtab": prepare_trimtab,
    "trimtab with callbacks": prepare_trimtab_callbacks,
    "trimtab send_table": prepare_trimtab_table,
    "trimtab asyncio": prepare_trimtab_asyncio,
    "confluent-kafka": prepare_confluent,
    "confluent-kafka with callbacks": prepare_confluent_callbacks,
    "confluent-kafka produce_batch": prepare_confluent_batch,
    "aiokafka": prepare_aiokafka,
}


def _memory_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+)", status)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {name}")
    return int(found[1]) / 1024


def main() -> None:
    client, address, topic, records, size, options = sys.argv[1:]
    loop = CLIENTS[client](
        topic,
        int(records) - 1,  # one was sent before, to connect
        b"x" * int(size),
        {"bootstrap.servers": address, **json.loads(options)},
    )
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of memory
    before = _memory_mib("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    loop()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    answer = {"seconds": wall, "cpu_seconds": cpu, "peak_mib": _memory_mib("VmHWM") - before}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
