"""The same conversations on the real loops, over sockets, and on the virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import cast

import pytest

from trimtab.runtime.event_loop import new_event_loop
from trimtab.sim.world import World


class End(asyncio.Protocol):
    """Notes its callbacks; `on` says what to do in them."""

    def __init__(self, keep_open: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.events: list[str] = []
        self.received = bytearray()
        self.keep_open = keep_open
        self.made = loop.create_future()
        self.ended = loop.create_future()
        self.lost = loop.create_future()
        self.resumed = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")
        self.made.set_result(None)

    def data_received(self, data: bytes) -> None:
        if not self.received:
            self.events.append("data")
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        self.ended.set_result(None)
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")
        self.resumed.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(f"lost {type(error).__name__}")
        self.lost.set_result(None)


async def meet(served: End, client: End) -> asyncio.AbstractServer:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: served, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await loop.create_connection(lambda: client, host, port)
    await served.made
    server.close()
    return server


async def question_and_answer(served: End, client: End) -> None:
    client.transport.writelines([b"ques", b"tion"])
    client.transport.write_eof()
    await served.ended
    served.transport.write(b"answer")
    served.transport.close()
    served.transport.write(b"not any more")


async def close_with_a_full_buffer(served: End, client: End) -> None:
    served.transport.pause_reading()
    client.transport.write(bytes(32 << 20))
    client.transport.close()
    served.transport.resume_reading()


async def pause_and_resume(served: End, client: End) -> None:
    served.transport.pause_reading()
    served.transport.pause_reading()
    client.transport.write(bytes(32 << 20))
    served.transport.resume_reading()
    served.transport.resume_reading()
    await client.resumed
    client.transport.close()


async def abort(served: End, client: End) -> None:
    client.transport.abort()
    client.transport.write(b"nobody")


async def both_close(served: End, client: End) -> None:
    client.transport.close()
    served.transport.close()


async def leave_half_open(served: End, client: End) -> None:
    client.transport.write(b"bye")
    client.transport.close()
    await served.ended
    served.transport.close()


Conversation = Callable[[], Coroutine[None, None, object]]


def on_real_loop(conversation: Conversation, loop: asyncio.AbstractEventLoop) -> object:
    try:
        return loop.run_until_complete(conversation())
    finally:
        loop.close()


def on_virtual_loop(conversation: Conversation) -> object:
    with World(seed=1) as world:
        return world.run(conversation())


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, new_event_loop])
@pytest.mark.parametrize(
    ("talk", "keep_open"),
    [
        (question_and_answer, True),
        (close_with_a_full_buffer, False),
        (pause_and_resume, False),
        (abort, False),
        (both_close, False),
        (leave_half_open, True),
    ],
)
def test_protocols_see_the_same_on_the_virtual_loop_as_on_real_loops(
    talk: Callable[[End, End], Coroutine[None, None, None]],
    keep_open: bool,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def converse() -> object:
        served, client = End(keep_open), End()
        await meet(served, client)
        await talk(served, client)
        await asyncio.gather(served.lost, client.lost)
        return [
            (end.events, len(end.received), bytes(end.received[:20]), end.transport.is_closing())
            for end in (served, client)
        ]

    assert on_virtual_loop(converse) == on_real_loop(converse, new_loop())
