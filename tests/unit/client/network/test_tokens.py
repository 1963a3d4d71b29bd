"""A POST that is bounded in time and size, against servers that are slow, mute or endless."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from trimtab.client.network.tokens import MAX_BODY_BYTES, Address, NoAnswer, post


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with suppress(OSError), listening.accept()[0] as connection:
                connection.recv(65536)
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def ask(port: int, read_timeout: float) -> tuple[int, bytes]:
    return post(Address("127.0.0.1", port, "/", None), b"a=b", {}, 5, read_timeout)


def test_a_body_that_drips_is_not_waited_for() -> None:
    """Each read gets its byte in time; the whole never comes."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"x")
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return

    with server(drip) as port, pytest.raises(NoAnswer, match=r"no answer within 0\.5 s"):
        ask(port, 0.5)


def test_a_server_that_is_mute() -> None:
    def listen(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    with (
        server(listen) as port,
        pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"),
    ):
        ask(port, 0.2)


def test_a_body_without_an_end_is_cut() -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with server(flood) as port:
        status, body = ask(port, 30)
    assert (status, len(body)) == (200, MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_what_is_no_answer(said: bytes) -> None:
    with server(lambda each: each.sendall(said)) as port, pytest.raises(NoAnswer):
        ask(port, 30)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(NoAnswer, match=r"cannot connect: .*refused"):
        ask(port, 1)
