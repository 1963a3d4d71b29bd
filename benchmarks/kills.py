"""kill -9 of one node after another, under load from Java's producer and from ours.

Three brokers and the controller, RF 3, min.insync.replicas 2, both producers idempotent with
acks=all, each with a topic of its own. Every `EVERY` seconds one of the four, drawn by chance, gets
SIGKILL, and the supervisor starts it again. In the end everything is read back and compared with
what was acknowledged.

Recovery of a kill is the time from the signal until every partition has acknowledged a record that
was sent after it, by the records' own timestamps; apart from that, until those have which the
victim led; and until the controller answers again, if it was the victim.

Prints one JSON line. Anything acknowledged that was lost, or stored twice, or is out of order makes
the exit code 1, and the nodes' data and logs are kept. Environment: `SECONDS` (600), `EVERY` (5),
`RATE` (records a second of each producer, 5000), `FIRST_SEED` (1), `KEEP` (not empty: data and logs
are kept in any case).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.jars import RivalMissing, find_java, kafka_jars
from benchmarks.processes import Trimtab, nodes_of, words_of
from benchmarks.report import progress
from trimtab import Admin, Consumer, Producer, TopicPartition

SECONDS = float(os.environ.get("SECONDS", "600"))
EVERY = float(os.environ.get("EVERY", "5"))
RATE = int(os.environ.get("RATE", "5000"))
SEED = int(os.environ.get("FIRST_SEED", "1"))
KEEP = bool(os.environ.get("KEEP"))

BROKERS = 3
PARTITIONS = 6
KEYS = 60
"""Of Java's records; each partition has some, so that all get records all the time."""
CONTROLLER = "controller"
OURS, JAVA = "trimtab", "java"

# Leaders go back to where they were placed soon, so that most kills hit some.
SETTINGS = ("min.insync.replicas=2", "leader.imbalance.check.interval.seconds=2")
JAVA_OPTIONS = {
    "enable.idempotence": "true",
    "acks": "all",
    "retries": "2147483647",
    "linger.ms": "5",
    "delivery.timeout.ms": "120000",
}

_MOST_COMPLAINTS = 50
_TICK_S = 0.005
_END_S = 60
_DESCRIBE_CLUSTER = struct.pack(">hhihx", 60, 0, 1, -1) + b"\0\0"
"""Of the controller, version 0: flexible, and no field of it matters here."""


class KilledCluster(Trimtab):
    """A cluster whose nodes are killed; `keeps` leaves its directory in the end."""

    def __init__(self) -> None:
        super().__init__(BROKERS)
        self.keeps = False

    def command(self) -> list[str]:
        return [*super().command(), "--config", *SETTINGS]

    def __exit__(self, *error: Any) -> None:
        self.stop()
        if self.keeps:
            progress(f"kills: what the nodes have left is in {self.directory}")
        else:
            super().__exit__(None, None, None)


class Load:
    """One producer's records: those acknowledged, by partition, and how many were given up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic = f"killed-{name}"
        self.numbers = [array("q") for _ in range(PARTITIONS)]
        self.offsets = [array("q") for _ in range(PARTITIONS)]
        self.acknowledged_ms = [array("q") for _ in range(PARTITIONS)]
        self.failed = 0
        self.error = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more; returns when everything is acknowledged or given up."""
        self._ends.set()
        self._thread.join(3 * _END_S)
        if self._thread.is_alive():
            raise RuntimeError(f"{self.name}: its producer does not end")

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.numbers))

    def _note(self, partition: int, offset: int, number: int, now_ms: int) -> None:
        self.numbers[partition].append(number)
        self.offsets[partition].append(offset)
        self.acknowledged_ms[partition].append(now_ms)

    def _run(self) -> None:
        raise NotImplementedError


class OurLoad(Load):
    """Our producer, in a thread of this process."""

    def __init__(self, address: str) -> None:
        super().__init__(OURS)
        self._address = address

    def _run(self) -> None:
        number = 0
        began = time.perf_counter()
        with Producer(self._address, acks="all", linger_ms=5) as producer:
            while not self._ends.is_set():
                due = int((time.perf_counter() - began) * RATE)
                while number < due:
                    producer.send(
                        self.topic,
                        b"%d" % number,
                        partition=number % PARTITIONS,
                        on_delivery=partial(self._delivered, number),
                    )
                    number += 1
                self._ends.wait(_TICK_S)
            producer.flush(2 * _END_S)

    def _delivered(self, number: int, delivery: Any) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.error = str(error)
            return
        _, partition, offset, *_ = delivery.result()
        self._note(partition, offset, number, time.time_ns() // 1_000_000)


class JavaLoad(Load):
    """Apache Kafka's VerifiableProducer, which prints each acknowledged value as JSON."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(JAVA)
        options = directory / "producer.properties"
        options.write_text("".join(f"{name}={value}\n" for name, value in JAVA_OPTIONS.items()))
        with open(directory / "java.log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(find_java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                    *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.VerifiableProducer"),
                    *("--topic", self.topic, "--bootstrap-server", address, "--acks", "-1"),
                    *("--throughput", str(RATE), "--repeating-keys", str(KEYS)),
                    *("--command-config", str(options)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def stop(self) -> None:
        self._process.terminate()
        super().stop()
        self._process.wait(_END_S)

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                self._note(
                    event["partition"], event["offset"], int(event["value"]), event["timestamp"]
                )
            elif event["name"] == "producer_send_error":
                self.failed += 1
                self.error = f"{event['exception']}: {event['message']}"


class Kill(NamedTuple):
    """One kill.

    Attributes:
        at_ms: when, in milliseconds since the epoch.
        led: the partitions that the victim led, by load.
        in_sync: whether every replica was in sync.
        fenced_ms: when the controller fenced it; None for the controller itself, or if another
            life of the broker registered first.
        answered_ms: when the controller answered again, if it was the victim.
    """

    victim: str
    at_ms: int
    led: Mapping[str, frozenset[int]]
    in_sync: bool
    fenced_ms: float | None
    answered_ms: float | None


class Comparison:
    """What was acknowledged beside what is stored.

    Attributes:
        lost: acknowledged, and something else or nothing is at its offset.
        duplicated: stored more than once.
        disordered: stored after one with a higher number.
    """

    def __init__(self, load: Load, stored: list[dict[int, tuple[int, int]]]) -> None:
        self.load = load
        self.stored = sum(map(len, stored))
        self.lost = self.disordered = 0
        self._sent_ms: list[list[int]] = []
        times: Counter[int] = Counter()
        for partition, values in enumerate(stored):
            sent = []
            for offset, number in zip(
                load.offsets[partition], load.numbers[partition], strict=True
            ):
                there, at = values.get(offset, (-1, -1))
                sent.append(at)
                if there != number:
                    self.lost += 1
                    _complain(f"{load.topic}-{partition} offset {offset}: {there}, not {number}")
            self._sent_ms.append(sent)
            last = -1
            for offset, (number, _) in sorted(values.items()):
                if number < last:
                    self.disordered += 1
                    _complain(f"{load.topic}-{partition} offset {offset}: {number} after {last}")
                last = max(last, number)
            times.update(number for number, _ in values.values())
        twice = [number for number, count in times.items() if count > 1]
        self.duplicated = len(twice)
        for number in twice:
            _complain(f"{load.topic}: {number} is stored {times[number]} times")
        if load.failed:
            progress(f"kills: {load.failed} of {load.topic} were given up, last: {load.error}")

    @property
    def is_wrong(self) -> bool:
        return bool(self.lost or self.duplicated or self.disordered)

    def recovery_ms(self, kill: Kill, partitions: Iterable[int]) -> int:
        """Until all of these have acknowledged something that was sent after the kill."""
        latest = 0
        for partition in partitions:
            acknowledged = self.load.acknowledged_ms[partition]
            sent = self._sent_ms[partition]
            # Acknowledgements come in order.
            first = next(
                (
                    acknowledged[index]
                    for index in range(bisect_right(acknowledged, kill.at_ms), len(sent))
                    if sent[index] > kill.at_ms
                ),
                acknowledged[-1] + _END_S * 1000,
            )
            latest = max(latest, first - kill.at_ms)
        return latest

    def describe(self, kills: Iterable[Kill]) -> dict[str, Any]:
        name = self.load.name
        return {
            "acknowledged": self.load.acknowledged,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "disordered": self.disordered,
            "given_up": self.load.failed,
            "stored_unacknowledged": self.stored - self.load.acknowledged,
            "recovery_ms": _describe(self.recovery_ms(kill, range(PARTITIONS)) for kill in kills),
            "recovery_of_what_the_victim_led_ms": _describe(
                self.recovery_ms(kill, kill.led[name]) for kill in kills if kill.led[name]
            ),
            "recovery_when_all_were_in_sync_ms": _describe(
                self.recovery_ms(kill, range(PARTITIONS)) for kill in kills if kill.in_sync
            ),
        }


def run(runs: int, records: int) -> None:
    """The whole of it, once: `runs` and `records` say nothing here."""
    with ExitStack() as stack:
        cluster = stack.enter_context(KilledCluster())
        loads: list[Load] = [OurLoad(cluster.address)]
        note = ""
        try:
            find_java()
            kafka_jars()
        except RivalMissing as missing:
            note = str(missing)
        with Admin(cluster.address) as admin:
            for name in (OURS, JAVA):
                admin.create_topic(f"killed-{name}", PARTITIONS, replication_factor=BROKERS)
            if not note:
                loads.append(JavaLoad(cluster.address, cluster.directory))
            for load in loads:
                load.start()
            _await_all_partitions(loads)
            kills = _kill_one_after_another(cluster, admin, Random(SEED))
        for load in loads:
            load.stop()
        found = [Comparison(load, _read(cluster.address, load.topic)) for load in loads]
        is_wrong = any(each.is_wrong for each in found)
        cluster.keeps = KEEP or is_wrong or any(load.failed for load in loads)
    for number, kill in enumerate(kills, 1):
        _tell(kill, number, found)
    line: dict[str, Any] = {
        "stage": "kills",
        "metric": f"kill -9 every {EVERY:g} s for {SECONDS:g} s, {BROKERS} brokers and controller",
        "kills": dict(sorted(Counter(kill.victim for kill in kills).items())),
        "kills_when_all_were_in_sync": sum(kill.in_sync for kill in kills),
        "records_per_s": RATE,
        "seed": SEED,
        **{each.load.name: each.describe(kills) for each in found},
        "fenced_ms": _describe(kill.fenced_ms for kill in kills),
        "controller_answers_ms": _describe(kill.answered_ms for kill in kills),
    }
    if note:
        line["note"] = note
    print(json.dumps(line), flush=True)
    if is_wrong:
        raise SystemExit(1)


def _await_all_partitions(loads: Iterable[Load]) -> None:
    deadline = time.monotonic() + _END_S
    while not all(all(load.numbers) for load in loads):
        if time.monotonic() > deadline:
            raise RuntimeError("not every partition has acknowledged something within a minute")
        time.sleep(0.1)


def _kill_one_after_another(cluster: KilledCluster, admin: Admin, random: Random) -> list[Kill]:
    kills: list[Kill] = []
    began = time.monotonic()
    while (due := EVERY * (len(kills) + 1)) < SECONDS:
        time.sleep(max(0.0, began + due - time.monotonic()))
        nodes = nodes_of(cluster.supervisor_pid)
        victim = random.choice(sorted(nodes))
        words = words_of(nodes[victim])
        views = admin.describe_topics([f"killed-{name}" for name in (OURS, JAVA)])
        broker = -1 if victim == CONTROLLER else int(victim.removeprefix("broker-"))
        at_ms = time.time_ns() // 1_000_000
        os.kill(nodes[victim], signal.SIGKILL)
        kill = Kill(
            victim,
            at_ms,
            {
                name: frozenset(
                    number
                    for number, leader in enumerate(views[f"killed-{name}"].leaders)
                    if leader == broker
                )
                for name in (OURS, JAVA)
            },
            all(
                len(partition.in_sync_replicas) == BROKERS
                for view in views.values()
                for partition in view.partitions
            ),
            None,
            None,
        )
        deadline = began + due + 0.8 * EVERY
        if victim == CONTROLLER:
            port = int(words[words.index("--port") + 1])
            kill = kill._replace(answered_ms=_await_controller(port, at_ms, deadline))
        else:
            kill = kill._replace(fenced_ms=_await_fence(cluster, broker, at_ms, deadline))
        kills.append(kill)
        progress(f"kills: {len(kills)}, {victim}")
    time.sleep(EVERY)
    return kills


def _await_controller(port: int, since_ms: int, deadline: float) -> float | None:
    """Milliseconds until it answers; None if it does not before the deadline."""
    frame = struct.pack(">i", len(_DESCRIBE_CLUSTER)) + _DESCRIBE_CLUSTER
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(frame)
                if connection.recv(4):
                    return time.time() * 1000 - since_ms
        except OSError:
            pass
        time.sleep(_TICK_S)
    return None


def _await_fence(
    cluster: KilledCluster, broker: int, since_ms: int, deadline: float
) -> float | None:
    """Milliseconds until the controller fences a broker, by the controller's log."""
    log = cluster.directory / "data" / "logs" / "controller.log"
    while time.monotonic() < deadline:
        for line in reversed(log.read_text(errors="replace").splitlines()):
            if f"fencing broker={broker} " in line or f"is back broker={broker} " in line:
                stamp, _, millis = line[:23].partition(",")
                at_ms = time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")) * 1000 + int(millis)
                if at_ms >= since_ms:
                    return at_ms - since_ms if "fencing" in line else None
                break
        time.sleep(0.1)
    return None


def _tell(kill: Kill, number: int, found: Iterable[Comparison]) -> None:
    parts = [f"kills: {number}, {kill.victim}"]
    for each in found:
        led = kill.led[each.load.name]
        parts.append(
            f"{each.load.name} {each.recovery_ms(kill, range(PARTITIONS))} ms "
            f"(the {len(led)} led: {each.recovery_ms(kill, led)})"
        )
    if kill.fenced_ms is not None:
        parts.append(f"fenced after {kill.fenced_ms:.0f} ms")
    if kill.answered_ms is not None:
        parts.append(f"answers after {kill.answered_ms:.0f} ms")
    if not kill.in_sync:
        parts.append("others were out of sync")
    progress(", ".join(parts))


def _read(address: str, topic: str) -> list[dict[int, tuple[int, int]]]:
    """Number and time of every record that is stored, by partition and offset."""
    progress(f"kills: reading {topic}")
    stored: list[dict[int, tuple[int, int]]] = [{} for _ in range(PARTITIONS)]
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Admin(address) as admin:
        missing = sum(end.offset for end in admin.list_offsets(partitions, "latest").values())
    with Consumer(address, check_crcs=True) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while missing > 0:
            records = consumer.poll(timeout_ms=20_000)
            if not records:
                raise RuntimeError(f"{missing} records of {topic} cannot be read")
            missing -= len(records)
            for record in records:
                number = int(record.value or b"-1")
                stored[record.partition][record.offset] = number, record.timestamp
    return stored


_complaints = count()


def _complain(what: str) -> None:
    if next(_complaints) < _MOST_COMPLAINTS:
        progress(f"kills: WRONG: {what}")


def _describe(values: Iterable[float | None]) -> dict[str, int] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "median": round(statistics.median(known)),
        "max": round(max(known)),
        "of": len(known),
    }


if __name__ == "__main__":
    run(1, 0)
