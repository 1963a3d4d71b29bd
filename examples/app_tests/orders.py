"""An application in confluent-kafka: it bills orders. It knows nothing of trimtab.

Orders come in the topic `orders`, bills go to `bills`, each under its customer.
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

PRICES = {"apple": 3, "pear": 4}


def key_of(order: dict[str, Any]) -> str:
    """What decides the partition: bills of a customer stay in order."""
    return str(order["customer"])


def make_producer(servers: str, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": servers, "acks": "all", **options})


def send_bills(producer: Producer, topic: str, orders: list[dict[str, Any]]) -> None:
    """Send a bill for each order; returns once the brokers have all, or raises."""
    failed: list[Any] = []
    for order in orders:
        total = PRICES[order["fruit"]] * order["count"]
        producer.produce(
            topic,
            json.dumps({**order, "total": total}),
            key=key_of(order),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    producer.flush()
    if failed:
        raise KafkaException(failed[0])


def bill(servers: str, orders: str, bills: str, group: str, count: int) -> None:
    """Bill the next `count` orders. Offsets are committed once the bills are stored: after a crash
    an order may be billed twice, but none is lost."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = make_producer(servers)
    consumer.subscribe([orders])
    try:
        while count:
            messages = consumer.consume(min(count, 500), timeout=1)
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
            send_bills(producer, bills, [json.loads(each.value() or b"") for each in messages])
            if messages:
                consumer.commit(asynchronous=False)
            count -= len(messages)
    finally:
        consumer.close()
