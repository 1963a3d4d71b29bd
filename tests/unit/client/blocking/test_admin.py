"""What the admin client changes, asked of the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.moves import await_replicas
from trimtab.client.admin import ConfigSource, PartlyRefused
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.producer import Producer
from trimtab.cluster.config.node import CONTROLLER_ID
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


class TestCreatePartitions:
    def test_at_the_clusters_choice_or_at_given_brokers(self, admin: Admin) -> None:
        admin.create_topic("grows", partitions=1)
        admin.create_partitions("grows", 3, validate_only=True)
        assert admin.describe_topics(["grows"])["grows"].partition_count == 1
        admin.create_partitions("grows", 3)
        admin.create_partitions("grows", 5, [[2], [0]])
        view = admin.describe_topics(["grows"])["grows"]
        assert [partition.replicas for partition in view.partitions[3:]] == [(2,), (0,)]

    def test_what_cannot_be(self, admin: Admin) -> None:
        admin.create_topic("stays", partitions=2)
        with pytest.raises(BrokerError) as refused:
            admin.create_partitions("stays", 1)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
        with pytest.raises(BrokerError, match="no such topic"):
            admin.create_partitions("nowhere", 2)


class TestAlterConfigs:
    def test_set_append_subtract_and_back(self, admin: Admin) -> None:
        admin.create_topic("kept", config={"retention.ms": 1000})
        admin.alter_configs(
            "topic",
            "kept",
            {"retention.ms": None, "segment.bytes": 4096},
            append={"cleanup.policy": "compact"},
        )
        options = {entry.name: entry for entry in admin.describe_configs("topic", "kept")}
        assert options["segment.bytes"].value == "4096"
        assert options["cleanup.policy"].value == "delete,compact"
        assert options["retention.ms"].is_default
        assert options["segment.bytes"].synonyms[0].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        admin.alter_configs("topic", "kept", subtract={"cleanup.policy": "delete"})
        options = {entry.name: entry for entry in admin.describe_configs("topic", "kept")}
        assert options["cleanup.policy"].value == "compact"

    def test_of_all_brokers_and_of_one(self, admin: Admin) -> None:
        admin.alter_configs("broker", "", {"max.partitions": 70_000})
        admin.alter_configs("broker", 1, {"max.partitions": 60_000})
        try:
            (shared,) = admin.describe_configs("broker", "")
            assert (shared.name, shared.value) == ("max.partitions", "70000")
            found = {
                broker: next(
                    entry
                    for entry in admin.describe_configs("broker", broker)
                    if entry.name == "max.partitions"
                )
                for broker in (0, 1)
            }
            assert (found[0].value, found[1].value) == ("70000", "60000")
            assert [each.source for each in found[1].synonyms] == [
                ConfigSource.DYNAMIC_BROKER_CONFIG,
                ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
                ConfigSource.DEFAULT_CONFIG,
            ]
        finally:
            admin.alter_configs("broker", 1, {"max.partitions": None})
            admin.alter_configs("broker", "", {"max.partitions": None})
        assert admin.describe_configs("broker", "") == []

    def test_of_the_controller(self, admin: Admin) -> None:
        """By which limits are judged (KIP-578)."""
        admin.alter_configs("broker", CONTROLLER_ID, {"max.partitions": 0})
        with pytest.raises(BrokerError, match=r"max\.partitions=0"):
            admin.create_topic("none")
        admin.alter_configs("broker", CONTROLLER_ID, {"max.partitions": None})
        with pytest.raises(BrokerError, match="No node with id 77 found"):
            admin.alter_configs("broker", 77, {"max.partitions": 0})

    def test_only_checked_or_refused(self, admin: Admin) -> None:
        admin.create_topic("checked")
        admin.alter_configs("topic", "checked", {"retention.ms": 5}, validate_only=True)
        with pytest.raises(BrokerError) as refused:
            admin.alter_configs("topic", "checked", {"retention.ms": "soon"})
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        with pytest.raises(BrokerError, match="no such topic"):
            admin.alter_configs("topic", "nowhere", {"retention.ms": 5})
        with pytest.raises(UsageError, match="named by its number"):
            admin.alter_configs("broker", "first", {"max.partitions": 5})
        options = {entry.name: entry for entry in admin.describe_configs("topic", "checked")}
        assert options["retention.ms"].is_default


class TestReassignments:
    def test_go_where_they_are_sent_and_those_that_cannot_are_named(self, admin: Admin) -> None:
        admin.create_topic("moves", assignment={0: [0], 1: [1]})
        with pytest.raises(PartlyRefused) as refused:
            admin.alter_reassignments({("moves", 0): [2], ("moves", 1): [7], ("moves", 9): None})
        assert {
            partition.partition: error.code for partition, error in refused.value.refusals.items()
        } == {
            1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert "and 1 more" in str(refused.value)
        await_replicas(admin, "moves", [(2,), (1,)])
        assert admin.list_reassignments([("moves", 0)]) == {}

    def test_are_listed_until_they_end_and_can_be_cancelled(
        self, admin: Admin, cluster: Cluster
    ) -> None:
        admin.create_topic("slow", assignment={0: [0]})
        # Nothing is copied at one byte a second, once the first response has used it up.
        admin.alter_configs("broker", "", {"follower.replication.throttled.rate": 1})
        admin.alter_configs("topic", "slow", {"follower.replication.throttled.replicas": "*"})
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(3):
                producer.send("slow", bytes(900_000)).result()
        slow = TopicPartition("slow", 0)
        admin.alter_reassignments({slow: [1]})
        moving = admin.list_reassignments()
        assert moving[slow].adding == (1,)
        assert moving[slow].removing == (0,)
        admin.alter_reassignments({slow: None})
        assert admin.list_reassignments() == {}
        with pytest.raises(PartlyRefused) as refused:
            admin.alter_reassignments({slow: None})
        assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        admin.alter_configs("broker", "", {"follower.replication.throttled.rate": None})


class TestLogDirs:
    def test_of_all_brokers_or_some(self, admin: Admin, cluster: Cluster) -> None:
        admin.create_topic("stored", assignment={0: [1, 2]})
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("stored", bytes(10_000)).result()
        stored = TopicPartition("stored", 0)
        directories = admin.describe_log_dirs()
        assert sorted(directories) == [0, 1, 2]
        (directory,) = directories[1]
        assert directory.error is None
        assert directory.logs[stored].size > 10_000
        assert directory.usable_bytes > 0
        assert not directory.is_cordoned
        assert stored not in directories[0][0].logs
        assert list(admin.describe_log_dirs([2])) == [2]
        with pytest.raises(UsageError, match="broker 9 is not alive"):
            admin.describe_log_dirs([9])


class TestReplicasFromOutside:
    def test_a_follower_that_is_cut_off_from_its_leader_lags(
        self, admin: Admin, cluster: Cluster
    ) -> None:
        admin.create_topic("lags", assignment={0: [0, 1, 2]})
        lags = TopicPartition("lags", 0)
        wanted = {broker: [lags] for broker in range(3)}
        with Producer(cluster.bootstrap_servers, acks="all") as producer:
            producer.send("lags", b"0").result()
        assert admin.list_replica_ends(wanted) == {broker: {lags: 1} for broker in range(3)}
        cluster.isolate(2, 0)
        try:
            with Producer(cluster.bootstrap_servers, acks=1) as producer:
                for value in (b"1", b"2"):
                    producer.send("lags", value).result()
            ends = {
                broker: found[lags] for broker, found in admin.list_replica_ends(wanted).items()
            }
            assert (ends[0], ends[2]) == (3, 1)
        finally:
            cluster.heal()
        while admin.list_replica_ends({2: [lags]}) != {2: {lags: 3}}:
            pass
        admin.create_topic("elsewhere", assignment={0: [1]})
        found = admin.list_replica_ends({0: [("elsewhere", 0)], 9: iter([("elsewhere", 0)])})
        assert [
            end.code
            for ends in found.values()
            for end in ends.values()
            if isinstance(end, BrokerError)
        ] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.BROKER_NOT_AVAILABLE]

    def test_brokers_follow_the_controllers_log(self, admin: Admin) -> None:
        before = admin.describe_quorum()
        (voter,) = before.voters
        assert voter.id == before.leader_id == CONTROLLER_ID
        assert voter.log_end == before.high_watermark
        assert [each.id for each in before.observers] == [0, 1, 2]
        admin.create_topic("noted", partitions=3)
        while (after := admin.describe_quorum()).observers[0].log_end != after.high_watermark:
            pass
        assert after.high_watermark > before.high_watermark
        assert after.leader_epoch == before.leader_epoch
        for each, old in zip(after.observers, before.observers, strict=True):
            for now_ms, then_ms in (
                (each.last_fetch_ms, old.last_fetch_ms),
                (each.last_caught_up_ms, old.last_caught_up_ms),
            ):
                assert (now_ms or 0) >= (then_ms or 0) > 0
