"""`trimtab groups --reset-offsets`: every way, on a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.unit.cli.groups.conftest import Run
from trimtab import Admin, Cluster, Consumer
from trimtab.cli.groups.resets import read_csv, read_duration, read_time, write_csv
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def offsets(admin: Admin, group: str) -> dict[tuple[str, int], int]:
    return {each: at.offset for each, at in admin.list_group_offsets(group).items()}


@pytest.mark.parametrize(
    ("way", "new"),
    [
        ("--to-earliest", (0, 0, 0)),
        ("--to-latest", (10, 10, 10)),
        ("--to-current", (4, 7, 10)),
        ("--to-offset 6", (6, 6, 6)),
        ("--to-offset 99", (10, 10, 10)),
        ("--to-datetime 1970-01-01T00:00:03.000", (2, 2, 2)),
        ("--to-datetime 1970-01-01T01:00:02.500+01:00", (2, 2, 2)),
        ("--to-datetime 1970-01-01T00:00:10.001", (10, 10, 10)),
        ("--by-duration PT0S", (10, 10, 10)),
        ("--by-duration P99999D", (0, 0, 0)),
    ],
)
def test_every_way_finds_its_offsets(
    admin: Admin, run: Run, way: str, new: tuple[int, int, int]
) -> None:
    group = f"way{way.replace(' ', '=')}"
    admin.alter_group_offsets(group, {("t", 0): 4, ("t", 1): 7})
    words = ("--reset-offsets", "--group", group, "--topic", "t", *way.split())
    code, shown, _ = run(*words)
    assert code == 0
    assert [row.split() for row in shown.splitlines()[1:]] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        *([group, "t", str(number), str(at)] for number, at in enumerate(new)),
    ]
    assert offsets(admin, group) == {("t", 0): 4, ("t", 1): 7}  # a dry run
    assert run(*words, "--execute")[:2] == (0, shown)
    assert offsets(admin, group) == {("t", number): at for number, at in enumerate(new)}


@pytest.mark.parametrize(("count", "new"), [("-3", (1, 4)), ("2", (6, 9)), ("-9", (0, 0))])
def test_a_shift_stays_in_the_log(admin: Admin, run: Run, count: str, new: tuple[int, int]) -> None:
    group = f"shift{count}"
    admin.alter_group_offsets(group, {("t", 0): 4, ("t", 1): 7})
    words = ("--reset-offsets", "--group", group, "--all-topics", "--shift-by", count)
    code, _, errors = run(*words, "--execute")
    assert code == 0
    assert ("is not from 0 to 10; the new offset is 0" in errors) == (count == "-9")
    assert offsets(admin, group) == {("t", 0): new[0], ("t", 1): new[1]}


def test_a_shift_needs_an_offset_to_start_from(admin: Admin, run: Run) -> None:
    admin.alter_group_offsets("half", {("t", 0): 4})
    words = ("--reset-offsets", "--group", "half", "--topic", "t:0,1", "--shift-by", "1")
    code, shown, errors = run(*words, "--execute")
    assert (code, shown) == (1, "")
    assert "group half has no offset of t-1 to start from" in errors
    assert offsets(admin, "half") == {("t", 0): 4}


def test_only_named_partitions_are_set_also_of_a_new_group(admin: Admin, run: Run) -> None:
    words = ("--reset-offsets", "--group", "fresh", "--to-latest", "--execute", "--json")
    code, shown, errors = run(*words, "--topic", "t:2,0", "--topic", "other")
    assert (code, errors) == (0, "")
    assert json.loads(shown) == {
        "group": "fresh",
        "executed": True,
        "partitions": [
            {"topic": "other", "partition": 0, "newOffset": 0},
            {"topic": "t", "partition": 0, "newOffset": 10},
            {"topic": "t", "partition": 2, "newOffset": 10},
        ],
    }
    assert offsets(admin, "fresh") == {("other", 0): 0, ("t", 0): 10, ("t", 2): 10}


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("t:9", "there is no partition t-9"),
        ("nowhere:0", "there is no partition nowhere-0"),
        ("nowhere", "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
        ("t:", "--topic 't:': write a topic, or TOPIC:0,1"),
        ("t:x", "partitions 'x': write numbers"),
    ],
)
def test_what_does_not_exist_is_not_set(run: Run, topic: str, why: str) -> None:
    words = ("--reset-offsets", "--group", "g", "--topic", topic, "--to-earliest", "--execute")
    code, shown, errors = run(*words)
    assert (code, shown) == (1, "")
    assert errors.startswith(f"trimtab groups: {why}")


def test_a_group_with_members_keeps_its_offsets_and_the_others_are_set(
    cluster: Cluster, admin: Admin, run: Run
) -> None:
    admin.alter_group_offsets("alone", {("t", 0): 4})
    with Consumer(cluster.bootstrap_servers, group_id="busy", client_id="c") as consumer:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 30
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
            assert time.monotonic() < deadline
        words = ("--reset-offsets", "--group", "busy", "alone", "--topic", "t:0", "--to-earliest")
        code, shown, errors = run(*words, "--execute")
    assert code == 1
    assert "group 'busy' can only be reset while it has no members; its state is Stable" in errors
    assert [row.split() for row in shown.splitlines()[2:]] == [["alone", "t", "0", "0"]]
    assert offsets(admin, "alone") == {("t", 0): 0}


def test_an_exported_plan_is_followed(admin: Admin, run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    admin.alter_group_offsets("planned", {("t", 0): 4, ("t", 1): 7})
    words = ("--reset-offsets", "--group", "planned")
    code, shown, _ = run(*words, "--all-topics", "--to-current", "--export")
    assert (code, shown.split()) == (0, ["t,0,4", "t,1,7"])
    plan.write_text(shown.replace("t,1,7", "t,1,99"))
    code, _, errors = run(*words, "--from-file", str(plan), "--execute")
    assert code == 0
    assert "t-1: offset 99 is not from 0 to 10; the new offset is 10" in errors
    assert offsets(admin, "planned") == {("t", 0): 4, ("t", 1): 10}
    several = ("--reset-offsets", "--group", "planned", "other")
    shown = run(*several, "--topic", "t:0", "--to-earliest", "--export")[1]
    assert shown.split() == ["other,t,0,0", "planned,t,0,0"]
    plan.write_text(shown)
    assert run(*several, "--from-file", str(plan), "--execute")[0] == 0
    assert offsets(admin, "planned") == {("t", 0): 0, ("t", 1): 10}
    code, _, errors = run("--reset-offsets", "--group", "third", "--from-file", str(plan))
    assert (code, "the file has no line for group third" in errors) == (1, True)


def test_without_execute_it_says_that_nothing_changes(run: Run) -> None:
    words = ("--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest")
    assert run(*words)[2] == "Nothing is changed without --execute.\n"
    assert run(*words, "--dry-run")[2] == ""


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("1970-01-01T00:00:01.500-01:00", 3_601_500),
    ],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text: str, milliseconds: int) -> None:
    assert read_time(text) == milliseconds


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31", "2026-13-01T00:00:00", "T"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--to-datetime"):
        read_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("P1DT2H3M4.5S", 93_784.5), ("PT0S", 0), ("pt5m", 300), ("P2D", 172_800), ("PT1H", 3600)],
)
def test_a_duration_is_read_as_java_does(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P-1D", "PT1.5M"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--by-duration"):
        read_duration(text)


def test_plans_name_groups_or_are_about_the_only_one(tmp_path: Path) -> None:
    plan = {"g": {T0: 4, T1: 5}, "a,b": {T0: 6}}
    path = tmp_path / "plan.csv"
    path.write_text(write_csv(plan, with_group=True))
    assert read_csv(str(path), ["g", "a,b"]) == read_csv(str(path), ["g"]) == plan
    path.write_text(write_csv({"g": plan["g"]}, with_group=False) + "\n")
    assert read_csv(str(path), ["g"]) == {"g": plan["g"]}
    with pytest.raises(UsageError, match=r"line 1 of .* is 't,0,4'; write GROUP,TOPIC"):
        read_csv(str(path), ["g", "h"])


@pytest.mark.parametrize("line", ["t,0", "t,x,4", "t,0,-4", "t,0,4,5,6", "t,0,²"])
def test_lines_of_another_form_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(f"t,0,4\n{line}\n")
    with pytest.raises(UsageError, match=r"line 2 of .*; write TOPIC,PARTITION,OFFSET or GROUP"):
        read_csv(str(path), ["g"])


def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_csv(str(tmp_path / "missing"), ["g"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not CSV in UTF-8"):
        read_csv(str(tmp_path / "binary"), ["g"])
