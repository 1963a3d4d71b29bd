"""The walk in DESIGN.md: a traced value enters the listed functions, in their order."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trimtab
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster import Cluster
from trimtab.records import TopicPartition
from trimtab.sim.world import World
from trimtab.spark.read.columns import arrow_schema, scan_columns
from trimtab.spark.read.ranges import OffsetRange

SOURCE = Path(trimtab.__file__).parent
DESIGN = SOURCE.parents[1] / "DESIGN.md"
PARTITION = TopicPartition("walk", 0)

Entered = Counter[tuple[str, str]]
"""How often each function was entered, by file and name, in the order of the first time."""


def listed() -> list[list[tuple[str, str]]]:
    """The functions that the two tables name: of writing, and of reading."""
    section = DESIGN.read_text().split("### A value, from `send` to Arrow")[1].split("## 2.")[0]
    parts: list[list[tuple[str, str]]] = []
    for number, file, name in re.findall(r"(?m)^\| (\d+) \| `([\w/]+\.py)` `(\w+)` \|", section):
        if number == "1":
            parts.append([])
        parts[-1].append((file, name))
    return parts


@contextmanager
def traced() -> Iterator[Entered]:
    entered = Entered()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            entered[str(path.relative_to(SOURCE)), frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


async def walk(world: World) -> tuple[Entered, Entered, list[object]]:
    """A value written, then read into Arrow, by clients that have their connections already."""
    cluster = Cluster(
        brokers=1, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    )
    async with cluster:
        servers = cluster.bootstrap_servers
        async with AsyncAdmin(servers, random=world.random("admin")) as admin:
            await admin.create_topic("walk", partitions=1)
        async with (
            AsyncProducer(
                servers, wall_clock=world.wall_clock, random=world.random("p"), linger_ms=0
            ) as producer,
            AsyncConsumer(servers, random=world.random("c")) as consumer,
        ):
            await (await producer.send("walk", b"x" * 40_000))  # ends the partition's turn
            consumer.assign([PARTITION])
            consumer.seek(PARTITION, 0, 1)
            await consumer.fetch_batches()
            with traced() as written:
                await (await producer.send("walk", b"value"))
            with traced() as read:
                consumer.seek(PARTITION, 1, 2)
                batches = await consumer.fetch_batches()
                assert batches is not None
                wanted = OffsetRange(*PARTITION, 1, 2)
                schema = arrow_schema([("value", True)])
                (rows,) = scan_columns([(wanted, batches.data)], schema)
    return written, read, rows.column("value").to_pylist()


def test_a_value_passes_the_functions_that_the_design_lists() -> None:
    with World(1) as world:
        written, read, values = world.run(walk(world))
    assert values == [b"value"]
    parts = listed()
    assert [len(part) for part in parts] == [15, 16]
    for part, entered in zip(parts, (written, read), strict=True):
        is_interpreted = any(file.endswith("_cy.py") for file, _ in entered)
        steps = [each for each in part if is_interpreted or not each[0].endswith("_cy.py")]
        assert [each for each in entered if each in part] == steps
        assert entered["client/producer.py", "_send_when_possible"] == 0


def test_every_function_of_the_walk_exists() -> None:
    """Those of compiled modules, too, which cannot be traced."""
    for file, name in (each for part in listed() for each in part):
        assert re.search(rf"^\s*(async )?def {name}\(", (SOURCE / file).read_text(), re.M), file
