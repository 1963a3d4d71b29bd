"""A batch rejected because of single records (KIP-467): each client reports the invalid records."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.jars import find_kafka_jars
from trimtab import Admin, AsyncProducer, Cluster, Producer
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError

pytestmark = pytest.mark.kip(467)

KEYS = (b"a", None, b"b", None, b"c")
"""The keys of a batch's records; in a compacted topic the records without a key are invalid."""
AT_FAULT = [False, True, False, True, False]
SOURCE = Path(__file__).parent / "java" / "RecordsAtFault.java"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1, config={"cleanup.policy": "compact"})
        yield cluster.bootstrap_servers


def check(errors: list[Any]) -> None:
    for error, is_at_fault in zip(errors, AT_FAULT, strict=True):
        if is_at_fault:
            assert isinstance(error, BrokerError)
            assert error.code is ErrorCode.INVALID_RECORD
            assert "without key" in str(error)
        else:
            assert type(error) is KafkaError
            assert "part of a batch" in str(error)


def test_ours_blames_the_records_at_fault_alone(servers: str) -> None:
    called: list[Any] = []
    with Producer(servers, linger_ms=60_000) as producer:
        sent = [
            producer.send(
                "t", b"v", key=key, on_delivery=lambda done: called.append(done.exception())
            )
            for key in KEYS
        ]
        producer.flush()
        check([each.exception() for each in sent])
        check(called)
        with pytest.raises(KafkaError, match="part of a batch"):
            sent[0].result()
        stored = producer.send("t", b"v", key=b"a")
        producer.flush()
        assert stored.result().offset == 0


def test_ours_reports_it_to_async_callers_too(servers: str) -> None:
    async def produce() -> list[Any]:
        async with AsyncProducer(servers, linger_ms=60_000) as producer:
            sent = [await producer.send("t", b"v", key=key) for key in KEYS]
            await producer.flush()
            return await asyncio.gather(*sent, return_exceptions=True)

    check(asyncio.run(produce()))


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")
def test_java_blames_the_records_at_fault_alone(servers: str) -> None:
    jars = find_kafka_jars()
    if jars is None:
        pytest.skip("needs kafka-clients: python -m lab.benchmarks.jars")
    lines = run_java(str(SOURCE), servers, heap="128m", jars=jars, stderr=None).splitlines()
    assert ["InvalidRecordException" in line for line in lines] == AT_FAULT
    assert ["part of a batch" in line for line in lines] == [not each for each in AT_FAULT]


def test_confluent_kafka_blames_the_records_at_fault_alone(servers: str) -> None:
    from confluent_kafka import KafkaError as ConfluentError
    from confluent_kafka import Producer as ConfluentProducer

    errors: list[Any] = []
    producer = ConfluentProducer({"bootstrap.servers": servers, "linger.ms": 500})
    for key in KEYS:
        producer.produce("t", b"v", key=key, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    codes = {True: ErrorCode.INVALID_RECORD, False: ConfluentError._INVALID_DIFFERENT_RECORD}
    assert [error.code() for error in errors] == [codes[each] for each in AT_FAULT]
