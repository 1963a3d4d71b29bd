"""kill -9 of one node after another, under load from Java's producer and from ours.

Three brokers and the controller, RF 3, min.insync.replicas 2, both producers idempotent with
acks=all, each with a topic of its own. Every `EVERY` seconds one of the four, drawn by chance, gets
SIGKILL, and the supervisor starts it again. In the end everything is read back and compared with
what was acknowledged.

Recovery of a kill is the time from the signal until every partition has acknowledged a record that
was sent after it; apart from that, until those have which the victim led, and for the controller
until it answers again. For Java's producer, which does not tell when it sent what, an
acknowledgement counts from `_IN_FLIGHT_S` after the kill on.

Prints one JSON line. Anything acknowledged that was lost, stored twice or is out of order makes the
exit code 1, and the nodes' data and logs are kept. Environment: `SECONDS` (600), `EVERY` (5),
`RATE` (records a second of each producer, 5000), `FIRST_SEED` (1).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, Any

from benchmarks.jars import RivalMissing, find_java, kafka_jars
from benchmarks.processes import Trimtab, children_of
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

_IN_FLIGHT_S = 0.02
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

    def nodes(self) -> dict[str, list[str]]:
        """The words of each node's command, after its process id, by its name."""
        found = {}
        for pid in children_of(self.supervisor_pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:  # it has ended meanwhile
                continue
            if "--data" in words:
                found[Path(_word_after(words, "--data")).name] = [str(pid), *words]
        return found

    def __exit__(self, *error: Any) -> None:
        self.stop()
        if self.keeps:
            progress(f"kills: what the nodes have left is in {self.directory}")
        else:
            super().__exit__(None, None, None)


def _word_after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


class Watch:
    """One kill, as one producer sees it.

    Attributes:
        recovered: by partition, when it acknowledged the first record sent after the kill.
    """

    def __init__(self, first_number: int, at: float) -> None:
        self.first_number = first_number
        self.at = at
        self.recovered: dict[int, float] = {}

    def note(self, partition: int, number: int, now: float) -> None:
        if number >= self.first_number and now >= self.at and partition not in self.recovered:
            self.recovered[partition] = now


class Load:
    """One producer's records: those acknowledged, by partition, and how many were given up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic = f"killed-{name}"
        self.numbers = [array("q") for _ in range(PARTITIONS)]
        self.offsets = [array("q") for _ in range(PARTITIONS)]
        self.failed = 0
        self.error = ""
        self.watch: Watch | None = None
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

    def see_kill(self) -> Watch:
        """Look out, from now on, for what is sent from now on."""
        raise NotImplementedError

    def _note(self, partition: int, offset: int, number: int, now: float) -> None:
        self.numbers[partition].append(number)
        self.offsets[partition].append(offset)
        if self.watch is not None:
            self.watch.note(partition, number, now)

    def _run(self) -> None:
        raise NotImplementedError


class OurLoad(Load):
    """Our producer, in a thread of this process."""

    def __init__(self, address: str) -> None:
        super().__init__(OURS)
        self._address = address
        self._next = 0

    def see_kill(self) -> Watch:
        self.watch = Watch(self._next, time.time())
        return self.watch

    def _run(self) -> None:
        began = time.perf_counter()
        with Producer(self._address, acks="all", linger_ms=5) as producer:
            while not self._ends.is_set():
                due = int((time.perf_counter() - began) * RATE)
                while self._next < due:
                    number = self._next
                    self._next = number + 1
                    producer.send(
                        self.topic,
                        b"%d" % number,
                        partition=number % PARTITIONS,
                        on_delivery=partial(self._delivered, number),
                    )
                self._ends.wait(_TICK_S)
            producer.flush(2 * _END_S)

    def _delivered(self, number: int, delivery: Any) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.error = str(error)
            return
        _, partition, offset, *_ = delivery.result()
        self._note(partition, offset, number, time.time())


class JavaLoad(Load):
    """Apache Kafka's VerifiableProducer, which prints each acknowledged value as JSON."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(JAVA)
        options = directory / "producer.properties"
        options.write_text("".join(f"{name}={value}\n" for name, value in JAVA_OPTIONS.items()))
        self._log: IO[bytes] = open(directory / "java.log", "wb")
        self._process = subprocess.Popen(
            [
                *(find_java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.VerifiableProducer"),
                *("--topic", self.topic, "--bootstrap-server", address, "--acks", "-1"),
                *("--throughput", str(RATE), "--command-config", str(options)),
                *("--repeating-keys", str(KEYS)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def see_kill(self) -> Watch:
        self.watch = Watch(0, time.time() + _IN_FLIGHT_S)
        return self.watch

    def stop(self) -> None:
        self._process.terminate()
        super().stop()
        self._process.wait(_END_S)
        self._log.close()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                self._note(
                    event["partition"],
                    event["offset"],
                    int(event["value"]),
                    event["timestamp"] / 1000,
                )
            elif event["name"] == "producer_send_error":
                self.failed += 1
                self.error = f"{event['exception']}: {event['message']}"


class Kill:
    """One kill: when, of whom, what that one led, and what became of it."""

    def __init__(self, victim: str, led: Mapping[str, frozenset[int]]) -> None:
        self.victim = victim
        self.led = led
        self.at = 0.0
        self.watches: dict[str, Watch] = {}
        self.answered = 0.0

    def recovery(self, load: str, partitions: Iterable[int]) -> float | None:
        """Seconds until all of these have acknowledged again; None if one never has."""
        recovered = self.watches[load].recovered
        times = [recovered.get(partition) for partition in partitions]
        if None in times:
            return None
        return max((each - self.at for each in times if each is not None), default=0.0)


def run(runs: int, records: int) -> None:
    """The whole of it, once: `runs` and `records` say nothing here."""
    random = Random(SEED)
    with ExitStack() as stack:
        cluster = stack.enter_context(KilledCluster())
        cluster.keeps = True
        loads: dict[str, Load] = {OURS: OurLoad(cluster.address)}
        note = ""
        with Admin(cluster.address) as admin:
            try:
                find_java()
                kafka_jars()
            except RivalMissing as missing:
                note = str(missing)
            for name in (OURS, JAVA):
                admin.create_topic(f"killed-{name}", PARTITIONS, replication_factor=BROKERS)
            if not note:
                loads[JAVA] = JavaLoad(cluster.address, cluster.directory)
            for load in loads.values():
                load.start()
            _await_all_partitions(loads.values())
            kills = _kill_one_after_another(cluster, admin, loads, random)
        for load in loads.values():
            load.stop()
        found = {name: _compare(cluster.address, load) for name, load in loads.items()}
        is_wrong = any(each["lost"] or each["duplicated"] or each["disordered"] for each in found.values())
        cluster.keeps = KEEP or is_wrong or any(each["failed"] for each in found.values())
    line: dict[str, Any] = {
        "stage": "kills",
        "metric": f"kill -9 every {EVERY:g} s for {SECONDS:g} s, {BROKERS} brokers and controller",
        "kills": dict(sorted(Counter(kill.victim for kill in kills).items())),
        "records_per_s": RATE,
        "seed": SEED,
        **{name: {**found[name], **_describe_recovery(kills, name)} for name in loads},
        "controller_answers_ms": _describe(
            [kill.answered - kill.at for kill in kills if kill.victim == CONTROLLER and kill.answered]
        ),
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


def _kill_one_after_another(
    cluster: KilledCluster, admin: Admin, loads: Mapping[str, Load], random: Random
) -> list[Kill]:
    kills: list[Kill] = []
    began = time.monotonic()
    while (due := EVERY * (len(kills) + 1)) < SECONDS:
        time.sleep(max(0.0, began + due - time.monotonic()))
        nodes = cluster.nodes()
        victim = random.choice(sorted(nodes))
        pid, *words = nodes[victim]
        kill = Kill(victim, _led_by(admin, victim))
        # What is sent while the signal is under way belongs to neither side.
        kill.at = time.time()
        os.kill(int(pid), signal.SIGKILL)
        kill.watches = {name: load.see_kill() for name, load in loads.items()}
        kills.append(kill)
        if victim == CONTROLLER:
            port = int(_word_after(words, "--port"))
            kill.answered = _await_controller(port, began + due + 0.8 * EVERY)
        _await_recovery(kill, began + due + 0.8 * EVERY)
        progress(_tell(kill, len(kills), cluster))
    time.sleep(EVERY)
    return kills


def _led_by(admin: Admin, victim: str) -> dict[str, frozenset[int]]:
    if victim == CONTROLLER:
        return {OURS: frozenset(), JAVA: frozenset()}
    broker = int(victim.removeprefix("broker-"))
    views = admin.describe_topics([f"killed-{name}" for name in (OURS, JAVA)])
    return {
        name: frozenset(
            number
            for number, leader in enumerate(views[f"killed-{name}"].leaders)
            if leader == broker
        )
        for name in (OURS, JAVA)
    }


def _await_controller(port: int, deadline: float) -> float:
    """When it answers; 0 if it does not before the deadline."""
    frame = struct.pack(">i", len(_DESCRIBE_CLUSTER)) + _DESCRIBE_CLUSTER
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(frame)
                if connection.recv(4):
                    return time.time()
        except OSError:
            pass
        time.sleep(_TICK_S)
    return 0.0


def _await_recovery(kill: Kill, deadline: float) -> None:
    while time.monotonic() < deadline:
        if all(len(watch.recovered) == PARTITIONS for watch in kill.watches.values()):
            return
        time.sleep(0.02)


def _tell(kill: Kill, number: int, cluster: KilledCluster) -> str:
    parts = [f"kills: {number}, {kill.victim}"]
    for name in kill.watches:
        led = kill.led[name]
        parts.append(
            f"{name} {_ms(kill.recovery(name, range(PARTITIONS)))} ms "
            f"(the {len(led)} led: {_ms(kill.recovery(name, led))})"
        )
    if kill.victim == CONTROLLER:
        parts.append(f"answers after {_ms(kill.answered - kill.at if kill.answered else None)} ms")
    else:
        fenced = _fenced_at(cluster, kill)
        parts.append(f"fenced after {_ms(None if fenced is None else fenced - kill.at)} ms")
    return ", ".join(parts)


def _fenced_at(cluster: KilledCluster, kill: Kill) -> float | None:
    """When the controller fenced the victim, or another life of it came first, by its log."""
    broker = kill.victim.removeprefix("broker-")
    log = cluster.directory / "data" / "logs" / "controller.log"
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if f"fencing broker={broker} " in line or f"is back broker={broker} " in line:
            stamp, _, millis = line[:23].partition(",")
            at = time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")) + int(millis) / 1000
            if at < kill.at - 0.002:
                return None
            found = at
            if "fencing" in line:
                return found
    return None


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.0f}"


def _compare(address: str, load: Load) -> dict[str, Any]:
    """What was acknowledged beside what is stored."""
    progress(f"kills: reading {load.topic}")
    stored: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
    partitions = [TopicPartition(load.topic, number) for number in range(PARTITIONS)]
    with Admin(address) as admin:
        missing = sum(end.offset for end in admin.list_offsets(partitions, "latest").values())
    total = missing
    with Consumer(address, check_crcs=True) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while missing > 0:
            records = consumer.poll(timeout_ms=20_000)
            if not records:
                raise RuntimeError(f"{missing} of {total} records of {load.topic} cannot be read")
            missing -= len(records)
            for record in records:
                stored[record.partition][record.offset] = int(record.value or b"-1")
    lost = disordered = 0
    times: Counter[int] = Counter()
    for partition, values in enumerate(stored):
        pairs = zip(load.offsets[partition], load.numbers[partition], strict=True)
        for offset, number in pairs:
            if values.get(offset) != number:
                lost += 1
                if lost <= 20:
                    progress(
                        f"kills: LOST {load.topic}-{partition} offset {offset}: {number} was "
                        f"acknowledged, {values.get(offset)} is there"
                    )
        last = -1
        for offset, number in sorted(values.items()):
            if number < last:
                disordered += 1
                if disordered <= 20:
                    progress(
                        f"kills: OUT OF ORDER {load.topic}-{partition} offset {offset}: {number} "
                        f"after {last}"
                    )
            last = max(last, number)
        times.update(values.values())
    duplicated = [number for number, count in times.items() if count > 1]
    if duplicated:
        progress(f"kills: TWICE {load.topic}: {duplicated[:20]}")
    if load.failed:
        progress(f"kills: {load.failed} records of {load.topic} were given up, last: {load.error}")
    return {
        "acknowledged": load.acknowledged,
        "lost": lost,
        "duplicated": len(duplicated),
        "disordered": disordered,
        "failed": load.failed,
        "stored_unacknowledged": total - load.acknowledged,
    }


def _describe_recovery(kills: Iterable[Kill], load: str) -> dict[str, Any]:
    recoveries = [kill.recovery(load, range(PARTITIONS)) for kill in kills]
    led = [kill.recovery(load, kill.led[load]) for kill in kills if kill.led[load]]
    return {
        "recovery_ms": _describe([each for each in recoveries if each is not None]),
        "of_what_the_victim_led_ms": _describe([each for each in led if each is not None]),
        "not_recovered_before_the_next_kill": recoveries.count(None),
    }


def _describe(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {
        "median": round(statistics.median(seconds) * 1000),
        "max": round(max(seconds) * 1000),
        "of": len(seconds),
    }


if __name__ == "__main__":
    sys.exit(run(1, 0))
