"""The state of a consumer group, written, replayed and taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trimtab.cluster.coordinator.consumer_member import describe_nobody
from trimtab.cluster.coordinator.effects import Caller
from trimtab.cluster.coordinator.recorded_group import GroupState, RecordedGroup
from trimtab.cluster.coordinator.topics import PartitionKey
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

TOPIC = bytes(16)
SHARES: dict[str, frozenset[PartitionKey]] = {
    "a": frozenset({(TOPIC, 0), (TOPIC, 1)}),
    "b": frozenset({(TOPIC, 2)}),
}


class Log:
    """The records of one group, each replayed by it as it is appended; but the last tombstone of a
    group is not for itself."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, Any]] = []
        self.group = RecordedGroup("readers", self.append)

    def append(self, key: Any, value: Any) -> None:
        self.records.append((key, value))
        if value is not None or not isinstance(key, ConsumerGroupMetadataKey):
            self.group.replay(key, value)


def member(instance_id: str) -> ConsumerGroupMemberMetadataValue:
    value = describe_nobody(Caller(None, 1, "app", "/10.0.0.1"))
    value.instance_id = instance_id
    value.subscribed_topic_names = ["flights"]
    return value


def pictured(group: RecordedGroup) -> Any:
    """All that a group says of itself."""
    return (
        (group.state, group.epoch, group.metadata_hash, group.assignment_epoch, group.assigned_ms),
        {each.id: (each.epoch, each.assigned, each.revoking) for each in group.members.values()},
        dict(group.targets),
        dict(group.owners),
        group.subscribed_topics(),
        {name: getattr(group.find_instance(name), "id", None) for name in "AB"},
    )


@pytest.fixture
def log() -> Log:
    log = Log()
    log.group.install(7, {id: (member(id.upper()), SHARES[id]) for id in SHARES})
    return log


def test_an_installed_group_is_stable_and_every_partition_has_its_owner(log: Log) -> None:
    assert log.group.state is GroupState.STABLE
    assert log.group.owners == {(TOPIC, 0): "a", (TOPIC, 1): "a", (TOPIC, 2): "b"}


def test_a_group_loaded_from_its_records_is_the_same(log: Log) -> None:
    loaded = RecordedGroup("readers", lambda key, value: pytest.fail("a load writes nothing"))
    for key, value in log.records:
        loaded.replay(key, value)
    assert pictured(loaded) == pictured(log.group)


def raise_epoch(log: Log) -> None:
    log.append(
        ConsumerGroupMetadataKey(group_id="readers"),
        ConsumerGroupMetadataValue(epoch=8, metadata_hash=5),
    )


def assign_again(log: Log) -> None:
    log.append(
        ConsumerGroupTargetAssignmentMetadataKey(group_id="readers"),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=7, assignment_timestamp=12),
    )


def match_a_pattern(log: Log) -> None:
    value = member("A")
    value.subscribed_topic_regex = "fl.*"
    log.group.install(9, {"a": (value, frozenset({(TOPIC, 1)}))})
    log.append(
        ConsumerGroupRegularExpressionKey(group_id="readers", regular_expression="fl.*"),
        ConsumerGroupRegularExpressionValue(topics=["flaps"], version=0, timestamp=0),
    )


@pytest.mark.parametrize(
    "change",
    [raise_epoch, assign_again, match_a_pattern, lambda log: log.group.delete()],
)
def test_what_a_decision_changed_is_taken_back(log: Log, change: Callable[[Log], None]) -> None:
    before = pictured(log.group)
    log.group.begin_decision()
    change(log)
    assert pictured(log.group) != before
    log.group.take_back()
    assert pictured(log.group) == before


def test_a_decision_that_stands_is_not_taken_back_with_the_next(log: Log) -> None:
    log.group.begin_decision()
    raise_epoch(log)
    log.group.end_decision()
    after = pictured(log.group)
    log.group.begin_decision()
    match_a_pattern(log)
    log.group.take_back()
    assert pictured(log.group) == after


def test_a_deleted_group_leaves_no_record_behind(log: Log) -> None:
    match_a_pattern(log)
    log.group.delete()
    newest = {repr(key): value for key, value in log.records}
    assert set(newest.values()) == {None}
    assert log.group.state is GroupState.EMPTY
    assert log.group.owners == {}


def test_a_pattern_that_was_taken_back_is_known_no_more(log: Log) -> None:
    log.group.begin_decision()
    match_a_pattern(log)
    log.group.take_back()
    log.records.clear()
    log.group.delete()
    assert not any(isinstance(key, ConsumerGroupRegularExpressionKey) for key, _ in log.records)
