"""An option of clients, brokers, topics, groups or Spark is declared once, and read in its type."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.cluster.config import BROKER, CLIENT_METRICS, GROUP, TOPIC
from trimtab.kafka.options import Option
from trimtab.spark.options.names import SINK, SOURCE

SOURCES = Path(__file__).resolve().parents[2] / "src"

TABLES: dict[str, Iterable[Option]] = {
    **{table.kind: table for table in (PRODUCER, CONSUMER, ADMIN, TOPIC, BROKER, GROUP)},
    "client metrics": CLIENT_METRICS,
    "Spark source": SOURCE,
    "Spark sink": SINK,
}

TWO_OPTIONS = {
    "compression.type": "a producer's codec; or a topic's, which may be the producer's",
    "connections.max.idle.ms": "a client closes connections before a broker does",
    "fetch.max.bytes": "what a consumer asks for; or what a broker sends at most",
    "request.timeout.ms": "a client's; a broker's has no effect, and Kafka gives it no range",
    "transaction.two.phase.commit.enable": "a producer asks for it; a broker allows it",
}
"""Names that Kafka gives to two options, one of clients and one of brokers or topics."""

OF_EACH_CLIENT = {"connections.max.idle.ms", "receive.buffer.bytes"}
"""Declared once for all clients, whose kinds have defaults of their own."""

DECLARING = (
    *("Option", "boolean", "string", "strings", "int16", "int32", "int64", "double", "function"),
    "password",
)
READING = ("flag", "number", "seconds", "size", "text", "word")


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def modules(folder: str = "") -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((SOURCES / "trimtab" / folder).rglob("*.py")):
        yield str(path.relative_to(SOURCES)), ast.parse(path.read_text(encoding="utf-8"))


def declared(tree: ast.AST) -> Iterator[str]:
    for call in calls(tree):
        if isinstance(call.func, ast.Name) and call.func.id in DECLARING and call.args:
            name = call.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value)


def read_with_cast(tree: ast.AST) -> Iterator[str]:
    """Casts of what a config or a table of options has by name, or of the whole."""
    for call in calls(tree):
        if isinstance(call.func, ast.Name) and call.func.id == "cast" and len(call.args) == 2:
            read = call.args[1]
            whole = read.value if isinstance(read, ast.Subscript) else read
            if ast.unparse(whole).endswith(("config", "options", "values")):
                yield f"line {call.lineno}: {ast.unparse(call)}"


def test_no_option_is_declared_twice() -> None:
    places = defaultdict(list)
    for module, tree in modules():
        for name in declared(tree):
            places[name].append(module)
    assert len(places) > 250  # else the declarations have another form
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == TWO_OPTIONS.keys(), twice
    assert {name: len(found) for name, found in twice.items()} == dict.fromkeys(TWO_OPTIONS, 2)


def test_options_of_one_name_agree() -> None:
    meanings: defaultdict[str, dict[object, list[str]]] = defaultdict(dict)
    for kind, table in TABLES.items():
        for option in table:
            meaning = (option.type, option.default, option.valid, option.unit)
            meanings[option.name].setdefault(meaning, []).append(kind)
    differing = {name: found for name, found in meanings.items() if len(found) > 1}
    assert differing.keys() <= TWO_OPTIONS.keys() | OF_EACH_CLIENT, differing


def test_a_topics_and_a_groups_defaults_are_the_brokers() -> None:
    of_broker = [
        (option, BROKER[name])
        for table in (TOPIC, GROUP)
        for option in table
        for name in option.synonyms
        if BROKER[name].unit == option.unit and BROKER[name].default is not None
    ]
    assert len(of_broker) > 20
    assert [option.name for option, broker in of_broker if option.default != broker.default] == []


def test_casts_of_values_are_found() -> None:
    bad = "cast(int, config['a'])\ncast('M', self.view.config)\ncast(str, options[name])\n"
    assert len(list(read_with_cast(ast.parse(bad)))) == 3
    assert list(read_with_cast(ast.parse("cast(bytes, record.key)\nconfig.integer('a')"))) == []


def test_values_are_read_in_their_type_and_not_cast() -> None:
    found = [f"{module}, {use}" for module, tree in modules() for use in read_with_cast(tree)]
    assert found == []


def test_a_default_of_sparks_options_stands_in_the_table_only() -> None:
    reads = [
        call
        for _, tree in modules("spark/options")
        for call in calls(tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in READING
        and ast.unparse(call.func.value) == "given"
    ]
    assert len(reads) > 20
    assert [ast.unparse(call) for call in reads if len(call.args) + len(call.keywords) > 1] == []
