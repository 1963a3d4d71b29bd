"""The same conversations on the real loops, over sockets, and on the virtual loop."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import pytest
import uvloop

import trimtab
from trimtab.sim.world import World
from trimtab.threads.event_loop import new_event_loop


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


SOURCES = Path(trimtab.__file__).parent
NOT_OF_LOOPS = {("cluster/coordinator", "max_size"), ("cli", "when"), ("spark", "when")}
"""Names that loops differ in, but which are something else in that room."""

Names = dict[str, set[str]]


async def name_everything() -> Names:
    """The public names of what a loop gives its users."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        pass

    served, client = End(), End()
    server = await meet(served, client)
    task = loop.create_task(work())
    await task
    found = {
        "loop": loop,
        "handle": loop.call_soon(int),
        "timer": loop.call_later(1000, int),
        "late timer": loop.call_at(loop.time() - 1, int),
        "timer without delay": loop.call_later(0, int),
        "future": loop.create_future(),
        "task": task,
        "server": server,
        "client's transport": client.transport,
        "server's transport": served.transport,
    }
    found["timer"].cancel()  # type: ignore[attr-defined]
    client.transport.close()
    await asyncio.gather(served.lost, client.lost)
    return {kind: _list_names(each) for kind, each in found.items()}


def _list_names(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


def used_names() -> dict[str, str]:
    """Every attribute that the sources use outside the simulation, and where."""
    return {
        node.attr: f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        if path.parent.name != "sim"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and not any(
            str(path.relative_to(SOURCES)).startswith(room) and node.attr == name
            for room, name in NOT_OF_LOOPS
        )
    }


def test_the_sources_use_only_what_all_loops_have() -> None:
    async def look() -> object:
        return await name_everything()

    virtual = cast(Names, on_virtual_loop(look))
    real = [
        cast(Names, on_real_loop(look, new_loop()))
        for new_loop in (asyncio.SelectorEventLoop, uvloop.new_event_loop)
    ]
    used = used_names()
    for kind in virtual:
        some = set.union(*(each[kind] for each in real))
        all_have = set.intersection(virtual[kind], *(each[kind] for each in real))
        wrong = {name: used[name] for name in used.keys() & (some - all_have)}
        assert not wrong, f"not every loop's {kind} has it"


async def set_timers() -> object:
    """What runs, and in which order, of timers that are late, due, cancelled and put off."""
    loop = asyncio.get_running_loop()
    ran: list[object] = []
    start = loop.time()
    late = loop.call_at(start - 5, ran.append, "late")
    loop.call_at(start, ran.append, "due")
    loop.call_later(-1, ran.append, "before now")
    cancelled = loop.call_at(start - 5, ran.append, "cancelled")
    cancelled.cancel()
    later = loop.call_later(0.02, ran.append, "later")
    never = loop.call_later(1000, ran.append, "never")
    never.cancel()
    never.cancel()
    loop.call_soon(ran.append, "soon")
    ran.append([each.cancelled() for each in (late, cancelled, later, never)])
    await asyncio.sleep(0.05)
    late.cancel()  # it has run
    return sorted(map(str, ran)), cancelled.cancelled(), never.cancelled()


async def fail_in_callbacks() -> object:
    """Who is told of an exception in a timer, in a callback and in a transport's protocol."""
    loop = asyncio.get_running_loop()
    told: list[str] = []
    loop.set_exception_handler(lambda _, context: told.append(str(context.get("exception"))))

    def fail(name: str) -> None:
        raise RuntimeError(name)

    loop.call_soon(fail, "soon")
    loop.call_at(loop.time() - 1, fail, "late")
    loop.call_later(0.01, fail, "later")
    await asyncio.sleep(0.03)
    return sorted(told)


async def use_a_closed_transport() -> object:
    """What may be done with a transport once it closes, and once it is lost."""
    served, client = End(), End()
    await meet(served, client)
    client.transport.close()
    asked: list[object] = []
    for _ in range(2):
        transport = client.transport
        asked.append(transport.is_closing())
        transport.pause_reading()
        transport.resume_reading()
        transport.close()
        transport.abort()
        asked.append(transport.get_write_buffer_size())
        asked.append(transport.get_extra_info("no such name", "default"))
        await asyncio.gather(served.lost, client.lost)
    return asked, client.events, served.events


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("use", [set_timers, fail_in_callbacks, use_a_closed_transport])
def test_what_the_sources_use_does_the_same_on_each_loop(
    use: Conversation, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    assert on_virtual_loop(use) == on_real_loop(use, new_loop())
