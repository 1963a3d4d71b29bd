"""`trimtab groups --describe`."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from tests.unit.cli.groups.conftest import Run, member
from trimtab import Admin, Cluster
from trimtab.cli.groups.description import (
    list_rows,
    show_members,
    write_assignment,
    write_members,
    write_offsets,
    write_state,
)
from trimtab.client.admin import GroupDescription, GroupMember
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.connection import Node
from trimtab.kafka.records import TopicPartition

T0, T1, T2, U0 = (TopicPartition(*each) for each in (("t", 0), ("t", 1), ("t", 2), ("u", 0)))

STATIC = GroupMember("m1", "one", "c1", "/h1", (T1,), (T1, T2), 4, "consumer")
CLASSIC = GroupMember("m2", None, "c2", "/h2", (T0, U0), (T0, U0), 4, "classic")
GROUP = GroupDescription(
    "g",
    *("consumer", "consumer", "Reconciling", "uniform"),
    coordinator=Node(1, "host", 9092),
    members=(STATIC, CLASSIC),
    epoch=5,
    target_epoch=5,
)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_lag_of_a_group_with_a_member(
    cluster: Cluster, admin: Admin, run: Run, protocol: str
) -> None:
    group = f"lag-{protocol}"
    with ExitStack() as running:
        running.enter_context(member(cluster, group, protocol))
        code, shown, errors = run("--describe", "--group", group)
        assert (code, errors) == (0, "")
        blank, head, *rows = shown.splitlines()
        assert blank == ""
        assert head.split() == [
            *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
            *("CONSUMER-ID", "HOST", "CLIENT-ID"),
        ]
        assert [row.split()[:6] for row in rows] == [
            [group, "t", str(number), "10", "10", "0"] for number in range(3)
        ]
        (described,) = admin.describe_groups([group])[group].members
        assert {tuple(row.split()[6:]) for row in rows} == {
            (described.member_id, described.host, "reader")
        }
    running.close()
    code, shown, errors = run("--describe", "--group", group, "--json")
    told = json.loads(shown)
    assert (code, errors, told["state"]) == (0, "", "Empty")
    assert {each["memberId"] for each in told["partitions"]} == {None}
    assert [each["lag"] for each in told["partitions"]] == [0, 0, 0]


def test_without_members_the_lag_stays(admin: Admin, run: Run) -> None:
    admin.alter_group_offsets("idle", {("t", 0): 4, ("t", 2): OffsetAndMetadata(10, "", 0)})
    code, shown, errors = run("--describe", "--group", "idle", "--verbose")
    assert code == 0
    assert errors == "\nConsumer group 'idle' has no active members.\n"
    assert [row.split() for row in shown.splitlines()[2:]] == [
        ["idle", "t", "0", "-", "4", "10", "6", "-", "-", "-"],
        ["idle", "t", "2", "0", "10", "10", "0", "-", "-", "-"],
    ]


def test_a_deleted_topic_has_offsets_and_no_end(admin: Admin, run: Run) -> None:
    admin.create_topic("gone", partitions=1)
    admin.alter_group_offsets("orphan", {("gone", 0): 0, ("t", 0): 1})
    listed = admin.list_group_offsets("orphan")
    admin.delete_topic("gone")
    if admin.list_group_offsets("orphan") == listed:
        rows = run("--describe", "--group", "orphan")[1].splitlines()[2:]
        assert [row.split()[1:6] for row in rows] == [
            ["gone", "0", "0", "-", "-"],
            ["t", "0", "1", "10", "9"],
        ]


def test_an_unknown_group_is_said_and_the_others_are_described(admin: Admin, run: Run) -> None:
    admin.alter_group_offsets("known", {("t", 0): 4})
    code, shown, errors = run("--describe", "--group", "nobody", "known")
    assert code == 1
    assert "Consumer group 'nobody' does not exist.\n" in errors
    assert [row.split()[0] for row in shown.splitlines()[2:]] == ["known"]


def test_members_with_most_partitions_come_first_then_partitions_without_a_member() -> None:
    committed = {
        T2: OffsetAndMetadata(3),
        T0: OffsetAndMetadata(1, "", 8),
        T1: OffsetAndMetadata(2),
    }
    rows = list_rows(GROUP, committed, {T0: 5, T1: 5, T2: 2})
    assert [(row["topic"], row["partition"], row["memberId"]) for row in rows] == [
        ("t", 0, "m2"),
        ("u", 0, "m2"),
        ("t", 1, "m1"),
        ("t", 2, None),
    ]
    names = ("offset", "logEndOffset", "lag", "leaderEpoch")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (1, 5, 4, 8),
        (None, None, None, None),
        (2, 5, 3, None),
        (3, 2, -1, None),
    ]


def test_columns_are_as_wide_as_kafkas_or_as_their_widest_cell() -> None:
    rows = list_rows(GROUP, {}, {})
    head, first, *_ = write_offsets("g" * 20, rows, is_verbose=False).splitlines()
    assert head == (
        f"{'GROUP':20} {'TOPIC':15} PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  "
        f"{'LAG':15} {'CONSUMER-ID':15} {'HOST':15} CLIENT-ID"
    )
    assert first.startswith(f"{'g' * 20} {'t':15} 0          -               ")
    assert first.endswith(f" {'m2':15} {'/h2':15} c2")


def test_members_have_a_column_for_what_only_some_have() -> None:
    head, one, two = write_members(GROUP, is_verbose=True).splitlines()
    assert head.split() == [
        *("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"),
        *("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"),
    ]
    assert one.split() == ["g", "m1", "one", "/h1", "c1", "1", "4", "t:1", "5", "t:1,2", "true"]
    assert two.split() == ["g", "m2", "/h2", "c2", "2", "4", "t:0;u:0", "5", "t:0;u:0", "false"]
    plain = GROUP._replace(members=(CLASSIC._replace(target=None, epoch=None, protocol=None),))
    head, row = write_members(plain._replace(target_epoch=None), is_verbose=True).splitlines()
    assert "INSTANCE" not in head
    assert "UPGRADED" not in head
    assert row.split() == ["g", "m2", "/h2", "c2", "2", "-", "t:0;u:0", "-", "-"]
    assert write_members(plain, is_verbose=False).splitlines()[1] == (
        f"{'g':15} {'m2':15} {'/h2':15} {'c2':15} {'2':15} "
    )
    told = show_members(plain)["members"]
    assert isinstance(told, list)
    assert told[0]["partitions"] == [
        {"topic": "t", "partition": 0},
        {"topic": "u", "partition": 0},
    ]
    assert told[0]["target"] is None


def test_partitions_of_a_member_are_in_order() -> None:
    partitions = [TopicPartition("t", number) for number in (10, 2)]
    assert write_assignment([*partitions, U0, TopicPartition("a", 1)]) == "a:1;t:2,10;u:0"
    assert write_assignment([]) == "-"


def test_a_state_has_its_coordinator() -> None:
    head, row = write_state(GROUP, is_verbose=True).splitlines()
    assert head.split() == [
        *("GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH"),
        *("TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"),
    ]
    assert row.split() == ["g", "host:9092", "(1)", "uniform", "Reconciling", "5", "5", "2"]
    empty = GROUP._replace(assignor="", members=(), epoch=None)
    assert write_state(empty, is_verbose=False).splitlines()[1].split()[3:] == [
        *("-", "Reconciling", "0"),
    ]


def test_states_of_real_groups(cluster: Cluster, run: Run) -> None:
    with member(cluster, "stated"):
        shown = run("--describe", "--group", "stated", "--state")[1]
        assert shown.splitlines()[2].split()[3:] == ["range", "Stable", "1"]
        told = json.loads(run("--describe", "--group", "stated", "--state", "--json")[1])
        assert (told["type"], told["members"], told["coordinator"]["host"]) == (
            *("classic", 1),
            "127.0.0.1",
        )
        (listed,) = json.loads(run("--describe", "--group", "stated", "--members", "--json")[1])[
            "members"
        ]
        assert [each["partition"] for each in listed["partitions"]] == [0, 1, 2]
