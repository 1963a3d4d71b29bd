"""`bootstrap.servers`, read as Java's clients read it."""

from __future__ import annotations

import pytest

from trimtab.client.network.bootstrap import checked_servers, parse_bootstrap_servers
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a:1", [Node(-1, "a", 1)]),
        (" a:1 , b:2,", [Node(-1, "a", 1), Node(-2, "b", 2)]),
        (["a:1", "[::1]:2"], [Node(-1, "a", 1), Node(-2, "::1", 2)]),
        (
            "PLAINTEXT://a:1,SASL_SSL://[fe80::1%eth0]:2",
            [Node(-1, "a", 1), Node(-2, "fe80::1%eth0", 2)],
        ),
        ("anything-at.all://my_host.example:9092", [Node(-1, "my_host.example", 9092)]),
        ("::1:9092", [Node(-1, "::1", 9092)]),
        ("a:1,,a:1", [Node(-1, "a", 1)]),
    ],
)
def test_bootstrap_servers(text: str | list[str], nodes: list[Node]) -> None:
    assert parse_bootstrap_servers(text) == nodes


@pytest.mark.parametrize(
    "text",
    [
        *("", " , ", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,b", "PLAINTEXT://a", "//a:1"),
        *("http://a/b:1", "a:1/b", "user@a:1", "ä:1", "a:\u0661", "a:111111"),
    ],
)
def test_bootstrap_servers_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers"):
        parse_bootstrap_servers(text)


def test_servers_come_in_any_iterable() -> None:
    assert checked_servers("a:1,b:2") == "a:1,b:2"
    assert checked_servers(name for name in ("a:1", "b:2")) == ("a:1", "b:2")
    assert checked_servers({"a:1"}) == ("a:1",)
