"""Java's clients that use share groups fail at once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.jars import (
    find_kafka_jars,
)
from trimtab import Admin, Cluster
from trimtab.cluster.broker.handlers.coordinators import find_coordinator

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

    def counted(groups: Any, transactions: Any, header: Any, request: Any) -> Any:
        lookups[header.client_id] += 1
        return find_coordinator(groups, transactions, header, request)

    monkeypatch.setattr("trimtab.cluster.broker.handlers.find_coordinator", counted)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1)
        yield Served(cluster.bootstrap_servers, lookups)


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")
def test_java_reports_an_error_to_a_member_of_a_share_group(served: Served) -> None:
    if find_kafka_jars() is None:
        pytest.skip("needs Apache Kafka: python -m lab.benchmarks.jars")
    said = run_java(str(SOURCE), served.servers, heap="128m", stderr=None)
    assert said.startswith("poll ")
    assert "UnsupportedVersionException" in said
    assert served.lookups.total() <= 6 * FEW
