"""Reads `bootstrap.servers`, the addresses that a client connects to first.

Source: `org.apache.kafka.clients.ClientUtils.parseAndValidateAddresses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trimtab.client.network.connection import Node
from trimtab.kafka.errors import UsageError

_SERVER = re.compile(
    r"(?:[0-9a-zA-Z\-%._]*://)?\[?(?P<host>[0-9a-zA-Z\-%._:]+)\]?:(?P<port>[0-9]{1,5})", re.ASCII
)


def checked_servers(given: object) -> str | tuple[str, ...]:
    """`bootstrap.servers` as a user may give it: one string, or several in any iterable.

    Raises:
        UsageError: neither.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview):
        servers = tuple(given)
        if all(isinstance(server, str) for server in servers):
            return servers
    raise UsageError(
        f"bootstrap.servers={given!r}: give host:port as text, such as '127.0.0.1:9092', several"
        " with commas or as a list; or a dictionary of options"
    )


def parse_bootstrap_servers(text: str | Iterable[str]) -> list[Node]:
    """`host:port` pairs, comma-separated or as a list, with the node ids -1, -2, …

    As in Kafka, a scheme (`PLAINTEXT://`) is ignored, because `security.protocol` determines how to
    connect; an IPv6 address may be in brackets; empty entries are ignored.

    Raises:
        UsageError: an entry is not `host:port`, or there is none.
    """
    entries = text.split(",") if isinstance(text, str) else list(text)
    places: dict[tuple[str, int], None] = {}
    for entry in (entry.strip() for entry in entries):
        if not entry:
            continue
        found = _SERVER.fullmatch(entry)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise UsageError(
                f"bootstrap.servers: {entry!r} is not host:port, such as 127.0.0.1:9092"
            )
        places[found["host"], int(found["port"])] = None
    if not places:
        raise UsageError(
            "bootstrap.servers is empty; name at least one broker, such as 127.0.0.1:9092"
        )
    return [Node(-1 - index, host, port) for index, (host, port) in enumerate(places)]
