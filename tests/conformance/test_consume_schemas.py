"""`trimtab consume --schema-registry`: what confluent-kafka's serializers have written, decoded."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import registry as in_memory
from trimtab import Cluster, Producer
from trimtab.cli import main

pytest.importorskip("fastavro", reason="see CONTRIBUTING.md")
pytest.importorskip("confluent_kafka.schema_registry.json_schema", reason="see CONTRIBUTING.md")
pytest.importorskip("confluent_kafka.schema_registry.protobuf", reason="see CONTRIBUTING.md")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

pytest.importorskip("google.protobuf.timestamp_pb2")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "airline", "type": "string"},
            {"name": "delay", "type": ["null", "int"]},
            {"name": "raw", "type": "bytes"},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
)
FLIGHT = {
    "airline": "UA",
    "delay": 7,
    "raw": b"\xff",
    "day": datetime.date(2026, 1, 31),
    "price": Decimal("1.50"),
}
JSON = json.dumps({"title": "Flight", "type": "object"})

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def registry() -> Iterator[in_memory.Registry]:
    with in_memory.running() as registry:
        yield registry


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def run(
    cluster: Cluster, registry: in_memory.Registry, topic: str, capfd: pytest.CaptureFixture[str]
) -> Run:
    def run(*words: str) -> tuple[int, list[Any], str]:
        server = ("--bootstrap-server", cluster.bootstrap_servers)
        where = ("--topic", topic, "--since", "1h", "--schema-registry", registry.url)
        code = main(["consume", *where, *words, *server])
        output, errors = capfd.readouterr()
        json_lines = "--json" in words
        return (
            code,
            [json.loads(line) if json_lines else line for line in output.splitlines()],
            errors,
        )

    return run


def send(cluster: Cluster, topic: str, *values: Any, **options: Any) -> None:
    with Producer(cluster.bootstrap_servers, **options) as producer:
        for value in values:
            producer.send(topic, value, key=b"key", partition=0)


def client(registry: in_memory.Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def test_avro_becomes_json_with_its_logical_types(
    cluster: Cluster, registry: in_memory.Registry, topic: str, run: Run
) -> None:
    with client(registry) as of_registry:
        late = {**FLIGHT, "delay": 30}
        send(cluster, topic, FLIGHT, late, None, value_serializer=AvroSerializer(of_registry, AVRO))
    code, shown, errors = run("--json")
    assert (code, errors) == (0, "Processed a total of 3 messages\n")
    wanted = {"airline": "UA", "delay": 7, "raw": "�", "day": "2026-01-31", "price": "1.50"}
    assert [each["value"] for each in shown] == [wanted, {**wanted, "delay": 30}, None]
    assert [each["key"] for each in shown] == ["key"] * 3
    registry.requests.clear()
    code, shown, _ = run(
        *("--where", "value.delay > 7 and value.price < 2 and value.day >= '2026-01'"),
        *("--format", "{key} {value.airline} {value.delay} {value.day}"),
    )
    assert (code, shown) == (0, ["key UA 30 2026-01-31"])
    assert len(registry.requests) <= 3
    code, shown, _ = run("--property", "print.key=true")
    assert json.loads(shown[0].removeprefix("key\t")) == wanted
    assert shown[2] == "key\tnull"


def test_json_schema_and_keys_are_decoded(
    cluster: Cluster, registry: in_memory.Registry, topic: str, run: Run
) -> None:
    with (
        client(registry) as of_registry,
        Producer(
            cluster.bootstrap_servers,
            key_serializer=JSONSerializer(JSON, of_registry),
            value_serializer=JSONSerializer(JSON, of_registry),
        ) as producer,
    ):
        producer.send(topic, {"airline": "UA"}, key={"id": 5})
    code, shown, _ = run("--json", "--where", "key.id == 5 and value.airline == 'UA'")
    assert (code, shown[0]["key"], shown[0]["value"]) == (0, {"id": 5}, {"airline": "UA"})


def test_an_id_in_a_header_is_found(
    cluster: Cluster, registry: in_memory.Registry, topic: str, run: Run
) -> None:
    conf = {"schema.id.serializer": header_schema_id_serializer}
    with client(registry) as of_registry:
        flight = {**FLIGHT, "airline": "United Airlines"}
        made = AvroSerializer(of_registry, AVRO, conf=conf)
        send(cluster, topic, flight, value_serializer=made)
    code, shown, _ = run("--format", "{value.airline}")
    assert (code, shown) == (0, ["United Airlines"])


def make_messages() -> tuple[Any, Any]:
    """Classes of a nested message that uses one of another file, and of the latter."""
    field = descriptor_pb2.FieldDescriptorProto
    shared = descriptor_pb2.FileDescriptorProto(name="shared.proto", package="air", syntax="proto3")
    shared.message_type.add(name="City").field.add(
        name="name", number=1, type=field.TYPE_STRING, label=1
    )
    file = descriptor_pb2.FileDescriptorProto(name="air.proto", package="air", syntax="proto3")
    file.dependency.extend(["shared.proto", "google/protobuf/timestamp.proto"])
    file.message_type.add(name="First")
    state = file.enum_type.add(name="State")
    state.value.add(name="PLANNED", number=0)
    state.value.add(name="LATE", number=1)
    inner = file.message_type.add(name="Airport").nested_type.add(name="Flight")
    for number, (name, kind, label, of) in enumerate(
        (
            ("airline", field.TYPE_STRING, 1, None),
            ("seats", field.TYPE_INT64, 1, None),
            ("state", field.TYPE_ENUM, 1, ".air.State"),
            ("stops", field.TYPE_MESSAGE, 3, ".air.City"),
            ("at", field.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("next", field.TYPE_MESSAGE, 1, ".air.Airport.Flight"),
            ("fares", field.TYPE_MESSAGE, 3, ".air.Airport.Flight.FaresEntry"),
        ),
        1,
    ):
        added = inner.field.add(name=name, number=number, type=kind, label=label)
        if of is not None:
            added.type_name = of
    entry = inner.nested_type.add(name="FaresEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=1)
    pool = descriptor_pool.DescriptorPool()
    timestamp = descriptor_pool.Default().FindFileByName("google/protobuf/timestamp.proto")
    pool.AddSerializedFile(timestamp.serialized_pb)
    pool.Add(shared)
    pool.Add(file)
    found = (pool.FindMessageTypeByName(name) for name in ("air.Airport.Flight", "air.City"))
    flight, city = map(message_factory.GetMessageClass, found)
    return flight, city


def test_protobuf_needs_no_class(
    cluster: Cluster, registry: in_memory.Registry, topic: str, run: Run
) -> None:
    flight, city = make_messages()
    full = flight(
        airline="UA",
        seats=2**40,
        state=1,
        stops=[city(name="Bern")],
        next=flight(airline="LX"),
        fares={3: 1.5},
    )
    full.at.seconds = 1_769_846_400
    with client(registry) as of_registry:
        made = ProtobufSerializer(flight, of_registry, {"use.deprecated.format": False})
        send(cluster, topic, full, flight(), value_serializer=made)
    code, shown, errors = run("--json")
    assert (code, errors) == (0, "Processed a total of 2 messages\n")
    nothing = {"airline": "", "seats": 0, "state": "PLANNED", "stops": [], "fares": {}}
    empty = {**nothing, "at": None, "next": None}
    assert [each["value"] for each in shown] == [
        {
            "airline": "UA",
            "seats": 2**40,
            "state": "LATE",
            "stops": [{"name": "Bern"}],
            "at": "2026-01-31T08:00:00Z",
            "next": {**empty, "airline": "LX"},
            "fares": {"3": 1.5},
        },
        empty,
    ]
    code, shown, _ = run("--where", "value.seats > 2000000", "--format", "{value.stops[0].name}")
    assert (code, shown) == (0, ["Bern"])


def test_what_cannot_be_decoded_is_shown_as_it_is_and_counted(
    cluster: Cluster, topic: str, run: Run
) -> None:
    values = (b"plain", b"\0\0\0\0\x63long enough", b"\0\0", b"\x01\x02\x03\x04\x05\x06")
    send(cluster, topic, *values)
    code, shown, errors = run("--json")
    assert code == 0
    assert [each.get("value", each.get("valueBase64")) for each in shown] == [
        *("plain", "\0\0\0\0clong enough", "\0\0", "\1\2\3\4\5\6"),
    ]
    assert "not decoded: 1; the first is a value of" in errors
    assert "Schema 99 not found" in errors


def test_a_registry_that_refuses_or_is_away_ends_reading(
    cluster: Cluster, registry: in_memory.Registry, topic: str, run: Run, tmp_path: Path
) -> None:
    with client(registry) as of_registry:
        send(cluster, topic, FLIGHT, value_serializer=AvroSerializer(of_registry, AVRO))
    registry.needs_password = True
    settings = tmp_path / "registry.properties"
    settings.write_text(f"basic.auth.user.info={in_memory.USER}:{in_memory.PASSWORD}\n")
    code, shown, errors = run("--json")
    assert (code, shown) == (1, [])
    assert f"{topic}-0 at offset 0: the deserializer of its value raised" in errors
    assert "Unauthorized" in errors
    code, shown, _ = run("--json", "--schema-registry-config", str(settings))
    assert (code, shown[0]["value"]["airline"]) == (0, "UA")
    with in_memory.running() as gone:
        url = gone.url
    words = ("--schema-registry", url, "--schema-registry-property", "max.retries=0")
    code, shown, errors = run("--json", *words)
    assert (code, shown) == (1, [])
    assert url in errors


@pytest.mark.parametrize("setting", ["timeout=soon", "nope=1", "basic.auth.user.info=nobody"])
def test_wrong_settings_are_refused(run: Run, setting: str) -> None:
    code, shown, errors = run("--schema-registry-property", setting)
    assert (code, shown) == (1, [])
    assert errors.startswith("trimtab consume: --schema-registry http://127.0.0.1:")
