"""How a token gets here: by one POST that is bounded in time and size, or from a file.

`urllib` would send the credentials on to where a redirect leads, and neither it nor `http.client`
bounds the time of the whole answer.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple

MAX_BODY_BYTES: Final = 1_000_000


class NoAnswer(Exception):
    """There is no answer, or no file. Neither a request nor an answer is in the text."""


class Address(NamedTuple):
    """Where to post to.

    Attributes:
        port: None for the protocol's own.
        path: with the query, if there is one.
        tls: None for plain HTTP.
    """

    host: str
    port: int | None
    path: str
    tls: ssl.SSLContext | None


def post(
    to: Address,
    body: bytes,
    headers: Mapping[str, str],
    connect_timeout: float,
    read_timeout: float,
) -> tuple[int, bytes]:
    """The status and the body of the answer; waits on this thread.

    Args:
        connect_timeout: seconds for each of the host's addresses.
        read_timeout: seconds for all the rest: the TLS handshake, the request and the answer.

    Raises:
        NoAnswer: no connection, no answer in time, or an answer that is not HTTP.
    """
    http = (HTTPConnection if to.tls is None else HTTPSConnection)(to.host, to.port)
    try:
        connected = socket.create_connection((to.host, http.port), connect_timeout)
    except OSError as error:
        raise NoAnswer(f"cannot connect: {error}") from error
    is_over = threading.Event()
    try:
        connected.settimeout(read_timeout)
        if to.tls is not None:
            connected = to.tls.wrap_socket(
                connected, server_hostname=to.host, do_handshake_on_connect=False
            )

        def end_connection() -> None:
            is_over.set()
            with suppress(OSError):  # it has just been closed
                # Not a TLS socket's own `shutdown`: that would make it send in plain text.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

        watch = threading.Timer(read_timeout, end_connection)
        watch.daemon = True
        watch.start()
        try:
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            http.sock = connected
            http.request("POST", to.path, body, dict(headers))
            with http.getresponse() as answer:
                found = answer.read(MAX_BODY_BYTES)
                if is_over.is_set() or (answer.length and len(found) < MAX_BODY_BYTES):
                    raise ConnectionError("the answer ended early")  # which `read` does not tell
                return answer.status, found
        finally:
            watch.cancel()
    except (OSError, HTTPException, ValueError) as error:
        if is_over.is_set() or isinstance(error, TimeoutError):
            raise NoAnswer(f"no answer within {read_timeout:g} s") from error
        raise NoAnswer(f"{type(error).__name__}: {error}") from error
    finally:
        connected.close()


def read_file(path: str) -> str:
    """The text of a file, without the space around it.

    Raises:
        NoAnswer: it cannot be read.
    """
    try:
        with open(path, encoding="ascii") as file:
            return file.read(MAX_BODY_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoAnswer(str(error)) from error
