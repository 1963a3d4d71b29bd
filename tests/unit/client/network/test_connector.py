"""Names and addresses of brokers (`trimtab.client.network.connector`), in virtual time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.unit.client.network.test_connections import connections_to
from tests.unit.client.scripted_broker import ScriptedCluster
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import Unavailable
from trimtab.sim.world import World


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    return ScriptedCluster(world)


def resolve_to(
    world: World, monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> list[str]:
    """Have these names resolve to these virtual hosts, others not at all; what is asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_options: object) -> list[Any]:
        asked.append(host)
        if host not in names:
            raise socket.gaierror(-2, "Name or service not known")
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        return [(2, kind, 0, "", (each, port)) for each in names[host] for kind in kinds]

    async def getnameinfo(address: tuple[str, int], flags: int = 0) -> tuple[str, str]:
        return f"canonical-{address[0]}", str(address[1])

    monkeypatch.setattr(world.loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(world.loop, "getnameinfo", getnameinfo)
    return asked


@pytest.mark.kip(302)
async def test_the_addresses_of_a_name_are_tried_in_turn(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = [cluster.broker(0), cluster.broker(2)]
    asked = resolve_to(world, monkeypatch, {"kafka": ["broker-0", "broker-1", "broker-2"]})
    for broker in up:
        await broker.start()
    connections = connections_to(cluster, "kafka:9092")
    first = await connections.connect(-1)
    assert len(up[0].links) == 1
    first.close()
    await asyncio.sleep(0.1)
    await connections.connect(-1)  # the next address that answers, without resolving again
    assert (len(up[0].links), len(up[1].links)) == (1, 1)
    assert asked == ["kafka"]
    up[1].stop()
    await asyncio.sleep(0.1)
    await connections.connect(-1)
    assert len(up[0].links) == 2
    assert asked == ["kafka", "kafka"]


@pytest.mark.kip(601)
async def test_each_address_and_each_attempt_has_its_time(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that swallows everything does not keep the next from being tried."""
    dead, alive = cluster.broker(0), cluster.broker(1)
    resolve_to(world, monkeypatch, {"kafka": ["broker-0", "broker-1"], "broker-0": ["broker-0"]})
    await dead.start()
    await alive.start()
    world.network.cut("localhost", "broker-0")
    connections = connections_to(
        cluster, "kafka:9092,broker-0:9092", connect_timeout=2.0, connect_timeout_max=6.0
    )
    await connections.connect(-1)
    assert world.loop.time() == pytest.approx(2.0, abs=0.1)
    for nominal in (2.0, 4.0, 6.0, 6.0):
        await asyncio.sleep(2)  # past the back-off
        began = world.loop.time()
        with pytest.raises(Unavailable, match="did not accept a connection in time"):
            await connections.connect(-2)
        assert 0.8 * nominal <= world.loop.time() - began <= 1.2 * nominal + 0.01


async def test_a_name_that_does_not_resolve_is_said_so(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker(0)
    resolve_to(world, monkeypatch, {})
    connections = connections_to(cluster, "kafka.example:9092")
    with pytest.raises(Unavailable) as caught:
        await connections.connect_any()
    assert str(caught.value) == (
        "no broker can be reached: broker -1 (kafka.example:9092) cannot be reached:"
        " its name does not resolve (Name or service not known)"
    )
    connections.update([Node(3, "inside", 9092)])
    with pytest.raises(Unavailable, match=r"does not resolve.*correct advertised\.listeners"):
        await connections.connect(3)


async def test_no_name_resolves_while_the_process_ends(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt waits its turn then, too; an address needs none to resolve it."""
    asked: list[str] = []

    async def refuse(host: str, port: int, **_options: object) -> list[Any]:
        asked.append(host)
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(world.loop, "getaddrinfo", refuse)
    connections = connections_to(cluster, "kafka.example:9092,127.0.0.1:9092")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"does not resolve.*shutdown"):
            await connections.connect(-1)
    assert world.loop.time() > 0.04
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9092"):
        await connections.connect(-2)
    assert asked == ["kafka.example"] * 2


async def test_a_name_that_resolves_too_slowly(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker(0)

    async def hang(host: str, port: int, **_options: object) -> list[Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(world.loop, "getaddrinfo", hang)
    with pytest.raises(Unavailable, match="its name did not resolve within 10 s"):
        await connections_to(cluster).connect(-1)


@pytest.mark.kip(235)
async def test_bootstrap_names_are_replaced_by_canonical_ones_where_asked_for(
    world: World, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker(1)
    names = {"kafka": ["a", "b"], "canonical-a": ["broker-0"], "canonical-b": ["broker-1"]}
    resolve_to(world, monkeypatch, names)
    await broker.start()
    connections = connections_to(cluster, "kafka:9092,gone:9092", canonical_bootstrap=True)
    connection = await connections.connect_any()
    assert connection.node.host == "canonical-b"
    hosts = [node.host for node in connections.bootstrap]
    assert hosts == ["canonical-a", "canonical-b", "gone"]
