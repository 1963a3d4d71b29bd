"""Changes of leaders and ISRs when brokers come and go, and elections on request."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.cluster.controller import leader_changes
from trimtab.cluster.controller.leader_changes import (
    balance_leaders,
    decide_elections,
    elect_unclean_where_missing,
    elect_where_missing,
    remove_from_isrs,
    remove_from_isrs_and_elrs,
    review_eligible,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from trimtab.kafka.wire.sentinels import NO_LEADER

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def scene(scene: Any) -> Any:
    part = scene.partition
    scene.put_topic("two", part(0, 1, (1, 2, 3)), part(1, 2, (2, 1)), min_insync_replicas="2")
    scene.put_topic("one", part(0, 1, (1,)), part(1, 3, (3, 2)), part(2, 2, (1, 2, 3)))
    scene.put_topic(
        "any", part(0, 1, (1,)), part(1, 2, (2, 1)), unclean_leader_election_enable="true"
    )
    return scene


def test_a_fenced_broker_leaves_isrs_and_leadership(scene: Any) -> None:
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    assert scene.brief("two") == {0: (2, (2, 3), ()), 1: (2, (2,), (1,))}
    assert scene.brief("one") == {0: (NO_LEADER, (), (1,)), 1: (3, (3, 2), ()), 2: (2, (2, 3), ())}
    assert scene.brief("any") == {0: (2, (2,), ()), 1: (2, (2,), ())}
    assert scene.image.topics["one"].partitions[0].last_known_elr == (1,)
    assert remove_from_isrs(scene.image, scene.rules, 1) == []


def test_a_broker_that_may_have_lost_records_is_not_eligible(scene: Any) -> None:
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    scene.apply(remove_from_isrs_and_elrs(scene.image, scene.rules, 1))
    assert scene.brief("two") == {0: (2, (2, 3), ()), 1: (2, (2,), ())}
    assert scene.brief("one")[0] == (NO_LEADER, (), ())
    assert scene.image.topics["one"].partitions[0].last_known_elr == (1,)
    scene.apply(remove_from_isrs_and_elrs(scene.image, scene.rules, 2))
    assert scene.brief("two") == {0: (3, (3,), ()), 1: (NO_LEADER, (), ())}


def test_an_unfenced_broker_leads_where_no_other_may(scene: Any) -> None:
    scene.put_broker(1, fenced=True)
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    scene.apply(elect_where_missing(scene.image, scene.rules, 3))
    assert scene.brief("one")[0] == (NO_LEADER, (), (1,))
    scene.apply(elect_where_missing(scene.image, scene.rules, 1))
    assert scene.brief("one")[0] == (1, (1,), ())
    assert scene.brief("two")[1] == (2, (2,), (1,))


def test_cluster_wide_options_apply_where_a_topic_has_none(scene: Any) -> None:
    scene.configure("", "min.insync.replicas", "3")
    scene.configure("", "unclean.leader.election.enable", "true")
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    assert scene.brief("two")[0] == (2, (2, 3), ())
    assert scene.brief("one") == {0: (2, (2,), ()), 1: (3, (3, 2), ()), 2: (2, (2, 3), (1,))}


def test_elrs_of_an_earlier_minimum_are_cleared(scene: Any) -> None:
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    assert review_eligible(scene.image, scene.rules) == []
    scene.configure("two", "min.insync.replicas", "1")
    scene.apply(review_eligible(scene.image, scene.rules))
    assert scene.brief("two") == {0: (2, (2, 3), ()), 1: (2, (2,), ())}
    assert scene.brief("one")[0] == (NO_LEADER, (), (1,))


def test_preferred_leaders_are_elected(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_changes, "MAX_ELECTIONS", 2)
    assert len(balance_leaders(scene.image, scene.rules)) == 2
    scene.apply(balance_leaders(scene.image, scene.rules))
    scene.apply(balance_leaders(scene.image, scene.rules))
    assert balance_leaders(scene.image, scene.rules) == []
    assert [scene.brief(name)[1][0] for name in ("two", "one", "any")] == [1, 3, 1]
    assert scene.brief("one")[2] == (1, (1, 2, 3), ())


def test_no_leader_moves_to_an_inactive_broker(scene: Any) -> None:
    scene.put_broker(1, fenced=True)
    assert balance_leaders(scene.image, scene.rules) == []


def test_unclean_leaders_are_elected_where_allowed(scene: Any) -> None:
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    assert elect_unclean_where_missing(scene.image, scene.rules) == []
    scene.configure("one", "unclean.leader.election.enable", "true")
    scene.put_broker(1, fenced=True)
    scene.apply(elect_unclean_where_missing(scene.image, scene.rules))
    assert scene.brief("one")[0] == (2, (2,), ())
    assert scene.image.topics["one"].partitions[0].leader_recovery_state == 1


def elect(
    scene: Any, kind: int, *wanted: tuple[str, list[int]], everything: bool = False
) -> dict[str, dict[int, int]]:
    request = ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if everything
        else [TopicPartitions(topic=name, partitions=indexes) for name, indexes in wanted],
    )
    response = scene.apply(decide_elections(scene.image, scene.rules, request))
    assert response.error_code == 0
    results = {
        each.topic: {result.partition_id: result.error_code for result in each.partition_result}
        for each in response.replica_election_results
    }
    for each in response.replica_election_results:
        assert len(each.partition_result) == len(results[each.topic])  # each partition once
    return results


def test_a_preferred_leader_is_elected_on_request(scene: Any) -> None:
    assert elect(scene, PREFERRED, ("two", [0, 1, 2, 1]), ("one", [1, 2]), ("none", [0])) == {
        "two": {0: ErrorCode.ELECTION_NOT_NEEDED, 1: 0, 2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "one": {1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2: 0},
        "none": {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert (scene.brief("two")[1][0], scene.brief("one")[2][0]) == (1, 1)


@pytest.mark.kip(460)
def test_an_unclean_leader_is_elected_on_request(scene: Any) -> None:
    scene.apply(remove_from_isrs(scene.image, scene.rules, 1))
    assert elect(scene, UNCLEAN, ("two", [0])) == {"two": {0: ErrorCode.ELECTION_NOT_NEEDED}}
    for number in (1, 2, 3):
        scene.put_broker(number, fenced=True)
    assert elect(scene, UNCLEAN, ("one", [0])) == {
        "one": {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    }
    scene.put_broker(3)
    assert elect(scene, UNCLEAN, ("one", [0])) == {"one": {0: 0}}
    assert scene.brief("one")[0] == (3, (3,), ())


def test_partitions_that_need_no_election_are_left_out(scene: Any) -> None:
    assert elect(scene, PREFERRED, everything=True) == {
        "two": {1: 0},
        "one": {1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2: 0},
        "any": {1: 0},
    }


def test_an_unknown_kind_of_election_is_refused(scene: Any) -> None:
    request = ElectLeadersRequest(election_type=2, topic_partitions=[])
    decision = decide_elections(scene.image, scene.rules, request)
    assert decision.response.error_code == ErrorCode.INVALID_REQUEST
