"""How asynchronous clients are closed."""

from __future__ import annotations

import asyncio
import gc
import warnings
from random import Random

from trimtab.client.async_client import AsyncClient
from trimtab.client.network.session import Session
from trimtab.client.options import ADMIN, client_options


class Client(AsyncClient):
    def __init__(self, closed: list[str]) -> None:
        async def close() -> None:
            await asyncio.sleep(0)
            closed.append("closed")

        super().__init__(Session(client_options(ADMIN, "a:1", {}), Random(1)), close)


def test_a_client_is_closed_once() -> None:
    async def scenario() -> list[str]:
        closed: list[str] = []
        async with Client(closed) as client:
            assert client.options.text("client.id") == ""
            await client.close()
        await client.close()
        return closed

    assert asyncio.run(scenario()) == ["closed"]


def test_a_close_that_was_cancelled_is_finished_by_the_face() -> None:
    async def scenario() -> list[str]:
        closed: list[str] = []
        client = Client(closed)
        finish = client._leave_closing()
        interrupted = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        interrupted.cancel()
        await asyncio.wait([interrupted])
        assert closed == []
        await finish(0.0)
        return closed

    assert asyncio.run(scenario()) == ["closed"]


def test_a_client_whose_closing_was_left_to_a_face_is_not_closed_when_collected() -> None:
    async def scenario() -> list[str]:
        closed: list[str] = []
        client = Client(closed)
        close = client._leave_closing()
        del client
        gc.collect()
        await asyncio.sleep(0)
        assert closed == []
        await close(None)
        return closed

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert asyncio.run(scenario()) == ["closed"]
    assert caught == []
