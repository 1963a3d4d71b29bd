"""The image: records in, topics, brokers and configs out."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    partition_change_record,
    partition_record,
    register_broker_record,
)
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.topic_name import find_fault
from trimtab.kafka.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from trimtab.kafka.wire.sentinels import NO_LEADER

BROKER = BrokerRegistration(1, 4, b"\7" * 16, "127.0.0.1", 9093, "b")
T, U = b"t" * 16, b"u" * 16


def partition(number: int, leader: int = 1) -> PartitionRegistration:
    return PartitionRegistration(number, leader, 0, 0, (leader,), (leader,))


def change(number: int, **changed: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=number, topic_id=T, **changed)


def broker_change(epoch: int = 4, **changed: Any) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, **changed)


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
    return {name: value for name, value in vars(image).items() if name != "shape"}


def test_records_are_replayed_into_an_image() -> None:
    image = image_of(*HISTORY)
    assert image.brokers == {1: BROKER}
    assert image.topics["t"] is image.topics_by_id[T]
    assert image.topics["t"].partitions == [partition(0), partition(1)]
    assert image.configs(CONFIG_TOPIC, "t") == {"retention.ms": "1000"}
    assert image.configs(CONFIG_TOPIC, "u.v") == {}
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    assert (partitions, image.next_producer_id) == (3, 1000)
    assert (image.colliding("u_v"), image.colliding("u-v")) == ("u.v", None)


def test_an_image_is_rebuilt_from_its_own_records() -> None:
    image = image_of(*HISTORY)
    assert state(image_of(*image.records())) == state(image)
    assert state(image_of(*(decode_record(encode_record(r)) for r in HISTORY))) == state(image)


def test_a_removed_topic_leaves_nothing() -> None:
    image = image_of(*HISTORY, RemoveTopicRecord(topic_id=T), RemoveTopicRecord(topic_id=U))
    assert state(image) == state(image_of(HISTORY[0], HISTORY[1], HISTORY[-1]))


def test_partitions_and_brokers_can_change_and_configs_be_removed() -> None:
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
        (change(2), "partition 2, which does not exist"),
        (PartitionChangeRecord(partition_id=0, topic_id=b"x" * 16), "which does not exist"),
        (broker_change(epoch=3), "broker 1 is not registered with epoch 3"),
        (UnregisterBrokerRecord(broker_id=1, broker_epoch=5), "not registered with epoch 5"),
        (ClearElrRecord(topic_name="x"), "topic x, which does not exist"),
        (EndTransactionRecord(), "EndTransactionRecord cannot be replayed"),
    ],
)
def test_a_record_that_does_not_fit_is_corrupt(record: Any, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        image_of(*HISTORY, record)


FULL = PartitionRegistration(0, 1, 5, 9, (1, 2, 3), (1,), (3,), (2,), (2,), (), 1)


@pytest.mark.parametrize(
    ("before", "changed", "after"),
    [
        (partition(0), {}, (1, 0, (1,))),
        (partition(0), {"leader": 1}, (1, 1, (1,))),
        (partition(0), {"leader": NO_LEADER, "isr": []}, (NO_LEADER, 1, ())),
        (partition(0), {"isr": [1, 2]}, (1, 0, (1, 2))),
        (FULL, {"leader": 2, "isr": [2, 1]}, (2, 6, (2, 1))),
    ],
)
def test_a_leader_in_the_record_raises_the_leader_epoch_and_any_record_the_partitions(
    before: PartitionRegistration, changed: dict[str, Any], after: tuple[Any, ...]
) -> None:
    image = image_of(*HISTORY, partition_record(T, before), change(0, **changed))
    merged = image.topics["t"].partitions[0]
    assert (merged.leader, merged.leader_epoch, merged.isr) == after
    assert merged.partition_epoch == before.partition_epoch + 1


@pytest.mark.parametrize(
    "after",
    [
        FULL._replace(leader=2, leader_epoch=6),
        FULL._replace(leader_epoch=6),
        FULL._replace(isr=(1, 2), elr=()),
        FULL._replace(replicas=(1, 3), adding_replicas=(), removing_replicas=()),
        FULL._replace(isr=(), elr=(), last_known_elr=(1,), leader=NO_LEADER, leader_epoch=6),
        FULL._replace(leader_recovery_state=0),
    ],
)
def test_the_change_record_of_two_partitions_makes_the_one_of_the_other(
    after: PartitionRegistration,
) -> None:
    record = partition_change_record(T, FULL, after)
    assert record is not None
    changed = decode_record(encode_record(record))
    assert FULL.merge(changed) == after._replace(partition_epoch=10)  # type: ignore[arg-type]
    assert partition_change_record(T, FULL, FULL) is None


def test_a_partition_in_full_is_rebuilt() -> None:
    image = image_of(*HISTORY, partition_record(T, FULL))
    assert image.topics["t"].partitions[0] == FULL
    assert state(image_of(*image.records())) == state(image)


def test_a_brokers_fence_and_shutdown_state_can_change() -> None:
    image = image_of(*HISTORY)
    assert image.brokers[1].is_active
    for changed, fenced, ending in [
        ({"in_controlled_shutdown": 1}, False, True),
        ({"fenced": 1}, True, True),
        ({"fenced": -1}, False, True),
    ]:
        image.replay(broker_change(**changed))
        broker = image.brokers[1]
        assert (broker.fenced, broker.in_controlled_shutdown) == (fenced, ending)
        assert not broker.is_active
        assert state(image_of(*image.records())) == state(image)
    image.replay(register_broker_record(BROKER._replace(epoch=9)))
    assert image.brokers[1].is_active


def test_a_broker_can_be_unregistered() -> None:
    gone = UnregisterBrokerRecord(broker_id=1, broker_epoch=4)
    assert image_of(*HISTORY, gone, NoOpRecord()).brokers == {}


@pytest.mark.parametrize(("topic", "cleared"), [("t", True), ("u.v", False), ("", True)])
def test_elrs_are_cleared_for_one_topic_or_all(topic: str, cleared: bool) -> None:
    image = image_of(*HISTORY, partition_record(T, FULL), ClearElrRecord(topic_name=topic))
    after = FULL._replace(partition_epoch=10, elr=())
    assert image.topics["t"].partitions[0] == (after if cleared else FULL)
    assert image.topics["t"].partitions[1] == partition(1)


def test_a_partition_without_leader_keeps_its_elr() -> None:
    waits = FULL._replace(leader=NO_LEADER, isr=(), last_known_elr=(1,))
    image = image_of(*HISTORY, partition_record(T, waits), ClearElrRecord(topic_name=""))
    assert image.topics["t"].partitions[0] == waits


def test_a_copy_is_independent() -> None:
    image = image_of(*HISTORY)
    copied = image.copy()
    assert state(copied) == state(image)
    for record in (change(0, leader=2), broker_change(fenced=1), retention("5")):
        image.replay(record)
    image.replay(TopicRecord(name="x", topic_id=b"x" * 16))
    assert state(copied) == state(image_of(*HISTORY))


def test_the_partitions_of_a_broker_are_those_it_leads_or_is_eligible_for() -> None:
    image = image_of(
        *HISTORY,
        partition_record(T, partition(0)._replace(leader=2, isr=(2, 1), replicas=(1, 2, 3))),
        partition_record(T, partition(1)._replace(leader=NO_LEADER, isr=(), elr=(2, 3))),
    )

    def found(broker_id: int) -> list[tuple[str, int]]:
        return [(topic.name, each.id) for topic, each in image.partitions_with(broker_id)]

    assert [found(number) for number in (1, 2, 3, 4)] == [
        [("t", 0), ("u.v", 0)],
        [("t", 0), ("t", 1)],
        [("t", 1)],
        [],
    ]
    assert [each.id for _, each in image.partitions_without_leader()] == [1]


def test_equal_replicas_are_one_tuple() -> None:
    first, second = image_of(*HISTORY), image_of(*HISTORY)
    tuples = [each.replicas for image in (first, second) for each in image.topics["t"].partitions]
    assert len({id(each) for each in tuples}) == 1


def test_an_option_is_found_by_its_name() -> None:
    image = image_of(*HISTORY)
    assert image.value(CONFIG_TOPIC, "t", "retention.ms") == "1000"
    assert image.value(CONFIG_TOPIC, "t", "segment.ms") is None
    assert image.value(CONFIG_BROKER, "", "retention.ms") is None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "-"])
def test_good_topic_names(name: str) -> None:
    assert find_fault(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n"])
def test_bad_topic_names(name: str) -> None:
    assert find_fault(name)
