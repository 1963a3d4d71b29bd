"""`trimtab groups --list`, and the groups that the other actions are about."""

from __future__ import annotations

import argparse
import json

import pytest

from tests.unit.cli.groups.conftest import Run, member
from trimtab import Admin, Cluster
from trimtab.cli.groups.listing import (
    STATES,
    choose_groups,
    find_consumer_groups,
    read_ends,
    read_leaders,
    read_topics,
    read_words,
)
from trimtab.client.admin import GroupListing
from trimtab.kafka.errors import BrokerError, UsageError
from trimtab.kafka.records import TopicPartition


def test_groups_are_listed_by_state_and_type(cluster: Cluster, admin: Admin, run: Run) -> None:
    admin.alter_group_offsets("stored", {("t", 0): 4})
    with member(cluster, "alive", "consumer"):
        assert {"alive", "stored"} <= set(run("--list")[1].splitlines())
        head, *rows = run("--list", "--state", "--type")[1].splitlines()
        assert head.split() == ["GROUP", "TYPE", "STATE"]
        words = [row.split() for row in rows]
        assert ["alive", "Consumer", "Stable"] in words
        assert ["stored", "Classic", "Empty"] in words
        assert [row.split() for row in run("--list", "--state", "stable")[1].splitlines()] == [
            ["GROUP", "STATE"],
            ["alive", "Stable"],
        ]
        listed = run("--list", "--type", "consumer", "--json")[1].splitlines()
        assert {"group": "alive", "type": "consumer", "state": "Stable"} in map(json.loads, listed)
        assert "stored" not in {json.loads(line)["group"] for line in listed}


@pytest.mark.parametrize("words", ["--state stabel", "--type share"])
def test_an_unknown_state_or_type_is_refused(run: Run, words: str) -> None:
    code, shown, errors = run("--list", *words.split())
    assert (code, shown) == (1, "")
    assert errors.startswith(f"trimtab groups: {words}: must be one of ")


def test_words_may_be_in_any_case_with_blanks() -> None:
    assert read_words("--state", "stable, PREPARINGrebalance", STATES) == [
        "Stable",
        "PreparingRebalance",
    ]
    assert read_words("--state", "", STATES) == read_words("--state", None, STATES) == []


def test_groups_are_chosen_once_and_in_order(admin: Admin) -> None:
    admin.alter_group_offsets("kept", {("t", 0): 4})
    named = argparse.Namespace(all_groups=False, group=["b", "a", "b"])
    assert choose_groups(admin, named) == ["a", "b"]
    assert "kept" in choose_groups(admin, argparse.Namespace(all_groups=True, group=[]))


def test_groups_of_other_clients_than_consumers_are_left_out(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        GroupListing(f"of {protocol_type}", protocol_type, "Stable", "classic")
        for protocol_type in ("connect", "consumer", "", "share")
    ]
    monkeypatch.setattr(Admin, "list_groups", lambda *_: found)
    assert [each.group_id for each in find_consumer_groups(admin)] == ["of consumer", "of "]


T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
OTHER = TopicPartition("other", 0)


def test_topics_are_named_with_partitions_or_whole(admin: Admin) -> None:
    assert read_topics(admin, ["t:2,0", "other", "t:2"]) == [OTHER, T0, T2]
    assert read_topics(admin, ["t"]) == [T0, T1, T2]
    assert read_topics(admin, []) == []
    with pytest.raises(BrokerError, match="topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"):
        read_topics(admin, ["nowhere"])


@pytest.mark.parametrize("word", [":0", "t:", "t:,", "t:-1", "t:0:1"])
def test_other_forms_are_refused(admin: Admin, word: str) -> None:
    with pytest.raises(UsageError, match="write "):
        read_topics(admin, [word])


def test_what_does_not_exist_has_no_leader_and_no_end(admin: Admin) -> None:
    wanted = [T0, OTHER, TopicPartition("t", 3), TopicPartition("nowhere", 0)]
    assert set(read_leaders(admin, wanted)) == {T0, OTHER}
    assert read_ends(admin, wanted) == {T0: 10, OTHER: 0}
    assert read_ends(admin, []) == {}
