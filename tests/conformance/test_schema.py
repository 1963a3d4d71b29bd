"""Compares trimtab's message classes with Kafka's own definitions, field by field.

The definitions are JSON files in the jars of Apache Kafka 4.3.0: kafka-clients, and beside it
kafka-metadata and kafka-group-coordinator. `TRIMTAB_KAFKA_CLIENTS_JAR` is the path of the first;
without it, ~/.cache and ~/.m2 are searched.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.kafka.wire.messages import APIS, OWN_APIS_FROM
from trimtab.kafka.wire.messages.control_records import CONTROL_RECORDS
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.group_records import KEYS, VALUES
from trimtab.kafka.wire.messages.metadata_records import RECORDS
from trimtab.kafka.wire.messages.transaction_records import TransactionLogKey, TransactionLogValue
from trimtab.kafka.wire.schema import Field, Schema, schema
from trimtab.kafka.wire.types import MAX_INT16, NO_VERSIONS, ZERO_UUID, Versions

VERSION = "4.3.0"
CLIENTS_JAR = f"kafka-clients-{VERSION}.jar"
METADATA_JAR = f"kafka-metadata-{VERSION}.jar"
GROUPS_JAR = f"kafka-group-coordinator-{VERSION}.jar"
TRANSACTIONS_JAR = f"kafka-transaction-coordinator-{VERSION}.jar"

ZEROS: dict[str, object] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
    "float64": 0.0,
}

RENAMED = {
    "DirectoryDataResponse": "DirectoryData",
    "PartitionDataResponse": "PartitionData",
    "PartitionSnapshotResponse": "PartitionSnapshot",
    "ReachableVoter": "Voter",
    "TopicDataResponse": "TopicData",
    "TopicSnapshotResponse": "TopicSnapshot",
}
"""By trimtab's name, structs whose Kafka name appears twice among the messages of one file here."""


@pytest.fixture(scope="module")
def clients_jar() -> Iterator[zipfile.ZipFile]:
    given = os.environ.get("TRIMTAB_KAFKA_CLIENTS_JAR")
    folders = (Path.home() / ".cache", Path.home() / ".m2")
    found = (
        [Path(given)] if given else [path for each in folders for path in each.rglob(CLIENTS_JAR)]
    )
    if not found:
        pytest.skip(f"no {CLIENTS_JAR}: name one in TRIMTAB_KAFKA_CLIENTS_JAR")
    with zipfile.ZipFile(found[0]) as jar:
        yield jar


@pytest.fixture(scope="module")
def metadata_jar(clients_jar: zipfile.ZipFile) -> Iterator[zipfile.ZipFile]:
    with open_neighbour(clients_jar, METADATA_JAR) as jar:
        yield jar


@pytest.fixture(scope="module")
def groups_jar(clients_jar: zipfile.ZipFile) -> Iterator[zipfile.ZipFile]:
    with open_neighbour(clients_jar, GROUPS_JAR) as jar:
        yield jar


@pytest.fixture(scope="module")
def transactions_jar(clients_jar: zipfile.ZipFile) -> Iterator[zipfile.ZipFile]:
    with open_neighbour(clients_jar, TRANSACTIONS_JAR) as jar:
        yield jar


def open_neighbour(clients_jar: zipfile.ZipFile, name: str) -> zipfile.ZipFile:
    clients = Path(str(clients_jar.filename))
    artifact = name.removesuffix(f"-{VERSION}.jar")
    in_maven = clients.parent.parent.parent / artifact / VERSION / name
    found = [path for path in (clients.with_name(name), in_maven) if path.exists()]
    if not found:
        pytest.skip(f"no {name} beside {clients}")
    return zipfile.ZipFile(found[0])


def read_definition(jar: zipfile.ZipFile, path: str) -> dict[str, Any]:
    text = jar.read(path).decode()
    definition: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", [])}
    _spell_out(definition["fields"], common)
    return definition


def _spell_out(fields: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]]) -> None:
    """Insert the fields of common structs, defined at the end of a file, where they are used."""
    for declared in fields:
        kind = declared["type"].removeprefix("[]")
        if kind in common:
            declared["fields"] = common[kind]
        _spell_out(declared.get("fields", []), common)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def versions(text: str | None) -> Versions:
    return NO_VERSIONS if text in (None, "none") else Versions.parse(str(text))


def expected_default(declared: dict[str, Any], kind: str) -> object:
    """The default as a Python value; for a struct its name."""
    is_primitive = kind in ZEROS or kind.startswith(("int", "uint"))
    text = declared.get("default", "")
    if text is None:
        return None
    if "default" not in declared:
        if declared["type"].startswith("[]"):
            return []
        return ZEROS.get(kind, 0) if is_primitive else kind
    if text == "null":
        return None
    if kind == "bool":
        return text in (True, "true")
    if kind == "string":
        return text
    return int(str(text), 0)


def facts_of_definition(declared: dict[str, Any]) -> dict[str, object]:
    kind = declared["type"].removeprefix("[]")
    return {
        "name": snake_case(declared["name"]),
        "type": kind,
        "is array": declared["type"].startswith("[]"),
        "versions": versions(declared.get("versions", declared.get("taggedVersions"))),
        "nullable versions": versions(declared.get("nullableVersions")),
        "tag": declared.get("tag"),
        "tagged versions": versions(declared.get("taggedVersions")),
        "default": expected_default(declared, kind),
        "ignorable": declared.get("ignorable", False),
    }


def facts_of_field(declared: Field) -> dict[str, object]:
    default = declared.default
    return {
        "name": declared.name,
        "type": RENAMED.get(declared.type.name, declared.type.name),
        "is array": declared.is_array,
        "versions": declared.versions,
        "nullable versions": declared.nullable_versions,
        "tag": declared.tag,
        "tagged versions": declared.tagged_versions,
        "default": default.__name__ if isinstance(default, type) else default,
        "ignorable": declared.ignorable,
    }


def field_differences(ours: Schema, theirs: list[dict[str, Any]]) -> Iterator[str]:
    our_names = [each.name for each in ours.fields]
    their_names = [snake_case(each["name"]) for each in theirs]
    if our_names != their_names:
        yield f"{ours.name}: fields {our_names}, Kafka has {their_names}"
    by_name = {snake_case(each["name"]): each for each in theirs}
    for declared in ours.fields:
        definition = by_name.get(declared.name)
        if definition is None:
            continue
        if declared.required and "default" in definition:
            yield f"{ours.name}.{declared.name}: required, Kafka has a default"
        expected = facts_of_definition(definition)
        for fact, value in facts_of_field(declared).items():
            # True equals 1, so the type is compared too.
            if (type(value), value) != (type(expected[fact]), expected[fact]):
                yield f"{ours.name}.{declared.name}: {fact} {value}, Kafka has {expected[fact]}"
        nested = definition.get("fields", [])
        if isinstance(declared.type, Schema):
            yield from field_differences(declared.type, nested)


def differences(cls: type, definition: dict[str, Any]) -> Iterator[str]:
    ours = schema(cls)
    expected = {
        "name": definition["name"],
        "api key": definition["apiKey"],
        "versions": versions(definition["validVersions"]),
        "flexible versions": versions(definition["flexibleVersions"]),
    }
    found = {
        "name": ours.name,
        "api key": ours.api_key,
        "versions": ours.versions,
        "flexible versions": ours.flexible,
    }
    for fact, value in found.items():
        if value != expected[fact]:
            yield f"{ours.name}: {fact} {value}, Kafka has {expected[fact]}"
    yield from field_differences(ours, definition["fields"])


KAFKAS = [api for key, api in APIS.items() if key < OWN_APIS_FROM]
MESSAGES = [cls for api in KAFKAS for cls in (api.request, api.response)]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_message_is_as_kafka_defines_it(cls: type, clients_jar: zipfile.ZipFile) -> None:
    definition = read_definition(clients_jar, f"common/message/{cls.__name__}.json")
    assert list(differences(cls, definition)) == []


@pytest.mark.parametrize("cls", RECORDS.values(), ids=lambda cls: cls.__name__)
def test_metadata_record_is_as_kafka_defines_it(cls: type, metadata_jar: zipfile.ZipFile) -> None:
    definition = read_definition(metadata_jar, f"common/metadata/{cls.__name__}.json")
    assert list(differences(cls, definition)) == []


@pytest.mark.parametrize("cls", [*KEYS, *VALUES], ids=lambda cls: cls.__name__)
def test_record_of_a_group_is_as_kafka_defines_it(cls: type, groups_jar: zipfile.ZipFile) -> None:
    definition = read_definition(groups_jar, f"common/message/{cls.__name__}.json")
    assert list(differences(cls, definition)) == []


@pytest.mark.parametrize("cls", [TransactionLogKey, TransactionLogValue])
def test_record_of_a_transaction_is_as_kafka_defines_it(
    cls: type, transactions_jar: zipfile.ZipFile
) -> None:
    definition = read_definition(transactions_jar, f"common/message/{cls.__name__}.json")
    assert list(differences(cls, definition)) == []


@pytest.mark.parametrize(("kind", "cls"), CONTROL_RECORDS.items())
def test_control_record_is_as_kafka_defines_it(
    kind: int, cls: type, clients_jar: zipfile.ZipFile
) -> None:
    definition = read_definition(clients_jar, f"common/message/{cls.__name__}.json")
    assert list(differences(cls, definition | {"apiKey": kind})) == []


@pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.name)
def test_api_serves_every_stable_version(api: Any, clients_jar: zipfile.ZipFile) -> None:
    definition = read_definition(clients_jar, f"common/message/{api.name}Request.json")
    valid = versions(definition["validVersions"])
    highest = valid.high - int(definition.get("latestVersionUnstable", False))
    flexible = versions(definition["flexibleVersions"])
    assert (api.key, api.min_version, api.max_version, api.flexible_from) == (
        definition["apiKey"],
        valid.low,
        highest,
        flexible.low if flexible else MAX_INT16 + 1,
    )


def test_records_are_listed_under_their_own_key() -> None:
    assert {key: schema(cls).api_key for key, cls in RECORDS.items()} == {
        key: key for key in RECORDS
    }


def test_differences_lists_each_one() -> None:
    """Tests the comparison itself, with a definition that differs in every respect."""
    cls = DeleteTopicsRequest
    definition = {
        "apiKey": 21,
        "name": "DeleteTopicsRequest",
        "validVersions": "1-7",
        "flexibleVersions": "5+",
        "fields": [
            {"name": "Topics", "type": "[]Topic", "versions": "6+", "fields": []},
            {"name": "TopicNames", "type": "[]string", "versions": "0+", "ignorable": True},
            {"name": "TimeoutMs", "type": "int64", "versions": "0+", "default": "5"},
        ],
    }
    assert list(differences(cls, definition)) == [
        "DeleteTopicsRequest: api key 20, Kafka has 21",
        "DeleteTopicsRequest: versions 1-6, Kafka has 1-7",
        "DeleteTopicsRequest: flexible versions 4+, Kafka has 5+",
        "DeleteTopicsRequest.topics: type DeleteTopicState, Kafka has Topic",
        "DeleteTopicState: fields ['name', 'topic_id'], Kafka has []",
        "DeleteTopicsRequest.topic_names: versions 0-5, Kafka has 0+",
        "DeleteTopicsRequest.timeout_ms: required, Kafka has a default",
        "DeleteTopicsRequest.timeout_ms: type int32, Kafka has int64",
        "DeleteTopicsRequest.timeout_ms: default 0, Kafka has 5",
    ]
