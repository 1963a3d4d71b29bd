"""`trimtab balance` against an embedded cluster of three brokers, one of which leads all that is
written."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trimtab import Admin, Cluster, Producer, UsageError, plan_balance
from trimtab.balance.throttles import LISTS, RATES
from trimtab.cli import main
from trimtab.client.admin import ConfigSource
from trimtab.client.measure import watch
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.sample import LoadSample, MissingRight, take_sample
from trimtab.threads.clock import monotonic_clock

Run = Callable[..., tuple[int, str, str]]

T = "flights"
WINDOW = ("--window", "2", "--act-above", "1.5", "--plan-to", "1.2")
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@contextmanager
def written(cluster: Cluster, assignment: dict[int, list[int]], stored: int = 0) -> Iterator[Admin]:
    """A topic whose partitions get 10 kB each twentieth of a second.

    Args:
        stored: bytes in each partition at first.
    """
    over = threading.Event()

    def produce() -> None:
        with Producer(cluster.bootstrap_servers, linger_ms=0, acks=1) as producer:
            while not over.wait(0.05):
                for partition in assignment:
                    producer.send(T, bytes(10_000), partition=partition)

    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(T, assignment=assignment)
        with Producer(cluster.bootstrap_servers) as producer:
            for partition in assignment:
                for _ in range(stored // 100_000):
                    producer.send(T, bytes(100_000), partition=partition)
        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield admin
        finally:
            over.set()
            thread.join()
            admin.delete_topic(T)


@pytest.fixture
def hot(cluster: Cluster) -> Iterator[Admin]:
    """Broker 0 leads all; every broker has every replica."""
    with written(cluster, {index: [0, 1, 2] for index in range(6)}) as admin:
        yield admin


@pytest.fixture
def even(cluster: Cluster) -> Iterator[Admin]:
    placed = {index: [index % 3, (index + 1) % 3] for index in range(6)}
    with written(cluster, placed, stored=1_000_000) as admin:
        yield admin


@pytest.fixture
def run(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trimtab balance` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["balance", "--bootstrap-server", cluster.bootstrap_servers, *words])
        return code, *capfd.readouterr()

    return run


@contextmanager
def started(cluster: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "trimtab", "balance"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", cluster.bootstrap_servers, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: subprocess.Popen[str], begin: str) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(begin):
            return
    pytest.fail(f"it has not said {begin!r}, but {lines}")


def await_output(process: subprocess.Popen[str], begin: str) -> None:
    assert process.stdout is not None
    assert any(line.startswith(begin) for line in process.stdout)


def leaders(admin: Admin) -> tuple[int, ...]:
    return admin.describe_topics([T])[T].leaders


def holders(admin: Admin) -> set[int]:
    return {id for each in admin.describe_topics([T])[T].partitions for id in each.replicas}


def assert_nothing_is_left(admin: Admin) -> None:
    """No throttle, no reassignment, no topic for probes."""
    assert [each for each in admin.describe_topic_configs([T], LISTS)[T] if each.value] == []
    for broker in range(3):
        for entry in admin.describe_configs("broker", broker):
            assert entry.name not in RATES or entry.source >= ConfigSource.DEFAULT_CONFIG
    assert admin.list_reassignments() == {}
    assert PROBE_TOPIC not in admin.topics()


def test_a_hot_broker_is_shown_then_relieved_then_level(hot: Admin, run: Run) -> None:
    code, shown, errors = run(*WINDOW)
    assert code == 1
    assert errors.startswith("Measuring for 2 s …\n")
    lines = shown.splitlines()
    assert lines[0].split() == ["bytes", "mean", "busiest", "level", "after", "best"]
    assert lines[1].startswith("sent by leaders")
    assert "Why: broker 0 has " in shown
    assert "times the mean of bytes that leaders send." in shown
    assert "\nPlan: 4 leader changes, 0 partition moves; nothing is copied.\n" in shown
    assert shown.count("leads instead of 0: ") == 4
    assert leaders(hot) == (0,) * 6

    code, shown, errors = run(*WINDOW, "--execute", "--json", "--probe")
    assert code == 0
    assert "Moving: " in errors
    plan = json.loads(shown)
    assert plan["levels"]["out"]["level"] > 2.5
    assert plan["levels"]["out"]["after"] < 1.2
    assert (plan["copied"], plan["bound"], plan["unknown"], plan["slow"]) == (0, 0, [], {})
    assert {each["leader"] for each in plan["changes"]} == {0}
    assert len(plan["report"]["elected"]) == len(plan["changes"]) == 4
    assert (plan["report"]["given_up"], plan["report"]["left"]) == ({}, [])
    assert sorted(leaders(hot)) == [0, 0, 1, 1, 2, 2]

    code, shown, _ = run(*WINDOW, "--execute")
    assert code == 0
    assert shown.endswith("\nLevel: nothing to do.\n")
    assert_nothing_is_left(hot)


def test_every_replica_leaves_a_broker_that_is_drained(even: Admin, run: Run) -> None:
    code, shown, _ = run(*WINDOW, "--execute", "--drain", "1", "--throttle", "50000000")
    assert code == 0
    assert "Why: broker 1 is to be drained." in shown
    assert "its replica goes from 1 to " in shown
    # What it leads may be divided better by a change of another leader.
    assert re.search(r"\nPlan: \d+ leader changes?, 4 partition moves; .* copied, no plan", shown)
    assert " changed, 4 partitions moved, " in shown.splitlines()[-1]
    assert holders(even) == {0, 2}
    assert_nothing_is_left(even)


def test_only_the_brokers_to_relieve_are_relieved(hot: Admin, run: Run) -> None:
    code, shown, _ = run(*WINDOW, "--relieve", "1")
    assert (code, shown.splitlines()[-1]) == (0, "Level: nothing to do.")
    code, _, _ = run(*WINDOW, "--execute", "--relieve", "0")
    assert code == 0
    assert leaders(hot).count(0) <= 3


def test_a_broker_that_cannot_be_drained_ends_with_1(hot: Admin, run: Run) -> None:
    """The leaders of the others are levelled all the same."""
    code, shown, errors = run(*WINDOW, "--execute", "--drain", "2", "--json")
    assert code == 1
    assert "6 partitions cannot leave the brokers to drain, such as flights-0: it needs" in errors
    result = json.loads(shown)
    assert result["kept"] == [f"{T}-{index}" for index in range(6)]
    assert result["report"]["given_up"] == {}
    assert holders(hot) == {0, 1, 2}


def test_rights_that_are_missing_are_named(
    hot: Admin, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MissingRight("Describe", "group secret", "its committed offsets")

    async def take(*words: Any, **named: Any) -> LoadSample:
        return dataclasses.replace(await take_sample(*words, **named), missing_rights=(right,))

    monkeypatch.setattr(watch, "take_sample", take)
    code, shown, errors = run(*WINDOW, "--json")
    assert code == 1
    assert "not measured: allow Describe on group secret, for its committed offsets" in errors
    assert json.loads(shown)["unknown"] == [str(right)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--plan-to 1", "--plan-to 1 --act-above 1.15: write 1 < plan-to <= act-above, such as"),
        ("--plan-to 1.2", "--plan-to 1.2 --act-above 1.15: write 1 < plan-to <= act-above"),
        ("--act-above nan", "--plan-to 1.05 --act-above nan: write 1 < plan-to"),
        ("--window 1", "--window 1: write 2 seconds or more"),
        ("--window inf", "--window inf: write 2 seconds or more"),
        ("--payback nan", "--payback nan: write 2 seconds or more"),
        ("--drain x", "--drain 'x': write broker ids, such as 1,2"),
        ("--relieve 1,,2", "--relieve '1,,2': write broker ids, such as 1,2"),
        ("--drain 1 --relieve 2", "--drain and --relieve: give one of them"),
        ("--drain 1 --leaders-only", "--drain moves replicas: leave --leaders-only out"),
        ("--drain 0,9", "drain: there is no broker 9; alive are 0, 1, 2"),
        ("--relieve -3", "relieve: there is no broker -3; alive are 0, 1, 2"),
        ("--drain 0,1,2", "drain: these are all brokers that are alive; leave one out"),
        ("--watch --throttle 0", "--throttle 0: write bytes per second, such as 50000000"),
        ("--throttle 5", "--throttle goes with --execute and --watch, not with --plan"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_what_to_write(
    run: Run, words: str, why: str
) -> None:
    code, shown, errors = run(*words.split())
    assert (code, shown) == (1, "")
    assert errors.startswith(f"trimtab balance: {why}")
    assert errors.count("\n") == 1


def test_two_verbs_are_misspelt(run: Run) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("--execute", "--watch")


def test_a_cluster_that_nobody_reaches_is_reported_as_by_other_commands(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = ("--bootstrap-server", "127.0.0.1:1", "-X", "default.api.timeout.ms=1500")
    for command in (("topics", "--list"), ("balance", "--probe"), ("balance", "--watch")):
        assert main([*command, *server]) == 1
        shown, errors = capfd.readouterr()
        first, second = errors.splitlines()
        assert shown == ""
        assert first.startswith("cannot reach 127.0.0.1:1 (Connection refused); is it running?")
        assert second.startswith(f"trimtab {command[0]}: cannot ")
        assert "within 1.5 s (default.api.timeout.ms): no broker can be reached" in second


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_measures_ends_it_without_a_result(
    cluster: Cluster, hot: Admin, number: int, code: int
) -> None:
    with started(cluster, "--window", "600", "--probe", "--execute") as process:
        await_line(process, "Measuring for 600 s")
        assert PROBE_TOPIC in hot.topics()
        began = monotonic_clock()
        process.send_signal(number)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in {code, 130}  # two signals at once may arrive in any order
    assert (out, errors) == ("", "")
    assert monotonic_clock() - began < 10
    assert_nothing_is_left(hot)


def test_the_plan_as_data(cluster: Cluster, hot: Admin) -> None:
    plan = plan_balance(cluster.bootstrap_servers, window_s=2, leaders_only=True)
    assert plan.before["out"].level == pytest.approx(3)
    assert plan.before["out"].busiest == 0
    assert plan.copied == plan.bound == 0
    assert len(plan.changes) == 4
    assert {each.leader for each in plan.changes} == {1, 2}
    assert leaders(hot) == (0,) * 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"plan_to": 1.2}, "plan_to=1.2, act_above=1.15: must be 1 < plan_to <= act_above"),
        ({"plan_to": "1.05"}, "plan_to='1.05': must be a number"),
        ({"payback_s": float("nan")}, "payback_s=nan: must be seconds above 0"),
        ({"probes": "yes"}, "probes='yes': must be True or False"),
        ({"window_s": "30"}, "window_s='30': must be a number"),
        ({"window_s": 1}, "window_s=1: must be 2 seconds or more"),
        ({"drain": [9]}, "drain: there is no broker 9; alive are 0, 1, 2"),
        ({"drain": [1], "leaders_only": True}, "drain: give neither relieve nor leaders_only"),
        ({"relieve": 1}, "relieve=1: give a list of broker ids"),
        ({"leaders_only": 1}, "leaders_only=1: must be True or False"),
    ],
)
def test_wrong_values_of_a_plan_are_named(
    cluster: Cluster, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        plan_balance(cluster.bootstrap_servers, **wrong)


def test_sigterm_while_it_moves_cancels_the_moves_and_leaves_nothing(
    cluster: Cluster, even: Admin
) -> None:
    """At 1 kB a second the moves would take half an hour."""
    words = (*WINDOW, "--execute", "--drain", "1", "--throttle", "1000", "--probe", "--json")
    with started(cluster, *words) as process:
        await_line(process, "Moving: ")
        while not even.list_reassignments():
            assert process.poll() is None
        began = monotonic_clock()
        process.terminate()
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, errors
    assert monotonic_clock() - began < 15
    report = json.loads(out)["report"]
    assert report["moved"] == report["left"] == []
    assert {f"{T}-{index}" for index in (0, 1, 3, 4)} <= set(report["given_up"])
    assert_nothing_is_left(even)


def test_watch_prints_a_line_for_whatever_happens_until_it_is_ended(
    cluster: Cluster, even: Admin
) -> None:
    with started(cluster, *WINDOW, "--watch", "--drain", "1", "--json") as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        plan = json.loads(next(lines))
        assert plan["reasons"][-1] == "broker 1 is to be drained"
        report = json.loads(next(lines))["report"]
        assert len(report["moved"]) == 4
        assert holders(even) == {0, 2}
        process.terminate()
        assert (process.wait(PATIENCE_S), [*lines]) == (0, [])
    assert_nothing_is_left(even)


def test_a_watch_serves_what_it_does_to_prometheus(cluster: Cluster, hot: Admin) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with started(cluster, *WINDOW, "--watch", "--leaders-only", "--metrics-port", "0") as process:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        await_output(process, "4 leaders changed")
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    # Of the window before the plan, or already of the next.
    loads = [found["trimtab_balance_broker_load", "out", broker] for broker in "012"]
    assert found["trimtab_balance_level", "out"] == pytest.approx(max(loads) / (sum(loads) / 3))
    assert loads[0] > 0
    assert found["trimtab_balance_plans_total",] == 1
    assert found["trimtab_balance_leaders_total",] == 4
    assert found["trimtab_balance_bytes_total",] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--metrics-port", "0"), "--metrics-port goes with --watch, not with --plan"),
        (("--watch", "--metrics-port", "70000"), "--metrics-port 70000: "),
        (("--watch", "--from", "t"), "--from goes with --plan and --execute, not with --watch"),
        (("--from", "/missing"), "/missing: there is no such file or directory"),
    ],
)
def test_options_of_metrics_and_history_are_checked(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    code, _, errors = run(*WINDOW, *words)
    assert code == 1
    assert said in errors


def test_a_plan_for_the_peak_of_a_table(
    cluster: Cluster, even: Admin, run: Run, tmp_path: Path
) -> None:
    """What is written now is even; at the peak of the table broker 0 gets almost everything."""
    pyarrow = pytest.importorskip("pyarrow")
    begin = datetime(2026, 11, 2, tzinfo=UTC)
    rows = [
        {
            "window": {
                "start": begin + timedelta(hours=hour),
                "end": begin + timedelta(hours=hour + 1),
            },
            "topic": T,
            "partition": index,
            "TotalBytes": 3_600_000_000 if index % 3 == 0 else 3_600,
        }
        for hour in range(25)
        for index in range(6)
    ]
    file = tmp_path / "load.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), file)
    code, shown, errors = run(*WINDOW, "--from", str(file), "--leaders-only", "--json")
    assert code == 1
    assert "The table has 6 of 6 partitions." in errors
    plan = json.loads(shown)
    assert plan["levels"]["out"]["level"] == pytest.approx(3, rel=0.01)
    assert plan["levels"]["out"]["mean"] == pytest.approx(2e6 / 3, rel=0.01)
    assert plan["changes"]
