"""What the synchronous clients have alike: signatures, threads, and their end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.client.admin import AsyncAdmin
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.threads import loop_thread


def public(kind: type) -> dict[str, Any]:
    found = inspect.getmembers(kind, callable)
    return {name: value for name, value in found if not name.startswith("_")}


@pytest.mark.parametrize(
    ("face", "wrapped"),
    [(Admin, AsyncAdmin), (Consumer, AsyncConsumer), (Producer, AsyncProducer)],
)
def test_a_face_has_the_methods_of_what_it_wraps(face: type, wrapped: type) -> None:
    mine, its = public(face), public(wrapped)
    assert mine.keys() == its.keys()
    for name in mine:
        if name != "send":  # compiled; `test_types.py` compares it with its stub
            given = list(inspect.signature(mine[name]).parameters.values())[1:]
            assert given == list(inspect.signature(its[name]).parameters.values())[1:], name
        if name not in ("send", "transaction"):
            assert mine[name].__doc__ == its[name].__doc__, name
        assert mine[name].__doc__, name


def test_a_generator_runs_on_its_callers_thread_and_may_wait(cluster: Cluster) -> None:
    threads: list[str] = []

    def partitions(admin: Admin) -> Iterator[TopicPartition]:
        threads.append(threading.current_thread().name)
        for partition in range(admin.describe_topics(["t"])["t"].partition_count):
            yield TopicPartition("t", partition)

    servers = cluster.bootstrap_servers
    with Admin(servers) as admin, Consumer(servers) as consumer:
        expected = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
        assert consumer.end_offsets(partitions(admin)) == expected
        assert admin.list_offsets(partitions=partitions(admin)).keys() == expected.keys()
    assert threads == [threading.current_thread().name] * 2


def test_what_is_wrapped_is_not_closed_by_a_loop_that_runs_where_the_face_is_made(
    cluster: Cluster,
) -> None:
    async def make_and_drop() -> None:
        before = asyncio.all_tasks()
        clients = [make(cluster.bootstrap_servers) for make in (Admin, Consumer, Producer)]
        clients.clear()
        gc.collect()
        assert asyncio.all_tasks() == before

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(make_and_drop())
        gc.collect()
    said = sorted(str(warning.message).partition("(")[0] for warning in caught)
    assert said == ["unclosed Admin", "unclosed Consumer", "unclosed Producer"]


def is_of_closing(code: CodeType) -> bool:
    return code.co_filename.endswith(("face.py", "loop_thread.py", "waiting.py"))


@pytest.mark.parametrize("kind", [Admin, Consumer])
def test_a_close_that_ctrl_c_interrupts_is_finished(
    cluster: Cluster, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "_shared", None)  # it would live on for others' clients
    for step in range(1, 1000):
        client = kind(cluster.bootstrap_servers)
        if isinstance(client, Admin):
            client.topics()
        else:
            client.end_offsets([("t", 0)])
        connections = client._client._session.connections
        thread = client._thread._engine.thread
        assert connections.connections
        place = interrupt_at(step, client.close, is_of_closing)
        client.close()
        thread.join(20)
        assert not thread.is_alive(), place
        assert not connections.connections, place
        with pytest.raises(UsageError, match="is closed"):
            client.topics() if isinstance(client, Admin) else client.end_offsets([("t", 0)])
        if place is None:
            break
    assert 20 < step < 999


def test_jitter_is_no_option_of_a_face(cluster: Cluster) -> None:
    """The asynchronous clients take a generator of random numbers, for simulations."""
    for kind in (Admin, Consumer, Producer):
        with pytest.raises(UsageError, match="random"):
            kind({"bootstrap.servers": cluster.bootstrap_servers, "random": 1})
