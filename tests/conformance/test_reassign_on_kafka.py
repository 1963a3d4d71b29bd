"""`trimtab reassign --throttle` on Apache Kafka, where a broker that is stopped takes part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from tests.kafka import needs_kafka, three_members
from trimtab import Admin, Producer
from trimtab.cli import main
from trimtab.client.admin.answers import ConfigKind

pytestmark = needs_kafka

Run = Callable[..., tuple[int, str, str]]

RATES = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
STOPPED = 2


@pytest.fixture(scope="module")
def members() -> Iterator[list[KafkaMember]]:
    with three_members(KafkaMember) as members:
        yield members


@pytest.fixture(scope="module")
def admin(members: list[KafkaMember]) -> Iterator[Admin]:
    with Admin(members[0].address) as admin:
        yield admin


@pytest.fixture
def run(members: list[KafkaMember], capsys: pytest.CaptureFixture[str]) -> Run:
    """A command, as from a shell: exit code, standard output and error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--bootstrap-server", members[0].address])
        return code, *capsys.readouterr()

    return run


def await_options(
    admin: Admin, kind: ConfigKind, name: str | int, expected: Mapping[str, str | None]
) -> None:
    """Wait until these throttles are set here: brokers learn of a change a little later."""
    own = {"topic": "DYNAMIC_TOPIC_CONFIG", "broker": "DYNAMIC_BROKER_CONFIG"}[kind]
    while expected != {
        each.name: each.value
        for each in admin.describe_configs(kind, name)
        if ".replication.throttled." in each.name and each.source.name == own
    }:
        pass


def await_alive(admin: Admin, brokers: list[int]) -> None:
    while [node.id for node in admin.cluster().nodes] != brokers:
        pass


def test_a_stopped_broker_is_left_out_named_and_has_no_throttle_at_the_end(
    members: list[KafkaMember], admin: Admin, run: Run, tmp_path: Path
) -> None:
    admin.create_topic("throttled", assignment={0: [0, STOPPED]})
    with Producer(members[0].address) as producer:
        for _ in range(20):
            producer.send("throttled", bytes(100_000), partition=0)
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [{"topic": "throttled", "partition": 0, "replicas": [0, 1]}],
            }
        )
    )
    plan = ("--reassignment-json-file", str(file))
    # A throttle of an earlier reassignment, which its broker did not live to lose.
    admin.alter_configs("broker", STOPPED, dict.fromkeys(RATES, 5))
    members[STOPPED].stop()
    await_alive(admin, [0, 1])
    code, out, err = run("reassign", "--execute", *plan, "--throttle", "1")
    assert (code, err) == (0, "")
    assert "Warning: broker 2 is not alive, and without a limit" in out
    assert "Successfully started partition reassignment for throttled-0" in out
    lists = {
        "leader.replication.throttled.replicas": "0:0,0:2",
        "follower.replication.throttled.replicas": "0:1",
    }
    await_options(admin, "topic", "throttled", lists)
    for broker in (0, 1):
        await_options(admin, "broker", broker, dict.fromkeys(RATES, "1"))

    code, out, err = run("reassign", "--cancel", *plan)
    assert (code, err) == (0, "")
    assert "Clearing broker-level throttles on brokers 0,1\n" in out
    assert "Warning: broker 2 is not alive: throttles there stay, without effect" in out
    await_options(admin, "topic", "throttled", {})
    for broker in (0, 1):
        await_options(admin, "broker", broker, {})

    code, out, err = run("configs", "--describe", "--broker", str(STOPPED))
    assert (code, out) == (1, "")
    assert "broker 2 is not alive, and the others do not know its options: start it" in err

    members[STOPPED].start()
    await_alive(admin, [0, 1, 2])
    await_options(admin, "broker", STOPPED, dict.fromkeys(RATES, "5"))
    code, out, err = run("reassign", "--verify", *plan)
    assert "Clearing broker-level throttles on brokers 0,1,2\n" in out
    await_options(admin, "broker", STOPPED, {})
