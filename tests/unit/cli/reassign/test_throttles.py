from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from trimtab.cli.reassign.throttles import release_throttles, set_throttles
from trimtab.client.admin.answers import ClusterDescription, Reassignment
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition

LEADER, FOLLOWER = (f"{side}.replication.throttled.replicas" for side in ("leader", "follower"))
RATES = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
TOPICS = ("t", "u")


class Entry(NamedTuple):
    name: str
    value: str | None


class Kafka:
    """Stands for an admin client of Apache Kafka, whose brokers refuse the options of others."""

    def __init__(self, brokers: set[int], stopped: set[int] | None = None) -> None:
        self.brokers = brokers
        self.stopped = stopped or set()
        self.moving: dict[TopicPartition, Reassignment] = {}
        self.options: dict[tuple[str, str | int], dict[str, str]] = {}
        self.order: list[str] = []

    def cluster(self, include_fenced: bool = False) -> ClusterDescription:
        there = self.brokers if include_fenced else self.brokers - self.stopped
        nodes = [Node(broker, "localhost", 9092, None) for broker in sorted(there)]
        return ClusterDescription("id", 0, nodes, frozenset(self.stopped))

    def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        return self.moving

    def describe_configs(self, kind: str, name: str) -> list[Entry]:
        given = {LEADER: "", FOLLOWER: "", **self.options.get((kind, name), {})}
        return [Entry(*each) for each in given.items()]

    def alter_configs(
        self,
        kind: str,
        name: str | int,
        changes: Mapping[str, object] | None = None,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        if kind == "topic" and name not in TOPICS:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "", f"topic {name}")
        if kind == "broker" and name in self.stopped:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 0", "")
        self.order.append(kind)
        own = self.options.setdefault((kind, name), {})
        for option, value in (changes or {}).items():
            own[option] = str(value)
            if value is None:
                del own[option]
        for texts, is_kept in ((append or {}, True), (subtract or {}, False)):
            for option, text in texts.items():
                there = [each for each in own.get(option, "").split(",") if each]
                words = text.split(",")
                there = [each for each in there if each not in words] + words * is_kept
                own[option] = ",".join(there)

    def rates(self) -> dict[int, set[str]]:
        """By broker, the rates that are set."""
        return {
            int(name): set(own.values())
            for (kind, name), own in self.options.items()
            if kind == "broker" and own
        }


def throttle(admin: Any, rate: int = 1000) -> list[int]:
    """Throttle a reassignment of t-0 from broker 1 to 3, beside those that are moving."""
    zero = TopicPartition("t", 0)
    return set_throttles(admin, {zero: [2, 3]}, {zero: [1, 2]}, admin.moving, rate)


def test_what_is_under_way_is_throttled_along_with_what_begins() -> None:
    admin: Any = Kafka({*range(10)})
    admin.moving = {
        TopicPartition("t", 1): Reassignment((5, 4, 6), (5,), (6,)),
        TopicPartition("u", 7): Reassignment((8, 9), (8,), (9,)),
    }
    assert throttle(admin) == []
    assert admin.options["topic", "t"] == {LEADER: "0:1,0:2,1:4,1:6", FOLLOWER: "0:3,1:5"}
    assert admin.options["topic", "u"] == {LEADER: "7:9", FOLLOWER: "7:8"}
    assert admin.rates() == {broker: {"1000"} for broker in (1, 2, 3, 4, 5, 6, 8, 9)}


def test_only_partitions_that_are_copied_are_throttled() -> None:
    admin: Any = Kafka({1, 2})
    zero = TopicPartition("t", 0)
    set_throttles(admin, {zero: [2, 1]}, {zero: [1, 2]}, {}, 1000)
    assert admin.options == {}


def test_rates_come_first_and_a_stopped_broker_is_left_out() -> None:
    admin: Any = Kafka({1, 2, 3}, stopped={1})
    assert throttle(admin) == [1]
    assert admin.rates() == {2: {"1000"}, 3: {"1000"}}
    assert admin.options["topic", "t"] == {LEADER: "0:1,0:2", FOLLOWER: "0:3"}
    assert admin.order == ["broker", "broker", "topic"]


def test_what_a_live_broker_refuses_is_an_error() -> None:
    admin: Any = Kafka({1, 2, 3}, stopped={1})
    admin.cluster = Kafka({1, 2, 3}).cluster
    with pytest.raises(BrokerError, match="Unexpected broker id"):
        throttle(admin)


def test_replicas_that_others_have_listed_stay_and_all_replicas_cover_ours() -> None:
    admin: Any = Kafka({1, 2, 3})
    admin.options["topic", "t"] = {LEADER: "5:1", FOLLOWER: "*"}
    throttle(admin)
    assert admin.options["topic", "t"] == {LEADER: "5:1,0:1,0:2", FOLLOWER: "*"}


def test_lists_that_were_set_are_taken_back_if_another_one_cannot_be() -> None:
    admin: Any = Kafka({*range(10)})
    admin.options["topic", "t"] = {LEADER: "0:1,5:1", FOLLOWER: ""}
    admin.moving = {TopicPartition("v", 7): Reassignment((8, 9), (8,), (9,))}
    with pytest.raises(BrokerError, match="topic v"):
        throttle(admin)
    assert admin.options["topic", "t"] == {LEADER: "0:1,5:1", FOLLOWER: ""}


def test_a_broker_that_hangs_and_dies_meanwhile_is_left_out() -> None:
    admin: Any = Kafka({1, 2, 3})
    alter = admin.alter_configs

    def hang(kind: str, name: str | int, *rest: Any, **named: Any) -> None:
        if name == 2:
            admin.stopped = {2}
            raise Unavailable("no answer within 60 s")
        alter(kind, name, *rest, **named)

    admin.alter_configs = hang
    assert throttle(admin) == [2]
    assert admin.rates() == {1: {"1000"}, 3: {"1000"}}
    assert admin.options["topic", "t"] == {LEADER: "0:1,0:2", FOLLOWER: "0:3"}


def test_what_still_moves_keeps_its_throttle() -> None:
    admin: Any = Kafka({1, 2, 3, 4, 5})
    admin.moving = {TopicPartition("t", 1): Reassignment((4, 5), (5,), (4,))}
    throttle(admin)
    assert release_throttles(admin, ["t"]) == ([1, 2, 3], [4, 5], [])
    assert admin.options["topic", "t"] == {LEADER: "1:4", FOLLOWER: "1:5"}
    assert admin.rates() == {4: {"1000"}, 5: {"1000"}}
    admin.moving = {}
    assert release_throttles(admin, ["t"]) == ([1, 2, 3, 4, 5], [], [])
    assert admin.options["topic", "t"] == admin.rates() == {}


def test_all_replicas_stay_throttled_while_one_moves() -> None:
    admin: Any = Kafka({1, 2, 3})
    admin.moving = {TopicPartition("t", 1): Reassignment((2, 3), (3,), (2,))}
    admin.options["topic", "t"] = {LEADER: "*", FOLLOWER: "0:3,1:3"}
    release_throttles(admin, ["t"])
    assert admin.options["topic", "t"] == {LEADER: "*", FOLLOWER: "1:3"}


def test_a_broker_that_has_stopped_since_is_named_and_released_when_it_is_back() -> None:
    admin: Any = Kafka({1, 2, 3})
    throttle(admin)
    admin.stopped = {3}
    assert release_throttles(admin, ["t"]) == ([1, 2], [], [3])
    assert admin.rates() == {3: {"1000"}}
    admin.stopped = set()
    assert release_throttles(admin, ["t"]) == ([1, 2, 3], [], [])
    assert admin.rates() == {}


def test_throttles_of_topics_that_are_gone_need_not_be_taken_off() -> None:
    admin: Any = Kafka({1, 2, 3})
    throttle(admin)
    release_throttles(admin, {"gone", "t"})
    assert admin.options["topic", "t"] == admin.rates() == {}
