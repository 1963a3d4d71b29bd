"""Topics as in metadata, virtual time, and clusters in it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.unit.client.scripted_produce import ProduceCluster, make_produce_cluster
from tests.unit.client.scripted_transactions import TransactionCluster, make_transaction_cluster
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.sim.world import World

MakeView = Callable[..., TopicView]


def view_of(
    leaders: Sequence[int], racks: Sequence[str | None] | None = None, name: str = "topic"
) -> TopicView:
    """A topic whose partition p is led by `leaders[p]`, -1 for none, in `racks[p]`."""
    return TopicView(
        name=name,
        topic_id=bytes(16),
        is_internal=False,
        partitions=tuple(PartitionView(leader, 0, (leader,), (leader,), ()) for leader in leaders),
        leaders=tuple(leaders),
        racks=tuple(racks) if racks is not None else (None,) * len(leaders),
        available=tuple(p for p, leader in enumerate(leaders) if leader >= 0),
    )


@pytest.fixture
def make_view() -> MakeView:
    return view_of


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=11) as world:
        yield world


@pytest.fixture
def kafka(world: World) -> ProduceCluster:
    """Two brokers; each leads one partition of "topic"."""
    return make_produce_cluster(world, 0, 1)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def brokers(world: World, request: pytest.FixtureRequest) -> TransactionCluster:
    """Two brokers that serve transactions, of each `transaction.version`."""
    return make_transaction_cluster(world, request.param)
