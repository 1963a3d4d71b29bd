"""A controller's directory that is lost, or put back from an old copy, and `trimtab recover`."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition
from trimtab.cli import main
from trimtab.cli.cluster_up import open_data
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.batch_cy import read_headers, restamp

PARTITIONS = 4
PATIENCE_S = 30

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")


def write(cluster: Cluster, topic: str, values: Iterable[int]) -> None:
    with Producer(cluster.bootstrap_servers, enable_idempotence=True) as producer:
        sent = [producer.send(topic, b"%d" % each, partition=each % PARTITIONS) for each in values]
        producer.flush()
        for each in sent:
            each.result()


def read(cluster: Cluster, topic: str, count: int) -> list[int]:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[int] = []
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while len(found) < count:
            records = consumer.poll(timeout_ms=PATIENCE_S * 1000)
            assert records, f"{len(found)} of {count} records"
            found += [int(record.value or b"") for record in records]
    return sorted(found)


def read_with_confluent(cluster: Cluster, topic: str, count: int) -> list[int]:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition as ConfluentPartition

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(count, PATIENCE_S)
        assert messages, f"{len(found)} of {count} records"
        found += [int(message.value() or b"") for message in messages]
    consumer.close()
    return sorted(found)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data of three brokers: topic `flights`, then a copy of the controller's directory, then
    more records, and topic `later`."""
    data = tmp_path / "data"
    with Cluster(brokers=3, data=data) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(
                "flights", PARTITIONS, 3, config={"segment.bytes": "20000", "retention.ms": "-1"}
            )
        write(cluster, "flights", range(2000))
    shutil.copytree(data / "controller", tmp_path / "copy")
    with Cluster(brokers=3, data=data) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("later", PARTITIONS, 3)
        write(cluster, "later", range(400))
        write(cluster, "flights", range(2000, 2400))
    shutil.rmtree(data / "controller")
    return data


def check(cluster: Cluster) -> None:
    """All records are there, and more can be written."""
    assert read(cluster, "flights", 2400) == list(range(2400))
    assert read_with_confluent(cluster, "later", 400) == list(range(400))
    write(cluster, "flights", range(2400, 2800))
    assert read_with_confluent(cluster, "flights", 2800) == list(range(2800))


def test_a_lost_directory_is_rebuilt_from_the_brokers(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(UsageError, match="trimtab recover --data"),
        open_data(str(data), 3),
    ):
        pass
    assert main(["recover", "--data", str(data), "--dry-run"]) == 0
    assert not (data / "controller").exists()
    capsys.readouterr()
    assert main(["recover", "--data", str(data), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"topic": "later", "partitions": 4} in told["topics"]
    assert (told["written"], told["hasOldCopy"], told["oldDirectory"]) == (False, False, None)
    assert told["controller"] == f"{data}/controller"
    assert main(["recover", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "topic later: 4 partitions" in shown
    assert "options of topics and brokers are lost" in shown
    with Cluster(brokers=3, data=data) as cluster:
        check(cluster)
    with Cluster(brokers=3, data=data) as cluster:
        assert read(cluster, "flights", 2800) == list(range(2800))


def test_an_old_copy_is_rejected_and_recover_adds_what_it_lacks(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tmp_path / "copy", data / "controller")
    logs = sorted(each.name for each in (data / "broker-0").iterdir() if each.is_dir())
    for _ in range(2):
        with (
            pytest.raises(
                CorruptData, match=r"broker \d has followed another log.*trimtab recover"
            ),
            Cluster(brokers=3, data=data),
        ):
            pass
    assert sorted(each.name for each in (data / "broker-0").iterdir() if each.is_dir()) == logs
    assert main(["recover", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "options, limits and empty topics are taken from the old copy" in shown
    assert (data / "controller.old-1").is_dir()
    kept = [each / "cluster.secret" for each in (tmp_path / "copy", data / "controller")]
    assert kept[0].read_text() == kept[1].read_text()
    assert stat.S_IMODE(kept[1].stat().st_mode) == 0o600
    with Cluster(brokers=3, data=data) as cluster:
        check(cluster)
        with Admin(cluster.bootstrap_servers) as admin:
            options = {each.name: each for each in admin.describe_configs("topic", "flights")}
            assert options["retention.ms"].value == "-1"


def test_an_old_copy_as_long_as_the_lost_log_is_rejected_too(data: Path, tmp_path: Path) -> None:
    """Another topic makes the old copy's log the longer one."""
    shutil.copytree(tmp_path / "copy", data / "controller")
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "copy", other / "controller")
    with Cluster(brokers=3, data=other) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("long", 200, 3)
    shutil.rmtree(data / "controller")
    shutil.copytree(other / "controller", data / "controller")
    with pytest.raises(CorruptData, match="has replayed another"), Cluster(brokers=3, data=data):
        pass


def test_a_later_leader_epoch_alone_rejects_an_old_copy(data: Path, tmp_path: Path) -> None:
    """The files in which the brokers noted the last replayed batch are lost, too."""
    shutil.copytree(tmp_path / "copy", data / "controller")
    for broker in range(3):
        (data / f"broker-{broker}" / ".trimtab_replayed").unlink()
    log = data / "broker-0" / "flights-0"
    *_, segment = sorted(log.glob("*.log"))
    content = bytearray(segment.read_bytes())
    *_, last = read_headers(bytes(content))
    restamp(content, len(content) - last.size, last.base_offset, 99)
    segment.write_bytes(content)
    epochs = log / "leader-epoch-checkpoint"  # else the epoch counts as damaged
    version, count, *lines = epochs.read_text().splitlines()
    lines = [version, str(int(count) + 1), *lines, f"99 {last.base_offset}"]
    epochs.write_text("".join(f"{line}\n" for line in lines))
    (data / "broker-0" / ".kafka_cleanshutdown").unlink()
    with (
        pytest.raises(CorruptData, match=r"has leader epoch \d+, and the controller"),
        Cluster(brokers=3, data=data),
    ):
        pass


def test_a_running_cluster_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(brokers=1, data=tmp_path):
        assert main(["recover", "--data", str(tmp_path)]) == 1
    assert "in use: stop all nodes first" in capsys.readouterr().err
