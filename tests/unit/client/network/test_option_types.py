"""The types of keyword options say what the tables of options say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_type_hints

import pytest

from trimtab.client.network.authentication import TokenSource
from trimtab.client.network.option_types import (
    AdminOptions,
    ConsumerOptions,
    HasPartition,
    ProducerOptions,
)
from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.config import Form, Option, OptionTable, OptionType
from trimtab.records import Deserializer

BY_TYPE = {
    OptionType.BOOLEAN: bool,
    OptionType.INT: int,
    OptionType.LIST: str | Sequence[str],
    OptionType.LONG: int,
    OptionType.PASSWORD: str,
    OptionType.STRING: str,
}
OBJECTS = {
    "partitioner.class": str | Callable[..., object] | HasPartition,
    "sasl.oauthbearer.token": TokenSource,
}
"""Options that take objects."""
DESERIALIZERS = {f"{part}_deserializer": Deserializer | None for part in ("key", "value")}


def type_of(option: Option) -> Any:
    if option.name in OBJECTS:
        found: Any = OBJECTS[option.name]
    elif isinstance(option.valid, Form):
        found = str | float
    elif option.type is OptionType.STRING and option.valid is not None:
        words = [str(word) for word in option.valid]
        found = Literal[*words, *(int(word) for word in words if word.lstrip("-").isdigit())]
    else:
        found = BY_TYPE[option.type]
    return found | None


@pytest.mark.parametrize(
    ("types", "table", "others"),
    [
        (ProducerOptions, PRODUCER, {}),
        (ConsumerOptions, CONSUMER, DESERIALIZERS),
        (AdminOptions, ADMIN, {}),
    ],
    ids=["producer", "consumer", "admin"],
)
def test_every_option_has_its_type(types: type, table: OptionTable, others: dict[str, Any]) -> None:
    """All but the servers, which are an argument of their own."""
    expected = {option.name.replace(".", "_"): type_of(option) for option in table} | others
    del expected["bootstrap_servers"]
    assert get_type_hints(types) == expected
