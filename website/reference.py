"""The site's reference: a page for each table of options, and one for the Python API.

They are made from the definitions in the code when the site is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["TRIMTAB_PURE"] = "1"  # compiled functions have no signatures to show

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import trimtab
from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.cluster.config import BROKER, GROUP, TOPIC
from trimtab.kafka.options import Form, Option, OptionTable, Range, UpdateMode, write
from trimtab.spark.options.names import SINK, SOURCE

TABLES = {
    "producer": (PRODUCER, "`Producer` and `AsyncProducer` take these options."),
    "consumer": (CONSUMER, "`Consumer` and `AsyncConsumer` take these options."),
    "admin": (ADMIN, "`Admin` and `AsyncAdmin` take these options."),
    "topic": (
        TOPIC,
        "`Admin.create_topic(config=…)` and `trimtab topics --create --config` take these options;"
        " `trimtab configs --alter --topic` changes them.",
    ),
    "broker": (
        BROKER,
        "`Cluster(config=…)`, `trimtab cluster up --config` and the properties files of"
        " `trimtab broker` and `trimtab controller` take these options.",
    ),
    "group": (GROUP, "The options of one consumer group on trimtab's cluster."),
}
DYNAMIC = {
    UpdateMode.READ_ONLY: "changes need a restart",
    UpdateMode.PER_BROKER: "can be changed for one running broker at a time",
    UpdateMode.CLUSTER_WIDE: "can be changed while brokers run",
}
API = {
    "Clients": ("Producer", "Consumer", "Admin"),
    "Clients for asyncio": ("AsyncProducer", "AsyncConsumer", "AsyncAdmin"),
    "The embedded cluster": ("Cluster",),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {name: options_page(*table) for name, table in TABLES.items()}
    pages["spark-source"] = spark_page("source", "spark.read", SOURCE)
    pages["spark-sink"] = spark_page("sink", "df.write", SINK)
    pages["api"] = api_page()
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def options_page(table: OptionTable, taken_by: str) -> Iterator[str]:
    yield f"# {table.kind.capitalize()} options\n\n{taken_by}\n"
    for option in sorted(table, key=lambda option: option.name):
        yield from describe(option, is_of_broker=table is BROKER)
    if table.refused:
        yield "## Refused options\n\nOptions of Apache Kafka that trimtab does not take.\n"
        for name, instead in sorted(table.refused.items()):
            yield f"- `{name}{'*' if name.endswith('.') else ''}`: {instead}"


def describe(option: Option, is_of_broker: bool = False) -> Iterator[str]:
    default = write(option.default)
    facts = [f"{option.type.name.lower()}{f' ({option.unit})' if option.unit else ''}"]
    facts.append("no default" if default in (None, "") else f"default `{default}`")
    if isinstance(option.valid, Range):
        facts.append(str(option.valid))
    elif isinstance(option.valid, Form):
        facts.append(option.valid.says)
    elif option.words:
        facts.append("one of " + ", ".join(f"`{word}`" for word in option.words if word))
    if option.applies:
        facts.append(f"only for a {option.applies}")
    if is_of_broker and option.honoured:
        facts.append(DYNAMIC[option.dynamic])
    if option.kip:
        facts.append(option.kip)
    if not option.honoured:
        facts.append("accepted without effect")
    plain = option.doc.translate({ord("*"): r"\*", ord("<"): "&lt;"})
    yield from entry(option.name, plain, facts)


def spark_page(kind: str, call: str, options: tuple[Option, ...]) -> Iterator[str]:
    yield f'# Spark {kind} options\n\nThe options of `{call}.format("trimtab")`'
    yield f'and `{call}Stream.format("trimtab")`. Their names may have any case.\n'
    for option in options:
        yield from describe(option)


def entry(name: str, doc: str, facts: list[str]) -> Iterator[str]:
    yield f"## `{name}`\n\n{doc}\n\n{'; '.join(facts)}\n{{ .facts }}\n"


def api_page() -> Iterator[str]:
    yield "# Python API\n\nEverything that `trimtab` exports.\n"
    grouped = {name for names in API.values() for name in names}
    others = [name for name in trimtab.__all__ if name not in grouped]
    errors = [name for name in others if is_error(name)]
    rest = {"Values": [name for name in others if name not in errors], "Errors": errors}
    for heading, names in {**API, **rest}.items():
        yield f"## {heading}\n"
        yield from (f"::: trimtab.{name}\n" for name in names)


def is_error(name: str) -> bool:
    exported = getattr(trimtab, name)
    return name == "ErrorCode" or (isinstance(exported, type) and issubclass(exported, Exception))
