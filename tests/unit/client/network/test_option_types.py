"""The types of keyword options say what the tables of options say.

After a change of a table this writes them: `python -m tests.unit.client.network.test_option_types`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

from trimtab.client.network import option_types
from trimtab.client.network.authentication import TokenSource
from trimtab.client.network.option_types import (
    AdminOptions,
    ConsumerOptions,
    HasPartition,
    ProducerOptions,
)
from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.kafka.options import Form, Option, OptionTable, OptionType
from trimtab.kafka.records import Deserializer

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
        found = str | float if option.name == "partitioner.balance" else str
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


WRITTEN = Path(option_types.__file__)
SPELLED = {
    "partitioner.class": "str | Callable[..., object] | HasPartition",
    "sasl.oauthbearer.token": "TokenSource",
    "partitioner.balance": "str | float",
}
TYPES = {
    OptionType.BOOLEAN: "bool",
    OptionType.INT: "int",
    OptionType.LIST: "str | Sequence[str]",
    OptionType.LONG: "int",
    OptionType.PASSWORD: "str",
    OptionType.STRING: "str",
}


def spell(option: Option) -> str:
    if option.type is OptionType.STRING and option.words:
        words = [f'"{word}"' for word in option.words]
        words += [word for word in option.words if word.lstrip("-").isdigit()]
        return f"Literal[{', '.join(words)}]"
    return SPELLED.get(option.name) or TYPES[option.type]


def fields(options: Iterable[Option], others: Iterable[str] = ()) -> list[str]:
    lines = [f"    {option.name.replace('.', '_')}: {spell(option)} | None" for option in options]
    return sorted([*lines, *(f"    {name}: Deserializer | None" for name in others)])


def write_types() -> str:
    """The text of the module: its head as it is, and the classes as the tables have them."""
    head = WRITTEN.read_text(encoding="utf-8").partition("class ConnectionOptions")[0]
    shared = [option for option in ADMIN if option.name in PRODUCER and option.name in CONSUMER]
    lines = ["class ConnectionOptions(TypedDict, total=False):", '    """Of every client."""', ""]
    lines += fields(option for option in shared if option.name != "bootstrap.servers")
    for table, others in ((PRODUCER, ()), (CONSUMER, DESERIALIZERS), (ADMIN, ())):
        own = [option for option in table if option.name not in {each.name for each in shared}]
        kind = table.kind.capitalize()
        lines += ["", "", f"class {kind}Options(ConnectionOptions, total=False):"]
        lines += fields(own, others)
    return head + "\n".join(lines) + "\n"


def test_the_types_are_written_from_the_tables() -> None:
    assert WRITTEN.read_text(encoding="utf-8") == write_types()


if __name__ == "__main__":
    WRITTEN.write_text(write_types(), encoding="utf-8")
