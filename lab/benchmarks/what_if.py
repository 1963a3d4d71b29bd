"""Forecasts of `trimtab what-if`, and what comes when the changes are made on six brokers.

Six broker processes in three racks, two topics with two replicas each: flights, 1.2 MB/s without
keys, and trips, 0.6 MB/s with keys; one group reads both. For each of ten changes a cluster of its
own is watched for a minute, the change is forecast and then made, and the cluster is watched for
another minute. Prints how far each forecast was off, and how many outcomes were inside their
intervals. What is stored is left out, as nothing is old enough to be deleted.

That happens in virtual time (`what_if_virtual.py`), and with `REAL=1` with processes, which need a
machine that has nothing else to do. `ONLY=3,7` makes some of the changes, `ONLY=0` the last part:
there a day of 30 brokers with 10,000 partitions is forecast, from a table of ten-minute windows.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from lab.benchmarks.report import progress, report
from lab.processes import Trimtab, nodes_of
from trimtab import Admin, AsyncConsumer, AsyncProducer
from trimtab.cli import make_parser
from trimtab.cli.what_if.changes import read_changes
from trimtab.cli.what_if.forecast import compare, make_forecast
from trimtab.cli.what_if.keys import read_keys
from trimtab.cli.what_if.measured import Measured, watch_cluster
from trimtab.cli.what_if.producers import ProducerShares, read_producer_options

RACKS = "abcabc"
SIZE = 12_000
WINDOW_S = 10.0
WATCHED_S = 62.0
SETTLE_S = 12.0
FENCED_S = 40.0
Rates = dict[str, dict[str, Any]]
USUAL: Rates = {"flights": {"rate": 100}, "trips": {"rate": 50, "key": "user"}}
"""By topic, records/s, the field that is the key, and options of the producer."""


class Scene:
    """A cluster with its load."""

    def __init__(self, cluster: Trimtab, admin: Admin, set_load: Callable[[Rates], None]) -> None:
        self.cluster = cluster
        self.admin = admin
        self.set_load = set_load

    def run(self, *words: str) -> None:
        command = [sys.executable, "-m", "trimtab", *words]
        server = ["--bootstrap-server", self.cluster.address]
        subprocess.run([*command, *server], stdout=subprocess.DEVNULL, timeout=300, check=False)

    def kill(self, *brokers: int) -> None:
        """For good: the supervisor, which would start them again, stands still."""
        pids = nodes_of(self.cluster.supervisor_pid)
        os.kill(self.cluster.supervisor_pid, signal.SIGSTOP)
        for broker in brokers:
            os.kill(pids[f"broker-{broker}"], signal.SIGKILL)
        time.sleep(FENCED_S)

    def thaw(self) -> None:
        os.kill(self.cluster.supervisor_pid, signal.SIGCONT)


def _growth(scene: Scene) -> None:
    scene.set_load({name: {**each, "rate": 1.5 * each["rate"]} for name, each in USUAL.items()})


def _partitions(scene: Scene) -> None:
    scene.admin.create_partitions("flights", 18)


def _like(scene: Scene) -> None:
    scene.admin.create_topic("arrivals", 6, 2)
    scene.set_load({**USUAL, "arrivals": USUAL["flights"]})


def _topic(scene: Scene) -> None:
    scene.admin.create_topic("alarms", 8, 3)
    scene.set_load({**USUAL, "alarms": {"rate": 50}})


def _level(scene: Scene) -> None:
    scene.run("balance", "--execute", "--window", "15")


def _reassign(scene: Scene) -> None:
    scene.run("reassign", "--execute", "--reassignment-json-file", str(_plan_file(scene)))
    time.sleep(SETTLE_S)
    scene.admin.elect_leaders()  # as the controller does every five minutes


def _key(scene: Scene) -> None:
    scene.set_load({**USUAL, "trips": {"rate": 50, "key": "city"}})


def _producer(scene: Scene) -> None:
    options = {"partitioner.rack.aware": "true", "client.rack": "a"}
    scene.set_load({**USUAL, "flights": {"rate": 100, "options": options}})


def _plan_file(scene: Scene) -> Path:
    """Half of the partitions of flights to brokers 4 and 1."""
    path = scene.cluster.directory / "plan.json"
    moved = [{"topic": "flights", "partition": at, "replicas": [4, 1]} for at in range(6)]
    path.write_text(json.dumps({"version": 1, "partitions": moved}))
    return path


CHANGES: dict[str, tuple[list[str], Callable[[Scene], None]]] = {
    "growth x 1.5": (["--growth", "1.5"], _growth),
    "12 to 18 partitions": (["--partitions", "flights:18"], _partitions),
    "a topic more like flights": (["--topic", "arrivals:6:2:like=flights"], _like),
    "a topic more, 0.6 MB/s": (["--topic", "alarms:8:3:bytes=604e3,readers=1,kept=60"], _topic),
    "without broker 5": (["--without-broker", "5"], lambda scene: scene.kill(5)),
    "without rack c": (["--without-rack", "c"], lambda scene: scene.kill(2, 5)),
    "levelled by trimtab balance": (["--plan", "level"], _level),
    "a plan file": (["--plan", "FILE"], _reassign),
    "another key": (["--key", "trips:city"], _key),
    "rack-aware producers in rack a": (
        ["--producer", "flights:partitioner.rack.aware=true,client.rack=a"],
        _producer,
    ),
}


def run(runs: int, records: int) -> None:
    """Make each change once; `runs` and `records` are ignored."""
    from lab.benchmarks.what_if_virtual import try_virtually

    only = {int(each) for each in os.environ.get("ONLY", "").split(",") if each}
    rows: dict[str, list[dict[str, Any]]] = {}
    for number, (name, (words, act)) in enumerate(CHANGES.items(), 1):
        if not only or number in only:
            progress(f"what-if {number}: {name}")
            found = _try(words, act) if os.environ.get("REAL") else try_virtually(words, number)
            rows[name] = [row for row in found if row["what"] != "stored"]
            _tell(name, rows[name])
    if rows:
        _tell("all changes", [row for each in rows.values() for row in each])
    if not only or 0 in only:
        _forecast_day()


def _tell(name: str, rows: list[dict[str, Any]]) -> None:
    def tell(metric: str, unit: str, values: list[float], note: str = "") -> None:
        report(
            "what_if", f"{metric}, {name}", unit, values, "", [], more_is_better=False, note=note
        )

    for what, words in (("bytes", ("written", "sent")), ("p99", ("p99_s",))):
        some = [row for row in rows if row["what"] in words]
        errors = sorted(100 * row["error"] for row in some if row["error"] is not None)
        if not errors:
            progress(f"{what}, {name}: not forecast")
            continue
        tell(f"{what}: median error of brokers", "%", [errors[len(errors) // 2]])
        tell(f"{what}: worst error of a broker", "%", [errors[-1]])
        inside = sum(row["is_inside"] for row in some)
        tell(
            f"{what}: outcomes inside", "%", [100 * inside / len(some)], f"{inside} of {len(some)}"
        )


def _try(words: list[str], act: Callable[[Scene], None]) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        cluster = stack.enter_context(Trimtab(6, racks=RACKS))
        admin = stack.enter_context(Admin(cluster.address))
        uneven = "level" in words
        placed = {at: [0, 1] if uneven and at % 2 else [at % 6, (at + 1) % 6] for at in range(12)}
        admin.create_topic("flights", assignment=placed)
        admin.create_topic("trips", assignment={at: [(at + 3) % 6, at % 6] for at in range(6)})
        scene = Scene(cluster, admin, stack.enter_context(_load(cluster.address)))
        stack.callback(scene.thaw)
        scene.set_load(USUAL)
        time.sleep(SETTLE_S)
        before = _watch(cluster)
        words = [str(_plan_file(scene)) if word == "FILE" else word for word in words]
        said = forecast(before, [*words, "--bootstrap-server", cluster.address])
        progress(f"back-test: {said['back_test']}; p99: {said['no_p99'] or 'forecast'}")
        act(scene)
        time.sleep(SETTLE_S)
        return compare(said, _watch(cluster))


def _watch(cluster: Trimtab) -> Measured:
    return watch_cluster({"bootstrap.servers": cluster.address}, WATCHED_S, WINDOW_S)


def forecast(measured: Measured, words: list[str]) -> dict[str, Any]:
    arguments = make_parser("what-if").parse_args(words)
    producers = {
        topic: ProducerShares(measured, topic, {}, options)
        for topic, options in read_producer_options(arguments.producer).items()
    }
    changes = read_changes(arguments, measured, read_keys(arguments), producers)
    return make_forecast(measured, changes, arguments.plan == "level")


@contextmanager
def _load(address: str) -> Iterator[Callable[[Rates], None]]:
    """Writes and reads in a process of its own; call what it yields to set the rates."""
    command = [sys.executable, "-m", "lab.benchmarks.what_if", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        stdin = process.stdin

        def set_load(rates: Mapping[str, Any]) -> None:
            stdin.write(json.dumps(rates) + "\n")
            stdin.flush()

        try:
            yield set_load
        finally:
            process.terminate()


async def _work(address: str) -> None:
    """Write as standard input says, and read it all."""
    writing: list[asyncio.Task[None]] = []
    reading: asyncio.Task[None] | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        rates = json.loads(line)
        for task in writing:
            task.cancel()
        writing = [
            asyncio.create_task(write(address, topic, load, Random()))
            for topic, load in rates.items()
        ]
        if reading is not None:
            reading.cancel()
        reading = asyncio.create_task(read(address, [*rates]))


class Load:
    """What is written."""

    @staticmethod
    def fields(random: Random, text: str = "") -> str:
        """A value: the user is one of 20,000, and some cities have many records."""
        user, city = random.randrange(20_000), int(random.expovariate(0.02))
        return f'{{"user": "u{user}", "city": "c{city}", "text": "{text}"}}'


async def write(address: str, topic: str, load: dict[str, Any], random: Random) -> None:
    """Write until cancelled."""
    filling = "x" * (SIZE - 50)
    options = {"bootstrap.servers": address, "linger.ms": 5, **load.get("options", {})}
    loop = asyncio.get_running_loop()
    async with AsyncProducer(options, random=random) as producer:
        next_s = loop.time()
        while True:
            while next_s <= loop.time():
                value = Load.fields(random, filling)
                key = json.loads(value)[load["key"]].encode() if "key" in load else None
                await producer.send(topic, value.encode(), key=key)
                next_s += random.expovariate(load["rate"])
            await asyncio.sleep(max(0.002, next_s - loop.time()))


async def read(address: str, topics: list[str]) -> None:
    """Read until cancelled."""
    options = {"bootstrap.servers": address, "group.id": "readers", "auto.commit.interval.ms": 1000}
    async with AsyncConsumer(options) as consumer:
        consumer.subscribe(topics)
        while True:
            await consumer.poll(timeout_ms=1000)


def _forecast_day() -> None:
    """In a process of its own, whose memory is measured."""
    with tempfile.TemporaryDirectory() as directory:
        progress("what-if: a day of 30 brokers x 10,000 partitions")
        begun = time.perf_counter()
        command = [sys.executable, "-m", "lab.benchmarks.what_if", "--day", directory]
        recording, table = json.loads(subprocess.check_output(command, text=True))
        progress(f"made in {time.perf_counter() - begun:.0f} s")
        trimtab = [sys.executable, "-m", "trimtab", "what-if", "--recording", recording]
        words = [
            *trimtab,
            "--from",
            table,
            "--growth",
            "1.3",
            "--partitions",
            "topic-7:40",
            "--json",
        ]
        begun = time.perf_counter()
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        for metric, unit, value in (("seconds", "s", seconds), ("peak memory", "MiB", peak)):
            name = f"a day of 30 brokers x 10,000 partitions, {metric}"
            report("what_if", name, unit, [value], "", [], more_is_better=False)


def _make_day(directory: Path) -> None:
    """An hour's recording and two days' table of 30 brokers x 10,000 partitions."""
    import numpy
    import pyarrow
    from pyarrow import parquet

    from tests.unit.cli.what_if.recordings import record, snapshots

    topics = {f"topic-{number}": 20 for number in range(500)}
    found = snapshots(brokers=30, topics=topics, windows=60, factor=3)
    recording = record(directory / "recording.jsonl.gz", found)
    random = numpy.random.default_rng(0)
    means = numpy.repeat(random.lognormal(0, 0.8, 500), 20) * 5e5
    names = numpy.repeat([*topics], 20)
    numbers = numpy.tile(numpy.arange(20), 500)
    (table := directory / "table").mkdir()
    for window in range(2 * 144):
        rhythm = 1 + 0.7 * numpy.sin(2 * numpy.pi * window / 144)
        start = pyarrow.array([1_790_000_000 + 600 * window] * 10_000, pyarrow.timestamp("s"))
        end = pyarrow.array([1_790_000_600 + 600 * window] * 10_000, pyarrow.timestamp("s"))
        columns = {
            "window": pyarrow.StructArray.from_arrays([start, end], ["start", "end"]),
            "topic": names,
            "partition": numbers,
            "TotalBytes": (600 * means * rhythm * random.lognormal(0, 0.1, 10_000)).astype("int64"),
        }
        parquet.write_table(pyarrow.table(columns), table / f"part-{window}.parquet")
    print(json.dumps([recording, str(table)]))


if __name__ == "__main__":
    if sys.argv[1] == "--day":
        _make_day(Path(sys.argv[2]))
    else:
        asyncio.run(_work(sys.argv[1]))
