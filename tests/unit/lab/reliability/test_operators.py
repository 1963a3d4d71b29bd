"""Requests of operators, as far as they need no cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.reliability.losses import Losses
from lab.reliability.operators import OperatorRequests
from lab.reliability.topic_kinds import choose_kinds
from trimtab.sim.virtual_cluster import PORT
from trimtab.sim.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


def make_operators(
    world: World, tasks: list[asyncio.Task[None]], losses: Losses | None = None
) -> OperatorRequests:
    cluster = SimpleNamespace(
        world=world,
        brokers=[SimpleNamespace(host="broker-0", id=0)],
        controller=SimpleNamespace(controller=None),
    )

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(coroutine))

    checkers = SimpleNamespace(find_history=lambda topic, index: None)
    return OperatorRequests(
        cast(Any, cluster),
        cast(Any, checkers),
        choose_kinds(world.random("kinds")),
        losses or Losses(cast(Any, cluster), ()),
        world.random("faults"),
        run,
    )


async def test_a_request_to_a_broker_that_is_down_is_given_up(world: World) -> None:
    tasks: list[asyncio.Task[None]] = []
    operators = make_operators(world, tasks)
    assert operators.create_topic() == "creation of a topic"
    assert operators.elect_preferred() == "election of preferred leaders"
    await asyncio.gather(*tasks)
    assert len(tasks) == 2


async def test_a_request_to_a_broker_that_ends_before_it_answers_is_given_up(world: World) -> None:
    tasks: list[asyncio.Task[None]] = []
    connected: list[None] = []

    def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(None)
        writer.close()

    with world.network.at("broker-0"):
        server = await asyncio.start_server(end, "broker-0", PORT)
    make_operators(world, tasks).delete_topic()
    await asyncio.gather(*tasks)
    assert len(connected) == 1
    server.close()


async def test_records_are_deleted_only_where_some_are_committed(world: World) -> None:
    tasks: list[asyncio.Task[None]] = []
    assert make_operators(world, tasks).delete_records() == ""
    assert tasks == []


async def test_min_isr_is_not_changed_while_a_broker_may_have_lost_writes(world: World) -> None:
    def changes(lost: bool) -> int:
        cluster = cast(Any, SimpleNamespace(controller=SimpleNamespace(controller=None)))
        losses = Losses(cluster, ())
        if lost:
            losses.note_loss(cast(Any, SimpleNamespace(id=0, lives=1)))
        operators = make_operators(world, tasks, losses)
        for _ in range(100):
            operators.alter_config()
        return losses.elr_changes

    tasks: list[asyncio.Task[None]] = []
    assert changes(lost=True) == 0
    assert len(tasks) > 50  # the other options
    assert changes(lost=False) > 0
    await asyncio.gather(*tasks)
