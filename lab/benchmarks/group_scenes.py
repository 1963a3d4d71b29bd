"""Groups whose members come and go while their coordinator is killed, for each kind of client.

    python -m lab.benchmarks.group_scenes [--seconds N] [--scenes NAME …] [--on CLUSTER] [--seed N]

There are three brokers in processes of their own, RF 3. A producer with acks=all writes all the
time. Members, each a process, join, leave, are killed, and return as static members; the broker
that coordinates their group gets SIGKILL, 20 times in 300 s. Three things must hold:

- each acknowledged record was processed at least once;
- the group's committed offsets never go back, nor behind what a member was told is committed;
- at the end the group has no lag.

Prints one JSON line for each scene; the exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import math
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
from lab.benchmarks.group_member import SESSION_S
from lab.benchmarks.jars import RivalMissing, find_java, java_command, kafka_jars
from lab.benchmarks.killable import BROKERS, CLUSTERS, Killable
from lab.benchmarks.report import progress
from trimtab import Admin
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, partition_of
from trimtab.kafka.errors import KafkaError

SECONDS = 20.0
KILLS = 20
"""In the whole run of 300 s; in a shorter one fewer, as a broker needs time to come back."""
_LEAST_BETWEEN_KILLS_S = 6.0
_RATE = 500
_MOST_MEMBERS = 4
_CHANGE_EVERY_S = 2.5
_OBSERVE_EVERY_S = 0.25
_END_S = 90.0
_TICK_S = 0.05
_SHOWN = 5
_LAST_LINES = 60
"""Of a member that has ended: a whole traceback."""
_OPTIONS = {
    "group.consumer.session.timeout.ms": f"{SESSION_S * 1000}",
    "group.consumer.min.session.timeout.ms": f"{SESSION_S * 1000}",
}
"""The cluster notices soon that a member of a consumer group is gone."""


class Kind(NamedTuple):
    """A client and the protocol of its group."""

    client: str
    protocol: str


class Scene(NamedTuple):
    """The kinds of members in the first half, and in the second."""

    first: tuple[Kind, ...]
    second: tuple[Kind, ...]


def _alike(*kinds: Kind) -> Scene:
    return Scene(kinds, kinds)


_JAVA, _JAVA_848 = Kind("java", "classic"), Kind("java", "consumer")
_OURS, _OURS_848 = Kind("trimtab", "classic"), Kind("trimtab", "consumer")
SCENES = {
    "confluent-kafka": _alike(Kind("confluent-kafka", "classic")),
    "confluent-kafka-consumer": _alike(Kind("confluent-kafka", "consumer")),
    "aiokafka": _alike(Kind("aiokafka", "classic")),
    "kafka-python": _alike(Kind("kafka-python", "classic")),
    "java": _alike(_JAVA),
    "java-consumer": _alike(_JAVA_848),
    "trimtab": _alike(_OURS),
    "trimtab-consumer": _alike(_OURS_848),
    "java-and-trimtab": _alike(_JAVA, _OURS),
    "java-and-trimtab-consumer": _alike(_JAVA_848, _OURS_848),
    "upgrade": Scene((_JAVA, _OURS), (_JAVA_848, _OURS_848)),
}


class Ranges:
    """Offsets of one partition, as ranges that do not touch."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def add(self, first: int, last: int) -> None:
        self._ends[first] = max(last, self._ends.get(first, -1))

    def lacking(self, offsets: list[int]) -> list[int]:
        """Those of the ascending offsets that are in no range."""
        found, end = [], -1
        rest = sorted(self._ends.items(), reverse=True)
        for offset in offsets:
            while rest and rest[-1][0] <= offset:
                end = max(end, rest.pop()[1])
            if offset > end:
                found.append(offset)
        return found


class Account:
    """What the members of a group have told, and what is wrong with it."""

    def __init__(self) -> None:
        self.processed = [Ranges() for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        """The highest offset of each partition that a member was told is committed."""
        self.observed = [0] * PARTITIONS
        self.records = 0
        self.errors: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def observe(self, at_least: list[int], found: dict[int, int]) -> None:
        """Compare the group's offsets with what was known before they were asked for."""
        for partition, offset in found.items():
            floor = max(at_least[partition], self.observed[partition])
            if offset < floor:
                self.wrong.append(f"partition {partition} went back from {floor} to {offset}")
            self.observed[partition] = max(offset, self.observed[partition])


class Member:
    """A process that reads as a member of the group."""

    def __init__(
        self, kind: Kind, servers: str, group: str, instance: str | None, account: Account
    ) -> None:
        self.kind = kind
        self.instance = instance
        self._account = account
        self._stops = False
        self._process = subprocess.Popen(
            self._command(servers, group),
            stdin=subprocess.PIPE,  # ours end with it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._listen, self._complain)
        ]
        self._said: list[str] = []
        self._ended_at: float | None = None
        for thread in self._threads:
            thread.start()

    def _command(self, servers: str, group: str) -> list[str]:
        client, protocol = self.kind
        if client != "java":
            script = [sys.executable, "-m", "lab.benchmarks.group_member", client, protocol]
            return [*script, servers, group, group, *([self.instance] if self.instance else ())]
        return [
            *(*java_command("64m", "error"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.VerifiableConsumer"),
            *("--bootstrap-server", servers, "--group-id", group, "--topic", group),
            *("--group-protocol", protocol, "--reset-policy", "earliest"),
            *(("--session-timeout", str(SESSION_S * 1000)) if protocol == "classic" else ()),
            *(("--group-instance-id", self.instance) if self.instance else ()),
        ]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # the last line of one that was killed
                self._said.append(line)
                continue
            with self._account.lock:
                self._note(event)
        self._ended_at = time.monotonic()

    def _note(self, event: dict[str, Any]) -> None:
        """Take over an event of ours, or of Java's VerifiableConsumer."""
        account = self._account
        processed = event.get("processed", ())
        committed = {int(each): at for each, at in event.get("committed", {}).items()}
        name = event.get("name")
        if name == "records_consumed":
            processed = [
                (each["partition"], each["minOffset"], each["maxOffset"])
                for each in event["partitions"]
            ]
        elif name == "offsets_committed":
            if event["success"]:
                committed = {each["partition"]: each["offset"] for each in event["offsets"]}
            else:
                account.errors[f"commit: {event.get('error')}"] += 1
        elif "error" in event:
            account.errors[event["error"]] += 1
        for partition, first, last in processed:
            account.processed[partition].add(first, last)
            account.records += last - first + 1
        for partition, offset in committed.items():
            account.committed[partition] = max(offset, account.committed[partition])

    def _complain(self) -> None:
        assert self._process.stderr is not None
        self._said.extend(self._process.stderr)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended although nobody has stopped it."""
        return not self._stops and self._process.poll() is not None

    def has_ended_for(self, seconds: float) -> bool:
        """Whether its end is so long ago."""
        return self._ended_at is not None and time.monotonic() >= self._ended_at + seconds

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Have it leave, or kill it."""
        self._stops = True
        self._process.send_signal(number)

    def end(self) -> None:
        """Wait until it has ended."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._account.wrong.append(f"a member of {self.kind} does not end")
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(_END_S)

    def last_words(self) -> str:
        """The end of what it has written beside its events."""
        return " | ".join(each.strip() for each in self._said[-_LAST_LINES:])


class Idle(NamedTuple):
    """A static member that has left, or was killed, and returns as another process.

    It returns when the old process has ended: while both run, the coordinator fences one of them
    (FENCED_INSTANCE_ID). In the consumer protocol one that could not say that it leaves, since it
    or the coordinator was killed, returns when its session is over: until then the coordinator
    refuses its successor (UNRELEASED_INSTANCE_ID). Both errors are fatal to clients.
    """

    member: Member
    left_at: float
    was_killed: bool
    pause_s: float

    def may_return(self, coordinator_killed_at: float) -> bool:
        """Whether its successor may start."""
        is_unsaid = self.was_killed or coordinator_killed_at > self.left_at - SESSION_S
        holds = self.member.kind.protocol == "consumer" and is_unsaid
        return self.member.has_ended_for(1.5 * SESSION_S if holds else self.pause_s)


class Run:
    """One scene."""

    def __init__(self, name: str, seconds: float, seed: int, cluster: Killable) -> None:
        self._group = f"scene-{name}"
        self._scene = SCENES[name]
        self._seconds = seconds
        self._every = max(_LEAST_BETWEEN_KILLS_S, seconds / KILLS)
        self._random = Random(seed)
        self._cluster = cluster
        self._account = Account()
        self._members: list[Member] = []
        self._ended: list[Member] = []
        self._instances = iter(range(10**6))
        self._idle: list[Idle] = []
        self._killed_at = -math.inf
        self.kills = 0
        self.joins = 0

    def play(self) -> dict[str, Any]:
        """Play it, and return what was found."""
        account = self._account
        load = OurLoad(self._cluster.address, self._group, _RATE)
        with Admin(self._cluster.address) as admin:
            admin.create_topic(self._group, PARTITIONS, replication_factor=BROKERS)
            load.start()
            observer = threading.Thread(target=self._observe, args=(admin,), daemon=True)
            self._is_over = threading.Event()
            observer.start()
            try:
                self._add(self._scene.first[0])
                self._act(admin)
                load.stop()
                lag = self._settle(load)
            finally:
                self._is_over.set()
                observer.join()
                for member in self._members:
                    member.stop()
                for member in (*self._members, *self._ended):
                    member.end()
        lost = 0
        for partition, processed in enumerate(account.processed):
            lacking = processed.lacking(sorted(load.offsets[partition]))
            lost += len(lacking)
            if lacking:
                account.wrong.append(
                    f"partition {partition}: {len(lacking)} never processed, {lacking[:_SHOWN]}"
                )
        if lag:
            account.wrong.append(f"lag {lag}")
        if load.failed:
            account.wrong.append(f"{load.failed} records failed: {load.error}")
        return {
            "acknowledged": load.acknowledged,
            "processed": account.records,
            "lost": lost,
            "lag": lag,
            "joins": self.joins,
            "kills_of_the_coordinator": self.kills,
            "errors": dict(account.errors.most_common(_SHOWN)),
            "wrong": account.wrong,
        }

    def _act(self, admin: Admin) -> None:
        """Change the members, and kill the coordinator, until the time is over."""
        began = time.monotonic()
        changed = 0
        while (passed := time.monotonic() - began) < self._seconds:
            if passed > (changed + 1) * _CHANGE_EVERY_S:
                changed += 1
                is_second = passed > self._seconds / 2
                self._change(self._scene.second if is_second else self._scene.first)
            if passed > (self.kills + 1) * self._every:
                self._kill_coordinator(admin)
            for member in [each for each in self._members if each.has_failed]:
                self._account.wrong.append(
                    f"a member of {member.kind} ended: {member.last_words()}"
                )
                self._take(member)
            time.sleep(_TICK_S)

    def _change(self, kinds: tuple[Kind, ...]) -> None:
        random = self._random
        for idle in self._idle:
            if idle.may_return(self._killed_at):
                self._idle.remove(idle)
                self._add(random.choice(kinds), idle.member.instance)
                return
        old = [each for each in self._members if each.kind not in kinds]
        if old or len(self._members) >= _MOST_MEMBERS:
            self._remove(random.choice(old or self._members))
        elif len(self._members) < 2 or random.random() < 0.6:
            is_static = random.random() < 0.3
            self._add(
                random.choice(kinds), f"static-{next(self._instances)}" if is_static else None
            )
        else:
            self._remove(random.choice(self._members))

    def _add(self, kind: Kind, instance: str | None = None) -> None:
        self.joins += 1
        self._members.append(
            Member(kind, self._cluster.address, self._group, instance, self._account)
        )

    def _remove(self, member: Member) -> None:
        """A member leaves or is killed; a static one returns within its session, or later."""
        random = self._random
        number = random.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGKILL))
        if member.instance is not None:
            pause_s = random.choice((0.5, 1.5)) * SESSION_S
            is_killed = number is signal.SIGKILL
            self._idle.append(Idle(member, time.monotonic(), is_killed, pause_s))
        member.stop(number)
        self._take(member)
        if not self._members:
            self._add(random.choice(self._scene.second))

    def _take(self, member: Member) -> None:
        self._members.remove(member)
        self._ended.append(member)

    def _kill_coordinator(self, admin: Admin) -> None:
        self.kills += 1
        try:
            leaders = admin.describe_topics([GROUPS_TOPIC])[GROUPS_TOPIC].leaders
        except KafkaError as error:
            progress(f"{self._group}: nobody was killed: {error}")
            return
        leader = leaders[partition_of(self._group, len(leaders))]
        self._killed_at = time.monotonic()
        self._cluster.kill(leader)

    def _observe(self, admin: Admin) -> None:
        account = self._account
        while not self._is_over.wait(_OBSERVE_EVERY_S):
            with account.lock:
                at_least = list(account.committed)
            try:
                found = admin.list_group_offsets(self._group)
            except KafkaError as error:
                account.errors[f"observer: {type(error).__name__}"] += 1
                continue
            account.observe(at_least, {each.partition: at.offset for each, at in found.items()})

    def _settle(self, load: OurLoad) -> int:
        """Wait until nothing is left to read; returns how much is."""
        ends = [max(offsets, default=-1) + 1 for offsets in load.offsets]
        deadline = time.monotonic() + _END_S
        while True:
            lag = sum(
                max(0, end - at) for end, at in zip(ends, self._account.observed, strict=True)
            )
            if not lag or time.monotonic() > deadline:
                return lag
            if not self._members:
                self._add(self._scene.second[0])
            time.sleep(_TICK_S)


def play(names: list[str], seconds: float, seed: int, on: str = "trimtab") -> bool:
    """Play the scenes on a cluster; returns whether all went well."""
    is_well = True
    for name in names:
        line: dict[str, Any] = {
            "stage": "group_scenes",
            "metric": name,
            "seconds": seconds,
            "on": on,
        }
        kinds = (*SCENES[name].first, *SCENES[name].second)
        if on != "trimtab" or any(kind.client == "java" for kind in kinds):
            try:
                find_java()
                kafka_jars()
            except RivalMissing as missing:
                print(json.dumps({**line, "note": str(missing)}), flush=True)
                continue
        with CLUSTERS[on](_OPTIONS) as cluster:
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
        prog="python -m lab.benchmarks.group_scenes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each scene; default 20")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--on", choices=CLUSTERS, default="trimtab")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return 0 if play(arguments.scenes, arguments.seconds, arguments.seed, arguments.on) else 1


if __name__ == "__main__":
    sys.exit(main())
