from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.cli.reassign.throttles import clear_throttles, set_throttles
from trimtab.client.admin.answers import Reassignment
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition


class Configured:
    """Stands for an admin client; topics other than t and u do not exist."""

    def __init__(self) -> None:
        self.options: dict[tuple[str, str | int], Mapping[str, Any]] = {}

    def alter_configs(self, kind: str, name: str | int, changes: Mapping[str, Any]) -> None:
        if kind == "topic" and name not in ("t", "u"):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "", f"topic {name}")
        self.options[kind, name] = changes


def test_what_is_under_way_is_throttled_along_with_what_begins() -> None:
    admin = Configured()
    set_throttles(
        admin,  # type: ignore[arg-type]
        {TopicPartition("t", 0): [2, 3], TopicPartition("t", 1): [5]},
        {TopicPartition("t", 0): [1, 2], TopicPartition("t", 1): [4, 5]},
        {
            TopicPartition("t", 1): Reassignment((5, 4, 6), (5,), (6,)),
            TopicPartition("u", 7): Reassignment((8, 9), (8,), (9,)),
        },
        1000,
    )
    leader, follower = (f"{side}.replication.throttled.replicas" for side in ("leader", "follower"))
    assert admin.options["topic", "t"] == {leader: "0:1,0:2,1:4,1:6", follower: "0:3,1:5"}
    assert admin.options["topic", "u"] == {leader: "7:9", follower: "7:8"}
    brokers = {name for kind, name in admin.options if kind == "broker"}
    assert brokers == {1, 2, 3, 4, 5, 6, 8, 9}
    assert set(admin.options["broker", 1].values()) == {1000}


def test_throttles_of_topics_that_are_gone_need_not_be_taken_off() -> None:
    admin = Configured()
    clear_throttles(admin, {1}, {"gone", "u"})  # type: ignore[arg-type]
    assert set(admin.options["topic", "u"].values()) == {None}
    assert set(admin.options["broker", 1].values()) == {None}
