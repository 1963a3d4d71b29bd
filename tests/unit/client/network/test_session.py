"""What every client holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from trimtab.client.fetcher.offsets import Isolation, isolation_of
from trimtab.client.network.session import Session
from trimtab.client.options import ADMIN, CONSUMER, client_options
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import OptionTable


def session_of(table: OptionTable, servers: Any, given: dict[str, object]) -> Session:
    return Session(client_options(table, servers, given), Random(1))


def test_servers_are_given_by_position_or_by_name() -> None:
    by_position = session_of(CONSUMER, ["a:1", "b:2"], {})
    by_name = session_of(CONSUMER, None, {"bootstrap.servers": "a:1, b:2"})
    for session in (by_position, by_name):
        assert [(node.host, node.port) for node in session.connections.bootstrap] == [
            ("a", 1),
            ("b", 2),
        ]


@pytest.mark.parametrize("servers", ["", "a", "a:", "a:0", "a:70000", [":1"]])
def test_servers_that_cannot_be_reached_are_refused(servers: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers"):
        session_of(ADMIN, servers, {})


def test_times_are_in_seconds() -> None:
    session = session_of(ADMIN, "a:1", {"default_api_timeout_ms": 1500})
    assert session.timeout == 1.5


def test_isolation_is_an_option() -> None:
    session = session_of(CONSUMER, "a:1", {"isolation.level": "read_committed"})
    assert isolation_of(session.options) is Isolation.READ_COMMITTED
