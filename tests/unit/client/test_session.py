"""What a consumer or an admin client holds."""

from __future__ import annotations

from random import Random

import pytest

from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.options import ADMIN, CONSUMER
from trimtab.client.session import Session, isolation
from trimtab.errors import UsageError


def test_servers_are_given_by_position_or_by_name() -> None:
    by_position = Session(CONSUMER, ["a:1", "b:2"], {}, Random(1))
    by_name = Session(CONSUMER, None, {"bootstrap.servers": "a:1, b:2"}, Random(1))
    for session in (by_position, by_name):
        assert [(node.host, node.port) for node in session.connections.bootstrap] == [
            ("a", 1),
            ("b", 2),
        ]


@pytest.mark.parametrize("servers", ["", "a", "a:", "a:0", "a:70000", [":1"]])
def test_servers_that_cannot_be_reached_are_refused(servers: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers"):
        Session(ADMIN, servers, {}, Random(1))


def test_times_are_in_seconds() -> None:
    session = Session(ADMIN, "a:1", {"default_api_timeout_ms": 1500}, Random(1))
    assert session.timeout == 1.5


def test_isolation_is_an_option() -> None:
    session = Session(CONSUMER, "a:1", {"isolation.level": "read_committed"}, Random(1))
    assert isolation(session.options) is Isolation.READ_COMMITTED
