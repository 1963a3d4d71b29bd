"""One member of a group in a process of its own, by any Python client; it tells what it does.

    python -m lab.benchmarks.group_member CLIENT PROTOCOL SERVERS GROUP TOPIC [INSTANCE]

After each poll it tells what it has processed, commits its positions and tells that it has. So each
record is processed at least once, if the group is in order. Each line is a JSON object:
`{"processed": [[partition, first, last]]}`, `{"committed": {partition: offset}}` or
`{"error": text}`. It closes its consumer on SIGTERM, or at the end of its standard input; a static
member then stays in the group.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from threading import Event, Thread
from typing import Any, NamedTuple

SESSION_S = 6
"""Of the classic protocol; the least that brokers accept."""
_POLL_S = 0.2


class Membership(NamedTuple):
    """What a member needs to join."""

    protocol: str
    servers: str
    group: str
    topic: str
    instance: str | None

    @property
    def is_classic(self) -> bool:
        return self.protocol == "classic"


def tell(**event: object) -> None:
    """Print one line."""
    print(json.dumps(event), flush=True)


def tell_processed(offsets: Mapping[int, Iterable[int]]) -> None:
    """Tell the offsets of a poll, by partition."""
    ranges = []
    for partition, found in offsets.items():
        begin = last = -1
        for offset in found:
            if offset != last + 1 or begin < 0:
                if begin >= 0:
                    ranges.append([partition, begin, last])
                begin = offset
            last = offset
        if begin >= 0:
            ranges.append([partition, begin, last])
    if ranges:
        tell(processed=ranges)


def read_with_confluent(membership: Membership, stopped: Event) -> None:
    from confluent_kafka import Consumer, KafkaException

    options: dict[str, Any] = {
        "bootstrap.servers": membership.servers,
        "group.id": membership.group,
        "group.protocol": membership.protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if membership.is_classic:
        options |= {"session.timeout.ms": SESSION_S * 1000, "heartbeat.interval.ms": 500}
    if membership.instance is not None:
        options["group.instance.id"] = membership.instance
    consumer = Consumer(options)
    consumer.subscribe([membership.topic])
    while not stopped.is_set():
        offsets: dict[int, list[int]] = {}
        for message in consumer.consume(500, _POLL_S):
            error = message.error()
            if error is None:
                offsets.setdefault(message.partition() or 0, []).append(message.offset() or 0)
            elif error.fatal():
                raise KafkaException(error)
            else:
                tell(error=str(error))
        if offsets:
            tell_processed(offsets)
            try:
                committed = consumer.commit(asynchronous=False)
            except KafkaException as refused:
                tell(error=f"commit: {refused}")
            else:
                tell(committed={each.partition: each.offset for each in committed or ()})
    consumer.close()


def read_with_kafka_python(membership: Membership, stopped: Event) -> None:
    import kafka
    from kafka.errors import KafkaError

    consumer = kafka.KafkaConsumer(
        membership.topic,
        bootstrap_servers=membership.servers,
        group_id=membership.group,
        group_instance_id=membership.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_S * 1000,
        heartbeat_interval_ms=500,
    )
    while not stopped.is_set():
        polled = consumer.poll(round(_POLL_S * 1000))
        if polled:
            tell_processed(
                {each.partition: [r.offset for r in found] for each, found in polled.items()}
            )
            try:
                consumer.commit()
            except KafkaError as refused:
                tell(error=f"commit: {refused}")
            else:
                tell(committed={each.partition: r[-1].offset + 1 for each, r in polled.items()})
    consumer.close()


def read_with_aiokafka(membership: Membership, stopped: Event) -> None:
    import aiokafka
    from aiokafka.errors import KafkaError

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            membership.topic,
            bootstrap_servers=membership.servers,
            group_id=membership.group,
            group_instance_id=membership.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_S * 1000,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        while not stopped.is_set():
            polled = await consumer.getmany(timeout_ms=round(_POLL_S * 1000))
            if polled:
                positions = {each: found[-1].offset + 1 for each, found in polled.items()}
                tell_processed(
                    {each.partition: [r.offset for r in found] for each, found in polled.items()}
                )
                try:
                    await consumer.commit(positions)
                except KafkaError as refused:
                    tell(error=f"commit: {refused!r}")
                else:
                    tell(committed={each.partition: at for each, at in positions.items()})
        await consumer.stop()

    asyncio.run(read())


def read_with_trimtab(membership: Membership, stopped: Event) -> None:
    from trimtab import Consumer
    from trimtab.kafka.errors import KafkaError, UsageError

    options: dict[str, Any] = {"group_protocol": membership.protocol}
    if membership.is_classic:
        options |= {
            "partition_assignment_strategy": "range,roundrobin",
            "session_timeout_ms": SESSION_S * 1000,
            "heartbeat_interval_ms": 500,
        }
    if membership.instance is not None:
        options["group_instance_id"] = membership.instance
    with Consumer(
        membership.servers,
        group_id=membership.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    ) as consumer:
        consumer.subscribe([membership.topic])
        while not stopped.is_set():
            offsets: dict[int, list[int]] = {}
            for record in consumer.poll(round(_POLL_S * 1000)):
                offsets.setdefault(record.partition, []).append(record.offset)
            if offsets:
                tell_processed(offsets)
                try:
                    consumer.commit()
                except UsageError:
                    raise
                except KafkaError as refused:
                    tell(error=f"commit: {refused}")
                else:
                    tell(committed={each: found[-1] + 1 for each, found in offsets.items()})


CLIENTS: dict[str, Callable[[Membership, Event], None]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "trimtab": read_with_trimtab,
}


def main() -> None:
    client, protocol, servers, group, topic, *instance = sys.argv[1:]
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def await_the_end() -> None:
        sys.stdin.read()
        stopped.set()

    Thread(target=await_the_end, daemon=True).start()
    CLIENTS[client](
        Membership(protocol, servers, group, topic, instance[0] if instance else None), stopped
    )


if __name__ == "__main__":
    main()
