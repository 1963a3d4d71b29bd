from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic for the test: two partitions of ten records each."""
    name = str(request.node.name)
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        admin.create_topic(name, partitions=2)
        for number in range(20):
            producer.send(name, b"x", partition=number % 2)
    return name


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`trimtab delete-records` with a file of these partitions; exit code, output and errors."""

    def run(*partitions: tuple[str, int, object], words: tuple[str, ...] = ()) -> object:
        keys = ("topic", "partition", "offset")
        entries = [dict(zip(keys, each, strict=True)) for each in partitions]
        path = tmp_path / "offsets.json"
        path.write_text(json.dumps({"version": 1, "partitions": entries}))
        server = ("--bootstrap-server", cluster.bootstrap_servers)
        code = main(["delete-records", "--offset-json-file", str(path), *words, *server])
        return code, *capsys.readouterr()

    return run  # type: ignore[return-value]


def starts(cluster: Cluster, topic: str) -> list[int]:
    with Admin(cluster.bootstrap_servers) as admin:
        found = admin.list_offsets([(topic, 0), (topic, 1)], "earliest")
    return [each.offset for _, each in sorted(found.items())]


def test_earlier_records_are_deleted(cluster: Cluster, run: Run, topic: str) -> None:
    assert run((topic, 1, 4), (topic, 0, -1)) == (
        0,
        "Executing records delete operation\nRecords delete operation completed:\n"
        f"partition: {topic}-0\tlow_watermark: 10\npartition: {topic}-1\tlow_watermark: 4\n",
        "",
    )
    assert starts(cluster, topic) == [10, 4]
    shown = run((topic, 1, 6), words=("--json",))[1]
    assert json.loads(shown) == {
        "topic": topic,
        "partition": 1,
        "lowWatermark": 6,
        "error": None,
    }


def test_what_cannot_be_deleted_is_said_and_the_rest_is(
    cluster: Cluster, run: Run, topic: str
) -> None:
    code, shown, errors = run((topic, 0, 4), (topic, 1, 99), ("nowhere", 0, 1))
    assert code == 1
    assert shown.splitlines()[2:] == [f"partition: {topic}-0\tlow_watermark: 4"]
    assert f"partition: {topic}-1\terror: {topic}-1: OFFSET_OUT_OF_RANGE (1)" in errors
    assert "partition: nowhere-0\terror: nowhere-0: UNKNOWN_TOPIC_OR_PARTITION (3)" in errors
    assert starts(cluster, topic) == [4, 0]
    shown = run((topic, 1, 99), words=("--json",))[1]
    assert json.loads(shown)["error"] == "OFFSET_OUT_OF_RANGE"


@pytest.mark.parametrize(("offset", "shown"), [(None, "None"), (True, "True"), (-2, "-2")])
def test_an_offset_is_a_number_from_minus_one(run: Run, offset: object, shown: str) -> None:
    code, told, errors = run(("t", 0, offset))
    assert (code, told) == (1, "")
    assert f"the offset of t-0 is {shown}: write the first offset to keep" in errors
