"""A broker's replicas and the metadata that they follow (`trimtab.cluster.broker.replicas`,
`trimtab.cluster.broker.metadata_replay`), without logs, clients and other brokers."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.cluster.broker.test_fetch_session import virtual
from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.metadata_replay import MetadataReplay
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    PartitionRegistration,
    partition_record,
    register_broker_record,
)
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.messages.metadata_records import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
)

TOPIC_ID = b"t" * 16
TOPIC = [
    TopicRecord(name="t", topic_id=TOPIC_ID),
    partition_record(TOPIC_ID, PartitionRegistration(0, 2, 5, 7, (1, 2), (1, 2))),
]
BROKER_2 = register_broker_record(BrokerRegistration(2, 12, bytes(16), "h", 9092, None))


class Following:
    """Replicas that note what they are called for."""

    def __init__(self) -> None:
        self.follows_metadata = True
        self.calls: list[Any] = []

    def reconnect(self, broker_id: int) -> None:
        self.calls.append(f"reconnect {broker_id}")

    def configure(self, topic: str) -> None:
        self.calls.append(f"configure {topic}")

    async def apply(self, changed: Any) -> None:
        self.calls += [f"apply {index}" for _, index in changed]

    async def apply_all(self) -> None:
        self.calls.append("apply all")

    async def drop_topic(self, topic: Any) -> None:
        self.calls.append(f"drop {topic.name}")

    def forget(self, topics: Collection[str]) -> None:
        self.calls.append(f"forget {' '.join(topics)}")

    async def review_isrs(self) -> None:
        self.calls.append("review")


def set_option(kind: int, name: str, option: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=option, value=value)


@pytest.mark.parametrize(
    ("records", "calls"),
    [
        (TOPIC, ["apply 0"]),
        ([BROKER_2], ["reconnect 2", "review"]),
        ([*TOPIC, set_option(CONFIG_TOPIC, "t", "segment.ms", "9")], ["configure t", "apply 0"]),
        ([*TOPIC, RemoveTopicRecord(topic_id=TOPIC_ID)], ["drop t", "forget t"]),
    ],
)
@virtual
async def test_replicas_are_called_for_what_has_changed(
    records: list[Any], calls: list[str]
) -> None:
    view, replicas = ClusterView(1, "lab", {}), Following()
    replay = MetadataReplay(view, cast(Any, replicas), replicas.forget)
    await replay.replay(records)
    assert replicas.calls == calls


@virtual
async def test_a_snapshot_drops_the_topics_that_it_lacks() -> None:
    view, replicas = ClusterView(1, "lab", {}), Following()
    replay = MetadataReplay(view, cast(Any, replicas), replicas.forget)
    await replay.replay(TOPIC)
    replicas.calls.clear()
    await replay.replay_snapshot(TOPIC)
    assert replicas.calls == ["apply all"]
    await replay.replay_snapshot([])
    assert replicas.calls == ["apply all", "drop t", "forget t", "apply all"]


@virtual
async def test_before_the_logs_are_open_records_change_the_image_only() -> None:
    view, replicas = ClusterView(1, "lab", {}), Following()
    replicas.follows_metadata = False
    replay = MetadataReplay(view, cast(Any, replicas), replicas.forget)
    await replay.replay([*TOPIC, BROKER_2])
    assert set(view.image.topics) == {"t"}
    await replay.replay_snapshot([BROKER_2])
    assert (set(view.image.topics), set(view.image.brokers)) == (set(), {2})
    assert replicas.calls == []


@virtual
async def test_an_option_set_for_the_broker_changes_the_same_config_and_all_topics() -> None:
    view, replicas = ClusterView(1, "lab", {"log.roll.ms": 5}), Following()
    config = view.config
    replay = MetadataReplay(view, cast(Any, replicas), replicas.forget)
    await replay.replay(TOPIC)
    await replay.replay([set_option(CONFIG_BROKER, "1", "log.roll.ms", "9")])
    assert view.config is config
    assert config["log.roll.ms"] == 9
    assert replicas.calls == ["apply 0", "configure t"]


def open_replicas(log: Any) -> Replicas:
    """Of broker 1, which has replayed `TOPIC`; each log that it opens is this one."""
    view = ClusterView(1, "lab", {})
    for record in TOPIC:
        view.image.replay(record)
    logs = SimpleNamespace(open_log=lambda *_: log, set_aside_strays=lambda _: [])
    proposals: Any = SimpleNamespace(submit=None)
    return Replicas(
        view,
        cast(LogDirectory, logs),
        proposals,
        lambda: 11,
        lambda: 0,
        lambda error: None,
        lambda partition: None,
    )


@virtual
async def test_replicas_whose_log_is_ahead_of_the_controller_do_not_follow_it() -> None:
    epochs = SimpleNamespace(latest=6, is_confirmed=True)
    replicas = open_replicas(SimpleNamespace(epochs=epochs))
    with pytest.raises(CorruptData, match="has leader epoch 6, and the controller knows 5"):
        await replicas.open_all()
    assert not replicas.follows_metadata, "the logs must not be marked as closed cleanly"
    assert not replicas.partitions


@virtual
async def test_a_followers_new_log_start_is_sent_to_its_leader() -> None:
    replicas = open_replicas(SimpleNamespace(epochs=SimpleNamespace(latest=5)))
    await replicas.open_all()
    assert replicas.follows_metadata
    partition = replicas.partitions["t", 0]
    followed: list[Partition] = []

    def note(partition: Partition) -> None:
        followed.append(partition)

    replicas._replication.follow = note  # type: ignore[method-assign]
    replicas.log_start_moved(partition)
    assert followed == [partition]
