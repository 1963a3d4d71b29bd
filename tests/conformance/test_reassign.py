"""`trimtab reassign` and Apache Kafka's own tool: each executes the other's plans, and both print
the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.benchmarks.apache_kafka import run_java
from tests.kafka import needs_kafka
from tests.moves import await_replicas
from trimtab import Admin, Cluster, Producer
from trimtab.cli import main

pytestmark = needs_kafka

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=4, racks=["a", "b", "c", "a"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def ours(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> str:
        code = main(["reassign", "--bootstrap-server", cluster.bootstrap_servers, *words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


@pytest.fixture
def kafkas(cluster: Cluster) -> Run:
    def run(*words: str) -> str:
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        return run_java(tool, "--bootstrap-server", cluster.bootstrap_servers, *words)

    return run


def lines(text: str) -> list[str]:
    """The lines that are not empty, with lists sorted, since Kafka's tool prints them in any
    order."""
    return [
        " ".join(",".join(sorted(word.split(","))) for word in line.split(" "))
        for line in text.splitlines()
        if line.strip()
    ]


def replicas_of(assignment: str) -> list[tuple[int, ...]]:
    """Of each partition, in the tools' JSON."""
    partitions = sorted(json.loads(assignment)["partitions"], key=lambda one: one["partition"])
    return [tuple(one["replicas"]) for one in partitions]


def test_each_tool_carries_out_cancels_and_verifies_what_the_other_has_begun(
    cluster: Cluster, admin: Admin, ours: Run, kafkas: Run, tmp_path: Path
) -> None:
    admin.create_topic("t", assignment={index: [0, 1] for index in range(4)})
    with Producer(cluster.bootstrap_servers) as producer:
        for index in range(40):
            producer.send("t", bytes(100_000), partition=index % 4)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
    which = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3")
    proposed = ours("--generate", *which).splitlines()
    kafkas_own = kafkas("--generate", *which).splitlines()
    assert [line for line in proposed if line[:1] != "{"] == [
        line for line in kafkas_own if line[:1] != "{"
    ]

    plan = tmp_path / "plan.json"
    plan.write_text(proposed[-1])
    file = ("--reassignment-json-file", str(plan))
    kafkas("--execute", *file, "--throttle", "1000")
    assert lines(ours("--list")) == lines(kafkas("--list"))
    assert "is still in progress" in ours("--verify", *file)
    assert lines(ours("--verify", *file)) == lines(kafkas("--verify", *file))
    begun = sorted(f"t-{partition.partition}" for partition in admin.list_reassignments())
    cancelled = lines(ours("--cancel", *file))
    assert (
        cancelled[0]
        == lines(f"Successfully cancelled partition reassignments for: {','.join(begun)}")[0]
    )
    assert lines(ours("--cancel", *file))[0] in lines(kafkas("--cancel", *file))

    executed = ours("--execute", *file)
    await_replicas(admin, "t", replicas_of(proposed[-1]))
    assert lines(ours("--verify", *file)) == lines(kafkas("--verify", *file))
    assert "is completed" in ours("--verify", *file)
    assert all(set(replicas) <= {1, 2, 3} for replicas in replicas_of(proposed[-1]))
    # Each tool executes the rollback that the other has printed.
    rollback = next(line for line in executed.splitlines() if line.startswith("{"))
    plan.write_text(rollback)
    assert "Successfully started" in kafkas("--execute", *file)
    await_replicas(admin, "t", replicas_of(rollback))
    plan.write_text(next(line for line in kafkas_own if line.startswith("{")))
    assert "Successfully started" in ours("--execute", *file)
    await_replicas(admin, "t", [(0, 1)] * 4)
