"""`trimtab log-dirs`: a table for people, Kafka's own lines for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.log_dirs import read_brokers, write_json, write_tables
from trimtab.client.admin import LogDirectory, ReplicaLog
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(data: Path) -> Iterator[Cluster]:
    with Cluster(brokers=2, data=data) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("full", assignment={0: [0, 1]})
            admin.create_topic("idle", assignment={0: [1], 1: [1]})
        with Producer(servers, acks="all") as producer:
            producer.send("full", b"x" * 1000, partition=0).result()
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab log-dirs` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["log-dirs", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capsys.readouterr()

    return run


def test_describing_prints_what_kafkas_tool_prints(run: Run, data: Path) -> None:
    words = ("--describe", "--broker-list", "1,0", "--topic-list", "full,nowhere")
    code, shown, error = run(*words)
    assert (code, error) == (0, "")
    querying, received, line = shown.splitlines()
    assert querying == "Querying brokers for log directories information"
    assert received == "Received log directory information from brokers 0,1"
    size = (data / "broker-0" / "full-0" / f"{0:020}.log").stat().st_size
    assert size > 1000
    log = f'{{"partition":"full-0","size":{size},"offsetLag":0,"isFuture":false}}'
    assert line == (
        '{"brokers":['
        + ",".join(
            f'{{"broker":{broker},"logDirs":[{{"partitions":[{log}],"error":null,'
            f'"logDir":"{data}/broker-{broker}"}}]}}'
            for broker in (0, 1)
        )
        + '],"version":1}'
    )


def test_json_is_that_line_alone(run: Run) -> None:
    described = run("--describe")[1].splitlines()[-1]
    assert run("--json")[1] == run("--describe", "--json")[1] == described + "\n"
    assert [
        [log["partition"] for log in each["logDirs"][0]["partitions"]]
        for each in json.loads(described)["brokers"]
    ] == [["full-0"], ["full-0", "idle-0", "idle-1"]]


def test_people_get_a_table_for_each_directory(run: Run, data: Path) -> None:
    lines = run("--broker-list", "1")[1].splitlines()
    assert lines[0].startswith(f"broker 1, {data}/broker-1: 3 replicas, 1.0 KiB; ")
    assert lines[1:] == [
        "  topic  replicas  future     size  lag",
        "  full          1       0  1.0 KiB    0",
        "  idle          2       0      0 B    0",
    ]


def test_a_broker_that_is_not_there_is_refused(run: Run) -> None:
    code, shown, error = run("--describe", "--broker-list", "0,9")
    assert (code, shown) == (1, "")
    assert error == "trimtab log-dirs: broker 9 is not alive; alive are 0, 1\n"
    with pytest.raises(UsageError, match="--broker-list '0,x': write broker numbers"):
        read_brokers("0,x")


def test_copies_under_way_and_their_lag_are_shown() -> None:
    logs = {
        TopicPartition("t", 0): ReplicaLog(2**30, 0, False),
        TopicPartition("t", 1): ReplicaLog(2**29, 40, True),
    }
    assert write_tables({3: [LogDirectory("/d", None, logs, -1, -1)]}).splitlines() == [
        "broker 3, /d: 2 replicas, 1.5 GiB",
        "  topic  replicas  future     size  lag",
        "  t             2       1  1.5 GiB   40",
    ]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, "org.apache.kafka.common.errors.KafkaStorageException"),
        (ErrorCode.INVALID_REQUEST, "INVALID_REQUEST"),
    ],
)
def test_a_directory_that_cannot_be_read_says_why(code: ErrorCode, name: str) -> None:
    error = BrokerError(code, "", "log directory /d")
    found = {0: [LogDirectory("/d", error, {}, -1, -1)]}
    assert json.loads(write_json(found))["brokers"][0]["logDirs"][0]["error"] == name
    assert write_tables(found) == f"broker 0, /d: log directory /d: {code.name} ({int(code)})"
