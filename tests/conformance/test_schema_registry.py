"""confluent-kafka's Schema Registry serializers in trimtab's clients, as they are.

With `SCHEMA_REGISTRY_URL` in the environment they also run on that registry, besides the one in
memory of `registry.py`.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance import registry as in_memory
from trimtab import Cluster, Consumer, NotDeserialized, NotSerialized, Producer, Record

pytest.importorskip("fastavro", reason="see CONTRIBUTING.md")
pytest.importorskip("confluent_kafka.schema_registry.json_schema", reason="see CONTRIBUTING.md")
pytest.importorskip("confluent_kafka.schema_registry.protobuf", reason="see CONTRIBUTING.md")

from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [{"name": "airline", "type": "string"}, {"name": "delay", "type": "int"}],
    }
)
JSON = json.dumps(
    {
        "title": "Flight",
        "type": "object",
        "properties": {"airline": {"type": "string"}, "delay": {"type": "integer"}},
        "required": ["airline"],
    }
)
FLIGHT = {"airline": "UA", "delay": 7}
LONGER = {"airline": "United Airlines", "delay": 7}
"""confluent-kafka's deserializer refuses fewer than 6 bytes, also if the id is in a header."""


def _make_message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="air.proto", package="air", syntax="proto3")
    outer = file.message_type.add(name="Airport")
    inner = outer.nested_type.add(name="Flight")
    field = descriptor_pb2.FieldDescriptorProto
    inner.field.add(name="airline", number=1, type=field.TYPE_STRING, label=1)
    inner.field.add(name="delay", number=2, type=field.TYPE_INT32, label=1)
    file.message_type.add(name="Second").nested_type.add().CopyFrom(inner)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Second.Flight"))


MESSAGE = _make_message()
FORMS = ("avro", "json", "protobuf")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def memory() -> Iterator[in_memory.Registry]:
    with in_memory.running() as registry:
        yield registry


@pytest.fixture(params=["in memory", "real"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "real":
        if "SCHEMA_REGISTRY_URL" not in os.environ:
            pytest.skip("SCHEMA_REGISTRY_URL is not set")
        return os.environ["SCHEMA_REGISTRY_URL"]
    found: in_memory.Registry = request.getfixturevalue("memory")
    return found.url


@pytest.fixture
def topic() -> str:
    return f"flights-{uuid.uuid4().hex[:8]}"


_clients: list[SchemaRegistryClient] = []


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    """They keep their connections open."""
    yield
    while _clients:
        _clients.pop().close()


def client_of(url: str, **settings: Any) -> SchemaRegistryClient:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    _clients.append(SchemaRegistryClient({"url": url, **dotted}))
    return _clients[-1]


def serializer(form: str, url: str, settings: dict[str, Any] | None = None) -> Any:
    client = client_of(url)
    if form == "avro":
        return AvroSerializer(client, AVRO, conf=settings)
    if form == "json":
        return JSONSerializer(JSON, client, conf=settings)
    return ProtobufSerializer(MESSAGE, client, {"use.deprecated.format": False, **(settings or {})})


def deserializer(form: str, url: str) -> Any:
    client = client_of(url)
    if form == "avro":
        return AvroDeserializer(client)
    if form == "json":
        return JSONDeserializer(None, schema_registry_client=client)
    return ProtobufDeserializer(MESSAGE, {"use.deprecated.format": False}, client)


def object_of(form: str, number: int) -> Any:
    flight = {"airline": "UA", "delay": number}
    return MESSAGE(**flight) if form == "protobuf" else flight


def read(cluster: Cluster, topic: str, count: int, **options: Any) -> list[Record]:
    found: list[Record] = []
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count:
            found += consumer.poll(5_000)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_what_trimtab_writes_trimtab_and_confluents_consumer_read(
    cluster: Cluster, url: str, topic: str, form: str
) -> None:
    with Producer(cluster.bootstrap_servers, value_serializer=serializer(form, url)) as producer:
        for number in range(33):
            producer.send(topic, object_of(form, number), partition=0)
        producer.send(topic, None, partition=0)
    wanted = [object_of(form, number) for number in range(33)] + [None]
    found = read(cluster, topic, 34, value_deserializer=deserializer(form, url))
    assert [record.value for record in found] == wanted
    theirs = DeserializingConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "value.deserializer": deserializer(form, url),
        }
    )
    theirs.subscribe([topic])
    messages: list[Any] = []
    while len(messages) < 34:
        if (message := theirs.poll(5)) is not None:
            assert message.error() is None
            messages.append(message.value())
    theirs.close()
    assert messages == wanted


@pytest.mark.parametrize("form", FORMS)
def test_both_producers_write_the_same_bytes(
    cluster: Cluster, url: str, topic: str, form: str
) -> None:
    theirs = SerializingProducer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "value.serializer": serializer(form, url),
            "key.serializer": serializer(form, url),
        }
    )
    theirs.produce(topic, key=object_of(form, 1), value=object_of(form, 2))
    theirs.flush(10)
    both = serializer(form, url)
    with Producer(cluster.bootstrap_servers, key_serializer=both, value_serializer=both) as ours:
        ours.send(topic, object_of(form, 2), key=object_of(form, 1))
    first, second = read(cluster, topic, 2)
    assert (first.key, first.value) == (second.key, second.value)
    subjects = set(client_of(url).get_subjects())
    assert {f"{topic}-key", f"{topic}-value"} <= subjects


def test_the_framing_is_a_zero_the_id_and_what_fastavro_writes(
    cluster: Cluster, url: str, topic: str
) -> None:
    with Producer(cluster.bootstrap_servers, value_serializer=serializer("avro", url)) as producer:
        producer.send(topic, FLIGHT)
    [record] = read(cluster, topic, 1)
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(json.loads(AVRO)), FLIGHT)
    registered = client_of(url).get_latest_version(f"{topic}-value").schema_id
    assert registered is not None
    assert record.value == b"\0" + registered.to_bytes(4) + payload.getvalue()


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        (record_subject_name_strategy, "air.Flight"),
        (topic_record_subject_name_strategy, "{topic}-air.Flight"),
    ],
    ids=["record", "topic and record"],
)
def test_the_strategy_names_the_subject(
    cluster: Cluster, url: str, topic: str, strategy: Any, subject: str
) -> None:
    given = serializer("avro", url, {"subject.name.strategy": strategy})
    with Producer(cluster.bootstrap_servers, value_serializer=given) as producer:
        producer.send(topic, FLIGHT)
    assert subject.format(topic=topic) in client_of(url).get_subjects()


def test_the_id_may_be_in_a_header(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    given = serializer("avro", memory.url, {"schema.id.serializer": header_schema_id_serializer})
    with Producer(cluster.bootstrap_servers, value_serializer=given) as producer:
        producer.send(topic, LONGER, headers=[("trace", b"1")])
    [record] = read(cluster, topic, 1, value_deserializer=deserializer("avro", memory.url))
    assert [name for name, _ in record.headers] == ["trace", "__value_schema_id"]
    assert record.value == LONGER


def test_a_schema_that_may_not_be_registered_is_an_error_that_names_the_subject(
    cluster: Cluster, url: str, topic: str
) -> None:
    for settings in (
        {"auto.register.schemas": False},
        {"auto.register.schemas": False, "use.latest.version": True},
    ):
        given = serializer("avro", url, settings)
        with Producer(cluster.bootstrap_servers, value_serializer=given) as producer:
            with pytest.raises(NotSerialized, match=rf"{topic}-value.*not sent"):
                producer.send(topic, FLIGHT)
            assert len(producer) == 0


def test_an_object_that_does_not_fit_the_schema_is_not_sent(
    cluster: Cluster, url: str, topic: str
) -> None:
    with Producer(cluster.bootstrap_servers, value_serializer=serializer("avro", url)) as producer:
        with pytest.raises(NotSerialized, match=rf"topic {topic}: the serializer of the value"):
            producer.send(topic, {"airline": "UA", "delay": "late"})
        producer.send(topic, FLIGHT)
    assert len(read(cluster, topic, 1)) == 1


def test_the_latest_version_is_used_if_asked_for(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    wider = json.loads(AVRO)
    wider["fields"].append({"name": "gate", "type": "string", "default": "A1"})
    memory.register(f"{topic}-value", {"schema": AVRO})
    latest = memory.register(f"{topic}-value", {"schema": json.dumps(wider)})
    given = serializer(
        "avro", memory.url, {"auto.register.schemas": False, "use.latest.version": True}
    )
    with Producer(cluster.bootstrap_servers, value_serializer=given) as producer:
        producer.send(topic, FLIGHT)
    [record] = read(cluster, topic, 1, value_deserializer=deserializer("avro", memory.url))
    assert record.value == {**FLIGHT, "gate": "A1"}
    assert latest["version"] == 2


def test_the_registry_is_asked_once_for_a_schema(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    with Producer(
        cluster.bootstrap_servers, value_serializer=serializer("avro", memory.url)
    ) as producer:
        for number in range(1_000):
            producer.send(topic, object_of("avro", number))
    assert len(memory.requests) <= 2
    memory.requests.clear()
    read(cluster, topic, 1_000, value_deserializer=deserializer("avro", memory.url))
    assert len(memory.requests) <= 2


def test_a_password_is_sent_and_a_wrong_one_is_an_error(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    memory.needs_password = True
    right = client_of(memory.url, basic_auth_user_info=f"{in_memory.USER}:{in_memory.PASSWORD}")
    wrong = client_of(memory.url, basic_auth_user_info="reader:guess")
    with Producer(
        cluster.bootstrap_servers, value_serializer=AvroSerializer(right, AVRO)
    ) as producer:
        producer.send(topic, FLIGHT)
    with (
        Producer(
            cluster.bootstrap_servers, value_serializer=AvroSerializer(wrong, AVRO)
        ) as refused,
        pytest.raises(NotSerialized, match="Unauthorized"),
    ):
        refused.send(topic, FLIGHT)
    with pytest.raises(NotDeserialized, match="Unauthorized"):
        read(cluster, topic, 1, value_deserializer=AvroDeserializer(wrong))


def test_a_registry_that_is_busy_for_a_moment_is_asked_again(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    memory.failures = 2
    patient = client_of(memory.url, max_retries=3, retries_wait_ms=10)
    with Producer(
        cluster.bootstrap_servers, value_serializer=AvroSerializer(patient, AVRO)
    ) as producer:
        producer.send(topic, FLIGHT)
    assert len(memory.requests) >= 3


def test_a_registry_that_is_away_is_an_error_that_names_it_in_bounded_time(
    cluster: Cluster, topic: str
) -> None:
    with in_memory.running() as gone:
        url = gone.url
    absent = client_of(url, max_retries=2, retries_wait_ms=10, timeout=1)
    begun = time.monotonic()
    with (
        Producer(
            cluster.bootstrap_servers, value_serializer=AvroSerializer(absent, AVRO)
        ) as producer,
        pytest.raises(NotSerialized, match=url),
    ):
        producer.send(topic, FLIGHT)
    assert time.monotonic() - begun < 10


def test_bytes_without_framing_are_an_error_and_the_position_stays(
    cluster: Cluster, memory: in_memory.Registry, topic: str
) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b'{"airline": "UA"}', partition=0)
    with Consumer(
        cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=deserializer("avro", memory.url),
    ) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(NotDeserialized) as caught:
            consumer.poll(10_000)
        assert caught.value.record.value == b'{"airline": "UA"}'
        assert consumer.position((topic, 0)) == 0
