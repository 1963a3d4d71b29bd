"""Metadata rebuilt from brokers' directories (`trimtab.cluster.controller.recovery`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.unit.cluster.controller.conftest import Scene
from trimtab.cluster.controller.recovery import Recovered, recover, write_journal
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
    ClusterImage,
    PartitionRegistration,
)
from trimtab.cluster.storage.survey import DirectorySurvey, StoredLog
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.sentinels import NO_LEADER

ID = b"f" * 16
OTHER = b"o" * 16
MADE = b"m" * 16


def log(partition: int, epoch: int, end: int, topic: str = "f", **changed: Any) -> StoredLog:
    return StoredLog(topic, partition, ID, epoch, end, -1)._replace(**changed)


def run(
    *brokers: list[StoredLog], old: ClusterImage | None = None, counts: Any = None
) -> Recovered:
    """Brokers 1, 2, …, with these logs."""
    surveys = [DirectorySurvey(number, "level", logs) for number, logs in enumerate(brokers, 1)]
    return recover(surveys, old, counts or {}, lambda: MADE)


def partitions(found: Recovered, topic: str = "f") -> list[PartitionRegistration]:
    return found.image.topics[topic].partitions


def test_the_longest_log_of_the_highest_epoch_counts() -> None:
    found = run([log(0, 3, 900)], [log(0, 4, 700)], [log(0, 4, 650)])
    (partition,) = partitions(found)
    assert found.image.topics["f"].id == ID
    assert partition.isr == (2,)
    assert sorted(partition.replicas) == [1, 2, 3]
    assert partition.replicas[0] == 2
    assert partition.leader == NO_LEADER
    assert partition.leader_epoch > 4


def test_equal_replicas_are_in_sync_and_share_leadership() -> None:
    logs = [log(number, 2, 10) for number in range(6)]
    found = run(logs, logs, logs)
    for partition in partitions(found):
        assert sorted(partition.isr) == [1, 2, 3]
    assert Counter(each.replicas[0] for each in partitions(found)) == {1: 2, 2: 2, 3: 2}


def test_partitions_without_logs_are_filled_in_and_can_be_counted() -> None:
    found = run([log(2, 0, 5)], [log(2, 0, 5)], [], counts={"f": 5})
    assert [each.id for each in partitions(found)] == [0, 1, 2, 3, 4]
    for partition in partitions(found):
        assert len(partition.replicas) == len(partition.isr) == len(set(partition.replicas)) == 2
    assert "f: 3 partitions left a trace" in "".join(run([log(2, 0, 5)]).notes)
    with pytest.raises(UsageError, match="topic g is in no broker"):
        run([log(0, 0, 1)], counts={"g": 2})


def test_producer_ids_begin_beyond_all_found() -> None:
    found = run([log(0, 0, 1, max_producer_id=4711)], [log(0, 0, 1, max_producer_id=4000)])
    assert found.image.next_producer_id > 4711 + 1000


class TestOldJournal:
    def old(self) -> Scene:
        scene = Scene()
        replicas = ((3, 1), (1, 2), (2, 3))
        scene.put_topic(
            "f",
            *(
                PartitionRegistration(number, each[0], 7, 0, each, each)
                for number, each in enumerate(replicas)
            ),
            **{"retention.ms": "5"},
        )
        for each in (
            _config(CONFIG_BROKER, "", "max.broker.partitions", "100"),
            _config(CONFIG_GROUP, "g", "share.delivery.count.limit", "9"),
            _config(CONFIG_CLIENT_METRICS, "m", "interval.ms", "100"),
        ):
            scene.image.replay(each)
        return scene

    def test_gives_options_partitions_and_order(self) -> None:
        old = self.old().image
        old.topics["f"] = old.topics["f"]._replace(id=ID)
        found = run([log(0, 9, 5)], [], [log(0, 9, 5)], old=old)
        first, second, third = partitions(found)
        assert first.replicas == first.isr == (3, 1)
        assert first.leader_epoch > 9
        assert second.replicas == second.isr == (1, 2)
        assert third.leader_epoch > 7
        assert found.image.value(CONFIG_TOPIC, "f", "retention.ms") == "5"
        assert found.image.value(CONFIG_BROKER, "", "max.broker.partitions") == "100"
        assert found.image.value(CONFIG_GROUP, "g", "share.delivery.count.limit") == "9"
        assert found.image.value(CONFIG_CLIENT_METRICS, "m", "interval.ms") == "100"
        assert found.notes == []

    def test_a_replica_moved_since_the_copy_is_where_its_log_is(self) -> None:
        old = self.old().image
        old.topics["f"] = old.topics["f"]._replace(id=ID)
        found = run([log(1, 7, 5)], [], [log(1, 7, 5)], old=old)
        assert partitions(found)[1].replicas == (1, 3)

    def test_a_replica_without_a_log_stays_a_replica_but_is_not_in_sync(self) -> None:
        old = self.old().image
        old.topics["f"] = old.topics["f"]._replace(id=ID)
        found = run([log(1, 7, 5)], [], [], old=old)
        assert partitions(found)[1].replicas == (1, 2)
        assert partitions(found)[1].isr == (1,)

    def test_a_topic_that_was_created_again_keeps_nothing_of_the_old_one(self) -> None:
        found = run([log(0, 0, 1, topic_id=OTHER)], [], [], old=self.old().image)
        assert found.image.topics["f"].id == OTHER
        assert found.image.value(CONFIG_TOPIC, "f", "retention.ms") is None
        assert "created again" in found.notes[0]

    def test_a_topic_without_any_record_is_kept(self) -> None:
        old = self.old().image
        found = run([], [], [], old=old)
        assert len(partitions(found)) == 3
        assert found.image.topics["f"].id == old.topics["f"].id
        assert "kept as an empty topic" in found.notes[0]

    def test_every_broker_in_the_old_copy_must_be_given(self) -> None:
        with pytest.raises(UsageError, match="knows broker 3, whose directory is not given"):
            run([], [], old=self.old().image)


@pytest.mark.parametrize(
    ("surveys", "what"),
    [
        ([], "no broker"),
        ([DirectorySurvey(1, "a", []), DirectorySurvey(2, "b", [])], "several clusters"),
        (
            [DirectorySurvey(1, "a", []), DirectorySurvey(1, "a", [])],
            "2 directories belong to broker 1",
        ),
        (
            [
                DirectorySurvey(1, "a", [log(0, 0, 1)]),
                DirectorySurvey(2, "a", [log(1, 0, 1, topic_id=OTHER)]),
            ],
            "different topics",
        ),
    ],
)
def test_directories_that_contradict_each_other_are_refused(
    surveys: list[DirectorySurvey], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        recover(surveys, None, {}, lambda: MADE)


def test_a_topic_whose_id_is_nowhere_gets_one() -> None:
    assert run([log(0, 0, 0, topic_id=None)]).image.topics["f"].id == MADE


def test_the_new_journal_opens_with_the_recovered_metadata(tmp_path: Any) -> None:
    from trimtab.cluster.controller.journal import Journal
    from trimtab.cluster.disk.files import DirectoryStorage

    found = run([log(0, 3, 900)], [log(0, 3, 900)])
    storage = DirectoryStorage(tmp_path)
    write_journal(storage, found.image, 5_000, 12, 0)
    journal = Journal(storage, 3000, lambda: 0, 1 << 30)
    assert (journal.end_offset, journal.epoch) == (5_000, 13)
    assert list(journal.image.records()) == list(found.image.records())


def _config(kind: int, resource: str, name: str, value: str) -> Any:
    from trimtab.kafka.wire.messages.metadata_records import ConfigRecord

    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
