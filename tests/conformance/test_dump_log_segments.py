"""Kafka's DumpLogSegments reads trimtab's files without complaints; `trimtab dump-log` prints the
same."""

import asyncio
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lab.benchmarks.apache_kafka import call_java
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.cli import main
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers
from trimtab.kafka.wire.compression import Compression

PRODUCER = 9
NOW = 2_000_000

pytestmark = needs_kafka


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 300 batches of three records, in several segments, with every codec."""
    root = tmp_path_factory.mktemp("logs")
    storage = DirectoryStorage(root)
    log = Log(storage, "flights-0", LogConfig(segment_bytes=15_000), lambda: 0)
    for i in range(300):
        builder = BatchBuilder(1 << 20, list(Compression)[i % len(Compression)])
        for j in range(3):
            # Some timestamps decrease; those of the time index must not.
            builder.append(1_000_000 + 10 * i + j - 500 * (i % 7 == 0), b"key", b"v" * 200, [])
        data = memoryview(
            bytearray(builder.build(producer_id=PRODUCER, producer_epoch=1, base_sequence=3 * i))
        )
        log.append(data, i // 100, read_headers(data))
    log.close()
    storage.close()
    return root / "flights-0"


def dump(*arguments: str) -> tuple[str, list[str]]:
    """The tool's output and its complaints."""
    tool = "org.apache.kafka.tools.DumpLogSegments"
    done = call_java(tool, *arguments, heap="256m", stderr=subprocess.PIPE)
    complaints = [
        line
        for line in done.stderr.splitlines()
        if line and "log4j" not in line.lower() and "slf4j" not in line.lower()
    ]
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, complaints


def files(directory: Path, suffix: str) -> str:
    return ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))


def test_batches_and_records(directory: Path) -> None:
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 3
    output, complaints = dump(
        "--files", files(directory, ".log"), "--deep-iteration", "--print-data-log"
    )
    # The tool expects every file to begin at offset 0, also with Kafka's own segments.
    assert sorted(complaints) == sorted(
        line
        for log in logs[1:]
        for line in (
            f"Non-consecutive offsets in {log}",
            f"  -1 is followed by {int(log.stem)}",
        )
    )
    assert "invalid bytes" not in output
    batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .* isvalid: (\w+)$", output, re.M)
    assert batches == [(str(3 * i), str(3 * i + 2), "true") for i in range(300)]
    assert re.findall(r"partitionLeaderEpoch: (\d+)", output) == [str(i // 100) for i in range(300)]
    records = re.findall(r"^\| offset: (\d+) .* payload: (v+)$", output, re.M)
    assert records == [(str(offset), "v" * 200) for offset in range(900)]


def test_indexes_point_at_the_batches(directory: Path) -> None:
    indexes = f"{files(directory, '.index')},{files(directory, '.timeindex')}"
    output, complaints = dump("--files", indexes)
    assert complaints == []
    entries = len(re.findall(r"^offset: \d+ position: \d+$", output, re.M))
    assert entries == sum(path.stat().st_size for path in directory.glob("*.index")) // 8 > 10
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", output, re.M)) > 10


def test_indexes_pass_the_sanity_check_of_a_starting_broker(directory: Path) -> None:
    indexes = f"{files(directory, '.index')},{files(directory, '.timeindex')}"
    output, complaints = dump("--files", indexes, "--index-sanity-check")
    assert complaints == []
    assert output.count("passed sanity check") == len(indexes.split(","))


def test_producer_snapshots(directory: Path) -> None:
    output, complaints = dump("--files", files(directory, ".snapshot"))
    assert complaints == []
    last = output.splitlines()[-1]
    assert f"producerId: {PRODUCER} producerEpoch: 1" in last
    assert "firstSequence: 897 lastSequence: 899 lastOffset: 899 offsetDelta: 2" in last


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same log with a hundred keys, every tenth of them deleted, after compaction."""
    root = tmp_path_factory.mktemp("logs")
    directory = LogDirectory(
        DirectoryStorage(root), node_id=1, cluster_id="c", now_ms=lambda: NOW, random=Random(1)
    )
    config = LogConfig(segment_bytes=15_000, compacts=True, deletes=False)
    log = directory.open_log("flights", 0, bytes(16), config)
    for i in range(300):
        builder = BatchBuilder(1 << 20, list(Compression)[i % len(Compression)])
        for j in range(3):
            key = (7 * i + j) % 100
            value = None if key % 10 == 0 else b"v" * 200
            builder.append(1_000_000 + 10 * i + j, b"%d" % key, value, [("h", b"x")])
        data = memoryview(
            bytearray(
                builder.build(producer_id=i % 7, producer_epoch=1, base_sequence=3 * (i // 7))
            )
        )
        log.append(data, i // 100, read_headers(data))
    log.roll()
    log.high_watermark = log.log_end_offset
    assert asyncio.run(directory.compact()) == 1
    directory.close()
    return root / "flights-0"


def test_a_compacted_log(compacted: Path) -> None:
    output, _ = dump("--files", files(compacted, ".log"), "--deep-iteration", "--print-data-log")
    assert "invalid bytes" not in output
    assert set(re.findall(r"isvalid: (\w+)", output)) == {"true"}
    found = {
        int(key): (int(offset), int(size))
        for offset, size, key in re.findall(
            r"^\| offset: (\d+) .* valueSize: (-?\d+) .* key: (\d+)", output, re.M
        )
    }
    expected = {
        (7 * i + j) % 100: (3 * i + j, -1 if (7 * i + j) % 10 == 0 else 200)
        for i in range(300)
        for j in range(3)
    }
    assert found == expected
    horizons = set(re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", output))
    assert horizons == {str(NOW + 86_400_000)}
    empty = re.findall(r"count: 0 .* compresscodec: (\w+)", output)
    assert empty
    assert set(empty) == {"none"}


def test_indexes_of_a_compacted_log(compacted: Path) -> None:
    indexes = f"{files(compacted, '.index')},{files(compacted, '.timeindex')}"
    assert dump("--files", indexes)[1] == []
    assert dump("--files", indexes, "--index-sanity-check")[1] == []


def dump_ours(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    code = main(["dump-log", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err.splitlines()


def all_files(directory: Path) -> str:
    suffixes = ".log", ".index", ".timeindex", ".snapshot"
    return ",".join(files(directory, suffix) for suffix in suffixes)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--deep-iteration",
        "--print-data-log",
        "--print-data-log --skip-record-metadata",
        "--print-data-log --max-bytes 4000",
        "--index-sanity-check",
        "--verify-index-only",
    ],
)
def test_trimtab_prints_the_same(
    directory: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    arguments = ("--files", all_files(directory), *words.split())
    theirs, _ = dump(*arguments)
    assert dump_ours(capsys, *arguments) == (0, theirs, [])


def test_trimtab_prints_the_same_of_a_compacted_log(
    compacted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--files", all_files(compacted), "--print-data-log")
    theirs, _ = dump(*arguments)
    code, ours, notes = dump_ours(capsys, *arguments)
    assert (code, ours) == (0, theirs)
    assert notes
    assert all("such gaps are normal" in line for line in notes)


@pytest.fixture(scope="module")
def broker_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a cluster with transactions and groups of both protocols."""
    root = tmp_path_factory.mktemp("cluster")
    one = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with Cluster(brokers=1, data=root, config=one) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("dumped", partitions=1)
        with Producer(servers, transactional_id="dump") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("dumped", b"aborted").result()
            producer.abort_transaction()
            with producer.transaction():
                producer.send("dumped", None, key=b"k", headers=[("h", b"1"), ("g", None)])
        for protocol in ("classic", "consumer"):
            with Consumer(
                servers,
                group_id=f"dump-{protocol}",
                group_protocol=protocol,
                auto_offset_reset="earliest",
            ) as consumer:
                consumer.subscribe(["dumped"])
                while not consumer.poll():
                    pass
    return root


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broker-0/dumped-0", "--print-data-log"),
        ("broker-0/__consumer_offsets-0", "--offsets-decoder"),
        ("broker-0/__transaction_state-0", "--transaction-log-decoder"),
        ("controller/__cluster_metadata-0", "--cluster-metadata-decoder"),
        ("controller/__cluster_metadata-0", "--cluster-metadata-decoder --skip-record-metadata"),
    ],
)
def test_trimtab_decodes_the_same(
    broker_files: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    arguments = ("--files", files(broker_files / name, ".log"), *words.split())
    theirs, _ = dump(*arguments)
    assert theirs.count("payload: ") > 0
    assert dump_ours(capsys, *arguments) == (0, theirs, [])


def test_trimtab_prints_the_same_of_aborted_transactions(
    broker_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ",".join(
        files(broker_files / "broker-0" / "dumped-0", suffix)
        for suffix in (".txnindex", ".snapshot")
    )
    theirs, _ = dump("--files", paths)
    assert theirs.count("producerId: ") >= 2
    assert dump_ours(capsys, "--files", paths) == (0, theirs, [])


def _change(path: Path, at: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(content)] = content
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("suffix", "position", "damage", "java"),
    [
        (".index", 8, lambda path: _change(path, 11, b"\7"), "Mismatches in"),
        (
            ".timeindex",
            12,
            lambda path: _change(path, 12, struct.pack(">q", 1_000_001)),
            "Found timestamp mismatch",
        ),
        (".timeindex", 12, lambda path: _change(path, 23, b"\1"), "are not found in"),
    ],
)
def test_what_kafkas_tool_finds_in_indexes_is_found(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
    position: int,
    damage: Callable[[Path], None],
    java: str,
) -> None:
    copied = tmp_path / "flights-0"
    shutil.copytree(directory, copied)  # Kafka's tool truncates an index
    path = sorted(copied.glob(f"*{suffix}"))[0]
    damage(path)
    theirs, complaints = dump("--files", str(path))
    assert java in complaints[0]
    code, ours, problems = dump_ours(capsys, "--files", str(path))
    assert (code, ours) == (1, theirs)
    assert problems[0].startswith(f"{path}, position {position}: ")


def test_what_kafkas_tool_finds_in_batches_is_found(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{0:020d}.log"
    content = bytearray(sorted(directory.glob("*.log"))[0].read_bytes())
    at = 0
    for _ in range(5):
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    content[at + 70] ^= 1
    path.write_bytes(content[:-7])
    theirs, _ = dump("--files", str(path))
    assert f"position: {at} " in next(
        line for line in theirs.splitlines() if line.endswith("isvalid: false")
    )
    code, ours, problems = dump_ours(capsys, "--files", str(path))
    *lines, last = theirs.splitlines()
    assert (code, ours.splitlines()) == (1, lines)
    assert "invalid bytes at the end" in last
    assert problems[0].startswith(f"{path}, position {at}: the batch has CRC ")
    assert "the file ends within a batch" in problems[1]
