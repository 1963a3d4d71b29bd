from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.moves import await_replicas
from trimtab.cli import main
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.producer import Producer
from trimtab.cluster.embedded import Cluster

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=4, racks=["a", "a", "b", "b"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, as from a shell: exit code, standard output and error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["reassign", "--bootstrap-server", cluster.bootstrap_servers, *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def topic(admin: Admin, cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Two partitions of 100 kB on brokers 0 and 1, which share a rack."""
    name = request.node.name.split("[")[0].replace("_", "-")
    admin.create_topic(name, assignment={0: [0, 1], 1: [0, 1]})
    with Producer(cluster.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send(name, bytes(100_000), partition=partition)
    yield name
    admin.delete_topic(name)


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def assign(path: Path, topic: str, *replicas: list[int]) -> str:
    return write(
        path,
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": index, "replicas": each}
                for index, each in enumerate(replicas)
            ],
        },
    )


def throttles(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = [
        *admin.describe_configs("topic", topic),
        *(entry for broker in range(4) for entry in admin.describe_configs("broker", broker)),
    ]
    return {
        entry.name: entry.value
        for entry in entries
        if ".replication.throttled." in entry.name and not entry.is_default
    }


def test_a_plan_is_printed_as_kafkas_tool_does_and_explained_beside_it(
    run: Run, topic: str, tmp_path: Path
) -> None:
    topics = write(tmp_path / "topics.json", {"topics": [{"topic": topic}], "version": 1})
    code, out, err = run(
        *("--generate", "--topics-to-move-json-file", topics, "--broker-list", "0,1,2,3"),
        *("--throttle", "1000"),
    )
    assert code == 0
    current_title, current, _, proposed_title, proposed = out.splitlines()
    assert current_title == "Current partition replica assignment"
    assert proposed_title == "Proposed partition reassignment configuration"
    assert [each["replicas"] for each in json.loads(current)["partitions"]] == [[0, 1], [0, 1]]
    for each in json.loads(proposed)["partitions"]:
        first, second = sorted(each["replicas"])
        assert first in (0, 1)
        assert second in (2, 3)
    assert "rack a had 2 of its replicas" in err
    assert "2 of 2 partitions change; 2 replicas are copied, 200." in err
    assert "for each broker, that takes 3.3 min." in err


def test_a_plan_as_json_has_reasons_bytes_and_seconds(run: Run, topic: str) -> None:
    code, out, err = run("--generate", "--broker-list", "2,3", "--throttle", "100000", "--json")
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert plan["moved_replicas"] == 4
    assert plan["moved_bytes"] > 400_000
    assert plan["seconds"] == pytest.approx(plan["moved_bytes"] / 100_000, rel=0.01)
    assert {move["topic"] for move in plan["moves"]} == {topic}
    assert plan["moves"][0]["reasons"] == ["brokers 0, 1 are not in the list"]


def test_a_broker_that_is_alone_in_its_rack_is_warned_of(run: Run, topic: str) -> None:
    warning = "broker 2 is alone in its rack, and so gets a replica of each partition"
    _, out, err = run("--generate", "--broker-list", "0,1,2")
    assert warning in err
    assert warning not in out
    (said,) = json.loads(run("--generate", "--broker-list", "0,1,2", "--json")[1])["warnings"]
    assert said.startswith(warning)
    _, _, err = run("--generate", "--broker-list", "0,1,2", "--disable-rack-aware")
    assert "is alone in its" not in err


def test_where_all_is_well_there_is_nothing_to_do(run: Run, admin: Admin) -> None:
    admin.create_topic("level", assignment={0: [0, 2], 1: [3, 1], 2: [1, 2], 3: [2, 0]})
    code, out, err = run("--generate")
    admin.delete_topic("level")
    assert code == 0
    assert out.count('{"version":1,"partitions":[]}') == 2
    assert "Nothing has to move: all 4 partitions are where they should be" in err


def test_moves_are_throttled_listed_cancelled_and_verified(
    run: Run, topic: str, admin: Admin, tmp_path: Path
) -> None:
    plan = assign(tmp_path / "plan.json", topic, [2, 1], [0, 3])
    code, out, _ = run("--execute", "--reassignment-json-file", plan, "--throttle", "1")
    assert code == 0
    assert "Save this to use as the --reassignment-json-file option during rollback" in out
    assert "The inter-broker throttle limit was set to 1 B/s" in out
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in out
    assert throttles(admin, topic) == {
        "leader.replication.throttled.rate": "1",
        "follower.replication.throttled.rate": "1",
        "leader.replication.throttled.replicas": "0:0,0:1,1:0,1:1",
        "follower.replication.throttled.replicas": "0:2,1:3",
    }
    # The first response may be larger than the throttle allows; what is more is held back.
    _, out, _ = run("--list")
    moving = [line for line in out.splitlines() if line.startswith(topic)]
    assert all("adding: " in line and "removing: " in line for line in moving)

    code, out, _ = run("--cancel", "--reassignment-json-file", plan, "--preserve-throttles")
    assert code == 0
    assert throttles(admin, topic)
    assert admin.list_reassignments() == {}
    run("--cancel", "--reassignment-json-file", plan)
    assert throttles(admin, topic) == {}

    code, out, _ = run("--execute", "--reassignment-json-file", plan)
    await_replicas(admin, topic, [(2, 1), (0, 3)])
    code, out, _ = run("--verify", "--reassignment-json-file", plan)
    assert code == 0
    assert f"Reassignment of partition {topic}-0 is completed." in out
    assert "Clearing broker-level throttles on brokers 0,1,2,3" in out
    assert f"Clearing topic-level throttles on topic {topic}" in out
    assert throttles(admin, topic) == {}

    elsewhere = assign(tmp_path / "elsewhere.json", topic, [1, 2])
    _, out, _ = run("--verify", "--reassignment-json-file", elsewhere)
    assert f"partition {topic}-0, but replica set is 2,1 rather than 1,2." in out
    _, out, _ = run("--cancel", "--reassignment-json-file", elsewhere)
    assert "None of the specified partition reassignments are active." in out
    _, out, _ = run("--list")
    assert out == "No partition reassignments found.\n"


def test_each_action_answers_as_json(run: Run, topic: str, admin: Admin, tmp_path: Path) -> None:
    plan = assign(tmp_path / "plan.json", topic, [1, 0], [1, 2, 3])
    code, out, _ = run(
        *("--execute", "--reassignment-json-file", plan, "--json"),
        "--disallow-replication-factor-change",
    )
    answer = json.loads(out)
    assert code == 1
    assert answer["begun"] == [f"{topic}-0"]
    assert "replication factor is changed from 2 to 3" in answer["refused"][f"{topic}-1"]
    assert answer["current"]["partitions"][0]["replicas"] == [0, 1]
    assert json.loads(run("--list", "--json")[1]) == {}
    code, out, _ = run("--verify", "--reassignment-json-file", plan, "--json")
    released = {"throttles_cleared": True, "throttles_left_on": []}
    assert json.loads(out) == {
        "partitions": {f"{topic}-0": "completed", f"{topic}-1": "elsewhere: 0,1"},
        **released,
    }
    code, out, _ = run("--cancel", "--reassignment-json-file", plan, "--json")
    assert (code, json.loads(out)) == (0, {"cancelled": [], "refused": {}, **released})


def test_a_plan_that_is_cancelled_leaves_the_throttle_of_another(
    run: Run, topic: str, admin: Admin, tmp_path: Path
) -> None:
    one = assign(tmp_path / "one.json", topic, [2, 1])
    both = assign(tmp_path / "both.json", topic, [2, 1], [0, 3])
    run("--execute", "--reassignment-json-file", both, "--throttle", "1")
    assert len(admin.list_reassignments()) == 2, "the partitions have moved before the test began"
    code, out, _ = run("--cancel", "--reassignment-json-file", one)
    assert code == 0
    assert "Clearing broker-level throttles on broker 2\n" in out
    assert "Other reassignments are in progress: throttles stay on brokers 0,1,3" in out
    assert throttles(admin, topic) == {
        "leader.replication.throttled.rate": "1",
        "follower.replication.throttled.rate": "1",
        "leader.replication.throttled.replicas": "1:0,1:1",
        "follower.replication.throttled.replicas": "1:3",
    }
    code, out, _ = run("--cancel", "--reassignment-json-file", both, "--json")
    assert json.loads(out)["throttles_left_on"] == []
    assert throttles(admin, topic) == {}


def test_a_plan_that_is_complete_loses_its_throttle_while_another_moves(
    run: Run, topic: str, admin: Admin, tmp_path: Path
) -> None:
    one = assign(tmp_path / "one.json", topic, [2, 1])
    both = assign(tmp_path / "both.json", topic, [2, 1], [0, 3])
    home = assign(tmp_path / "home.json", topic, [0, 1])
    run("--execute", "--reassignment-json-file", both, "--throttle", "1")
    run("--cancel", "--reassignment-json-file", one, "--preserve-throttles")
    assert len(admin.list_reassignments()) == 1, "the partition has moved before the test began"
    _, out, _ = run("--verify", "--reassignment-json-file", both, "--json")
    assert json.loads(out)["throttles_left_on"] is None
    _, out, _ = run("--verify", "--reassignment-json-file", home, "--json")
    assert json.loads(out)["throttles_left_on"] == [0, 1, 3]
    assert throttles(admin, topic)["leader.replication.throttled.replicas"] == "1:0,1:1"
    run("--cancel", "--reassignment-json-file", both)
    assert throttles(admin, topic) == {}


def test_a_plan_that_does_not_begin_leaves_no_throttle(
    run: Run, topic: str, admin: Admin, tmp_path: Path
) -> None:
    plan = assign(tmp_path / "plan.json", topic, [1, 2, 3])
    code, out, _ = run(
        *("--execute", "--reassignment-json-file", plan, "--throttle", "1"),
        "--disallow-replication-factor-change",
    )
    assert code == 1
    assert "replication factor is changed from 2 to 3" in out
    assert throttles(admin, topic) == {}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--execute"], "--execute needs the plan: --reassignment-json-file FILE"),
        (["--generate", "--additional"], "--additional goes with --execute, not with --generate"),
        (["--list", "--throttle", "5"], "--throttle goes with --generate and --execute"),
        (["--generate", "--throttle", "0"], "--throttle 0: write bytes per second"),
        (["--generate", "--broker-list", "one"], "--broker-list 'one': write numbers"),
        (["--generate", "--broker-list", "1,1"], "names broker 1 more than once"),
        (["--generate", "--broker-list", "1,9"], "broker 9 is not alive; alive are 0, 1, 2, 3"),
        (["--generate", "--broker-list", "1"], "has 2 replicas, but there is only 1 broker"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, topic: str, words: list[str], why: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert why in err


def test_a_plan_may_name_the_directory_where_the_broker_puts_it_anyway(
    run: Run, topic: str, admin: Admin, tmp_path: Path
) -> None:
    """As in what Kafka's tool prints for a rollback."""
    directory = admin.describe_log_dirs([2])[2][0].path
    entry = {"topic": topic, "partition": 0, "replicas": [2], "log_dirs": [directory]}
    plan = write(tmp_path / "plan.json", {"version": 1, "partitions": [entry]})
    code, out, err = run("--execute", "--reassignment-json-file", plan)
    assert code == 0, err
    entry["log_dirs"] = ["/elsewhere"]
    plan = write(tmp_path / "plan.json", {"version": 1, "partitions": [entry]})
    code, out, err = run("--execute", "--reassignment-json-file", plan, "--additional")
    assert (code, out) == (1, "")
    assert f"broker 2 has the log directories {directory}" in err
    assert "write 'any' instead of /elsewhere" in err


def test_a_plan_that_names_what_there_is_not(run: Run, topic: str, tmp_path: Path) -> None:
    plan = assign(tmp_path / "plan.json", topic, [0, 9])
    _, _, err = run("--execute", "--reassignment-json-file", plan)
    assert "broker 9 is not alive; alive are 0, 1, 2, 3" in err
    plan = assign(tmp_path / "plan.json", "nowhere", [0])
    _, _, err = run("--execute", "--reassignment-json-file", plan)
    assert "there is no partition nowhere-0" in err
    topics = write(tmp_path / "topics.json", {"topics": [{"topic": "nowhere"}]})
    _, _, err = run("--generate", "--topics-to-move-json-file", topics)
    assert "names nowhere, which does not exist" in err


def test_limits_are_met(run: Run, topic: str, admin: Admin) -> None:
    """Broker 2 has room for one, so the other goes to broker 3."""
    admin.create_topic("fills", assignment={index: [2] for index in range(3)})
    admin.alter_configs("broker", "", {"max.broker.partitions": 4})
    code, out, _ = run("--generate", "--broker-list", "0,2,3", "--json")
    plan = json.loads(out)
    admin.alter_configs("broker", "", {"max.broker.partitions": None})
    admin.delete_topic("fills")
    assert code == 0
    came = [broker for move in plan["moves"] for broker in set(move["to"]) - set(move["from"])]
    assert came.count(2) <= 1
    assert {move["topic"] for move in plan["moves"]} >= {topic}
