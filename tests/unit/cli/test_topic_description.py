from __future__ import annotations

from collections.abc import Mapping

import pytest

from trimtab.cli.topic_description import (
    Description,
    choose_partitions,
    read_topic_id,
    write_partition,
    write_topic,
    write_topic_id,
)
from trimtab.client.admin import ConfigEntry, ConfigSource, EligibleLeaders, Reassignment
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.errors import UsageError


def entry(name: str, value: str, source: ConfigSource) -> ConfigEntry:
    return ConfigEntry(name, value, source, False, False, None, None)


def describe(
    *partitions: PartitionView,
    moves: Mapping[int, Reassignment] | None = None,
    eligible: Mapping[int, EligibleLeaders] | None = None,
) -> Description:
    leaders = tuple(each.leader for each in partitions)
    view = TopicView(
        name="t",
        topic_id=bytes(15) + b"\x01",
        is_internal=False,
        partitions=partitions,
        leaders=leaders,
        racks=(None,) * len(partitions),
        available=tuple(number for number, leader in enumerate(leaders) if leader >= 0),
    )
    configs = {
        "min.insync.replicas": entry("min.insync.replicas", "2", ConfigSource.DEFAULT_CONFIG),
        "retention.ms": entry("retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    }
    return Description(view, configs, moves or {}, eligible or {})


TOPIC = describe(
    PartitionView(0, 1, (0, 1, 2), (0, 1, 2), ()),
    PartitionView(0, 1, (0, 1, 2), (0, 1), (2,)),
    PartitionView(0, 1, (0, 1, 2), (0,), (1, 2)),
    PartitionView(-1, 1, (2,), (), (2,)),
)


@pytest.mark.parametrize(
    ("checks", "numbers"),
    [
        ([], [0, 1, 2, 3]),
        (["under_replicated_partitions"], [1, 2, 3]),
        (["unavailable_partitions"], [3]),
        (["under_min_isr_partitions"], [2, 3]),
        (["at_min_isr_partitions"], [1]),
        (["at_min_isr_partitions", "unavailable_partitions"], [1, 3]),
    ],
)
def test_a_filter_shows_its_partitions_and_several_show_all_of_theirs(
    checks: list[str], numbers: list[int]
) -> None:
    assert choose_partitions(TOPIC, checks) == numbers


def test_replicas_that_come_do_not_count_as_missing() -> None:
    partition = PartitionView(0, 1, (1, 2, 0), (0,), ())
    move = Reassignment(replicas=(1, 2, 0), adding=(1, 2), removing=(0,))
    moving = describe(partition, moves={0: move})
    assert choose_partitions(moving, ["under_replicated_partitions"]) == []
    assert choose_partitions(describe(partition), ["under_replicated_partitions"]) == [0]
    assert "\tReplicationFactor: 1\t" in write_topic(moving)
    assert "\tAdding Replicas: 1,2\tRemoving Replicas: 0\t" in write_partition(moving, 0)


def test_overrides_are_what_somebody_set_wherever() -> None:
    assert write_topic(TOPIC) == (
        "Topic: t\tTopicId: AAAAAAAAAAAAAAAAAAAAAQ\tPartitionCount: 4\tReplicationFactor: 3\t"
        "Configs: retention.ms=5"
    )


def test_eligible_leaders_are_shown_where_the_cluster_tells_them() -> None:
    eligible = {3: EligibleLeaders((2,), ()), 2: EligibleLeaders(None, None)}
    told = describe(*TOPIC.view.partitions, eligible=eligible)
    assert write_partition(told, 3) == (
        "\tTopic: t\tPartition: 3\tLeader: none\tReplicas: 2\tIsr: \tElr: 2\tLastKnownElr: "
    )
    for number in (1, 2):
        assert write_partition(told, number).endswith("\tElr: N/A\tLastKnownElr: N/A")


def test_topic_ids_are_written_and_read_as_kafka_writes_them() -> None:
    assert write_topic_id(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert write_topic_id(b"\xff" * 16) == "_____________________w"
    assert read_topic_id("_____________________w") == b"\xff" * 16


@pytest.mark.parametrize("text", ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAA!", "flights"])
def test_what_is_no_topic_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a topic id"):
        read_topic_id(text)
