"""Apache Kafka for tests: its brokers, its tools, and the mark of tests that need them.

`tests/conftest.py` has the fixtures of the brokers that all tests share.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, KafkaMember, run_java
from lab.benchmarks.jars import RivalMissing, find_kafka_jars
from lab.processes import await_brokers, free_ports

K = TypeVar("K", bound=AbstractContextManager[object])
M = TypeVar("M", bound=KafkaMember)

NEWEST_TRANSACTIONS = 2
"""The `transaction.version` of a new cluster."""

needs_kafka = pytest.mark.skipif(
    shutil.which("java") is None or find_kafka_jars() is None,
    reason="needs java and Apache Kafka's jars: TRIMTAB_KAFKA_JARS,"
    " or python -m lab.benchmarks.jars",
)


@contextmanager
def started(kafka: K) -> Iterator[K]:
    """Run a broker or a cluster; skips the test without Java or Apache Kafka's jars."""
    with ExitStack() as running:
        try:
            running.enter_context(kafka)
        except RivalMissing as missing:
            pytest.skip(str(missing))
        yield kafka


@contextmanager
def three_members(kind: type[M]) -> Iterator[list[M]]:
    """Run a cluster of three brokers, in the racks r0, r1 and r2; skips like `started`."""
    (controller,) = free_ports(1)
    with ExitStack() as running:
        members = [running.enter_context(started(kind(n, controller))) for n in range(3)]
        await_brokers(members[0].port, len(members))
        yield members


@contextmanager
def transaction_version(kafka: ApacheKafka, version: int) -> Iterator[None]:
    """Let the cluster use an older protocol for transactions: 1 is that before Apache Kafka 4."""

    def change(how: str, to: int) -> None:
        run_java(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", kafka.address, how, "--feature", f"transaction.version={to}"),
        )

    if version == NEWEST_TRANSACTIONS:
        yield
        return
    change("downgrade", version)
    try:
        yield
    finally:
        change("upgrade", NEWEST_TRANSACTIONS)
