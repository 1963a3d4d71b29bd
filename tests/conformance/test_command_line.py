"""The same command lines with Apache Kafka's tools and with trimtab's, on the same cluster.

The order of topics and partitions is not compared: Kafka's tools list them in the order of a hash
table, trimtab's by name. The shims run the command lines printed in KIP-578.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from lab.benchmarks.apache_kafka import call_java
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.shims import write_shims
from trimtab.client.admin import NewTopic
from trimtab.threads.clock import monotonic_clock

PATIENCE_S = 60
TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose broker 2 is down, with a reassignment to it in progress."""
    of_two = {"min.insync.replicas": 2}
    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics(
                [
                    NewTopic(
                        "whole", assignment={0: [0, 1], 1: [1, 0]}, config={"retention.ms": 60_000}
                    ),
                    NewTopic("lost", assignment={0: [2]}),
                    NewTopic("enough", assignment={0: [0, 1, 2], 1: [2, 1, 0]}, config=of_two),
                    NewTopic("few", assignment={0: [1, 2], 1: [0, 1]}, config=of_two),
                    NewTopic("moving", assignment={0: [0]}),
                ]
            )
            admin.alter_configs("broker", "", {"max.connections": 2000})
            admin.alter_configs("broker", 1, {"max.connections": 1000})
            with Producer(servers, acks="all") as producer:
                producer.send("whole", b"x" * 1000, partition=0).result()
            cluster.stop_broker(2)
            admin.alter_reassignments({("moving", 0): [1, 2]})
            deadline = monotonic_clock() + PATIENCE_S
            while (
                1 not in admin.describe_topics(["moving"])["moving"].partitions[0].in_sync_replicas
            ):
                assert monotonic_clock() < deadline, "broker 1 does not catch up"
                Event().wait(0.02)
        yield cluster


def run_theirs(cluster: Cluster, command: str, *words: str) -> tuple[int, str]:
    """Run Kafka's tool; returns exit code and standard output."""
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    errors = subprocess.DEVNULL
    done = call_java(TOOLS[command], *server, *words, heap="128m", level="off", stderr=errors)
    return done.returncode, done.stdout


def run_ours(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], command: str, *words: str
) -> tuple[int, str]:
    code = main([command, "--bootstrap-server", cluster.bootstrap_servers, *words])
    return code, capsys.readouterr().out


@needs_kafka
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("", 13),
        ("--under-replicated-partitions", 4),
        ("--unavailable-partitions", 1),
        ("--under-min-isr-partitions --unavailable-partitions", 2),
        ("--at-min-isr-partitions --partition-size-limit-per-response 1", 3),
        ("--topics-with-overrides --topic whole,lost,few", 2),
    ],
)
def test_topics_are_described_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: str, lines: int
) -> None:
    command = ("topics", "--describe", *words.split())
    code, ours = run_ours(cluster, capsys, *command)
    assert code == 0
    assert len(ours.splitlines()) == lines
    theirs = run_theirs(cluster, *command)
    assert (theirs[0], sorted(theirs[1].splitlines())) == (0, sorted(ours.splitlines()))


@needs_kafka
@pytest.mark.parametrize(
    "words",
    [
        "--describe --topic whole",
        "--describe --entity-type brokers",
        "--describe --broker 1 --all",
        "--describe --topic nowhere",
        "--alter --broker-defaults --add-config max.connections=2000",
    ],
)
def test_configs_answer_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    command = ("configs", *words.split())
    ours = run_ours(cluster, capsys, *command)
    assert ours[0] == 0
    assert ours == run_theirs(cluster, *command)


@needs_kafka
def test_options_in_brackets_are_read_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--add-config", "cleanup.policy=[compact,delete],retention.ms = 7")
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, assignment={0: [0]}) for name in ("ours", "java")])
        ours = run_ours(cluster, capsys, "configs", "--alter", "--topic", "ours", *words)
        theirs = run_theirs(cluster, "configs", "--alter", "--topic", "java", *words)
        assert (theirs[0], theirs[1].replace("java", "ours")) == ours
        found = [
            {each.name: each.value for each in admin.describe_configs("topic", name)}
            for name in ("ours", "java")
        ]
        assert found[0] == found[1]
        assert (found[0]["cleanup.policy"], found[0]["retention.ms"]) == ("compact,delete", "7")
        for name in ("ours", "java"):
            admin.delete_topic(name)


@needs_kafka
def test_topics_are_created_and_altered_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "some.ours"
    create = ("topics", "--create", "--replica-assignment", "0:1,1:0", "--config", "flush.ms=9")
    alter = ("topics", "--alter", "--partitions", "3", "--replica-assignment", "0:1,1:0,1:0")
    with Admin(cluster.bootstrap_servers) as admin:
        ours = run_ours(cluster, capsys, *create, "--topic", topic)
        theirs = run_theirs(cluster, *create, "--topic", "some.java")
        assert (theirs[0], theirs[1].replace("java", "ours")) == ours
        assert run_ours(cluster, capsys, *alter, "--topic", topic)[0] == 0
        assert run_theirs(cluster, *alter, "--topic", "some.java")[0] == 0
        views = admin.describe_topics([topic, "some.java"])
        assert [each.replicas for each in views[topic].partitions] == [(0, 1), (1, 0), (1, 0)]
        assert views[topic].partitions == views["some.java"].partitions
        for name in (topic, "some.java"):
            admin.delete_topic(name)


@needs_kafka
def test_log_directories_are_described_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("log-dirs", "--describe", "--broker-list", "1", "--topic-list", "moving")
    ours = run_ours(cluster, capsys, *one)
    assert ours == run_theirs(cluster, *one)
    code, shown = run_ours(cluster, capsys, "log-dirs", "--describe")
    theirs = run_theirs(cluster, "log-dirs", "--describe")
    assert (code, shown.splitlines()[:2]) == (theirs[0], theirs[1].splitlines()[:2])
    found = [json.loads(text.splitlines()[-1]) for text in (shown, theirs[1])]
    for told in found:
        for broker in told["brokers"]:
            for directory in broker["logDirs"]:
                directory["partitions"].sort(key=lambda log: log["partition"])
    assert found[0] == found[1]


@pytest.fixture
def run_line(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, str, str]]]:
    """A function that runs a shell command with the shims on the path; returns exit code, output
    and errors."""
    write_shims(tmp_path)
    with Cluster(brokers=3) as cluster:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ADDRESS": cluster.bootstrap_servers}

        def run_line(line: str) -> tuple[int, str, str]:
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=environment,
            )
            return done.returncode, done.stdout, done.stderr

        yield run_line


@pytest.mark.kip(578)
def test_the_proposals_command_lines_run_as_printed(
    run_line: Callable[[str], tuple[int, str, str]],
) -> None:
    of_all = "--entity-type brokers --entity-default"
    updated = "Completed updating default config for brokers in the cluster.\n"
    for option in ("max.broker.partitions=4000", "max.partitions=200000"):
        line = f"kafka-config.sh --bootstrap-server $ADDRESS --alter --add-config {option}"
        assert run_line(f"{line} {of_all}") == (0, updated, "")
    line = f"{line} --entity-type brokers --entity-name 1"
    assert run_line(line) == (0, "Completed updating config for broker 1.\n", "")
    for option in ("max.broker.partitions=4", "max.partitions=9"):
        line = f"kafka-configs.sh --bootstrap-server $ADDRESS --alter --add-config {option}"
        assert run_line(f"{line} {of_all}") == (0, updated, "")
    shown = run_line(f"kafka-configs.sh --bootstrap-server $ADDRESS --describe {of_all}")[1]
    assert "  max.broker.partitions=4 sensitive=false synonyms=" in shown
    create = "kafka-topics.sh --create --bootstrap-server $ADDRESS --replication-factor 3"
    assert run_line(f"{create} --topic t --partitions 3") == (0, "Created topic t.\n", "")
    code, shown, error = run_line(f"{create} --topic u --partitions 1")
    assert (code, shown) == (1, "")
    assert "POLICY_VIOLATION" in error
    code, _, error = run_line(
        "kafka-topics.sh --alter --topic t --partitions 4 --bootstrap-server $ADDRESS"
    )
    assert code == 1
    assert "POLICY_VIOLATION" in error
    produced = "printf '1\\n2\\n' | kafka-console-producer.sh --topic t"
    assert run_line(f"{produced} --bootstrap-server $ADDRESS") == (0, "", "")
    offsets = run_line("kafka-get-offsets.sh --bootstrap-server $ADDRESS --topic t")[1]
    assert sum(int(line.rpartition(":")[2]) for line in offsets.split()) == 2
    described = run_line("kafka-log-dirs.sh --describe --bootstrap-server $ADDRESS")[1]
    assert len(json.loads(described.splitlines()[-1])["brokers"]) == 3
    moves = run_line("kafka-reassign-partitions.sh --bootstrap-server $ADDRESS --list")
    assert moves == (0, "No partition reassignments found.\n", "")
