"""DESIGN.md, checked: its walks name the functions that are entered, in order, and its layers are
those of import-linter."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest

import trimtab
from trimtab.client.admin import AsyncAdmin
from trimtab.client.blocking.admin import Admin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.records import Bytes, TopicPartition
from trimtab.sim.world import World
from trimtab.threads.loop_thread import LoopThread, shared

SOURCE = Path(trimtab.__file__).parent
ROOT = SOURCE.parents[1]
DESIGN = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
PARTITION = TopicPartition("walk", 0)

Step: TypeAlias = tuple[str, str]
"""A file below src/trimtab, and a function of it."""
Calls: TypeAlias = list[Step]


# -- DESIGN.md


def listed() -> dict[str, list[Step]]:
    """The steps of each walk, by its heading."""
    walks = {}
    for section in re.split(r"(?m)^#{2,3} ", DESIGN):
        steps = re.findall(r"(?m)^\| \d+ \| `([\w/]+\.py)` `(\w+)` \|", section)
        if steps:
            walks[section.partition("\n")[0]] = steps
    return walks


# -- Tracing


@cache
def file_of(code_file: str) -> str | None:
    path = Path(code_file)
    return str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else None


@contextmanager
def traced(loop_thread: LoopThread | None = None) -> Iterator[Calls]:
    """The calls of trimtab's functions, on this thread and on that of a loop."""
    calls: Calls = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (file := file_of(frame.f_code.co_filename)) is not None:
            calls.append((file, frame.f_code.co_name))

    if loop_thread is not None:
        loop_thread.call_soon(sys.setprofile, note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if loop_thread is not None:
            loop_thread.call_soon(sys.setprofile, None)


# -- Walks


def in_virtual_time(walk: Callable[[World, str], Awaitable[Calls]]) -> Calls:
    """Take a walk on a cluster of one broker, with a topic of one partition."""

    async def run(world: World) -> Calls:
        cluster = Cluster(
            brokers=1, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
        )
        async with cluster:
            servers = cluster.bootstrap_servers
            async with AsyncAdmin(servers, random=world.random("admin")) as admin:
                await admin.create_topic("walk", partitions=1)
            return await walk(world, servers)

    with World(1) as world:
        return world.run(run(world))


def make_producer(
    world: World, servers: str, transactional_id: str | None = None
) -> AsyncProducer[Bytes, Bytes]:
    return AsyncProducer(
        servers,
        wall_clock=world.wall_clock,
        random=world.random("p"),
        linger_ms=0,
        transactional_id=transactional_id,
    )


async def write(world: World, servers: str) -> Calls:
    async with make_producer(world, servers) as producer:
        await (await producer.send("walk", b"x" * 40_000))  # ends the partition's turn
        with traced() as calls:
            await (await producer.send("walk", b"value"))
    assert ("client/producer.py", "_send_when_possible") not in calls
    return calls


async def read_into_arrow(world: World, servers: str) -> Calls:
    pytest.importorskip("pyarrow")
    from trimtab.client.fetcher.ranges import OffsetRange
    from trimtab.spark.read.columns import arrow_schema, scan_columns

    async with (
        make_producer(world, servers) as producer,
        AsyncConsumer(servers, random=world.random("c")) as consumer,
    ):
        for value in (b"first", b"value"):
            await (await producer.send("walk", value))
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0, 1)
        await consumer.fetch_batches()
        with traced() as calls:
            consumer.seek(PARTITION, 1, 2)
            batches = await consumer.fetch_batches()
            assert batches is not None
            wanted = OffsetRange(*PARTITION, 1, 2)
            schema = arrow_schema([("value", True)])
            (rows,) = scan_columns([(wanted, batches.data)], schema)
    assert rows.column("value").to_pylist() == [b"value"]
    return calls


async def join(world: World, servers: str) -> Calls:
    """A static member's way: one without a name sends JoinGroup twice."""
    async with AsyncConsumer(
        servers, group_id="walkers", group_instance_id="walker", random=world.random("c")
    ) as consumer:
        await consumer.committed([PARTITION])  # until the group has a coordinator
        with traced() as calls:
            consumer.subscribe(["walk"])
            await consumer.poll(1000)
        assert consumer.assignment() == {PARTITION}
    return calls


async def commit(world: World, servers: str) -> Calls:
    async with make_producer(world, servers, transactional_id="walker") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send("walk", b"value"))
        with traced() as calls:
            await producer.commit_transaction()
    return calls


def write_from_spark() -> Calls:
    """A task's part, in real time: its producer is one for threads."""
    arrow = pytest.importorskip("pyarrow")
    types = pytest.importorskip("pyspark.sql.types")
    from trimtab.spark.resident import Residents
    from trimtab.spark.write import sink

    schema = types.StructType([types.StructField("value", types.BinaryType())])
    row = arrow.record_batch({"value": arrow.array([b"value"])})
    timers: list[Callable[[], None]] = []
    producers: Any = Residents(sink._close, lambda seconds, call: timers.append(call))
    with Cluster(brokers=1) as cluster, shared() as thread, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "_producers", producers)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("walk", partitions=1)
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "walk"}
        writer = sink.make_writer(options, schema, overwrite=False)
        writer.write(iter([row]))
        with traced(thread) as calls:
            message: Any = writer.write(iter([row]))
        while timers:  # until the idle producer is closed
            timers.pop()()
    assert message.counts["walk"][0].records == 1
    return calls


WALKS: dict[str, Callable[[], Calls]] = {
    "A value is written": partial(in_virtual_time, write),
    "A value is read into Arrow": partial(in_virtual_time, read_into_arrow),
    "A consumer joins its group": partial(in_virtual_time, join),
    "A transaction is committed": partial(in_virtual_time, commit),
    "Spark writes a row": write_from_spark,
}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_enters_the_functions_that_the_design_lists_in_their_order(walk: str) -> None:
    calls = WALKS[walk]()
    is_interpreted = any(file.endswith("_cy.py") for file, _ in calls)
    steps = [each for each in listed()[walk] if is_interpreted or not each[0].endswith("_cy.py")]
    rest = iter(calls)
    not_entered_in_order = [each for each in steps if each not in rest]
    assert not_entered_in_order == []


def test_the_design_lists_the_walks_that_are_traced() -> None:
    assert list(listed()) == list(WALKS)
    assert len(listed()["A transaction is committed"]) <= 6


def test_every_function_of_a_walk_exists() -> None:
    """Those of compiled modules, too, which cannot be traced."""
    for file, name in (each for steps in listed().values() for each in steps):
        assert re.search(rf"^\s*(async )?def {name}\(", (SOURCE / file).read_text(), re.M), file


# -- Layers


def test_the_design_draws_the_layers_that_import_linter_checks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["trimtab"])
    assert f"```\n{'  >  '.join(layers)}\n```" in DESIGN
