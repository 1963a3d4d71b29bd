"""What refused requests leave behind in a broker, of every API: nothing, without the garbage
collector, which does not run while large requests are served."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.cluster.broker.conftest import Client, Lab
from tests.unit.cluster.broker.replicas import until
from trimtab.cluster.broker.handlers import handlers_of
from trimtab.cluster.server.request import CloseConnection
from trimtab.kafka.wire.codec import encode
from trimtab.kafka.wire.messages import APIS
from trimtab.kafka.wire.schema import Field, Schema, schema

FRAMES = 1000
KEYS = sorted(handlers_of(Mock()))


@pytest.fixture(autouse=True, scope="module")
def nothing_to_look_through() -> Iterator[None]:
    """What other tests have left alive is not looked through at each collection here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each request counts as large, and nothing is collected."""
    monkeypatch.setattr("trimtab.cluster.server.connection.AT_ONCE_BYTES", 0)
    logging.disable()  # pytest keeps what is logged
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def fill(owner: Schema, version: int) -> Any:
    """A message with an element in each array."""
    return owner.cls(
        **{
            each.name: value if not each.is_array else [value]
            for each in owner.fields
            if each.versions.includes(version) and not each.tagged_versions.includes(version)
            for value in [_fill_field(each, version)]
        }
    )


def _fill_field(declared: Field, version: int) -> Any:
    kind = declared.type
    if isinstance(kind, Schema):
        return fill(kind, version)
    fixed: dict[str, Any] = {"string": "t", "uuid": bytes(16), "bytes": b"", "records": b""}
    return fixed.get(kind.name, 0)


def make_frame(key: int) -> bytes:
    api = APIS[key]
    version = api.max_version
    flexible = b"\0" if version >= api.flexible_from else b""
    head = struct.pack(">hhih", key, version, 1, -1) + flexible
    return head + encode(fill(schema(api.request), version), version)


async def refuse(lab: Lab, frame: bytes) -> None:
    """Send a frame, for which the connection is closed."""
    client = Client(lab.brokers[0])
    client.send_frame(frame)
    while not client.transport.closed:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the connection is lost
    client.transport.protocol = None  # type: ignore[assignment]


async def growth(lab: Lab, frame: bytes, frames: int) -> int:
    """Blocks of memory that are in use after the frames, but were not before."""
    for _ in range(10):
        await refuse(lab, frame)
    before = sys.getallocatedblocks()
    for _ in range(frames):
        await refuse(lab, frame)
    return sys.getallocatedblocks() - before


each_api = pytest.mark.parametrize("key", KEYS, ids=lambda key: APIS[key].name)
WITHOUT_TIMERS = {"connections.max.idle.ms": -1}
"""The simulated loop keeps some cancelled timers."""


@each_api
def test_a_frame_that_cannot_be_decoded_leaves_nothing(lab: Lab, key: int) -> None:
    async def scenario() -> None:
        assert await growth(lab, make_frame(key)[:-1], FRAMES) < FRAMES

    lab.run(scenario, config=WITHOUT_TIMERS)


@each_api
@pytest.mark.parametrize("where", ["at once", "in steps", "awaited"])
def test_a_request_whose_handler_fails_leaves_nothing(lab: Lab, key: int, where: str) -> None:
    def fail(header: object, request: object) -> Any:
        raise RuntimeError("out of luck")

    def fail_in_steps(header: object, request: object) -> Any:
        yield
        raise RuntimeError("out of luck")

    async def fail_later(header: object, request: object) -> Any:
        await asyncio.sleep(0)
        raise CloseConnection("out of luck")

    async def scenario() -> None:
        how = {"at once": fail, "in steps": fail_in_steps, "awaited": fail_later}[where]
        lab.brokers[0].listener.handlers[key] = how
        assert await growth(lab, make_frame(key), frames=100) < 100

    lab.run(scenario, config=WITHOUT_TIMERS)


@pytest.mark.parametrize("frame", [b"", b"\x03\xe7" + bytes(20), b"\0\3\x03\xe7" + bytes(20)])
def test_a_frame_that_is_no_request_leaves_nothing(lab: Lab, frame: bytes) -> None:
    async def scenario() -> None:
        assert await growth(lab, frame, FRAMES) < FRAMES

    lab.run(scenario, config=WITHOUT_TIMERS)


@each_api
def test_an_answered_request_leaves_no_circle_of_references(lab: Lab, key: int) -> None:
    async def ask_often() -> None:
        client = lab.connect()
        for _ in range(20):
            client.send_frame(make_frame(key))
            await until(lambda: client.transport.written or client.transport.closed)
            client.transport.written.clear()
        await asyncio.sleep(1)

    async def scenario() -> None:
        await ask_often()
        gc.collect()
        await ask_often()
        assert gc.collect() < 20

    lab.run(scenario, config=WITHOUT_TIMERS)
