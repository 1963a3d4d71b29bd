"""The image: records in, topics, brokers and configs out."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.errors import CorruptData
from trimtab.metadata.image import (
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    partition_record,
    register_broker_record,
)
from trimtab.metadata.topic_name import find_fault
from trimtab.wire.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
    encode_record,
)

BROKER = BrokerRegistration(1, 4, b"\7" * 16, "127.0.0.1", 9093, "b")
T, U = b"t" * 16, b"u" * 16


def partition(number: int, leader: int = 1) -> PartitionRegistration:
    return PartitionRegistration(number, leader, 0, 0, (leader,), (leader,))


def retention(value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=CONFIG_TOPIC, resource_name="t", name="retention.ms", value=value
    )


HISTORY: list[Any] = [
    FeatureLevelRecord(name="metadata.version", feature_level=25),
    register_broker_record(BROKER),
    TopicRecord(name="t", topic_id=T),
    retention("1000"),
    partition_record(T, partition(0)),
    partition_record(T, partition(1)),
    TopicRecord(name="u.v", topic_id=U),
    partition_record(U, partition(0)),
    ProducerIdsRecord(broker_id=1, broker_epoch=4, next_producer_id=1000),
]


def image_of(*records: Any) -> ClusterImage:
    image = ClusterImage()
    for record in records:
        image.replay(record)
    return image


def state(image: ClusterImage) -> dict[str, Any]:
    return vars(image)


def test_records_add_up_to_an_image() -> None:
    image = image_of(*HISTORY)
    assert image.brokers == {1: BROKER}
    assert image.topics["t"] is image.topics_by_id[T]
    assert image.topics["t"].partitions == [partition(0), partition(1)]
    assert image.configs(CONFIG_TOPIC, "t") == {"retention.ms": "1000"}
    assert image.configs(CONFIG_TOPIC, "u.v") == {}
    assert (image.partition_count, image.next_producer_id) == (3, 1000)
    assert (image.colliding("u_v"), image.colliding("u-v")) == ("u.v", None)


def test_an_image_is_rebuilt_from_its_own_records() -> None:
    image = image_of(*HISTORY)
    assert state(image_of(*image.records())) == state(image)
    assert state(image_of(*(decode_record(encode_record(r)) for r in HISTORY))) == state(image)


def test_a_removed_topic_leaves_nothing() -> None:
    image = image_of(*HISTORY, RemoveTopicRecord(topic_id=T), RemoveTopicRecord(topic_id=U))
    assert state(image) == state(image_of(HISTORY[0], HISTORY[1], HISTORY[-1]))


def test_a_partition_and_a_broker_can_change_and_a_config_go() -> None:
    moved = partition(0, leader=2)
    again = BROKER._replace(epoch=9, port=9999)
    image = image_of(
        *HISTORY, partition_record(T, moved), register_broker_record(again), retention(None)
    )
    assert image.topics["t"].partitions[0] == moved
    assert image.brokers == {1: again}
    assert image.configs(CONFIG_TOPIC, "t") == {}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (TopicRecord(name="t", topic_id=b"x" * 16), "created twice"),
        (TopicRecord(name="x", topic_id=T), "created twice"),
        (partition_record(b"x" * 16, partition(0)), "unknown topic id"),
        (partition_record(T, partition(3)), "t-3 comes before t-2"),
        (RemoveTopicRecord(topic_id=b"x" * 16), "unknown topic id"),
        (ProducerIdsRecord(broker_id=1, next_producer_id=999), "goes back from 1000 to 999"),
        (PartitionChangeRecord(partition_id=0, topic_id=T), "PartitionChangeRecord"),
    ],
)
def test_a_record_that_does_not_fit_is_corrupt(record: Any, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        image_of(*HISTORY, record)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "-"])
def test_good_topic_names(name: str) -> None:
    assert find_fault(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n"])
def test_bad_topic_names(name: str) -> None:
    assert find_fault(name)
