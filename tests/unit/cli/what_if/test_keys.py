from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.what_if.recordings import record, snapshots
from trimtab import Cluster, Producer
from trimtab.cli import main

pytest.importorskip("pyarrow")


@pytest.fixture
def recording(tmp_path: Path) -> str:
    return record(tmp_path / "hour.jsonl.gz", snapshots(windows=4, topics={"flights": 6}))


def shares(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[list[float]]:
    """The intervals of the partitions in MB/s, of 6 MB/s in all."""
    assert main(["what-if", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return [[value / 1e6 for value in each["written"]] for each in found["partitions"]]


def test_a_sample_says_which_partition_gets_what(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the records are of one carrier, the others of many flights."""
    sample = tmp_path / "sample.csv"
    rows = [f"{'UA' if number % 2 else f'X{number}'},{number}" for number in range(6000)]
    sample.write_text("\n".join(["carrier,flight", *rows]))
    words = ["--recording", recording, "--sample", str(sample)]
    uneven = shares(capsys, [*words, "--key", "flights:carrier"])
    means = sorted(mid for _, mid, _ in uneven)
    assert means[-1] == pytest.approx(3.5, rel=0.05)
    assert means[:-1] == pytest.approx([0.5] * 5, rel=0.15)
    assert all(low < mid < high for low, mid, high in uneven), "the sample might be another one"
    even = shares(capsys, [*words, "--key", "flights:flight"])
    assert [mid for _, mid, _ in even] == pytest.approx([1.0] * 6, rel=0.15)


def test_a_key_and_more_partitions(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.csv"
    sample.write_text("\n".join(["user", *(f"u{number}" for number in range(6000)), ""]))
    words = ["--recording", recording, "--sample", str(sample), "--key", "flights:user"]
    found = shares(capsys, [*words, "--partitions", "flights:12"])
    assert [mid for _, mid, _ in found] == pytest.approx([0.5] * 12, rel=0.2)


def test_records_without_a_key_are_spread_evenly(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.jsonl"
    lines = ['{"a": "one"}', '{"a": null}'] * 500
    sample.write_text("\n".join(lines))
    words = ["--recording", recording, "--sample", str(sample), "--key", "flights:a"]
    means = sorted(mid for _, mid, _ in shares(capsys, words))
    assert means == pytest.approx([0.5] * 5 + [3.5], rel=0.2)


def test_the_newest_records_of_the_topic_are_a_sample(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By bytes: the value of one user is long."""
    with Cluster(brokers=1) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(2000):
                user, text = ("big", "x" * 1200) if number % 10 == 0 else (f"u{number}", "")
                producer.send("flights", json.dumps({"user": user, "text": text}).encode())
        words = ["--recording", recording, "--bootstrap-server", cluster.bootstrap_servers]
        means = sorted(mid for _, mid, _ in shares(capsys, [*words, "--key", "flights:user"]))
    assert means[-1] > 3.5
    assert sum(means) == pytest.approx(6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--key", "flights:b"], "no column b; it has a"),
        (["--key", "cargo:a"], "topic 'cargo' is not measured"),
        (["--key", "flights:a,a", "--key-format", "int"], "is for a key of one column"),
        (["--key", "flights:a", "--partitioner", "crc"], "partitioner='crc' is not known"),
    ],
)
def test_a_key_that_is_not_there_is_refused(
    words: list[str], reason: str, recording: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.csv"
    sample.write_text("a\n1\n2\n")
    assert main(["what-if", "--recording", recording, "--sample", str(sample), *words]) == 1
    assert reason in capfd.readouterr().err


def test_a_sample_without_any_key_is_refused(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.jsonl"
    sample.write_text('{"a": null, "b": 1}\n')
    words = ["--recording", recording, "--sample", str(sample), "--key", "flights:a"]
    assert main(["what-if", *words]) == 1
    assert capsys.readouterr().err
