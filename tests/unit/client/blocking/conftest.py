"""The fixtures of the asynchronous clients' tests, and a cluster."""

from collections.abc import Iterator

import pytest

from tests.unit.client.conftest import kafka, make_view, silent, world
from trimtab.client.blocking.admin import Admin
from trimtab.cluster.embedded import Cluster

__all__ = ["kafka", "make_view", "silent", "world"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One broker, with a topic `t` of two partitions."""
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 2)
        yield cluster
