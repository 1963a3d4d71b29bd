"""kill -9 of the executor of moves, and of brokers, while partitions move under load.

Four brokers, RF 3, on trimtab and on Apache Kafka. Each round wants other replicas for the topic
that the producer writes to, and for a larger one; a process of its own moves them with a throttle.
After a random time either it or a broker gets SIGKILL; the executor is started again with the same
wish until it ends. Another thread watches that no partition ever has more than four replicas.

At the end one run of the executor that wants nothing removes what killed ones have left. There must
be no throttle and no reassignment, and every acknowledged record must be there once, in order.
Prints one JSON line for each cluster; the exit code is 1 if something is wrong. Environment:
`ROUNDS` (50).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from lab.benchmarks.acknowledged import (
    OURS,
    PARTITIONS,
    Comparison,
    OurLoad,
    await_all_partitions,
    read_stored,
)
from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import RivalMissing
from lab.benchmarks.report import progress
from lab.processes import Trimtab
from trimtab import Admin, Producer
from trimtab.balance.steps import MoveRules
from trimtab.balance.throttles import LISTS, RATES
from trimtab.client.admin import AsyncAdmin
from trimtab.client.moves import MoveExecutor
from trimtab.kafka.errors import KafkaError
from trimtab.kafka.records import TopicPartition

ROUNDS = int(os.environ.get("ROUNDS", "50"))
BROKERS = 4
FACTOR = 3
LARGE = "large"
LARGE_PARTITIONS = 8
LARGE_BYTES = 20_000_000
"""Of each of its partitions."""
RATE = 10_000_000
RECORDS = 1_000
"""A second."""
_LONGEST_S = 4.0
_ROUND_S = 300.0
_LOOK_S = 0.2

Wanted = dict[TopicPartition, tuple[int, ...]]


def run(runs: int, records: int) -> None:
    """Run each cluster once; `runs` and `records` are ignored."""
    is_wrong = False
    makers: list[Any] = [Trimtab, KafkaCluster]
    for make in makers:
        try:
            with make(BROKERS) as cluster:
                line = _measure(cluster)
        except RivalMissing as missing:
            progress(f"move_kills: no Apache Kafka: {missing}")
            continue
        is_wrong |= bool(line["wrong"])
        print(json.dumps(line), flush=True)
    if is_wrong:
        raise SystemExit(1)


class _Watch:
    """Notes the most replicas that a partition ever has."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.most = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_LOOK_S):
            with suppress(KafkaError):  # a broker was killed: the next look asks another
                for view in self._admin.describe_topics([LARGE, f"killed-{OURS}"]).values():
                    for each in view.partitions:
                        self.most = max(self.most, len(each.replicas))

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()


def _measure(cluster: Any) -> dict[str, Any]:
    random = Random(1)
    kills: Counter[str] = Counter()
    brokers = range(BROKERS)
    with Admin(cluster.address) as admin:
        topics = {LARGE: LARGE_PARTITIONS, f"killed-{OURS}": PARTITIONS}
        for name, count in topics.items():
            placed = {index: random.sample(brokers, FACTOR) for index in range(count)}
            admin.create_topic(name, assignment=placed, config={"min.insync.replicas": "2"})
        with Producer(cluster.address, linger_ms=20) as producer:
            for index in range(LARGE_PARTITIONS):
                for _ in range(LARGE_BYTES // 500_000):
                    producer.send(LARGE, random.randbytes(500_000), partition=index)
        load = OurLoad(cluster.address, f"killed-{OURS}", RECORDS)
        load.start()
        await_all_partitions([load])
        watch = _Watch(admin)
        seconds = []
        for number in range(ROUNDS):
            wanted = {
                TopicPartition(name, index): tuple(random.sample(brokers, FACTOR))
                for name, count in topics.items()
                for index in range(count)
            }
            seconds.append(_move(cluster, wanted, random, kills))
            progress(f"move_kills: {cluster.name}, round {number + 1}, {seconds[-1]:.0f} s")
        watch.stop()
        load.stop()
        compared = Comparison(load, read_stored(cluster.address, load.topic))
        with _start(cluster.address, {}) as process:
            report = json.loads(process.communicate(timeout=_ROUND_S)[0])
        left = _list_left(admin, topics)
    wrong = {
        "lost": compared.lost,
        "duplicated": compared.duplicated,
        "disordered": compared.disordered,
        "left": left,
        "left by the last run": report["left"],
        "more replicas": watch.most - FACTOR - 1 if watch.most > FACTOR + 1 else 0,
    }
    return {
        "stage": "move_kills",
        "metric": f"{ROUNDS} rounds on {cluster.name}",
        "kills": dict(kills),
        "acknowledged": compared.load.acknowledged,
        "given_up_by_producer": load.failed,
        "most_replicas": watch.most,
        "seconds_a_round": round(sum(seconds) / len(seconds), 1),
        "wrong": {name: value for name, value in wrong.items() if value},
    }


def _move(cluster: Any, wanted: Wanted, random: Random, kills: Counter[str]) -> float:
    """Move, and kill something meanwhile; returns the seconds until all was as wanted."""
    began = time.monotonic()
    victim = random.choice(("executor", "broker"))
    kills_s = random.uniform(0.3, _LONGEST_S)
    while True:
        with _start(cluster.address, wanted) as process:
            try:
                if victim:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(kills_s)
                    if victim == "executor":
                        process.send_signal(signal.SIGKILL)
                    else:
                        cluster.kill(random.randrange(BROKERS))
                    kills[victim] += 1
                    victim = ""
                out, _ = process.communicate(timeout=_ROUND_S)
            finally:
                process.kill()
        # What was given up, since a broker was dead, is wanted again.
        if process.returncode == 0 and not json.loads(out)["given_up"]:
            return time.monotonic() - began
        if time.monotonic() - began > _ROUND_S:
            raise RuntimeError(f"not moved within {_ROUND_S:g} s: {out}")


def _start(address: str, wanted: Wanted) -> subprocess.Popen[str]:
    words = [[*each, replicas] for each, replicas in wanted.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "lab.benchmarks.move_kills", address, json.dumps(words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def _list_left(admin: Admin, topics: dict[str, int]) -> list[str]:
    """The throttles and reassignments that there are."""
    found = [str(each) for each in admin.list_reassignments()]
    for topic, entries in admin.describe_topic_configs([*topics], LISTS).items():
        found += [f"{topic} {each.name}={each.value}" for each in entries if each.value]
    for node in admin.cluster().nodes:
        for each in admin.describe_configs("broker", node.id):
            if each.name in RATES and not each.is_default:
                found.append(f"broker {node.id} {each.name}={each.value}")
    return found


async def _execute(address: str, wanted: Wanted) -> None:
    async with AsyncAdmin(address) as admin:
        report = await MoveExecutor(admin, wanted, MoveRules(RATE, death_s=20)).run()
    given_up = {str(each): reason for each, reason in report.given_up.items()}
    print(json.dumps({"given_up": given_up, "left": report.left}))


def main() -> None:
    words = json.loads(sys.argv[2])
    wanted = {TopicPartition(topic, index): tuple(ids) for topic, index, ids in words}
    asyncio.run(_execute(sys.argv[1], wanted))


if __name__ == "__main__":
    main()
