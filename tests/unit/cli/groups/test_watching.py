"""`trimtab groups --watch`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.cli.groups.conftest import Run
from trimtab import Admin, Cluster, Producer
from trimtab.cli.groups.watching import (
    add_look,
    choose_top,
    find_missing,
    say_when,
    show_look,
    show_time,
    write_look,
)
from trimtab.client.measure import sample as samples
from trimtab.client.measure.lag import Look, PartitionLag
from trimtab.client.measure.sample import LoadSample
from trimtab.kafka.errors import Unavailable
from trimtab.kafka.records import TopicPartition

AT = 1_700_000_000.25


def lag(
    lag: int | None,
    written: float | None = None,
    read: float | None = None,
    seconds: float | None = None,
    *,
    group: str = "g",
    partition: int = 0,
    committed: int = 0,
) -> PartitionLag:
    end = None if lag is None else lag + committed
    where = TopicPartition("t", partition)
    return PartitionLag(group, where, committed, end, lag, written, read, seconds)


# what is shown


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (lag(5), "measuring …"),
        (lag(5, 1.0, None), "measuring …"),
        (lag(5, 1.0, 0.5), "never at this rate"),
        (lag(5, 1.0, 1.0), "never at this rate"),
        (lag(5, 1.0, 2.0, 5.0), "5 s"),
        (lag(0), "no lag"),
        (lag(0, 1.0, 0.5, 0.0), "no lag"),
        (lag(None), "the end is unknown"),
        (lag(0)._replace(committed=3), "beyond the end"),
    ],
)
def test_each_partition_says_when_its_lag_is_cleared(shown: PartitionLag, text: str) -> None:
    assert say_when(shown) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (172_799, "48.0 h"),
        (172_800, "2 days"),
        (1e9, "11,574 days"),
    ],
)
def test_times_are_in_units_that_one_can_read(seconds: float, text: str) -> None:
    assert show_time(seconds) == text


def test_the_partitions_with_most_lag_come_first_and_unknown_ones_last() -> None:
    lags = [lag(None), lag(0, group="b"), lag(7, partition=1), lag(7, group="a"), lag(9)]
    assert choose_top(lags, 9) == [lag(9), lag(7, group="a"), lag(7, partition=1), lags[1], lags[0]]
    assert choose_top(lags, 2) == [lag(9), lag(7, group="a")]


def test_what_is_not_shown_is_counted() -> None:
    lags = [lag(number, partition=number) for number in range(1000)]
    head, _, first, *_, last = write_look(AT, lags, [], 10)
    assert re.fullmatch(r"..:..:..  1 group, 1,000 partitions, a lag of 499,500", head)
    assert first.split()[:6] == ["g", "t", "999", "999", "measuring", "…"]
    assert last == "… and 990 more partitions, with a lag of 489,555"
    assert len(write_look(AT, lags, [], 10)) == 1 + 1 + 10 + 1
    assert show_look(AT, lags, [], 10)["others"] == {"partitions": 990, "lag": 489_555}


def test_what_is_not_known_is_said_in_a_few_lines() -> None:
    notes = [f"broker {number}: no answer" for number in range(9)]
    assert write_look(AT, [], notes, 10)[1:] == [*notes[:3], "… and 6 more lines like these"]
    assert show_look(AT, [], notes, 10)["unknown"] == notes


def test_json_has_all_that_is_known() -> None:
    known = lag(5, 1.5, 2.0, 10.0, committed=3)
    shown = show_look(AT, [known, lag(None, group="h")], [], 10)
    rates = {
        "writtenPerSecond": 1.5,
        "readPerSecond": 2.0,
        "trend": "shrinking",
        "secondsToClear": 10.0,
    }
    place = {"group": "g", "topic": "t", "partition": 0}
    assert shown["timestamp"] == 1_700_000_000_250
    assert shown["groups"][0] == {"group": "g", "partitions": 1, "lag": 5, **rates}
    assert shown["partitions"][0] == {
        **place,
        "offset": 3,
        "logEndOffset": 8,
        "lag": 5,
        **rates,
    }
    assert shown["partitions"][1] == {
        **place,
        "group": "h",
        "offset": 0,
        "logEndOffset": None,
        "lag": None,
        **dict.fromkeys(rates),
    }


def test_looks_of_half_a_minute_are_kept_and_two_at_least() -> None:
    empty = Look({}, {})
    looks: deque[tuple[float, Look]] = deque()
    for at in range(0, 61, 5):
        add_look(looks, at, empty)
    assert [at for at, _ in looks] == [30, 35, 40, 45, 50, 55, 60]
    add_look(looks, 300, empty)
    assert [at for at, _ in looks] == [60, 300]


def test_a_group_is_missing_if_all_brokers_answer_and_none_knows_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LoadSample(0, 0, 0, samples.Timed(0, {}), {})
    known = dataclasses.replace(whole, groups={"a": samples.Timed(0, {})})
    assert find_missing(["b", "a"], known) == ["b"]
    assert find_missing(["b"], dataclasses.replace(known, silent={1: "no answer"})) == []


# a cluster


@pytest.fixture
def lagging(cluster: Cluster, admin: Admin) -> str:
    admin.alter_group_offsets("lagging", {("t", 0): 4, ("t", 1): 10})
    return "lagging"


def test_each_look_is_a_line_with_json(run: Run, lagging: str) -> None:
    words = ("--watch", "0.1", "--count", "2", "--group", lagging, "--json")
    code, shown, errors = run(*words)
    assert (code, errors) == (0, "")
    first, second = map(json.loads, shown.splitlines())
    assert first["groups"] == [
        {
            "group": lagging,
            "partitions": 2,
            "lag": 6,
            "writtenPerSecond": None,
            "readPerSecond": None,
            "trend": None,
            "secondsToClear": None,
        }
    ]
    assert second["groups"][0]["trend"] == "steady"
    rows = [
        (each["partition"], each["lag"], each["readPerSecond"]) for each in second["partitions"]
    ]
    assert rows == [(0, 6, 0.0), (1, 0, 0.0)]
    assert (second["others"], second["unknown"]) == ({"partitions": 0, "lag": 0}, [])
    assert second["timestamp"] > first["timestamp"]


def test_all_groups_are_watched_unless_some_are_named(run: Run, admin: Admin, lagging: str) -> None:
    admin.alter_group_offsets("another", {("other", 0): 0})
    for words in (("--all-groups",), ()):
        _, shown, _ = run("--watch", "--count", "1", "--json", *words)
        assert {"another", lagging} <= {each["group"] for each in json.loads(shown)["groups"]}
    _, shown, _ = run("--watch", "--count", "1", "--json", "--group", "another")
    assert [each["group"] for each in json.loads(shown)["groups"]] == ["another"]


def test_what_is_written_and_read_between_two_looks_is_told(
    cluster: Cluster, admin: Admin, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group reads 40 records while 20 are written."""
    admin.create_topic("live", partitions=1)
    take = samples.take_offsets
    looks = 0
    with Producer(cluster.bootstrap_servers) as producer:

        async def scripted(*words: Any) -> LoadSample:
            nonlocal looks
            looks += 1
            for _ in range(100 if looks == 1 else 20):
                producer.send("live", b"x")
            admin.alter_group_offsets("reading", {("live", 0): 40 * looks})
            producer.flush()
            return await take(*words)

        monkeypatch.setattr(samples, "take_offsets", scripted)
        code, shown, _ = run("--watch", "0.1", "--count", "2", "--group", "reading", "--json")
    assert code == 0
    (row,) = json.loads(shown.splitlines()[1])["partitions"]
    assert (row["offset"], row["logEndOffset"], row["lag"]) == (80, 120, 40)
    assert row["trend"] == "shrinking"
    assert row["readPerSecond"] == pytest.approx(2 * row["writtenPerSecond"], rel=0.3)
    gain = row["readPerSecond"] - row["writtenPerSecond"]
    assert row["secondsToClear"] == pytest.approx(40 / gain)


def test_a_group_that_does_not_exist_is_named_and_ends_with_1(run: Run, lagging: str) -> None:
    code, shown, errors = run("--watch", "--count", "1", "--group", lagging, "nobody")
    assert (code, errors) == (1, "")
    head, _, _, _, note = shown.splitlines()
    assert "1 group, 2 partitions, a lag of 6" in head
    assert note == "consumer group 'nobody' does not exist"


def test_without_a_terminal_looks_are_printed_one_below_the_other(run: Run, lagging: str) -> None:
    _, shown, _ = run("--watch", "0.1", "--count", "2", "--group", lagging)
    first, second = shown.split("\n\n")
    assert "\x1b" not in shown
    assert [line.split()[:4] for line in first.splitlines()[1:]] == [
        ["GROUP", "TOPIC", "PARTITION", "LAG"],
        [lagging, "t", "0", "6"],
        [lagging, "t", "1", "0"],
    ]
    assert "measuring …" in first
    assert "never at this rate" in second


def test_on_a_terminal_each_look_takes_the_place_of_the_one_before(
    run: Run, lagging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    words = ("--watch", "0.1", "--group", lagging, "--count", "2")
    _, shown, _ = run(*words)
    first, second = shown.split("\x1b[4F\x1b[J")
    for block in (first, second):
        lines = block.splitlines()
        assert len(lines) == 4  # and the cursor's own
        assert max(map(len, lines)) == 39
        assert lines[-1] == "… and 1 more partition, with a lag of 0"
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run(*words)[1]


def test_control_characters_of_a_group_do_not_reach_a_terminal(
    run: Run, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.alter_group_offsets("\x1b[2J\nx", {("t", 0): 4})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, shown, _ = run("--watch", "--count", "1", "--group", "\x1b[2J\nx")
    assert "?[2J?x" in shown
    assert "\x1b" not in shown


def test_looks_are_as_far_apart_as_asked(
    run: Run, lagging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning of one to the beginning of the next."""
    take = samples.take_offsets
    began: list[float] = []

    async def timed(*words: Any) -> LoadSample:
        began.append(asyncio.get_running_loop().time())
        return await take(*words)

    monkeypatch.setattr(samples, "take_offsets", timed)
    run("--watch", "0.2", "--count", "3", "--group", lagging)
    assert min(later - before for before, later in pairwise(began)) >= 0.19


def test_a_look_that_fails_is_said_and_the_next_one_goes_on(
    run: Run, lagging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, looks = samples.take_offsets, 0

    async def failing(*words: Any) -> LoadSample:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise Unavailable("nobody answers")
        return await take(*words)

    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch:
        patch.setattr(samples, "take_offsets", failing)
        patch.setattr(sys.stdout, "isatty", lambda: True)
        _, shown, errors = run("--watch", "0.1", "--count", "3", "--group", lagging)
    assert "nobody answers" in errors
    assert "\x1b[J" not in shown, "the warning is between the two"
    looks = 0

    monkeypatch.setattr(samples, "take_offsets", failing)
    words = ("--watch", "0.1", "--count", "3", "--group", lagging, "--json")
    code, shown, errors = run(*words)
    assert (code, errors) == (0, "nobody answers\n")
    first, last = map(json.loads, shown.splitlines())
    assert (first["groups"][0]["trend"], last["groups"][0]["trend"]) == (None, "steady")
    looks = 1
    code, shown, errors = run(*words)
    assert (code, shown) == (1, "")
    assert errors == "trimtab groups: nobody answers\n"


def test_ctrl_c_ends_it_with_130(cluster: Cluster, lagging: str) -> None:
    command = [sys.executable, "-m", "trimtab", "groups", "--watch", "0.1", "--json"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", cluster.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["unknown"] == []
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")


def test_the_timeout_is_that_of_the_first_look(capsys: pytest.CaptureFixture[str]) -> None:
    from trimtab.cli import main

    words = ("groups", "--watch", "--timeout", "50", "--bootstrap-server", "127.0.0.1:1")
    assert main(words) == 1
    assert "within 0.05 s" in capsys.readouterr().err


def test_ten_thousand_partitions_of_hundreds_of_groups_are_one_screen() -> None:
    lags = [
        lag(number, 1.0, 2.0, float(number), group=f"g{number % 300}", partition=number)
        for number in range(10_000)
    ]
    assert len(write_look(AT, lags, [], 20)) == 23
    shown = show_look(AT, lags, [], 20)
    assert (len(shown["groups"]), len(shown["partitions"])) == (300, 20)
    assert len(json.dumps(shown)) < 60_000
