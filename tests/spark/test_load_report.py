"""`trimtab load report` of clusters: what it writes, prints and refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import pytest

from lab.processes import free_ports
from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.load.history import RECALLED, recall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEVEL, HOT, EMPTY = "level", "hot", "empty"
SENT = 12_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    now = round(time.time() * 1000)
    with Cluster(3, racks=["a", "b", "c"]) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(LEVEL, partitions=3, replication_factor=2)
            admin.create_topic(HOT, partitions=3, replication_factor=1)
            admin.create_topic(EMPTY, partitions=2, replication_factor=1)
        with Producer(servers, batch_size=4096) as producer:
            for number in range(SENT):
                # The first quarter was sent two hours ago.
                at = now - (2 * HOUR_MS if number < SENT // 4 else 0)
                value = b"%06d" % number * 20
                producer.send(LEVEL, value, partition=number % 3, timestamp=at)
                key = b"big" if number % 5 else b"key %d" % number
                producer.send(HOT, value, key, timestamp=at)
        yield servers


def report(servers: str, out: Path, *words: str) -> int:
    return main(["load", "report", "--bootstrap", servers, "--out", str(out), *words])


def make_older(history: Path, age: timedelta) -> None:
    """As if snapshots had been taken before they were."""
    for path in history.rglob("*.parquet"):
        table = parquet.ParquetFile(path).read()
        at = table.schema.get_field_index("takenAt")
        earlier = compute.subtract(table.column(at), pa.scalar(age, pa.duration("us")))
        parquet.write_table(table.set_column(at, table.schema.field(at), earlier), path)


def read_summary(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_a_report_has_every_record_and_says_what_to_do(
    spark: SparkSession,
    servers: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "clients.csv").write_text(
        f"topic,kind,rack,share,isNear\n{HOT},produce,a,1,false\n"
    )
    out = tmp_path / "out"
    assert report(servers, out, "--clients", str(tmp_path / "clients.csv")) == 0
    printed = capsys.readouterr().out
    summary = read_summary(out)
    rows = {row["topic"]: row for row in summary["topics"]}
    assert {name: row["TotalRecords"] for name, row in rows.items()} == {LEVEL: SENT, HOT: SENT}
    with Admin(servers) as admin:
        sizes = {
            (broker, *partition): log.size
            for broker, directories in admin.describe_log_dirs().items()
            for each in directories
            for partition, log in each.logs.items()
        }
        leaders = admin.describe_topics([LEVEL])[LEVEL].leaders
    stored = [sizes[leader, LEVEL, number] for number, leader in enumerate(leaders)]
    assert summary["partitions"][LEVEL] == stored
    assert rows[LEVEL]["TotalBytes"] == sum(stored)
    found = {(each["rule"], each["subject"]) for each in summary["findings"]}
    assert {("hot-key", HOT), ("uneven-by-key", HOT)} <= found
    assert not any(LEVEL in subject for _, subject in found)
    assert "key big has 80 % of the records" in printed
    assert summary["hot_keys"][0]["key"] == "big"
    windows = [sum(each["bytes"].values()) for each in summary["times"]]
    assert sum(windows) == summary["read"]["bytes"]
    assert len(windows) >= 2
    replicated = [row for row in summary["racks"] if row["kind"] == "replicate"]
    assert sum(row["GB"] for row in replicated) * 1e9 == pytest.approx(sum(stored))
    produced = {row["fromRack"] for row in summary["racks"] if row["kind"] == "produce"}
    assert produced == {"a", None}
    assert (summary["read"]["empty_topics"], summary["read"]["partitions"]) == (1, 8)
    table = parquet.read_table(out / "partition_load.parquet")
    assert sum(table.column("TotalRecords").to_pylist()) == 2 * SENT
    assert spark.read.parquet(str(out / "hot_keys.parquet")).filter("Rank = 1").count() == 1
    page = (out / "report.html").read_text()
    assert "<h3>level</h3>" in page
    assert "big" in page


def test_a_second_run_knows_growth_and_a_bounded_one_says_so(
    spark: SparkSession, servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(servers, tmp_path, "--since", "1h", "--keys", "hash", "--topics", "h.t") == 0
    first = read_summary(tmp_path)
    assert first["read"]["records"] == SENT * 3 // 4
    assert [row["topic"] for row in first["topics"]] == [HOT]
    assert first["hot_keys"][0]["key"].startswith("hash ")
    assert first["brokers"][0]["BytesPerDay"] is None
    assert (tmp_path / "hot_keys.parquet").exists()
    make_older(tmp_path / "history", timedelta(hours=2))
    # Records of a batch that is cut at its start count without its bytes.
    words = ("--max-bytes", "100k", "--keys", "none", "--topics", LEVEL, "--json")
    capsys.readouterr()
    assert report(servers, tmp_path, *words) == 0
    second = json.loads(capsys.readouterr().out)
    assert second == read_summary(tmp_path)
    assert 0 < second["read"]["share"] < 0.2
    part = second["read"]["share"] * SENT
    assert part <= second["read"]["records"] < part + 3
    assert 0 < second["read"]["bytes"] < 110 * 1024
    assert second["brokers"][0]["BytesPerDay"] == 0
    assert not (tmp_path / "hot_keys.parquet").exists()
    assert recall(spark, tmp_path / "history").brokers.count() == 2 * 3


def test_the_newest_snapshots_are_looked_at(
    spark: SparkSession, servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(servers, tmp_path, "--keys", "none", "--topics", EMPTY) == 0
    for table in (tmp_path / "history").iterdir():
        (file,) = table.iterdir()
        for year in range(2001, 2001 + RECALLED):
            (table / f"{year}.parquet").write_bytes(file.read_bytes())
        (table / "2001.parquet").write_bytes(b"not looked at")
    assert recall(spark, tmp_path / "history").brokers.count() == RECALLED * 3
    (tmp_path / "history" / "replicas" / "2005.parquet").write_bytes(b"PAR1 torn")
    assert report(servers, tmp_path, "--keys", "none", "--topics", EMPTY) == 1
    assert "2005.parquet" in capsys.readouterr().err


def test_a_cluster_without_topics_has_a_report(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(1) as cluster:
        assert report(cluster.bootstrap_servers, tmp_path) == 0
        assert "0 topics of cluster" in capsys.readouterr().out
        assert report(cluster.bootstrap_servers, tmp_path, "--topics", "none") == 1
        assert "no topic matches 'none'" in capsys.readouterr().err
    assert "There are no records to read" in (tmp_path / "report.html").read_text()
    assert read_summary(tmp_path)["brokers"][0]["Replicas"] == 0


def test_a_cluster_that_does_not_answer_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.cli.selection.ADMIN_TIMEOUT_MS", 500)
    (port,) = free_ports(1)
    assert report(f"127.0.0.1:{port}", tmp_path / "out") == 1
    out, err = capsys.readouterr()
    assert f"127.0.0.1:{port}" in err
    assert not out
    assert not (tmp_path / "out").exists()


def test_what_spark_objects_to_is_one_line(
    spark: SparkSession, servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history").write_text("a file where a directory should be")
    assert report(servers, tmp_path, "--topics", EMPTY) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("trimtab load: ")
