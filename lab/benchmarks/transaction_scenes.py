"""A chain of transactional copiers that are killed, as are the brokers, for each kind of client.

    python -m lab.benchmarks.transaction_scenes [--seconds N] [--scenes NAME …] [--seed N]

    producer ─▶ NAME-in ─▶ two copiers ─▶ NAME-middle ─▶ two copiers ─▶ NAME-out ─▶ reader

There are three brokers in processes of their own, RF 3, min.insync.replicas 2. A producer with
acks=all writes all the time. Each copier is a process that moves records and offsets on in
transactions, and aborts one of three (`lab.benchmarks.copier`, or Java's
TransactionalMessageCopier). It is killed and replaced; or it is stopped, replaced, continued, and
killed, so that for some time two live under one transactional ID. In between a broker gets SIGKILL:
a coordinator, or the leader of a partition. At the end these must hold:

- NAME-out has, in each partition, exactly the records of NAME-in in their order;
- the groups' committed offsets never went back;
- no transaction is open.

Prints one JSON line for each scene; the exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from random import Random
from typing import Any, NamedTuple

from lab.benchmarks.acknowledged import PARTITIONS, OurLoad
from lab.benchmarks.copier import SESSION_S
from lab.benchmarks.jars import RivalMissing, find_java, java_command, kafka_jars
from lab.benchmarks.killable import BROKERS, Killable, killable_kafka, killable_trimtab
from lab.benchmarks.report import progress
from trimtab import Admin, Consumer, TopicPartition
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, TRANSACTIONS_TOPIC, partition_of
from trimtab.kafka.errors import KafkaError

SECONDS = 30.0
_RATE = 200
_COPIERS = 2
_SIZE = 20
"""The most records of a transaction."""
_TRANSACTION_S = 10
_ACT_EVERY_S = 2.0
_ZOMBIE_S = 2.0 * SESSION_S
_PAUSE_S = 1.0
"""Java's copier ends when it has copied everything; its successor starts after this time."""
_OBSERVE_EVERY_S = 0.25
_END_S = 120.0
_TICK_S = 0.05
_SHOWN = 5


class Scene(NamedTuple):
    """The clients of both copiers of each pair, on which cluster, and a broker's kill every so many
    seconds."""

    clients: tuple[str, ...]
    is_on_kafka: bool = False
    kill_every_s: float = 8.0


SCENES = {
    "java": Scene(("java",)),
    "confluent-kafka": Scene(("confluent-kafka",)),
    "aiokafka": Scene(("aiokafka",)),
    "kafka-python": Scene(("kafka-python",)),
    "trimtab": Scene(("trimtab",)),
    "java-and-trimtab": Scene(("java", "trimtab")),
    "trimtab-on-kafka": Scene(("trimtab",), is_on_kafka=True, kill_every_s=20.0),
    "java-on-kafka": Scene(("java",), is_on_kafka=True, kill_every_s=20.0),
}
_PARTITIONED = ("aiokafka",)
"""Clients that commit offsets under the group's ID only: they cannot share a group (KIP-447)."""


class Tally:
    """What copiers have told."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0
        """Java's copier does not tell."""
        self.errors: Counter[str] = Counter()
        self.lock = threading.Lock()


class Copier:
    """A process that copies."""

    def __init__(self, command: list[str], tally: Tally) -> None:
        self._tally = tally
        self._total = 0
        self.ended_at: float | None = None
        self.is_replaced = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # Python's end with it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._listen, self._complain)
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # the last line of one that was killed
                continue
            with self._tally.lock:
                self._note(event)
        self._process.wait()
        self.ended_at = time.monotonic()

    def _note(self, event: dict[str, Any]) -> None:
        tally = self._tally
        if "totalProcessed" in event:  # Java's
            done = event["totalProcessed"] - self._total
            self._total += done
            tally.committed += done > 0
        elif "copied" in event or "aborted" in event:
            tally.committed += "copied" in event
            tally.aborted += "aborted" in event
        else:
            for kind, what in event.items():
                tally.errors[f"{kind}: {what}"[:200]] += 1

    def _complain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("Shutting down after unexpected error"):  # Java's
                with self._tally.lock:
                    self._tally.errors[line.strip()[:200]] += 1

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def has_ended_for(self, seconds: float) -> bool:
        return self.ended_at is not None and time.monotonic() >= self.ended_at + seconds

    def end(self) -> bool:
        """Wait until it has ended; returns whether it did by itself."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            for thread in self._threads:
                thread.join(_END_S)
        return True


class Place(NamedTuple):
    """A copier's place in the chain; its successors have its transactional ID."""

    client: str
    source: str
    target: str
    number: int

    def command(self, servers: str) -> list[str]:
        name = f"{self.source}-{self.number}"
        if self.client != "java":
            partitions = range(self.number, PARTITIONS, _COPIERS)
            return [
                *(sys.executable, "-m", "lab.benchmarks.copier", self.client, servers),
                *(self.source, self.target, name, str(_SIZE), str(_TRANSACTION_S * 1000)),
                *(map(str, partitions) if self.client in _PARTITIONED else ()),
            ]
        return [
            *(*java_command("64m", "off"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.TransactionalMessageCopier"),
            *("--broker-list", servers, "--transactional-id", name),
            *("--input-topic", self.source, "--output-topic", self.target),
            *("--consumer-group", self.source, "--group-mode", "--use-group-metadata"),
            *("--input-partition", "-1", "--transaction-size", str(_SIZE)),
            *("--transaction-timeout", str(_TRANSACTION_S * 1000), "--enable-random-aborts"),
        ]


class Reader:
    """Reads the committed records of a topic to its end, while they come."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.values: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.values))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        with Consumer(self._servers, isolation_level="read_committed") as consumer:
            partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            while not self._is_over.is_set():
                for record in consumer.poll(200):
                    self.values[record.partition].append(record.value)


class Run:
    """One scene."""

    def __init__(self, name: str, seconds: float, seed: int, cluster: Killable) -> None:
        self._scene = SCENES[name]
        self._topics = [f"{name}-{each}" for each in ("in", "middle", "out")]
        self._seconds = seconds
        self._random = Random(seed)
        self._cluster = cluster
        self._tally = Tally()
        self._wrong: list[str] = []
        clients = self._scene.clients
        self._copiers: dict[Place, Copier] = {}
        self._places = [
            Place(clients[number % len(clients)], source, target, number)
            for source, target in zip(self._topics, self._topics[1:], strict=False)
            for number in range(_COPIERS)
        ]
        self._zombies: list[tuple[float, Copier]] = []
        self._ended: list[Copier] = []
        self._counts: Counter[str] = Counter()
        self._highest: dict[tuple[str, int], int] = {}
        self._is_over = threading.Event()

    def play(self) -> dict[str, Any]:
        """Play it, and return what was found."""
        servers = self._cluster.address
        with Admin(servers) as admin:
            for topic in self._topics:
                admin.create_topic(topic, PARTITIONS, replication_factor=BROKERS)
            load = OurLoad(servers, self._topics[0], _RATE)
            source, target = (Reader(servers, each) for each in self._topics[::2])
            observer = threading.Thread(target=self._observe, args=(admin,), daemon=True)
            load.start()
            observer.start()
            try:
                for place in self._places:
                    self._start(place)
                self._act(admin)
                load.stop()
                self._settle(load, source, target)
            finally:
                self._is_over.set()
                observer.join()
                self._end_copiers()
                source.stop()
                target.stop()
            self._check_ends(admin)
        for partition, (there, here) in enumerate(zip(source.values, target.values, strict=True)):
            if there != here:
                self._wrong.append(f"partition {partition}: {_difference(there, here)}")
        if load.acknowledged > source.count:
            self._wrong.append(f"{load.acknowledged - source.count} acknowledged records lost")
        if load.failed:
            self._wrong.append(f"{load.failed} records failed: {load.error}")
        tally = self._tally
        return {
            "acknowledged": load.acknowledged,
            "records_at_the_end_of_the_chain": target.count,
            "committed": tally.committed,
            "aborted": tally.aborted,
            **self._counts,
            "errors": dict(tally.errors.most_common(_SHOWN)),
            "wrong": self._wrong,
        }

    # Copiers

    def _start(self, place: Place) -> None:
        self._counts["starts"] += 1
        self._copiers[place] = Copier(place.command(self._cluster.address), self._tally)

    def _replace(self, place: Place) -> Copier:
        former = self._copiers[place]
        self._ended.append(former)
        self._start(place)
        return former

    def _tend(self) -> None:
        """Start the successors of those that have ended, and continue those that were stopped. Some
        clients' calls do not return once they are fenced, so they are killed in the end."""
        for place, copier in self._copiers.items():
            if copier.has_ended_for(_PAUSE_S):
                self._replace(place)
        now = time.monotonic()
        for due, zombie in list(self._zombies):
            if now >= due:
                zombie.send(signal.SIGCONT)
            if now >= due + _ZOMBIE_S:
                zombie.send(signal.SIGKILL)
                self._zombies.remove((due, zombie))

    def _end_copiers(self) -> None:
        for _, zombie in self._zombies:
            zombie.send(signal.SIGCONT)
            zombie.send(signal.SIGKILL)
        for copier in (*self._copiers.values(), *self._ended):
            copier.send(signal.SIGTERM)
        for copier in (*self._copiers.values(), *self._ended):
            if not copier.end():
                self._wrong.append("a copier does not end")

    # Faults

    def _act(self, admin: Admin) -> None:
        """Kill copiers and brokers until the time is over."""
        began = time.monotonic()
        acts = kills = 0
        while (passed := time.monotonic() - began) < self._seconds:
            self._tend()
            if passed > (acts + 1) * _ACT_EVERY_S:
                acts += 1
                self._harm(self._random.choice(self._places))
            if passed > (kills + 1) * self._scene.kill_every_s:
                kills += 1
                self._kill_broker(admin)
            time.sleep(_TICK_S)

    def _harm(self, place: Place) -> None:
        kind = self._random.choice(("killed", "killed", "terminated", "stopped"))
        self._counts[kind] += 1
        if kind == "stopped":
            self._copiers[place].send(signal.SIGSTOP)
            zombie = self._replace(place)
            self._zombies.append((time.monotonic() + _ZOMBIE_S, zombie))
        else:
            self._copiers[place].send(signal.SIGKILL if kind == "killed" else signal.SIGTERM)

    def _kill_broker(self, admin: Admin) -> None:
        place = self._random.choice(self._places)
        kind = self._random.choice(
            ("transaction coordinator", "group coordinator", "leader", "controller")
        )
        broker: int | None = None
        try:
            if kind == "leader":
                leaders = admin.describe_topics([place.target])[place.target].leaders
                broker = self._random.choice(leaders)
            elif kind != "controller":
                is_group = kind == "group coordinator"
                topic = GROUPS_TOPIC if is_group else TRANSACTIONS_TOPIC
                key = place.source if is_group else f"{place.source}-{place.number}"
                leaders = admin.describe_topics([topic])[topic].leaders
                broker = leaders[partition_of(key, len(leaders))]
        except KafkaError as error:
            progress(f"nobody was killed: {error}")
            return
        if broker != -1:
            self._counts[f"kills of a {kind}"] += 1
            self._cluster.kill(broker)

    # Checks

    def _observe(self, admin: Admin) -> None:
        while not self._is_over.wait(_OBSERVE_EVERY_S):
            for group in self._topics[:-1]:
                try:
                    found = admin.list_group_offsets(group)
                except KafkaError as error:
                    self._tally.errors[f"observer: {type(error).__name__}"] += 1
                    continue
                for partition, at in found.items():
                    key = group, partition.partition
                    before = self._highest.get(key, 0)
                    if at.offset < before:
                        self._wrong.append(f"{key} went back from {before} to {at.offset}")
                    self._highest[key] = max(before, at.offset)

    def _settle(self, load: OurLoad, source: Reader, target: Reader) -> None:
        """Wait until all records have come through, or none has come for a long time."""
        count, deadline = target.count, time.monotonic() + _END_S
        while source.count < load.acknowledged or target.count < source.count:
            if target.count > count:
                count, deadline = target.count, time.monotonic() + _END_S
            elif time.monotonic() > deadline:
                self._wrong.append(f"{count} of {source.count} records have come through")
                return
            self._tend()
            time.sleep(_TICK_S)

    def _check_ends(self, admin: Admin) -> None:
        """Wait until no transaction is open, in the coordinators and in the partitions."""
        partitions = [
            TopicPartition(topic, number)
            for topic in self._topics[1:]
            for number in range(PARTITIONS)
        ]
        deadline = time.monotonic() + 3 * _TRANSACTION_S
        while True:
            stable = admin.list_offsets(partitions, "latest", isolation="read_committed")
            ends = admin.list_offsets(partitions, "latest")
            hanging = [str(each) for each in partitions if stable[each].offset < ends[each].offset]
            left = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
            if not hanging and not left:
                return
            if time.monotonic() > deadline:
                self._wrong.append(f"open transactions: {left} in {hanging}")
                return
            time.sleep(_TICK_S)


def _difference(there: list[bytes | None], here: list[bytes | None]) -> str:
    """In what the copied values differ from those that were there."""
    counts, copies = Counter(there), Counter(here)
    lacking, doubled = counts - copies, copies - counts
    if lacking or doubled:
        return (
            f"{lacking.total()} lost, {list(lacking)[:_SHOWN]}; "
            f"{doubled.total()} doubled, {list(doubled)[:_SHOWN]}"
        )
    return "another order"


def play(names: list[str], seconds: float, seed: int) -> bool:
    """Play the scenes; returns whether all went well."""
    is_well = True
    for name in names:
        scene = SCENES[name]
        line: dict[str, Any] = {"stage": "transaction_scenes", "metric": name, "seconds": seconds}
        if "java" in scene.clients or scene.is_on_kafka:
            try:
                find_java()
                kafka_jars()
            except RivalMissing as missing:
                print(json.dumps({**line, "note": str(missing)}), flush=True)
                continue
        with killable_kafka() if scene.is_on_kafka else killable_trimtab() as cluster:
            line |= Run(name, seconds, seed, cluster).play()
            is_well = is_well and not line["wrong"]
        print(json.dumps(line), flush=True)
    return is_well


def run(runs: int, records: int) -> None:
    """Play all scenes once; `runs` and `records` are ignored."""
    if not play(list(SCENES), float(os.environ.get("SECONDS", SECONDS)), seed=1):
        raise SystemExit(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.transaction_scenes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each scene; default 30")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return 0 if play(arguments.scenes, arguments.seconds, arguments.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
