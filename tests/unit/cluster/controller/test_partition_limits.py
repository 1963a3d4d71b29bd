"""Limits on replicas: the cases of KIP-578, and those it leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.unit.cluster.controller.conftest import CONTROLLER, Scene
from trimtab import Admin, BrokerError, Cluster
from trimtab.balance.placement import PlacementGoal
from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.new_partitions import decide_create_partitions
from trimtab.cluster.controller.partition_limits import is_ignored, read_goal
from trimtab.cluster.controller.reassignments import decide_alter_reassignments
from trimtab.cluster.controller.topics import decide_create, decide_delete
from trimtab.cluster.metadata.image import CONFIG_BROKER, PartitionRegistration
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import LONG_MAX, read
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.metadata_records import ConfigRecord

pytestmark = pytest.mark.kip(578)

NONE, REFUSED = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
SEEDS = range(20)


class Limited:
    """Brokers 1, 2, … with the given numbers of replicas of one topic, under these limits."""

    def __init__(
        self, scene: Scene, replicas: Sequence[int], broker: int | None, cluster: int | None
    ) -> None:
        self.scene = scene
        for number in range(1, len(replicas) + 1):
            scene.put_broker(number)
        for number in set(scene.image.brokers) - set(range(1, len(replicas) + 1)):
            del scene.image.brokers[number]
        holders = [number for number, count in enumerate(replicas, 1) for _ in range(count)]
        scene.put_topic(
            "old",
            *(
                PartitionRegistration(index, holder, 0, 0, (holder,), (holder,))
                for index, holder in enumerate(holders)
            ),
        )
        for name, limit in (("max.broker.partitions", broker), ("max.partitions", cluster)):
            if limit is not None:
                scene.configure("", name, str(limit))

    def create(self, *topics: CreatableTopic, seed: int = 1, validate_only: bool = False) -> Any:
        scene = self.scene
        request = CreateTopicsRequest(
            topics=list(topics), timeout_ms=1000, validate_only=validate_only
        )
        decision = decide_create(
            scene.image, request, read(BROKER, {}), scene.allowance(), Random(seed)
        )
        return [
            (each.error_code, each.error_message or "") for each in scene.apply(decision).topics
        ]

    def extend(self, name: str, count: int, *assignments: list[int]) -> Any:
        scene = self.scene
        given = [CreatePartitionsAssignment(broker_ids=each) for each in assignments]
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=given or None)],
            timeout_ms=1000,
        )
        decision = decide_create_partitions(scene.image, request, scene.allowance(), Random(1))
        (result,) = scene.apply(decision).results
        return result.error_code, result.error_message or ""

    def move(self, moves: dict[int, list[int] | None], name: str = "old") -> list[Any]:
        scene = self.scene
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=replicas)
                        for index, replicas in moves.items()
                    ],
                )
            ]
        )
        decision = decide_alter_reassignments(scene.image, scene.rules, scene.allowance(), request)
        (answer,) = scene.apply(decision).responses
        return [(each.error_code, each.error_message or "") for each in answer.partitions]

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
        self.scene.apply(decide_delete(self.scene.image, request, True))

    def counts(self) -> list[int]:
        """Replicas of each broker, counted from the partitions."""
        counted = Counter(
            replica
            for topic in self.scene.image.topics.values()
            for partition in topic.partitions
            for replica in partition.replicas
        )
        return [counted[broker] for broker in sorted(self.scene.image.brokers)]


def topic(name: str, partitions: int, factor: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)


def assigned(name: str, *replicas: list[int]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=each)
            for index, each in enumerate(replicas)
        ],
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_1_to_3_until_all_brokers_are_full(scene: Scene, seed: int) -> None:
    limited = Limited(scene, (8, 6, 9), 10, None)
    assert limited.create(topic("t", 1, 3), seed=seed) == [(NONE, "")]
    assert limited.counts() == [9, 7, 10]
    ((code, message),) = limited.create(topic("u", 1, 3), seed=seed)
    assert code == REFUSED
    assert message == (
        "Unable to place 1 partition(s) of topic 'u' with replication factor 3: at most 0 can be "
        f"placed (max.broker.partitions=10, max.partitions={LONG_MAX}; partition replicas: "
        "cluster=26, by broker={1=9, 2=7, 3=10})."
    )
    assert limited.create(topic("u", 1, 2), seed=seed) == [(NONE, "")]
    assert limited.counts() == [10, 8, 10]


def test_row_4_nothing_is_created_in_part(scene: Scene) -> None:
    limited = Limited(scene, (8, 6, 9), 10, None)
    ((code, message),) = limited.create(topic("t", 2, 3))
    assert (code, "at most 1 can be placed" in message) == (REFUSED, True)
    assert limited.counts() == [8, 6, 9]


@pytest.mark.parametrize("seed", range(100))
def test_rows_5_to_7_all_free_replicas_can_be_used(scene: Scene, seed: int) -> None:
    limited = Limited(scene, (10, 20, 30), 40, None)
    for partitions, factor, most in ((31, 2, 30), (20, 3, 10)):
        ((code, message),) = limited.create(topic("t", partitions, factor), seed=seed)
        assert (code, f"at most {most} can be placed" in message) == (REFUSED, True)
    assert limited.create(topic("t", 30, 2), seed=seed) == [(NONE, "")]
    assert limited.counts() == [40, 40, 40]


def test_row_8_the_clusters_limit_with_no_broker_full(scene: Scene) -> None:
    limited = Limited(scene, (0, 0, 0), None, 9)
    ((code, message),) = limited.create(topic("t", 5, 2))
    assert code == REFUSED
    assert message == (
        "Unable to place 5 partition(s) of topic 't' with replication factor 2: it requires 10 "
        "more partition replicas on top of 0, exceeding max.partitions=9: the brokers already host "
        f"0, so at most 4 can be placed (max.broker.partitions={LONG_MAX}, max.partitions=9; "
        "partition replicas: cluster=0, by broker={})."
    )
    assert limited.create(topic("t", 4, 2)) == [(NONE, "")]


@pytest.mark.parametrize(
    ("broker", "cluster", "named"), [(2, 100, "at most 2 "), (100, 3, "exceeding max.partitions=3")]
)
def test_row_9_the_stricter_limit_is_named(
    scene: Scene, broker: int, cluster: int, named: str
) -> None:
    limited = Limited(scene, (0, 0, 0), broker, cluster)
    ((code, message),) = limited.create(topic("t", 4, 3))
    assert code == REFUSED
    assert named in message
    assert f"max.broker.partitions={broker}, max.partitions={cluster}" in message


@pytest.mark.parametrize("validate_only", [False, True])
def test_rows_10_and_11_what_was_granted_counts_for_the_rest_of_the_request(
    scene: Scene, validate_only: bool
) -> None:
    limited = Limited(scene, (0,), 10, None)
    first, second = limited.create(topic("a", 6, 1), topic("b", 6, 1), validate_only=validate_only)
    assert (first[0], second[0]) == (NONE, REFUSED)
    assert "at most 4" in second[1]
    assert limited.counts() == [0 if validate_only else 6]


def test_row_12_other_faults_come_first(scene: Scene) -> None:
    limited = Limited(scene, (0, 0, 0), 0, 0)
    bad = topic("bad", 1, 1)
    bad.configs = [CreatableTopicConfig(name="retention.ms", value="x")]
    codes = [
        code
        for code, _ in limited.create(
            topic("t", 1, 4), topic("in valid", 1, 1), topic("old", 1, 1), bad, topic("t2", 1, 3)
        )
    ]
    assert codes == [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_CONFIG,
        REFUSED,
    ]


def test_rows_13_and_14_manual_assignments_are_checked_where_they_go(scene: Scene) -> None:
    limited = Limited(scene, (9, 0, 15), 10, None)
    ((code, message),) = limited.create(assigned("t", [1, 2], [1, 2]))
    assert code == REFUSED
    assert "broker 1 would host 11 partition replicas" in message
    assert limited.create(assigned("t", [1, 2], [2])) == [
        (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment gives partitions different numbers of replicas; give "
            "all the same.",
        )
    ]
    assert limited.create(assigned("t", [2, 1])) == [(NONE, "")]
    assert scene.image.topics["t"].partitions[0].replicas == (2, 1)


def test_rows_15_and_16_more_partitions(scene: Scene) -> None:
    limited = Limited(scene, (8, 8, 8), 10, None)
    assert limited.create(topic("t", 1, 3)) == [(NONE, "")]
    code, message = limited.extend("t", 3)
    assert (code, "at most 1 can be placed" in message) == (REFUSED, True)
    assert len(scene.image.topics["t"].partitions) == 1
    code, message = limited.extend("t", 3, [1, 2, 3], [3, 2, 1])
    assert (code, "broker 1 would host 11" in message) == (REFUSED, True)
    assert limited.extend("t", 2)[0] == NONE
    assert limited.counts() == [10, 10, 10]


def test_row_17_topics_of_the_clusters_own_are_free(scene: Scene) -> None:
    limited = Limited(scene, (5, 5, 5), 5, 15)
    assert limited.create(topic("__consumer_offsets", 50, 3)) == [(NONE, "")]
    assert scene.image.counts.total == 15
    assert limited.extend("__consumer_offsets", 60)[0] == NONE
    assert limited.create(topic("t", 1, 1))[0][0] == REFUSED
    assert limited.create(topic("_schemas", 1, 1))[0][0] == REFUSED


def test_row_18_a_limit_below_what_there_is(scene: Scene) -> None:
    limited = Limited(scene, (15,), 10, None)
    assert limited.create(topic("t", 1, 1))[0][0] == REFUSED
    limited.delete("old")
    assert limited.create(topic("t", 10, 1)) == [(NONE, "")]


def test_row_19_a_cluster_over_its_limit_keeps_working(scene: Scene) -> None:
    limited = Limited(scene, (30, 20, 0), None, 40)
    ((code, message),) = limited.create(topic("t", 1, 1))
    assert (code, "already host 50" in message) == (REFUSED, True)
    assert limited.move({0: [3]}) == [(NONE, "")]
    limited.delete("old")
    assert limited.counts() == [0, 0, 0]


def test_rows_20_and_21_moves_to_full_brokers_and_away_from_them(scene: Scene) -> None:
    limited = Limited(scene, (2, 5, 12), 5, None)
    to_full, to_room = limited.move({0: [2], 7: [1]})
    assert to_full[0] == REFUSED
    assert "broker 2 would host 6 partition replicas" in to_full[1]
    assert to_room == (NONE, "")
    assert limited.move({8: [1]}) == [(NONE, "")]


def test_row_22_a_move_that_adds_no_replica_is_allowed(scene: Scene) -> None:
    limited = Limited(scene, (3, 3, 3), None, None)
    limited.create(assigned("t", [1, 2, 3]))
    scene.configure("", "max.broker.partitions", "1")
    scene.configure("", "max.partitions", "1")
    assert limited.move({0: [3, 2, 1]}, "t") == [(NONE, "")]
    assert limited.move({0: [3, 2]}, "t") == [(NONE, "")]
    assert limited.move({0: [1]}) == [(NONE, "")]


def test_row_23_more_replicas_need_room_in_the_cluster(scene: Scene) -> None:
    limited = Limited(scene, (3, 3, 3), None, 10)
    ((code, message),) = limited.move({0: [1, 2, 3]})
    assert (code, "exceeding max.partitions=10" in message) == (REFUSED, True)
    assert limited.move({0: [1, 2]}) == [(NONE, "")]


def test_row_24_a_move_can_always_be_cancelled(scene: Scene) -> None:
    limited = Limited(scene, (3, 3, 3), None, None)
    assert limited.move({0: [2]}) == [(NONE, "")]
    scene.configure("", "max.broker.partitions", "0")
    scene.configure("", "max.partitions", "0")
    assert limited.move({0: None, 1: None}) == [
        (NONE, ""),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
    ]
    assert limited.counts() == [3, 3, 3]


def test_row_25_a_target_that_is_replaced_counts_once(scene: Scene) -> None:
    limited = Limited(scene, (3, 4, 0), 5, None)
    assert limited.move({0: [2]}) == [(NONE, "")]
    assert limited.move({0: [2, 3]}) == [(NONE, "")]
    assert limited.counts() == [3, 5, 1]


def test_row_26_a_swap_needs_room_for_both(scene: Scene) -> None:
    limited = Limited(scene, (1, 1), 1, None)
    assert [code for code, _ in limited.move({0: [2], 1: [1]})] == [REFUSED, REFUSED]
    scene.configure("", "max.broker.partitions", "2")
    assert [code for code, _ in limited.move({0: [2], 1: [1]})] == [NONE, NONE]


def test_rows_28_and_29_brokers_that_come_and_go(scene: Scene) -> None:
    limited = Limited(scene, (5, 5), 5, 15)
    assert limited.create(topic("t", 1, 1))[0][0] == REFUSED
    scene.put_broker(3)
    assert limited.create(topic("t", 1, 1)) == [(NONE, "")]
    scene.put_broker(3, fenced=True)
    assert limited.create(topic("u", 1, 1))[0][0] == REFUSED
    assert scene.image.counts.total == 11


@pytest.mark.parametrize(("node", "counts"), [(1, False), (CONTROLLER, True)])
def test_rows_30_and_31_only_what_is_set_for_the_controller_counts(
    scene: Scene, node: int, counts: bool
) -> None:
    limited = Limited(scene, (5, 5, 5), 10, None)
    scene.image.replay(
        ConfigRecord(
            resource_type=CONFIG_BROKER,
            resource_name=str(node),
            name="max.broker.partitions",
            value="5",
        )
    )
    assert limited.create(topic("t", 1, 1))[0][0] == (REFUSED if counts else NONE)


def test_many_brokers_are_not_all_listed(scene: Scene) -> None:
    limited = Limited(scene, range(1, 15), 0, None)
    ((_, message),) = limited.create(topic("t", 1, 1))
    assert "by broker={5=5, 6=6, " in message
    assert message.endswith("14=14, ...}).")


def test_the_counts_are_those_of_the_partitions(scene: Scene) -> None:
    limited = Limited(scene, (4, 4, 4), 8, None)
    random = Random(5)
    for step in range(200):
        name = f"t{step}"
        limited.create(topic(name, random.randint(1, 3), random.randint(1, 3)), seed=step)
        if random.random() < 0.5:
            limited.move({0: random.sample([1, 2, 3], random.randint(1, 3))})
        if name in scene.image.topics and random.random() < 0.9:
            limited.delete(name)
        counted = limited.counts()
        assert [scene.image.counts.on[broker] for broker in (1, 2, 3)] == counted
        assert scene.image.counts.total == sum(counted)


@pytest.mark.kip(1194)
@pytest.mark.parametrize(("holder", "goal"), [("", "brokers"), (str(CONTROLLER), "weighted")])
def test_new_topics_and_new_partitions_level_what_the_option_says(
    scene: Scene, holder: str, goal: str
) -> None:
    """Brokers 1 to 5 are in racks of two, two and one."""
    limited = Limited(scene, (0, 0, 0, 0, 0), None, None)
    for number, rack in enumerate("aabbc", 1):
        scene.put_broker(number, rack=rack)
    limited.create(topic("before", 50, 3))
    assert limited.counts() == [25, 25, 25, 25, 50]
    scene.image.replay(goal_record(holder, goal))
    limited.create(topic("t", 25, 3))
    limited.extend("t", 50)
    assert limited.counts() == [25 + 30, 25 + 30, 25 + 30, 25 + 30, 50 + 30]


@pytest.mark.kip(1194)
def test_a_goal_set_for_another_broker_is_ignored(scene: Scene) -> None:
    scene.image.replay(goal_record("1", "brokers"))
    assert read_goal(scene.image, scene.config, CONTROLLER) is PlacementGoal.RACKS
    assert is_ignored(goal_record("1", "brokers"), CONTROLLER)
    assert not is_ignored(goal_record(str(CONTROLLER), "brokers"), CONTROLLER)


@pytest.mark.kip(1194)
def test_a_running_cluster_places_replicas_as_its_option_says() -> None:
    config = {"replica.placement.goal": "brokers"}
    with (
        Cluster(brokers=5, racks=[*"aabbc"], config=config) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):

        def count(topic: str) -> Counter[int]:
            partitions = admin.describe_topics([topic])[topic].partitions
            return Counter(broker for each in partitions for broker in each.replicas)

        admin.create_topic("t", partitions=20, replication_factor=3)
        admin.create_partitions("t", 25)
        assert count("t") == dict.fromkeys(range(5), 15)
        with pytest.raises(BrokerError, match="must be one of racks, brokers, weighted"):
            admin.alter_configs("broker", "", {"replica.placement.goal": "zones"})
        admin.alter_configs("broker", "", {"replica.placement.goal": "racks"})
        admin.create_topic("u", partitions=20, replication_factor=3)
        assert count("u") == {0: 10, 1: 10, 2: 10, 3: 10, 4: 20}


def goal_record(broker: str, goal: str) -> ConfigRecord:
    """The option set for one broker, or for all."""
    return ConfigRecord(
        resource_type=CONFIG_BROKER,
        resource_name=broker,
        name="replica.placement.goal",
        value=goal,
    )
