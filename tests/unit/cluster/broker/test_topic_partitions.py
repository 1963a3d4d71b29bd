"""Pages of partitions: where each begins and ends, as Kafka 4.3 answers it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import finish
from trimtab.cluster.broker.handlers.topic_partitions import (
    MAX_PARTITIONS,
    describe_topic_partitions,
)
from trimtab.cluster.metadata.image import (
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    partition_record,
    register_broker_record,
)
from trimtab.kafka.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from trimtab.kafka.wire.messages.metadata_records import TopicRecord
from trimtab.kafka.wire.sentinels import NO_LEADER

Place = tuple[str, int]


@pytest.fixture
def image() -> ClusterImage:
    """Brokers 1, 2 (fenced) and 3 (about to end); topic `b` with 12 partitions, `a` with two."""
    image = ClusterImage()
    states: dict[int, dict[str, Any]] = {
        1: {},
        2: {"fenced": True},
        3: {"in_controlled_shutdown": True},
    }
    for number, state in states.items():
        broker = BrokerRegistration(number, 1, bytes(16), "h", 9092, None)._replace(**state)
        image.replay(register_broker_record(broker))
    for name, count in (("b", 12), ("a", 2)):
        put(image, name, *(PartitionRegistration(i, 1, 5, 7, (1,), (1,)) for i in range(count)))
    return image


def put(image: ClusterImage, name: str, *partitions: PartitionRegistration) -> None:
    topic_id = name[:1].encode("ascii") * 16
    image.replay(TopicRecord(name=name, topic_id=topic_id))
    for partition in partitions:
        image.replay(partition_record(topic_id, partition))


def ask(
    image: ClusterImage, names: list[str], limit: int = 2000, cursor: Place | None = None
) -> Any:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return finish(describe_topic_partitions(SimpleNamespace(image=image), None, request))  # type: ignore[arg-type]


@pytest.mark.kip(966)
@pytest.mark.parametrize(
    ("names", "limit", "cursor", "topics", "next_cursor"),
    [
        ([], 2000, None, [("a", 0, 2), ("b", 0, 12)], None),
        ([], 1, None, [("a", 0, 1)], ("a", 1)),
        ([], 3, None, [("a", 0, 2), ("b", 0, 1)], ("b", 1)),
        ([], 0, None, [("a", 0, 1)], ("a", 1)),
        ([], -1, None, [("a", 0, 1)], ("a", 1)),
        ([], 2, ("b", 0), [("b", 0, 2)], ("b", 2)),
        ([], 20, ("b", 10), [("b", 0, 2)], None),
        ([], 10, ("aa", 0), [("b", 0, 10)], ("b", 10)),
        ([], 5, ("", 0), [("a", 0, 2), ("b", 0, 3)], ("b", 3)),
        (["b", "a"], 2, None, [("a", 0, 2)], ("b", 0)),
        (["b", "a", "b"], 2, ("a", 1), [("a", 0, 1), ("b", 0, 1)], ("b", 1)),
        (["b", "a"], 2, ("a", 2), [("a", 0, 0), ("b", 0, 2)], ("b", 2)),
        (["b", "a"], 2, ("a", 3), [("a", 0, 0), ("b", 0, 2)], ("b", 2)),
        (["a"], 2, None, [("a", 0, 2)], None),
        (["a", "zz"], 1, None, [("a", 0, 1)], ("a", 1)),
        (["a", "zz"], 2, None, [("a", 0, 2)], ("zz", 0)),
        (["a", "zz", "zza"], 3, None, [("a", 0, 2), ("zz", 3, 0), ("zza", 3, 0)], None),
        (["aa", "b", "c"], 1, ("aa", 0), [("aa", 3, 0), ("b", 0, 1)], ("b", 1)),
        (["zz"], 2, ("zz", 1), [("zz", 3, 0)], None),
        (["b d"], 2, None, [("b d", 17, 0)], None),
        (["a", "b"], 2, ("aa", 0), [("a", 42, 0), ("b", 42, 0)], None),
        (["a"], 2, ("a", -1), [("a", 42, 0)], None),
    ],
)
def test_a_page_begins_at_its_cursor_and_ends_at_the_limit(
    image: ClusterImage,
    names: list[str],
    limit: int,
    cursor: Place | None,
    topics: list[tuple[str, int, int]],
    next_cursor: Place | None,
) -> None:
    page = ask(image, names, limit, cursor)
    assert [(each.name, each.error_code, len(each.partitions)) for each in page.topics] == topics
    found = page.next_cursor
    assert (None if found is None else (found.topic_name, found.partition_index)) == next_cursor


def test_the_pages_together_have_every_partition_once(image: ClusterImage) -> None:
    found, cursor = [], None
    while True:
        page = ask(image, [], 5, cursor)
        found += [
            (topic.name, each.partition_index) for topic in page.topics for each in topic.partitions
        ]
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert found == [("a", 0), ("a", 1), *(("b", index) for index in range(12))]


def test_a_page_has_a_limit_of_its_own(image: ClusterImage) -> None:
    put(image, "c", *(PartitionRegistration(i, 1, 5, 7, (1,), (1,)) for i in range(MAX_PARTITIONS)))
    page = ask(image, ["c", "b"], MAX_PARTITIONS + 5)
    assert [len(topic.partitions) for topic in page.topics] == [12, MAX_PARTITIONS - 12]


def test_a_partition_is_described_with_elr_and_offline_replicas(image: ClusterImage) -> None:
    put(
        image,
        "e",
        PartitionRegistration(0, 1, 5, 7, (2, 1, 3), (1,), elr=(3,), last_known_elr=()),
        PartitionRegistration(1, NO_LEADER, 6, 8, (2, 9), (), elr=(2,), last_known_elr=(9,)),
    )
    (topic,) = ask(image, ["e"]).topics
    assert (topic.topic_id, topic.is_internal) == (b"e" * 16, False)
    assert topic.topic_authorized_operations == 3576
    led, orphan = topic.partitions
    assert (led.error_code, led.leader_id, led.leader_epoch) == (0, 1, 5)
    assert (led.replica_nodes, led.isr_nodes, led.offline_replicas) == ([2, 1, 3], [1], [2])
    assert (led.eligible_leader_replicas, led.last_known_elr) == ([3], [])
    assert (orphan.error_code, orphan.leader_id, orphan.leader_epoch) == (0, NO_LEADER, 6)
    assert (orphan.isr_nodes, orphan.offline_replicas) == ([], [2, 9])
    assert (orphan.eligible_leader_replicas, orphan.last_known_elr) == ([2], [9])
