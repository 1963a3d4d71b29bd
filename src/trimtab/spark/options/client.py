"""What the source and the sink read alike: the client's options, the cluster and the rack.

Tests: test_source.py
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NoReturn

from trimtab.kafka.errors import UsageError
from trimtab.spark.options.values import GivenOptions

PREFIX: Final = "kafka."
"""The names of the client's options begin with it."""
SERVERS: Final = "bootstrap.servers"

_SECURITY = ("sasl.", "security.", "ssl.")
"""Options of security are never ignored: the client refuses those that it does not know."""
SLIP: Final = 0.85
"""Minimum similarity (difflib) of an unknown name to a known one to count as misspelled."""


def read_client(
    given: GivenOptions,
    kind: Literal["consumer", "producer"],
    refused: Mapping[str, str],
    where: str,
    without_effect: Collection[str],
) -> tuple[dict[str, str], list[str]]:
    """The client's options, without their prefix, and the names of given ones without effect.

    Options that the client itself refuses, such as Java's trust stores, are left to it.

    Args:
        refused: the options that Spark's source or sink decides, and why.
        where: where these cannot be set, for the error.
        without_effect: options of Java's client that change nothing here, or how they begin, with a
            dot at the end.

    Raises:
        UsageError: an option is refused or probably misspelled, or the cluster has two addresses.
    """
    client: dict[str, str] = {}
    unused: list[str] = []
    for name, value in given.by_name.items():
        if not name.startswith(PREFIX):
            continue
        short = name.removeprefix(PREFIX)
        if short in refused:
            raise UsageError(f"option {name} cannot be set {where}: {refused[short]}")
        if _is_unused(short, kind, without_effect):
            unused.append(name)
        else:
            client[short] = value
    servers = one_of(given, client, SERVERS, SERVERS)
    if not servers:
        refuse_missing_servers(given)
    return {**client, SERVERS: servers}, unused


def read_rack(given: GivenOptions, client: dict[str, str]) -> str:
    """The rack as `resolve_rack` takes it; empty if there is none.

    Args:
        client: the client's options; `client.rack` is removed.

    Raises:
        UsageError: two racks, or a variable without a name.
    """
    rack = one_of(given, client, "clientRack", "client.rack")
    if rack == "env:":
        raise UsageError("option clientRack='env:' names no environment variable: write env:NAME")
    return rack


def resolve_rack(client_rack: str) -> str:
    """The rack that the option `clientRack` gives for this process.

    Args:
        client_rack: a rack, or `env:NAME` for the value of an environment variable.

    Raises:
        UsageError: the variable is not set.
    """
    if not client_rack.startswith("env:"):
        return client_rack
    name = client_rack.removeprefix("env:")
    rack = os.environ.get(name, "").strip()
    if not rack:
        raise UsageError(
            f"option clientRack={client_rack!r}: this process has no environment variable {name};"
            f" set it for executors, for instance as spark.executorEnv.{name}"
        )
    return rack


def one_of(given: GivenOptions, client: dict[str, str], name: str, client_name: str) -> str:
    """The value of an option with two names; removes it from the client's options.

    Raises:
        UsageError: the two names have different values.
    """
    own, clients = given.text(name) or "", client.pop(client_name, "").strip()
    if own and clients and own != clients:
        raise UsageError(
            f"options {name}={own!r} and kafka.{client_name}={clients!r} contradict each other:"
            " give one of them"
        )
    return own or clients


def refuse_missing_servers(given: GivenOptions) -> NoReturn:
    """Raises UsageError, which names the option that is probably misspelled, if there is one."""
    names = (PREFIX + SERVERS, SERVERS)
    for name in given.by_name:
        if name not in names and difflib.get_close_matches(name, names, n=1, cutoff=SLIP):
            raise UsageError(f"unknown option {name}: did you mean {names[0]}?")
    raise UsageError(f"option {names[0]} is missing: give the cluster's addresses, HOST:PORT,…")


def refuse_misspelled(name: str, known: Iterable[str]) -> None:
    """Refuse an unknown lower-case name that resembles a known one.

    Raises:
        UsageError: with the known name that was probably meant.
    """
    spelled = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name, spelled, n=1, cutoff=SLIP)
    if nearest:
        raise UsageError(f"unknown option {name}: did you mean {spelled[nearest[0]]}?")


def _is_unused(name: str, kind: str, without_effect: Collection[str]) -> bool:
    # Imported here, because a commit on the driver also imports this module and needs no client.
    from trimtab.client.network.refused_options import FOREIGN
    from trimtab.client.options import ADMIN, CONSUMER, PRODUCER

    tables = {table.kind: table for table in (ADMIN, CONSUMER, PRODUCER)}
    taken = tables.pop(kind)
    if name in without_effect or any(
        option_name.endswith(".") and name.startswith(option_name) for option_name in without_effect
    ):
        return True
    if taken.knows(name) or name.startswith(_SECURITY) or name in FOREIGN:
        return False
    if not any(other.knows(name) for other in tables.values()):
        refuse_misspelled(PREFIX + name, (PREFIX + option.name for option in taken))
    return True
