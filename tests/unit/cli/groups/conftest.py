from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.cli import main

Run = Callable[..., tuple[int, str, str]]

RECORDS = 10
"""In each of the three partitions of `t`; their timestamps are 1000, 2000, …"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=3)
            admin.create_topic("other", partitions=1)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(3 * RECORDS):
                at = (number // 3 + 1) * 1000
                producer.send("t", b"%d" % number, partition=number % 3, timestamp=at)
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab groups` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["groups", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capsys.readouterr()

    return run


@contextmanager
def member(cluster: Cluster, group: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member of a group that has read all of `t`, and committed it."""
    with Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.protocol": protocol},
        group_id=group,
        auto_offset_reset="earliest",
        client_id="reader",
    ) as consumer:
        consumer.subscribe(["t"])
        read = 0
        while read < 30:
            read += len(consumer.poll(timeout_ms=1000))
        consumer.commit()
        yield consumer
