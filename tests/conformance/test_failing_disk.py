"""One of three brokers has a full disk, or a deleted directory: the others take over.

No acknowledged record is lost, and the broker is back when its disk works again. `pytest -s` prints
the longest time without an acknowledgement.
"""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from lab.benchmarks.patience import await_that, fill_disk
from lab.processes import free_neighbours
from tests.conformance.test_cluster_process import UP, addresses
from trimtab import Admin, Consumer, Producer, TopicPartition

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux does")

TOPIC = "t"
PARTITIONS = 3
SICK = 1
DISK_BYTES = 16 << 20
MOUNT = 'mount -t tmpfs -o "size=$0" tmpfs "$1" && shift && exec "$@"'
LIMIT_S = 15.0
"""The documented limit is 5 s on an otherwise idle machine."""


def own_mount(directory: Path) -> list[str]:
    """A prefix of a command whose processes, and no others, see a small disk at this directory."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare, to mount a small disk with")
    words = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(DISK_BYTES)]
    tried = subprocess.run([*words, str(directory), "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted: {tried.stderr.decode()}")
    return [*words, str(directory)]


@contextmanager
def running(data: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run three brokers, one of them with its own small disk."""
    sick = data / f"broker-{SICK}"
    sick.mkdir(parents=True)
    command = [*UP, "--brokers", "3", "--port", str(port), "--data", str(data)]
    with subprocess.Popen(
        [*own_mount(sick), *command, "--config", "min.insync.replicas=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready {addresses(port)}\n"
            yield process
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def ours(servers: str, acks: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    producer = Producer({"bootstrap.servers": servers, "acks": acks}, linger_ms=1)

    def send(number: int, note: Callable[[int, int, int], None]) -> None:
        def done(delivery: Any) -> None:
            if delivery.exception() is None:
                note(number, *delivery.result()[1:3])

        producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=done)

    return send, producer.close


def theirs(servers: str, acks: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    confluent = pytest.importorskip("confluent_kafka")
    producer = confluent.Producer({"bootstrap.servers": servers, "acks": acks, "linger.ms": 1})

    def send(number: int, note: Callable[[int, int, int], None]) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None:
                note(number, message.partition(), message.offset())

        value = b"%d" % number
        producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=done)
        producer.poll(0)

    return send, lambda: producer.flush(60)


class Acknowledged(dict[int, tuple[int, int]]):
    """Partition and offset of each acknowledged number, and the longest time in which a partition
    had no acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.last_s = dict.fromkeys(range(PARTITIONS), time.monotonic())
        self.longest_s = 0.0

    def note(self, number: int, partition: int, offset: int) -> None:
        self[number] = partition, offset
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self.last_s[partition])
        self.last_s[partition] = now


def read_all(servers: str) -> dict[tuple[int, int], int]:
    places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    with Admin(servers) as admin:
        ends = admin.list_offsets(places, "latest")
    count = sum(end.offset for end in ends.values())
    found: dict[tuple[int, int], int] = {}
    with Consumer(servers, check_crcs=True) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        while len(found) < count:
            records = consumer.poll(timeout_ms=10_000)
            assert records, f"{len(found)} of {count} records, then nothing for 10 s"
            found |= {(each.partition, each.offset): int(each.value or b"") for each in records}
    return found


def isr_sizes(admin: Admin) -> list[int]:
    return [len(each.in_sync_replicas) for each in admin.describe_topics([TOPIC])[TOPIC].partitions]


def seen_by(process: subprocess.Popen[str], path: Path) -> Path:
    return Path(f"/proc/{process.pid}/root{path}")


@pytest.mark.parametrize(
    ("client", "acks", "how"),
    [
        (ours, "all", "full"),
        (ours, "1", "deleted"),
        (theirs, "all", "deleted"),
        (theirs, "1", "full"),
    ],
)
def test_the_other_brokers_take_over_and_no_record_is_lost(
    tmp_path: Path, acks: str, how: str, client: Callable[..., Any]
) -> None:
    port = free_neighbours(3)
    servers = addresses(port)
    with running(tmp_path / "data", port) as process, Admin(servers) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        acknowledged = Acknowledged()
        send, finish = client(servers, acks)
        number = 0

        def send_until(holds: Callable[[], bool]) -> None:
            nonlocal number
            end = time.monotonic() + LIMIT_S + 5
            while not holds():
                assert time.monotonic() < end, f"{len(acknowledged)} of {number} acknowledged"
                for _ in range(20):
                    send(number, acknowledged.note)
                    number += 1
                select.select([], [], [], 0.05)

        send_until(lambda: len(acknowledged) > 500)
        disk = seen_by(process, tmp_path / "data" / f"broker-{SICK}")
        leaders = admin.describe_topics([TOPIC])[TOPIC].partitions
        assert SICK in {each.leader for each in leaders}
        if how == "full":
            fill_disk(disk / "ballast")
        else:
            for each in disk.iterdir():
                rmtree(each) if each.is_dir() else each.unlink()
        acknowledged.longest_s = 0.0
        failed_at = number

        def has_failed_over() -> bool:
            described = admin.describe_topics([TOPIC])[TOPIC].partitions
            return all(each.leader not in (SICK, -1) for each in described)

        send_until(has_failed_over)
        seen = number
        send_until(lambda: all(each in acknowledged for each in range(seen - 60, seen)))
        assert acknowledged.longest_s < LIMIT_S
        if how == "full":
            (disk / "ballast").unlink()
        await_that("it does not come back", lambda: isr_sizes(admin) == [3] * PARTITIONS)
        finish()
        assert len(acknowledged) == number > failed_at
        stored = read_all(servers)
        lost = [each for each, place in acknowledged.items() if stored.get(place) != each]
        print(
            f"\n{client.__name__}, acks={acks}, {how}: nothing acknowledged for "
            f"{acknowledged.longest_s:.2f} s, {len(acknowledged)} in all, {len(lost)} lost"
        )
        if acks == "all":
            assert lost == []
        log = (tmp_path / "data" / "logs" / f"broker-{SICK}.log").read_text()
        assert "CRITICAL" in log
        assert "the log directory has failed; this broker stops" in log
