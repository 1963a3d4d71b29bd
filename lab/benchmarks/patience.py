"""A broker under attack: the throughput of a healthy client, and the answers to hostile ones.

There is one broker and one producer that sends in a loop. The producer's throughput is measured
alone and, alternately, during each of these attacks:

- 1,000 half-open connections, which send nothing, half a frame, or the first bytes of 100 MB;
- 200 connections that fetch 50 MiB each and read 1 KiB per second;
- garbled frames, each over its own connection, `HOSTILE_PER_S` per second;
- produce requests that are replayed, out of order, of a stale epoch, or forged, `HOSTILE_PER_S` per
  second, with a check of each error code;
- all of these at once.

Then the limits: too many connections, in all and from one address; idle connections; a broker with
few file descriptors; a full disk. The exit code is 1 if a valid request is rejected, a record is
lost, or the broker stops serving. Environment: `HOSTILE_PER_S` (200), `ONLY` (parts to run:
`throughput`, or names of limits, separated by commas).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from lab.benchmarks.hostile_clients import (
    BlockingConnection,
    Garblers,
    HalfOpen,
    Replayers,
    SlowReaders,
    serves,
)
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Topics, run_producer_loop
from lab.processes import Trimtab, nodes_of, resident_mib, words_of
from trimtab import Admin, Consumer, Producer, TopicPartition
from trimtab.kafka.errors import KafkaError
from trimtab.kafka.wire.messages.metadata import MetadataRequest

HALF_OPEN = 1_000
SLOW = 200
HOSTILE_PER_S = int(os.environ.get("HOSTILE_PER_S", "200"))
ONLY = tuple(filter(None, os.environ.get("ONLY", "").split(",")))

FILL_BYTES = 64 * 1024 * 1024
FILL_PARTITIONS = 100
OPTIONS: dict[str, object] = {"acks": "all", "linger.ms": 5, "batch.size": 131072}
ENOUGH = 0.8
"""The share of the undisturbed throughput that must remain during an attack."""

DISK_MIB = 64
FEW_FILES = 200
_METADATA = MetadataRequest(topics=[])
_PATIENCE_S = 60.0
_TICK_S = 0.02

_LIMIT_FILES = (
    "import os, resource, sys; number = int(sys.argv[1]);"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (number, number));"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
"""A Python program that sets the limit in its first argument, and runs the command after it."""
_MOUNT = 'mount -t tmpfs -o "size=$0" tmpfs "$1" && shift && exec "$@"'

Attack = Callable[[], AbstractContextManager[Any]]


class SingleBroker(Trimtab):
    """A cluster of one broker.

    Args:
        config: options of its nodes.
        prefix: words put before the cluster's command.
    """

    def __init__(self, *config: str, prefix: Sequence[str] = ()) -> None:
        super().__init__(config=config)
        self._prefix = prefix

    def command(self) -> list[str]:
        return [*self._prefix, *super().command()]

    @property
    def place(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def controller(self) -> tuple[str, int]:
        """The controller's host and port."""
        words = words_of(self.broker_pid)
        host, port = words[words.index("--controller") + 1].split(":")
        return host, int(port)

    @property
    def broker_pid(self) -> int:
        return nodes_of(self.supervisor_pid)["broker-0"]

    def broker_mib(self) -> float:
        return resident_mib(self.broker_pid)


def run(runs: int, records: int) -> None:
    wrong = 0
    if not ONLY or "throughput" in ONLY:
        wrong += _compare_throughput(runs, records)
    for limit in LIMITS:
        name = limit.__name__.removeprefix("_limit_")
        if ONLY and name not in ONLY:
            continue
        progress(f"patience: {name}")
        line: dict[str, Any] = {"stage": "patience", "metric": name.replace("_", " ")}
        try:
            line |= limit()
        except Exception as error:  # continue with the next part
            line["error"] = repr(error)
            wrong += 1
        print(json.dumps(line), flush=True)
    if wrong:
        raise SystemExit(1)


# -- a healthy client during attacks


def _compare_throughput(runs: int, records: int) -> int:
    """Measure the throughput during each attack; returns the number of attacks that failed, for
    instance by a wrong answer."""
    wrong = 0
    with SingleBroker() as broker, Admin(broker.address) as admin:
        place = broker.place
        admin.create_topic("fill", FILL_PARTITIONS)
        admin.create_topic("hostile", 1)
        _fill(broker.address)
        half_open = partial(HalfOpen, place, HALF_OPEN)
        slow = partial(SlowReaders, place, "fill", FILL_PARTITIONS, SLOW)
        garblers = partial(Garblers, place, "hostile", HOSTILE_PER_S)
        replayers = partial(Replayers, place, "hostile", HOSTILE_PER_S)
        settings: dict[str, list[Attack]] = {
            f"{HALF_OPEN} half-open connections": [half_open],
            f"{SLOW} slow readers": [slow],
            f"{HOSTILE_PER_S} garbled frames a second": [garblers],
            f"{HOSTILE_PER_S} replayed and forged batches a second": [replayers],
            "all of these": [half_open, slow, garblers, replayers],
        }
        _measure(broker, records)  # warm-up
        for name, hostile_clients in settings.items():
            alone, beside = [], []
            before_mib, with_mib = [], []
            outcomes: list[object] = []
            for number in range(runs):
                progress(f"patience: beside {name}, run {number + 1} of {runs}")
                turns = [False, True] if number % 2 else [True, False]
                for is_beset in turns:
                    if not is_beset:
                        alone.append(_measure(broker, records))
                        before_mib.append(broker.broker_mib())
                        continue
                    try:
                        with ExitStack() as stack:
                            entered = [stack.enter_context(make()) for make in hostile_clients]
                            beside.append(_measure(broker, records))
                            with_mib.append(broker.broker_mib())
                            outcomes = [each.outcomes for each in entered if each.outcomes]
                    except Exception as error:
                        progress(f"patience: WRONG beside {name}: {error!r}")
                        wrong += 1
            ratio = statistics.median(beside) / statistics.median(alone) if beside else 0
            report(
                *("patience", f"records_per_s beside {name}", "records/s"),
                *(beside, "alone", alone),
                more_is_better=True,
                note="enough" if ratio >= ENOUGH else f"NOT ENOUGH: less than {ENOUGH}",
            )
            report(
                *("patience", f"resident broker beside {name}", "MiB"),
                *(with_mib, "alone", before_mib),
                more_is_better=False,
                note=json.dumps(outcomes) if outcomes else "",
            )
    return wrong


def _measure(broker: SingleBroker, records: int) -> float:
    return run_producer_loop("trimtab", broker, records, OPTIONS).records_per_second


def _fill(address: str) -> None:
    value = bytes(32 * 1024)
    with Producer(address, batch_size=256 * 1024, linger_ms=50) as producer:
        for number in range(FILL_BYTES // len(value)):
            producer.send("fill", value, partition=number % FILL_PARTITIONS)


# -- limits


def _limit_too_many_connections() -> dict[str, Any]:
    """Connections that have sent no request are closed first; the others stay open."""
    with SingleBroker("max.connections=500") as broker, BlockingConnection(broker.place) as first:
        check(serves(broker.place), "the broker does not serve")
        first.ask(_METADATA, 9)
        with HalfOpen(broker.place, HALF_OPEN) as half_open:
            await_that("a new connection is not served", lambda: serves(broker.place))
            left = half_open.left
            check(left < 500, f"{left} are left")
            first.ask(_METADATA, 9)
        return {"limit": 500, "opened": HALF_OPEN, "left": left, "newcomers": "served"}


def _limit_too_many_from_one_address() -> dict[str, Any]:
    with (
        SingleBroker("max.connections.per.ip=200") as broker,
        BlockingConnection(broker.place) as first,
    ):
        # The controller, and the check whether the broker is up, have the same address.
        first.ask(_METADATA, 9)
        with HalfOpen(broker.place, 400) as half_open:
            await_that("more connections than the limit", lambda: half_open.left <= 200)
            left = half_open.left
            first.ask(_METADATA, 9)
        await_that("no connection is served afterwards", lambda: serves(broker.place))
        return {"limit": 200, "opened": 400, "left": left, "those before": "served"}


def _limit_idle_connections() -> dict[str, Any]:
    with (
        SingleBroker("connections.max.idle.ms=2000") as broker,
        HalfOpen(broker.place, 99) as half_open,
    ):
        began = time.monotonic()
        with BlockingConnection(broker.place) as busy:
            while half_open.left:
                check(time.monotonic() - began < _PATIENCE_S, "idle connections stay")
                busy.ask(_METADATA, 9)
                time.sleep(_TICK_S)
        return {"limit_ms": 2000, "closed_after_ms": round((time.monotonic() - began) * 1000)}


def _limit_few_files() -> dict[str, Any]:
    """With few file descriptors the broker limits connections, and closes files to open others."""
    partitions = 2 * FEW_FILES
    with SingleBroker(prefix=limit_files(FEW_FILES)) as broker:
        with Admin(broker.address) as admin, Producer(broker.address, linger_ms=5) as producer:
            admin.create_topic("many", partitions)
            with HalfOpen(broker.place, HALF_OPEN) as half_open:
                for _ in range(3):
                    for number in range(partitions):
                        producer.send("many", b"v", partition=number)
                producer.flush()
                await_that("a new connection is not served", lambda: serves(broker.place))
                left = half_open.left
                open_now = len(os.listdir(f"/proc/{broker.broker_pid}/fd"))
                # Lower the limit of the running broker, which it does not expect.
                limit = (open_now - 5, FEW_FILES)
                resource.prlimit(broker.broker_pid, resource.RLIMIT_NOFILE, limit)
                for number in range(partitions):
                    producer.send("many", b"v", partition=number)
                producer.flush()
        stored = Topics(broker.address).count_records("many")
        check(stored == 4 * partitions, f"{stored} of {4 * partitions} records are stored")
        return {"limit": FEW_FILES, "open": open_now, "connections_left": left, "stored": stored}


def _limit_full_disk() -> dict[str, Any]:
    """The only broker ends and is restarted; when the disk has room again it serves all records."""
    unshare = shutil.which("unshare")
    check(unshare is not None, "there is no unshare, to mount a small disk with")
    broker = SingleBroker()
    data = broker.directory / "data"
    data.mkdir()
    # Only the cluster's processes see this disk, and it disappears with them.
    broker._prefix = [
        *(unshare or "", "--user", "--map-root-user", "--mount"),
        *("sh", "-c", _MOUNT, f"{DISK_MIB}m", str(data)),
    ]
    acknowledged: dict[int, int] = {}

    def note(number: int, delivery: Any) -> None:
        if delivery.exception() is None:
            acknowledged[number] = delivery.result().offset

    with broker, Admin(broker.address) as admin:
        ballast = Path(f"/proc/{broker.supervisor_pid}/root{data}/ballast")
        admin.create_topic("t", 1)
        with Producer(broker.address, linger_ms=5) as producer:
            number = 0

            def send(count: int) -> None:
                nonlocal number
                for _ in range(count):
                    producer.send("t", b"%d" % number, on_delivery=partial(note, number))
                    number += 1

            send(10_000)
            producer.flush()
            fill_disk(ballast)
            send(10_000)
            producer_waits_from = len(acknowledged)
            await_that("the broker still serves", lambda: not serves(broker.place))
            ballast.unlink()
            began = time.monotonic()
            producer.flush()
            seconds = time.monotonic() - began
            await_that("no topic can be created", partial(_makes_topic, admin, "w"))
        check(len(acknowledged) == number, f"{len(acknowledged)} of {number} acknowledged")
        values = read_values(broker.address)
        lost = [each for each, at in acknowledged.items() if values.get(at) != each]
        mine = [value for _, value in sorted(values.items()) if value >= 0]
        check(not lost, f"{len(lost)} lost")
        check(len(mine) == len(set(mine)), "some records are stored twice")
        check(mine == sorted(mine), "some records are out of order")
        return {
            "acknowledged": len(acknowledged),
            "acknowledged_before_it_was_full": producer_waits_from,
            "lost": 0,
            "duplicated": 0,
            "goes_on_after_ms": round(seconds * 1000),
        }


LIMITS = (
    _limit_too_many_connections,
    _limit_too_many_from_one_address,
    _limit_idle_connections,
    _limit_few_files,
    _limit_full_disk,
)


def limit_files(number: int) -> list[str]:
    """A prefix of a command that limits the open files of each of its processes."""
    return [sys.executable, "-c", _LIMIT_FILES, str(number)]


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def await_that(otherwise: str, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: with the text `otherwise`, if it does not hold within a minute.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        check(time.monotonic() < deadline, otherwise)
        time.sleep(_TICK_S)


def fill_disk(ballast: Path) -> None:
    """Write to a file until its disk is full."""
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _makes_topic(admin: Admin, name: str) -> bool:
    try:
        admin.create_topic(name, 1)
    except KafkaError:
        return False
    return True


def read_values(address: str, topic: str = "t") -> dict[int, int]:
    """The number in each record of a topic's only partition, by offset."""
    place = TopicPartition(topic, 0)
    values: dict[int, int] = {}
    with Admin(address) as admin:
        end = admin.list_offsets([place], "latest")[place].offset
    with Consumer(address, check_crcs=True) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        while len(values) < end:
            records = consumer.poll(timeout_ms=10_000)
            check(bool(records), f"{len(values)} of {end} records can be read")
            values |= {record.offset: int(record.value or b"-1") for record in records}
    return values
