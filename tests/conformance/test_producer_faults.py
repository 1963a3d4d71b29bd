"""The synchronous producer under faults, in real time, on trimtab's brokers and Apache Kafka's.

No acknowledged record is lost, duplicated or out of order. Like
`tests/simulation/test_producer_faults.py`, but with threads, a real network and the real clock.
`ROUNDS` (environment; default 3) is the number of rounds, `KAFKA_ROUNDS` (default 0) that on Apache
Kafka; `pytest -s` prints counts.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from threading import Event

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.faults import FaultRates, FaultyCluster, draw_fault_rates
from lab.benchmarks.jars import find_kafka_jars
from lab.processes import Broker, Trimtab
from tests.simulation.ledger import Ledger, RecordId, Tally, read_value, write_value
from trimtab import Admin, Consumer, Producer, TopicPartition
from trimtab.threads.clock import monotonic_clock
from trimtab.threads.loop_thread import LoopThread

ROUNDS = int(os.environ.get("ROUNDS", "3"))
KAFKA_ROUNDS = int(os.environ.get("KAFKA_ROUNDS", "0"))
FACES = 3
ROUND_S = 1.0
PACE = 0.1
"""The duration of faults, relative to those in the virtual world."""
FLUSH_S = 120


@contextmanager
def faulty_cluster(broker: Broker, rates: FaultRates, random: Random) -> Iterator[FaultyCluster]:
    thread = LoopThread("weather")
    try:
        faulty = FaultyCluster(("127.0.0.1", broker.port), FACES, rates, random)
        thread.run(faulty.__aenter__)
        try:
            yield faulty
            thread.run(faulty.calm)
            # Delayed requests must reach the broker before the logs are read.
            thread.run(faulty.drain)
        finally:
            thread.run(faulty.__aexit__, None, None, None)
    finally:
        thread.stop()
    assert faulty.failures == []


def send(producer: Producer, topic: str, partitions: int, task: int, ledger: Ledger) -> None:
    """Send in bursts until the round is over."""
    random, pause = Random(task), Event()
    end = monotonic_clock() + ROUND_S
    number = 0
    while monotonic_clock() < end:
        for _ in range(random.randrange(1, 50)):
            record: RecordId = task, number
            producer.send(
                topic,
                write_value(record, random.randbytes(random.randrange(200))),
                partition=random.choice([None, random.randrange(partitions)]),
                on_delivery=ledger.expect(record),
            )
            number += 1
        pause.wait(random.random() * 0.02)


def read(broker: Broker, topic: str, partitions: int) -> dict[tuple[int, int], RecordId]:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    with Admin(broker.address) as admin:
        total = sum(end.offset for end in admin.list_offsets(places, "latest").values())
    stored: dict[tuple[int, int], RecordId] = {}
    with Consumer(broker.address, check_crcs=True) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        while len(stored) < total:
            records = consumer.poll(timeout_ms=10_000)
            assert records, f"{len(stored)} of {total} records, then nothing for 10 s"
            stored |= {(record.partition, record.offset): read_value(record) for record in records}
    return stored


def run_round(broker: Broker, seed: int) -> tuple[Tally, Counter[str]]:
    random = Random(seed)
    is_tight = seed % 3 == 2
    topic, partitions = f"faults-{seed}", random.randint(1, 12)
    # A failed record must not be stored behind records of a later producer epoch.
    given = {"is_outliving": False} if is_tight else {"is_outliving": True, "final": 0.0}
    rates = draw_fault_rates(random, PACE, **given)
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=1)
    ledger = Ledger(monotonic_clock, longest=FLUSH_S)
    with (
        faulty_cluster(broker, rates, random) as faulty,
        Producer(
            faulty.bootstrap_servers,
            linger_ms=random.choice([0, 1, 5]),
            batch_size=random.choice([500, 2_000, 16_384]),
            max_in_flight_requests_per_connection=random.randint(1, 5),
            compression_type=random.choice(["none", "lz4", "zstd"]),
            request_timeout_ms=100 + random.randrange(200),
            delivery_timeout_ms=random.randrange(400, 1000) if is_tight else FLUSH_S * 1000,
            retry_backoff_ms=5,
            retry_backoff_max_ms=100,
            reconnect_backoff_ms=5,
            metadata_max_age_ms=random.choice([100, 300_000]),
        ) as producer,
        ThreadPoolExecutor(4) as threads,
    ):
        tasks = range(random.randint(1, 4))
        sending = [
            threads.submit(send, producer, topic, partitions, task, ledger) for task in tasks
        ]
        for each in sending:
            each.result()
        producer.flush(FLUSH_S)
    tally = ledger.tally(read(broker, topic, partitions))
    context = f"seed {seed}, {tally}, {rates}"
    wrong = (tally.unanswered, tally.reported_twice, tally.lost, tally.doubled, tally.disordered)
    assert wrong == (0, 0, 0, 0, 0), context
    assert is_tight or tally.acknowledged == tally.sent, context
    return tally, faulty.seen


def run_rounds(broker: Broker, rounds: int) -> None:
    total, seen = Tally(), Counter[str]()
    with broker:
        for seed in range(rounds):
            tally, happened = run_round(broker, seed)
            total.add(tally)
            seen += happened
    print(f"\n{broker.name}: {total}\n{', '.join(f'{n} {what}' for what, n in seen.items())}")
    assert total.acknowledged > 0
    assert seen.total() > 0


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.kip(98)
def test_what_is_acknowledged_is_stored_once_in_order() -> None:
    run_rounds(Trimtab(), ROUNDS)


@pytest.mark.timeout(600 + 60 * KAFKA_ROUNDS)
@pytest.mark.kip(98)
@pytest.mark.skipif(
    not KAFKA_ROUNDS or shutil.which("java") is None or find_kafka_jars() is None,
    reason="needs KAFKA_ROUNDS, java and Apache Kafka's jars (python -m lab.benchmarks.jars)",
)
def test_on_apache_kafka_too() -> None:
    run_rounds(ApacheKafka(), KAFKA_ROUNDS)
