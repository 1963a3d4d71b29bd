from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from trimtab import Admin, Cluster
from trimtab.cli import main
from trimtab.client.admin import NewTopic
from trimtab.threads.clock import monotonic_clock

Run = Callable[..., tuple[int, str, str]]

PATIENCE_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Broker 0 was away: it leads nothing, though it is the first replica of `led`. Broker 2, with
    the only replica of `lost`, is away still."""
    with Cluster(brokers=3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [
                    NewTopic("led", assignment={0: [0, 1], 1: [0, 1], 2: [1, 0]}),
                    NewTopic("lost", assignment={0: [2]}),
                ]
            )
            cluster.stop_broker(0)
            cluster.stop_broker(2)
            cluster.start_broker(0)
            deadline = monotonic_clock() + PATIENCE_S
            while any(
                set(each.in_sync_replicas) != {0, 1}
                for each in admin.describe_topics(["led"])["led"].partitions
            ):
                assert monotonic_clock() < deadline, "broker 0 is not in sync"
                Event().wait(0.05)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab leader-election` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        server = ("--bootstrap-server", cluster.bootstrap_servers)
        code = main(["leader-election", *words, *server])
        return code, *capsys.readouterr()

    return run


def test_one_partition_then_a_file_then_all(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    preferred = ("--election-type", "preferred")
    one = (*preferred, "--topic", "led", "--partition", "0")
    done = "Successfully completed leader election (PREFERRED) for partitions "
    assert run(*one) == (0, f"{done}led-0\n", "")
    assert run(*one) == (0, "Valid replica already elected for partitions led-0\n", "")
    path = tmp_path / "partitions.json"
    listed = [{"topic": "led", "partition": number} for number in (2, 1)]
    listed.append({"topic": "lost", "partition": 0})
    path.write_text(json.dumps({"partitions": listed}))
    code, shown, errors = run(*preferred, "--path-to-json-file", str(path))
    assert code == 1
    assert shown == f"{done}led-1\nValid replica already elected for partitions led-2\n"
    assert errors.startswith(
        "Error completing leader election (PREFERRED) for partition: lost-0: lost-0: "
        "PREFERRED_LEADER_NOT_AVAILABLE (80)"
    )
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.describe_topics(["led"])["led"].leaders == (0, 0, 1)
    code, shown, _ = run("--election-type", "PREFERRED", "--all-topic-partitions", "--json")
    assert [json.loads(line) for line in shown.splitlines()] == [
        {
            "topic": "lost",
            "partition": 0,
            "result": "refused",
            "error": "PREFERRED_LEADER_NOT_AVAILABLE",
        }
    ]
    assert code == 1
    code, shown, errors = run("--election-type", "unclean", "--topic", "lost", "--partition", "0")
    assert (code, shown) == (1, "")
    assert "(UNCLEAN) for partition: lost-0: lost-0: ELIGIBLE_LEADERS_NOT_AVAILABLE" in errors


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--topic t", "--topic t needs one of its partitions: add --partition 0"),
        ("--topic t --partition -1", "--topic t needs one of its partitions"),
        ("--all-topic-partitions --partition 1", "--partition 1 needs a topic"),
        ("--path-to-json-file /nowhere", "cannot read /nowhere"),
    ],
)
def test_what_is_not_a_partition_is_refused(run: Run, words: str, why: str) -> None:
    code, shown, errors = run("--election-type", "preferred", *words.split())
    assert (code, shown) == (1, "")
    assert errors.startswith(f"trimtab leader-election: {why}")
