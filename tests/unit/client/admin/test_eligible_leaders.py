"""Who may lead besides the in-sync replicas, asked page by page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trimtab.client.admin import EligibleLeaders, NewTopic
from trimtab.client.blocking.admin import Admin
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    """Broker 1 is away."""
    of_two = {"min.insync.replicas": 2}
    with Cluster(brokers=2) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics(
            [
                NewTopic("a", assignment={0: [0, 1], 1: [1, 0], 2: [0, 1]}, config=of_two),
                NewTopic("b", assignment={0: [0]}),
            ]
        )
        cluster.stop_broker(1)
        yield admin


@pytest.mark.kip(966)
@pytest.mark.parametrize("page_size", [1, 2, 2000])
def test_all_partitions_come_whatever_the_page(admin: Admin, page_size: int) -> None:
    nobody, gone = EligibleLeaders((), ()), EligibleLeaders((1,), ())
    assert admin.eligible_leaders(["b", "a", "b"], page_size) == {
        TopicPartition("a", 0): gone,
        TopicPartition("a", 1): gone,
        TopicPartition("a", 2): gone,
        TopicPartition("b", 0): nobody,
    }


def test_no_topics_have_no_eligible_leaders(admin: Admin) -> None:
    assert admin.eligible_leaders([]) == {}


def test_an_unknown_topic_is_named(admin: Admin) -> None:
    with pytest.raises(BrokerError, match="topic nowhere") as refused:
        admin.eligible_leaders(["a", "nowhere"])
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
