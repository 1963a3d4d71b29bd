"""Other projects' clients that use transactions or share groups fail at once."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.jars import (
    KAFKA_VERSION,
    OLD_CLIENT,
    find_client_jars,
    find_kafka_jars,
)
from benchmarks.processes import run_java
from trimtab import Admin, Cluster, Producer
from trimtab.broker.handlers.coordinators import find_coordinator
from trimtab.errors import BrokerError

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

PATIENCE_S = 60
FEW = 5
SOURCE = Path(__file__).parent / "java" / "NotServed.java"


class Served(NamedTuple):
    servers: str
    lookups: Counter[str]
    """Requests for a coordinator, by client id."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    lookups: Counter[str] = Counter()

    def counted(groups: Any, header: Any, request: Any) -> Any:
        lookups[header.client_id] += 1
        return find_coordinator(groups, header, request)

    monkeypatch.setattr("trimtab.broker.handlers.find_coordinator", counted)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1)
        yield Served(cluster.bootstrap_servers, lookups)


def test_confluent_kafka_reports_an_error_to_a_transactional_producer(served: Served) -> None:
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": served.servers, "transactional.id": "x"})
    with pytest.raises(KafkaException, match="do not serve transactions") as raised:
        producer.init_transactions(PATIENCE_S)
    assert raised.value.args[0].fatal()
    assert served.lookups.total() <= FEW


def test_aiokafka_does_not_start_a_transactional_producer(served: Served) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=served.servers, transactional_id="x")
        try:
            with pytest.raises(KafkaError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), PATIENCE_S))
    assert served.lookups.total() <= FEW


def test_kafka_python_reports_an_error_to_a_transactional_producer(served: Served) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=served.servers, transactional_id="x")
    with pytest.raises(KafkaError, match="UnsupportedVersion"):
        producer.init_transactions()
    assert served.lookups.total() <= FEW
    producer.close(1)


def test_ours_names_transactions_before_it_asks(served: Served) -> None:
    producer = Producer(served.servers, transactional_id="x")
    with pytest.raises(BrokerError, match="serves no transactions"):
        producer.init_transactions()
    producer.close()
    assert served.lookups.total() == 0


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")
@pytest.mark.parametrize("version", [KAFKA_VERSION, OLD_CLIENT])
def test_java_reports_errors_to_consumers_producers_and_admins(
    served: Served, version: str
) -> None:
    find: Callable[[], Path | None] = (
        find_kafka_jars if version == KAFKA_VERSION else lambda: find_client_jars(version)
    )
    jars = find()
    if jars is None:
        pytest.skip(f"needs kafka-clients {version}: python -m benchmarks.jars")
    said = run_java(str(SOURCE), served.servers, heap="128m", jars=jars, stderr=None)
    met = dict(line.split(" ", 1) for line in said.splitlines())
    assert len(met) == (4 if version == KAFKA_VERSION else 3), said
    assert "do not serve transactions" in met.pop("initTransactions")
    for way, error in met.items():
        assert "UnsupportedVersionException" in error, way
    assert served.lookups.total() <= 6 * FEW
