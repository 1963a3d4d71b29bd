"""One producer in a process of its own: a plain loop of sends, then a flush. Prints a JSON line.

usage: python -m benchmarks.producer_loop trimtab|confluent-kafka ADDRESS TOPIC RECORDS BYTES JSON

The options are JSON. Connecting and learning about the topic is not timed; flushing is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Loop = Callable[[], None]


def prepare_trimtab(topic: str, records: int, value: bytes, options: dict[str, Any]) -> Loop:
    from trimtab.client.producer import Producer

    producer = Producer(**options)
    producer.send(topic, value).result()

    def loop() -> None:
        send = producer.send
        for _ in range(records):
            send(topic, value)
        producer.flush()

    return loop


def prepare_confluent(topic: str, records: int, value: bytes, options: dict[str, Any]) -> Loop:
    from confluent_kafka import Producer

    producer = Producer({"queue.buffering.max.messages": 1_000_000, "log_level": 0, **options})
    producer.produce(topic, value)
    producer.flush()

    def loop() -> None:
        produce, poll = producer.produce, producer.poll
        for number in range(records):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:  # its queue is full; ours waits by itself
                    poll(0.01)
            if number % 1000 == 0:
                poll(0)
        producer.flush()

    return loop


CLIENTS = {"trimtab": prepare_trimtab, "confluent-kafka": prepare_confluent}


def main() -> None:
    client, address, topic, records, size, options = sys.argv[1:]
    loop = CLIENTS[client](
        topic,
        int(records) - 1,  # one went ahead, to connect
        b"x" * int(size),
        {"bootstrap.servers": address, **json.loads(options)},
    )
    cpu, wall = time.process_time(), time.perf_counter()
    loop()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"seconds": wall, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
