"""A message about a cluster that cannot be reached, while the command keeps trying."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.cli.options import DEFAULT_BOOTSTRAP_SERVERS
from trimtab.cli.style import say_warning

if TYPE_CHECKING:
    from trimtab.client.network.connection import Node

PATIENCE_S = 1.0
"""Seconds before the check: most commands have ended by then."""

CONNECT_S = 1.0
"""Seconds within which an address must accept a connection."""


@contextmanager
def report_unreachable(options: dict[str, Any]) -> Iterator[None]:
    """Print one line on standard error if the block still runs after a second and no bootstrap
    server accepts a connection. The block is not interrupted.

    Args:
        options: client options, by dotted name.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(options, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()


def _watch(options: dict[str, Any], over: threading.Event) -> None:
    from trimtab.client.network.bootstrap import parse_bootstrap_servers
    from trimtab.kafka.errors import UsageError

    if over.wait(PATIENCE_S):
        return
    try:
        nodes = parse_bootstrap_servers(options["bootstrap.servers"])
    except UsageError:
        return  # the client reports the error
    reason = _try(nodes)
    if reason is not None and not over.is_set():
        say_warning(describe(options["bootstrap.servers"], reason))


def describe(servers: object, reason: str) -> str:
    """The line to print."""
    remedy = "start a cluster with `trimtab cluster up`"
    if servers != DEFAULT_BOOTSTRAP_SERVERS:
        remedy += ", or name another with --bootstrap-server"
    return f"cannot reach {servers} ({reason}); is it running? {remedy}. Still trying …"


def _try(nodes: Sequence[Node]) -> str | None:
    """None if a node accepts a connection; else the reason why the last node tried did not."""
    reason = "no address"
    began = time.monotonic()
    for node in nodes:
        if time.monotonic() - began > CONNECT_S:
            break
        try:
            socket.create_connection((node.host, node.port), CONNECT_S).close()
        except TimeoutError:
            reason = "no answer"
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return None
    return reason
