"""A process that copies one topic to another in transactions, by any Python client.

    python -m lab.benchmarks.copier CLIENT SERVERS SOURCE TARGET ID SIZE TIMEOUT_MS [PARTITION …]

It reads committed records of SOURCE, and writes each to the same partition of TARGET. The offsets,
of group SOURCE, are part of the transaction. It aborts one of three transactions, and begins again
at the committed offsets. Without partitions it is a member of the group (KIP-447); with partitions
it reads these, and only the transactional ID fences a former copier.

Each line is a JSON object: `{"copied": records}`, `{"aborted": records}` or `{"error": text}`;
after `{"fatal": text}` it ends with status 1. It closes its clients on SIGTERM, or at the end of
its standard input.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from random import Random
from threading import Event, Thread
from typing import Any, NamedTuple

from lab.benchmarks.group_member import tell

SESSION_S = 6
_POLL_S = 0.2
_PATIENCE_S = 120.0


class Job(NamedTuple):
    """What a copier copies."""

    servers: str
    source: str
    target: str
    transactional_id: str
    size: int
    timeout_ms: int
    partitions: list[int]

    def ends(self, done: int, is_aborted: bool) -> None:
        tell(**{"aborted" if is_aborted else "copied": done})


def copy_with_confluent(job: Job, stopped: Event) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

    random = Random()
    common = {"bootstrap.servers": job.servers}
    consumer = Consumer(
        {
            **common,
            "group.id": job.source,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_S * 1000,
            "heartbeat.interval.ms": 500,
        }
    )
    producer = Producer(
        {
            **common,
            "transactional.id": job.transactional_id,
            "transaction.timeout.ms": job.timeout_ms,
        }
    )

    def repeat(call: Callable[[float], Any]) -> None:
        """Call it until it does not fail with a retriable error."""
        while True:
            try:
                call(_PATIENCE_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def abort(done: int) -> None:
        repeat(producer.abort_transaction)
        job.ends(done, is_aborted=True)
        for each in consumer.committed(consumer.assignment(), _PATIENCE_S):
            at = each.offset if each.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(TopicPartition(each.topic, each.partition, at))

    repeat(producer.init_transactions)
    consumer.subscribe([job.source])
    while not stopped.is_set():
        messages = []
        for message in consumer.consume(job.size, _POLL_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.fatal():
                raise KafkaException(error)
            else:
                tell(error=str(error))
        if not messages:
            continue
        positions = {each.partition() or 0: (each.offset() or 0) + 1 for each in messages}
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(job.target, message.value(), partition=message.partition() or 0)
            offsets = [TopicPartition(job.source, *each) for each in positions.items()]
            repeat(
                lambda limit, offsets=offsets: producer.send_offsets_to_transaction(  # type: ignore[misc]
                    offsets, consumer.consumer_group_metadata(), limit
                )
            )
            if random.random() < 1 / 3:
                abort(len(messages))
            else:
                repeat(producer.commit_transaction)
                job.ends(len(messages), is_aborted=False)
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            tell(error=str(failed))
            abort(len(messages))
    consumer.close()


def copy_with_kafka_python(job: Job, stopped: Event) -> None:
    import kafka
    from kafka.errors import KafkaError, ProducerFencedError
    from kafka.structs import OffsetAndMetadata

    random = Random()
    consumer = kafka.KafkaConsumer(
        job.source,
        bootstrap_servers=job.servers,
        group_id=job.source,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=SESSION_S * 1000,
        heartbeat_interval_ms=500,
        max_poll_records=job.size,
    )
    producer = kafka.KafkaProducer(
        bootstrap_servers=job.servers,
        transactional_id=job.transactional_id,
        transaction_timeout_ms=job.timeout_ms,
        max_block_ms=round(_PATIENCE_S * 1000),
    )

    def abort(done: int) -> None:
        producer.abort_transaction()
        job.ends(done, is_aborted=True)
        for partition in consumer.assignment():
            at = consumer.committed(partition)
            if at is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, at)

    producer.init_transactions()
    while not stopped.is_set():
        polled = consumer.poll(round(_POLL_S * 1000))
        done = sum(map(len, polled.values()))
        if not done:
            continue
        positions = {
            each: OffsetAndMetadata(found[-1].offset + 1, "", -1) for each, found in polled.items()
        }
        try:
            producer.begin_transaction()
            for partition, found in polled.items():
                for record in found:
                    producer.send(job.target, record.value, partition=partition.partition)
            producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            if random.random() < 1 / 3:
                abort(done)
            else:
                producer.commit_transaction()
                job.ends(done, is_aborted=False)
        except ProducerFencedError:
            raise
        except KafkaError as failed:
            tell(error=repr(failed))
            abort(done)
    consumer.close()
    producer.close()


def copy_with_aiokafka(job: Job, stopped: Event) -> None:
    """aiokafka commits offsets under the group's id only, so each copier reads its partitions."""
    import aiokafka
    from aiokafka.errors import KafkaError, ProducerFenced

    random = Random()

    async def copy() -> None:
        common = {"bootstrap_servers": job.servers}
        partitions = [aiokafka.TopicPartition(job.source, each) for each in job.partitions]
        consumer = aiokafka.AIOKafkaConsumer(
            **common,
            group_id=job.source,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        producer = aiokafka.AIOKafkaProducer(
            **common,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.timeout_ms,
        )
        consumer.assign(partitions)

        async def begin_again() -> None:
            for partition in partitions:
                at = await consumer.committed(partition)
                consumer.seek(partition, at or 0)

        await producer.start()  # fences the former copier before the offsets are read
        await consumer.start()
        await begin_again()
        while not stopped.is_set():
            polled = await consumer.getmany(timeout_ms=round(_POLL_S * 1000), max_records=job.size)
            done = sum(map(len, polled.values()))
            if not done:
                continue
            try:
                await producer.begin_transaction()
                sent = [
                    await producer.send(job.target, record.value, partition=partition.partition)
                    for partition, found in polled.items()
                    for record in found
                ]
                await producer.send_offsets_to_transaction(
                    {each: found[-1].offset + 1 for each, found in polled.items()}, job.source
                )
                is_aborted = random.random() < 1 / 3
                if is_aborted:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                await asyncio.gather(*sent, return_exceptions=is_aborted)
            except ProducerFenced:
                raise
            except KafkaError as failed:
                tell(error=repr(failed))
                await producer.abort_transaction()
                is_aborted = True
            job.ends(done, is_aborted)
            if is_aborted:
                await begin_again()
        await consumer.stop()
        await producer.stop()

    asyncio.run(copy())


def copy_with_trimtab(job: Job, stopped: Event) -> None:
    from trimtab import Consumer, Producer, TopicPartition
    from trimtab.kafka.errors import TransactionError

    random = Random()
    with (
        Producer(
            job.servers,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.timeout_ms,
            max_block_ms=round(_PATIENCE_S * 1000),
        ) as producer,
        Consumer(
            job.servers,
            group_id=job.source,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_S * 1000,
            heartbeat_interval_ms=500,
            max_poll_records=job.size,
        ) as consumer,
    ):

        def abort(done: int) -> None:
            producer.abort_transaction()
            job.ends(done, is_aborted=True)
            for partition, at in consumer.committed(list(consumer.assignment())).items():
                consumer.seek(partition, 0 if at is None else at.offset)

        producer.init_transactions()
        consumer.subscribe([job.source])
        while not stopped.is_set():
            records = consumer.poll(round(_POLL_S * 1000))
            if not records:
                continue
            positions = {
                TopicPartition(job.source, each.partition): each.offset + 1 for each in records
            }
            try:
                producer.begin_transaction()
                for record in records:
                    producer.send(job.target, record.value, partition=record.partition)
                producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                if random.random() < 1 / 3:
                    abort(len(records))
                else:
                    producer.commit_transaction()
                    job.ends(len(records), is_aborted=False)
            except TransactionError as failed:
                if failed.is_fatal:
                    raise
                tell(error=f"{failed}: {failed.__cause__}")
                abort(len(records))


CLIENTS: dict[str, Callable[[Job, Event], None]] = {
    "confluent-kafka": copy_with_confluent,
    "kafka-python": copy_with_kafka_python,
    "aiokafka": copy_with_aiokafka,
    "trimtab": copy_with_trimtab,
}


def main() -> int:
    client, servers, source, target, transactional_id, size, timeout_ms, *partitions = sys.argv[1:]
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def await_the_end() -> None:
        sys.stdin.read()
        stopped.set()

    Thread(target=await_the_end, daemon=True).start()
    job = Job(
        *(servers, source, target, transactional_id, int(size), int(timeout_ms)),
        [int(each) for each in partitions],
    )
    try:
        CLIENTS[client](job, stopped)
    except Exception as error:
        tell(fatal=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
