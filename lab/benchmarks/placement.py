"""KIP-578's placement, compared with brute force and the proposal's rule; its time and effects.

1. 50,000 small clusters: whether an assignment exists, and its spread over racks, compared with
   brute force. Any difference makes the exit code 1.
2. How often the proposal's rule, round robin that skips full brokers, rejects topics that can be
   placed and use 100, 95, 90, 80 or 70 % of the free replicas.
3. 100,000 partitions of three replicas on 30 brokers in 3 racks: seconds, also for a tenth of it,
   and how evenly leaders are spread.
4. The longest time of a fetch while 100,000 partitions of three replicas are created on three
   brokers, 10,000 per request, compared with the same without creations.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from lab.benchmarks.brute_force import least_rack_costs, rack_cost
from lab.benchmarks.hostile_clients import BlockingConnection
from lab.benchmarks.report import progress, report
from lab.processes import Trimtab
from trimtab import Admin, Producer
from trimtab.balance.placement import NoRoom, Room, count_placeable, place
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

SMALL_CLUSTERS = 50_000
FULL_CLUSTERS = 1_500
BROKERS, RACKS, FACTOR, PARTITIONS = 30, 3, 3, 100_000
A_REQUEST = 9_999
"""Partitions per request; with the topic's record these are 10,000 records, the controller's limit
for one request."""
_FETCH_VERSION = 12
_LISTEN_S = 5.0


def run(runs: int, records: int) -> None:
    del records
    wrong = _compare_with_brute_force()
    _compare_with_skipping()
    _measure_seconds(runs)
    _measure_fetches()
    if wrong:
        raise SystemExit(1)


def _compare_with_brute_force() -> int:
    progress(f"placement: {SMALL_CLUSTERS} small clusters, beside brute force")
    random = Random(1)
    feasible = wrong = 0
    for number in range(SMALL_CLUSTERS):
        racks = random.randint(1, 4)
        rooms = [
            Room(
                broker, f"r{random.randrange(racks)}", random.randint(0, 9), 0, random.randint(0, 5)
            )
            for broker in range(random.randint(1, 5))
        ]
        partitions = random.randint(1, 4)
        factor = random.randint(1, min(3, len(rooms)))
        least = min(least_rack_costs(rooms, partitions, factor).values(), default=None)
        try:
            placed = place(rooms, partitions, factor, Random(number))
        except NoRoom:
            wrong += least is not None
            continue
        feasible += 1
        held = Counter(broker for replicas in placed for broker in replicas)
        cost = sum(rack_cost([rooms[each].rack for each in replicas]) for replicas in placed)
        wrong += (
            cost != least
            or any(held[room.id] > room.free for room in rooms)
            or any(len({*replicas}) != factor for replicas in placed)
        )
    _print(f"{SMALL_CLUSTERS} small clusters", "differences", wrong, feasible=feasible)
    return wrong


def _compare_with_skipping() -> None:
    """Clusters of 3 to 8 brokers with room for up to 40 replicas each."""
    progress("placement: beside the proposal's own rule")
    for percent in (100, 95, 90, 80, 70):
        random = Random(percent)
        refused = 0
        for _ in range(FULL_CLUSTERS):
            most = 0
            while not most:
                factor = random.choice([2, 3])
                count = random.randint(3, 8)
                free = [random.randint(0, 40) for _ in range(count)]
                rooms = [Room(each, None, 0, 0, room) for each, room in enumerate(free)]
                most = count_placeable(rooms, 1000, factor) * percent // 100
            place(rooms, most, factor, random)
            refused += not skips_to_an_end(free, most, factor, random)
        _print(
            f"feasible requests that the proposal's rule refuses, {percent} % of the room used",
            "%",
            round(100 * refused / FULL_CLUSTERS, 1),
            ours=0,
        )


def skips_to_an_end(free: Sequence[int], partitions: int, factor: int, random: Random) -> bool:
    """Whether the proposal's rule finds an assignment: replicas are assigned round robin as in
    `AdminUtils.assignReplicasToBrokersRackUnaware`, full brokers are skipped, and the rule fails
    if all are full."""
    left = list(free)
    count = len(left)
    start, shift = random.randrange(count), random.randrange(count)
    for partition in range(partitions):
        if partition and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        wanted = [first] + [
            (first + 1 + (shift + replica) % (count - 1)) % count for replica in range(factor - 1)
        ]
        taken: list[int] = []
        for broker in wanted:
            for step in range(count):
                candidate = (broker + step) % count
                if left[candidate] and candidate not in taken:
                    taken.append(candidate)
                    left[candidate] -= 1
                    break
            else:
                return False
    return True


def _measure_seconds(runs: int) -> None:
    rooms = [Room(broker, f"r{broker % RACKS}", 0, 0, LONG_MAX) for broker in range(BROKERS)]
    for partitions in (PARTITIONS // 10, PARTITIONS):
        seconds = []
        for number in range(runs):
            progress(f"placement: {partitions} partitions, run {number + 1} of {runs}")
            began = time.perf_counter()
            placed = place(rooms, partitions, FACTOR, Random(number))
            seconds.append(time.perf_counter() - began)
            leaders = Counter(replicas[0] for replicas in placed)
            spread = max(leaders.values()) - min(leaders[room.id] for room in rooms)
        report(
            *("placement", f"{partitions} partitions x {FACTOR} on {BROKERS} brokers", "s"),
            *(seconds, "", []),
            more_is_better=False,
            note=f"leaders differ by {spread}; the limit is 1.5 s for {PARTITIONS}",
        )


def _measure_fetches() -> None:
    with Trimtab(brokers=3) as cluster, Admin(cluster.address) as admin:
        admin.create_topic("read", 1, replication_factor=3)
        with Producer(cluster.address) as producer:
            producer.send("read", bytes(1000)).result()
        leader = admin.describe_topics(["read"])["read"].leaders[0]
        node = next(node for node in admin.cluster().nodes if node.id == leader)
        calm = _FetchTimes(node.host, node.port)
        time.sleep(_LISTEN_S)
        calm.stop()
        busy = _FetchTimes(node.host, node.port)
        began = time.perf_counter()
        for number in range(PARTITIONS // A_REQUEST):
            progress(f"placement: creating topic {number + 1} of {PARTITIONS // A_REQUEST}")
            # In another process, so that this one only measures.
            subprocess.run(
                [
                    *(sys.executable, "-m", "trimtab", "topics", "--create"),
                    *("--bootstrap-server", cluster.address, "--topic", f"many-{number}"),
                    *("--partitions", str(A_REQUEST), "--replication-factor", str(FACTOR)),
                ],
                stdout=subprocess.DEVNULL,
                check=True,
            )
        took = time.perf_counter() - began
        busy.stop()
    for name, each in (("without", calm), ("while topics are created", busy)):
        ordered = sorted(each.ms)
        _print(
            f"longest fetch {name}",
            "ms",
            round(ordered[-1], 1),
            fetches=len(ordered),
            p999=round(ordered[int(0.999 * len(ordered))], 1),
            median=round(ordered[len(ordered) // 2], 2),
        )
    _print(
        f"{PARTITIONS // A_REQUEST} topics of {A_REQUEST} x {FACTOR} created", "s", round(took, 1)
    )


class _FetchTimes:
    """A thread that fetches one record repeatedly; has the milliseconds of each fetch."""

    def __init__(self, host: str, port: int) -> None:
        self.ms: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._fetch, args=(host, port))
        self._thread.start()

    def _fetch(self, host: str, port: int) -> None:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic="read",
                    partitions=[
                        FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                    ],
                )
            ],
        )
        with BlockingConnection((host, port)) as line:
            while not self._ends.is_set():
                began = time.perf_counter()
                line.ask(request, _FETCH_VERSION)
                self.ms.append((time.perf_counter() - began) * 1000)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()


def _print(metric: str, unit: str, value: float, **more: float) -> None:
    line = {"stage": "placement", "metric": metric, "value": value, "unit": unit, **more}
    print(json.dumps(line), flush=True)
