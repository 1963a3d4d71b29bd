"""kill -9 of one node after another, under load from Java's producer and from trimtab's.

There are three brokers and the controller, RF 3, min.insync.replicas 2, and two idempotent
producers with acks=all, each with its own topic. Every `EVERY` seconds a random one of the four
nodes gets SIGKILL, and the supervisor starts it again. At the end all records are read and compared
with the acknowledged ones.

The recovery time of a kill is the time from the signal until every partition has acknowledged a
record that was sent after it, by the records' timestamps. It is also measured for the partitions
that the killed broker led, and until a killed controller answers again.

Prints one JSON line. If an acknowledged record is lost, duplicated or out of order, the exit code
is 1, and the nodes' data and logs are kept. Environment: `SECONDS` (600), `EVERY` (5), `RATE`
(records per second of each producer, 5000), `FIRST_SEED` (1), `KEEP` (not empty: always keep data
and logs).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple

from lab.benchmarks.acknowledged import (
    JAVA,
    OURS,
    PARTITIONS,
    Comparison,
    JavaLoad,
    Load,
    OurLoad,
    await_all_partitions,
    read_stored,
)
from lab.benchmarks.jars import RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress
from lab.processes import Trimtab, nodes_of, words_of
from trimtab import Admin

SECONDS = float(os.environ.get("SECONDS", "600"))
EVERY = float(os.environ.get("EVERY", "5"))
RATE = int(os.environ.get("RATE", "5000"))
SEED = int(os.environ.get("FIRST_SEED", "1"))
KEEP = bool(os.environ.get("KEEP"))

BROKERS = 3
CONTROLLER = "controller"

# Preferred leaders are elected again soon, so that most kills hit a broker that leads partitions.
SETTINGS = ("min.insync.replicas=2", "leader.imbalance.check.interval.seconds=2")
_TICK_S = 0.005
_DESCRIBE_CLUSTER = struct.pack(">hhihx", 60, 0, 1, -1) + b"\0\0"
"""A request to the controller in version 0, which is flexible; no field of the answer is used."""


class KilledCluster(Trimtab):
    """A cluster whose nodes are killed; `keeps` keeps its directory at the end."""

    def __init__(self) -> None:
        super().__init__(BROKERS, config=SETTINGS)
        self.keeps = False

    def __exit__(self, *error: Any) -> None:
        self.stop()
        if self.keeps:
            progress(f"kills: what the nodes have left is in {self.directory}")
        else:
            super().__exit__(None, None, None)


class Kill(NamedTuple):
    """One kill.

    Attributes:
        at_ms: time of the kill, in milliseconds since 1970.
        led: the partitions that the killed broker led, by load.
        in_sync: whether every replica was in sync.
        fenced_ms: milliseconds until the controller fenced the broker; None for the controller
            itself, or if the restarted broker registered first.
        answered_ms: milliseconds until the killed controller answered again; None for a broker.
    """

    victim: str
    at_ms: int
    led: Mapping[str, frozenset[int]]
    in_sync: bool
    fenced_ms: float | None
    answered_ms: float | None


def describe(compared: Comparison, kills: Iterable[Kill]) -> dict[str, Any]:
    name = compared.load.name

    def recovery_ms(kill: Kill, partitions: Iterable[int]) -> int:
        return compared.recovery_ms(kill.at_ms, partitions)

    return {
        "acknowledged": compared.load.acknowledged,
        "lost": compared.lost,
        "duplicated": compared.duplicated,
        "disordered": compared.disordered,
        "given_up": compared.load.failed,
        "stored_unacknowledged": compared.stored - compared.load.acknowledged,
        "recovery_ms": _describe(recovery_ms(kill, range(PARTITIONS)) for kill in kills),
        "recovery_of_what_the_victim_led_ms": _describe(
            recovery_ms(kill, kill.led[name]) for kill in kills if kill.led[name]
        ),
        "recovery_when_all_were_in_sync_ms": _describe(
            recovery_ms(kill, range(PARTITIONS)) for kill in kills if kill.in_sync
        ),
    }


def run(runs: int, records: int) -> None:
    """Run the whole test once; `runs` and `records` are ignored."""
    with ExitStack() as stack:
        cluster = stack.enter_context(KilledCluster())
        loads: list[Load] = [OurLoad(cluster.address, f"killed-{OURS}", RATE)]
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
                loads.append(JavaLoad(cluster.address, f"killed-{JAVA}", RATE, cluster.directory))
            for load in loads:
                load.start()
            await_all_partitions(loads)
            kills = _kill_one_after_another(cluster, admin, Random(SEED))
        for load in loads:
            load.stop()
        found = [Comparison(load, read_stored(cluster.address, load.topic)) for load in loads]
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
        **{each.load.name: describe(each, kills) for each in found},
        "fenced_ms": _describe(kill.fenced_ms for kill in kills),
        "controller_answers_ms": _describe(kill.answered_ms for kill in kills),
    }
    if note:
        line["note"] = note
    print(json.dumps(line), flush=True)
    if is_wrong:
        raise SystemExit(1)


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
    """Milliseconds until the controller answers; None if it does not before the deadline."""
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
            f"{each.load.name} {each.recovery_ms(kill.at_ms, range(PARTITIONS))} ms "
            f"(the {len(led)} led: {each.recovery_ms(kill.at_ms, led)})"
        )
    if kill.fenced_ms is not None:
        parts.append(f"fenced after {kill.fenced_ms:.0f} ms")
    if kill.answered_ms is not None:
        parts.append(f"answers after {kill.answered_ms:.0f} ms")
    if not kill.in_sync:
        parts.append("others were out of sync")
    progress(", ".join(parts))


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
