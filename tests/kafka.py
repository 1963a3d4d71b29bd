"""Apache Kafka for tests: its brokers, its tools, and the mark of tests that need them.

`tests/conftest.py` has the fixtures of the brokers that all tests share.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from benchmarks.jars import RivalMissing, find_kafka_jars
from benchmarks.processes import ApacheKafka, run_java

K = TypeVar("K", bound=AbstractContextManager[object])

NEWEST_TRANSACTIONS = 2
"""The `transaction.version` of a new cluster."""

needs_kafka = pytest.mark.skipif(
    shutil.which("java") is None or find_kafka_jars() is None,
    reason="needs java and Apache Kafka's jars: TRIMTAB_KAFKA_JARS, or python -m benchmarks.jars",
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
