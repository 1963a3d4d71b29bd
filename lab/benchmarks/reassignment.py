"""Plans of `trimtab reassign`, compared with brute force and Kafka's plans, and executed.

1. 2,000 small clusters: replicas above limits, uneven racks, uneven leaders, and the bytes that
   move, compared with brute force. Any difference makes the exit code 1.
2. 1,000 clusters of up to 12 brokers in 3 racks, with replicas that move to some of the brokers:
   whether the plan meets limits and racks, with leaders within one of each other, and how many
   replicas move, compared with Apache Kafka's `kafka-reassign-partitions --generate`.
3. Seconds for a plan, and for one with ten times as many partitions.
4. A plan executed under load from Apache Kafka's VerifiableProducer with acks=all, throttled,
   cancelled half-way once and started again; then all records are read. A lost acknowledged record
   makes the exit code 1.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

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
from lab.benchmarks.brute_force import judge_plan, least_plan_cost
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, java_command, kafka_jars
from lab.benchmarks.report import progress, report
from lab.processes import Trimtab
from trimtab import Admin, Cluster, TopicPartition
from trimtab.balance.moves import NoPlan, PlacedPartition, TargetBroker
from trimtab.balance.plan import find_moves

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
SMALL_CLUSTERS = 2_000
CLUSTERS = 1_000
BROKERS, RACKS, FACTOR = 12, "abc" * 4, 3
MANY_BROKERS, MANY = 30, 10_000
SOURCE = Path(__file__).parent / "java" / "KafkaPlans.java"
RATE = 2_000
THROTTLE = 30_000
"""Bytes per second; less than the load, so that no move has ended when it is cancelled."""
_HALF_WAY_S = 5
_TICK_S = 0.2
_PATIENCE_S = 120


def run(runs: int, records: int) -> None:
    del records
    wrong = _compare_with_brute_force()
    wrong += _compare_with_kafka()
    _measure_seconds(runs)
    wrong += _carry_out()
    if wrong:
        raise SystemExit(1)


def _compare_with_brute_force() -> int:
    progress(f"reassignment: {SMALL_CLUSTERS} small clusters, beside brute force")
    random = Random(1)
    wrong = feasible = 0
    for _ in range(SMALL_CLUSTERS):
        placed, targets = make_small_cluster(random)
        least = least_plan_cost(placed, targets)
        try:
            chosen = _plan(placed, targets)
        except NoPlan:
            wrong += least is not None
            continue
        feasible += 1
        wrong += judge_plan(placed, targets, chosen) != least
    _print(f"{SMALL_CLUSTERS} small clusters", "differences", wrong, feasible=feasible)
    return wrong


def make_small_cluster(random: Random) -> tuple[list[PlacedPartition], list[TargetBroker]]:
    """A random cluster of a few brokers, most with racks and low limits, and a few partitions."""
    there = list(range(random.randint(2, 5)))
    ids = random.sample(there, random.randint(1, min(4, len(there))))
    factor = random.randint(1, min(3, len(ids)))
    racks = random.randint(1, 3)
    targets = [
        TargetBroker(each, f"rack {random.randrange(racks)}", random.choice([0, 1, 2, 1000]))
        for each in ids
    ]
    if random.random() < 0.3:
        targets[0] = targets[0]._replace(free=-random.randint(1, 2))
    placed = [
        PlacedPartition(
            TopicPartition("t", index),
            tuple(random.sample(there, factor)),
            random.choice([0, 1, 7, 30]) << 20,
        )
        for index in range(random.randint(1, 4 if factor < 3 else 3))
    ]
    return placed, targets


def _plan(
    placed: Sequence[PlacedPartition], targets: Sequence[TargetBroker]
) -> list[tuple[int, ...]]:
    moves = {move.placed.partition: move.replicas for move in find_moves(placed, targets)}
    return [moves.get(each.partition, each.replicas) for each in placed]


def _compare_with_kafka() -> int:
    """Each topic represents a cluster, because Kafka's tool plans each topic separately."""
    random = Random(2)
    ours: list[float] = []
    theirs: list[float] = []
    wrong = 0
    note = ""
    with (
        Cluster(brokers=BROKERS, racks=RACKS) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        try:
            find_java()
            kafka_jars()
        except RivalMissing as missing:
            note = str(missing)
        with _kafka_plans(cluster.bootstrap_servers, bool(note)) as kafka:
            for number in range(CLUSTERS):
                if not number % 100:
                    progress(f"reassignment: beside Kafka's plans, {number} of {CLUSTERS}")
                placed, targets = _make_cluster(random, f"t{number}")
                least = judge_plan(placed, targets, _plan(placed, targets))
                wrong += least is None or any((least.excess, least.uneven, least.unlevel))
                ours.append(_count_moved(placed, _plan(placed, targets)))
                if kafka is not None:
                    admin.create_topic(
                        f"t{number}",
                        assignment={each.partition.partition: each.replicas for each in placed},
                    )
                    theirs.append(_count_moved(placed, _ask(kafka, f"t{number}", targets)))
                    admin.delete_topic(f"t{number}")
    _print(f"{CLUSTERS} clusters, racks, limits or leaders", "not met", wrong)
    report(
        *("reassignment", "replicas moved, of a cluster's", "%"),
        *(ours, RIVAL, theirs),
        more_is_better=False,
        note=note or f"all: {statistics.mean(ours):.1f} % and {statistics.mean(theirs):.1f} %",
    )
    return wrong


def _make_cluster(random: Random, topic: str) -> tuple[list[PlacedPartition], list[TargetBroker]]:
    """Partitions on some brokers, and the brokers to move to: without one or more of these, perhaps
    with others. Limits allow a tenth more replicas than there are."""
    count = random.randint(10, 60)
    here = _choose_brokers(random)
    placed = []
    for index in range(count):
        by_rack = {RACKS[broker]: broker for broker in random.sample(here, len(here))}
        replicas = random.sample(sorted(by_rack.values()), FACTOR)
        placed.append(
            PlacedPartition(TopicPartition(topic, index), tuple(replicas), random.randint(0, 10**9))
        )
    there = sorted({*random.sample(here, len(here) - 1), *_choose_brokers(random)})
    limit = -(-count * FACTOR * 11 // (10 * min(len(here), len(there))))
    held = {broker: sum(broker in each.replicas for each in placed) for broker in there}
    return placed, [
        TargetBroker(broker, RACKS[broker], max(count, limit) - held[broker]) for broker in there
    ]


def _choose_brokers(random: Random) -> list[int]:
    """One to three random brokers of each rack."""
    by_rack = [[broker for broker in range(BROKERS) if RACKS[broker] == rack] for rack in "abc"]
    return [broker for each in by_rack for broker in random.sample(each, random.randint(1, 3))]


@contextmanager
def _kafka_plans(servers: str, missing: bool) -> Iterator[subprocess.Popen[str] | None]:
    if missing:
        yield None
        return
    with subprocess.Popen(
        [
            *java_command("256m"),
            *("-cp", f"{kafka_jars()}/*", str(SOURCE), servers),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _ask(
    kafka: subprocess.Popen[str], topic: str, targets: Sequence[TargetBroker]
) -> list[tuple[int, ...]]:
    assert kafka.stdin is not None
    assert kafka.stdout is not None
    kafka.stdin.write(f"{topic} {','.join(str(target.id) for target in targets)}\n")
    kafka.stdin.flush()
    line = kafka.stdout.readline()
    if not line:
        raise RuntimeError("Kafka's tool has made no plan; its errors are above")
    plan = {}
    for word in line.split():
        partition, _, replicas = word.partition(":")
        plan[int(partition)] = tuple(map(int, replicas.split(",")))
    return [plan[partition] for partition in range(len(plan))]


def _count_moved(placed: Sequence[PlacedPartition], chosen: Sequence[Sequence[int]]) -> float:
    """The percentage of replicas that move."""
    moved = sum(len({*to} - {*each.replicas}) for each, to in zip(placed, chosen, strict=True))
    return 100 * moved / sum(len(each.replicas) for each in placed)


def _measure_seconds(runs: int) -> None:
    """Measure plans for a cluster of 30 brokers, two of them new."""
    for partitions in (MANY // 10, MANY):
        seconds = []
        for number in range(runs):
            progress(f"reassignment: {partitions} partitions, run {number + 1} of {runs}")
            random = Random(number)
            racks = [f"r{broker % 3}" for broker in range(MANY_BROKERS)]
            placed = [
                PlacedPartition(
                    TopicPartition("t", index),
                    tuple(
                        random.choice(range(rack, MANY_BROKERS - 2, 3))
                        for rack in random.sample(range(3), 3)
                    ),
                    random.randint(0, 10**9),
                )
                for index in range(partitions)
            ]
            targets = [TargetBroker(broker, racks[broker], 10**6) for broker in range(MANY_BROKERS)]
            began = time.perf_counter()
            find_moves(placed, targets)
            seconds.append(time.perf_counter() - began)
        report(
            *("reassignment", f"plan for {partitions} partitions x 3, 28 brokers and 2 new", "s"),
            *(seconds, "", []),
            more_is_better=False,
        )


def _carry_out() -> int:
    with Trimtab(brokers=5) as cluster, Admin(cluster.address) as admin:
        names = [OURS]
        note = ""
        try:
            find_java()
            kafka_jars()
            names.append(JAVA)
        except RivalMissing as missing:
            note = str(missing)
        for name in names:
            admin.create_topic(
                f"moved-{name}",
                assignment={
                    partition: [(partition + each) % 3 for each in range(3)]
                    for partition in range(PARTITIONS)
                },
                config={"min.insync.replicas": 2},
            )
        loads: list[Load] = [OurLoad(cluster.address, f"moved-{OURS}", RATE)]
        if JAVA in names:
            loads.append(JavaLoad(cluster.address, f"moved-{JAVA}", RATE, cluster.directory))
        for load in loads:
            load.start()
        await_all_partitions(loads)
        time.sleep(5)
        plan = cluster.directory / "plan.json"
        proposed = _reassign(cluster, "--generate", "--broker-list", "2,3,4")
        plan.write_text(json.dumps(proposed["proposed"]))
        progress(
            f"reassignment: {proposed['moved_replicas']} replicas, {proposed['moved_bytes']} bytes"
        )
        file = ("--reassignment-json-file", str(plan))
        begun = len(_reassign(cluster, "--execute", *file, "--throttle", str(THROTTLE))["begun"])
        time.sleep(_HALF_WAY_S)
        cancelled = len(_reassign(cluster, "--cancel", *file)["cancelled"])
        progress(f"reassignment: {begun} begun, {cancelled} cancelled half-way")
        _reassign(cluster, "--execute", *file)
        _await_moves(admin)
        states = _reassign(cluster, "--verify", *file)["partitions"]
        time.sleep(2)
        for load in loads:
            load.stop()
        found = [Comparison(load, read_stored(cluster.address, load.topic)) for load in loads]
    unfinished = sum(state != "completed" for state in states.values())
    line = {
        "stage": "reassignment",
        "metric": "carried out under load, cancelled half-way once",
        "moved_replicas": proposed["moved_replicas"],
        "begun": begun,
        "cancelled": cancelled,
        "unfinished": unfinished,
        **{
            each.load.name: {
                "acknowledged": each.load.acknowledged,
                "lost": each.lost,
                "duplicated": each.duplicated,
                "disordered": each.disordered,
                "given_up": each.load.failed,
            }
            for each in found
        },
    }
    if note:
        line["note"] = note
    print(json.dumps(line), flush=True)
    return int(unfinished) + (not cancelled) + sum(each.is_wrong for each in found)


def _reassign(cluster: Trimtab, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trimtab", "reassign", *words, "--json"),
            *("--bootstrap-server", cluster.address),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _await_moves(admin: Admin) -> None:
    """Wait until no reassignment is in progress."""
    deadline = time.monotonic() + _PATIENCE_S
    while moving := len(admin.list_reassignments()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {_PATIENCE_S} s {moving} partitions are still reassigned")
        time.sleep(_TICK_S)


def _print(metric: str, unit: str, value: float, **more: float) -> None:
    line = {"stage": "reassignment", "metric": metric, "value": value, "unit": unit, **more}
    print(json.dumps(line), flush=True)
