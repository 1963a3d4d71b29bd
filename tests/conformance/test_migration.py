"""docs/migration.md: its programs, each for another client and for trimtab, print the same; its
options are refused with the names that it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.serialization import Deserializer as ConfluentDeserializer
from confluent_kafka.serialization import IntegerSerializer
from confluent_kafka.serialization import Serializer as ConfluentSerializer

from tests.conformance import registry as in_memory
from trimtab import Admin, Cluster, Consumer, Producer, UsageError
from trimtab.client.options import consumer_options, producer_options

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (.*?)\n(.*?)```", TEXT, re.S)
OPTIONS = re.findall(r"^\| `([a-z._]+)` \| (`[a-z.]+`.*?) \|$", TEXT, re.M)
SECONDS = 60


class Pair(NamedTuple):
    """A program for another client, and the same for trimtab."""

    client: str
    before: str
    after: str


PAIRS = [
    Pair(BLOCKS[at][0], BLOCKS[at][1], BLOCKS[at + 1][1])
    for at in range(0, len(BLOCKS), 2)
    if BLOCKS[at + 1][0] == "trimtab"
]
SHOWN = (
    "clicks b'home' 2",
    "0",
    "views 0",
    "2 b'k' b'2' [('h', b'v')]",
    "6",
    "orders 0 2 b'2'",
    "3",
    "3",
    "{'price': 12.5}",
)


def test_the_programs_are_pairs() -> None:
    assert len(BLOCKS) == TEXT.count("```python") == 2 * len(PAIRS)
    assert [pair.client for pair in PAIRS] == [
        *("confluent-kafka", "kafka-python", "aiokafka") * 2,
        *("confluent-kafka",) * 3,
    ]
    assert len(SHOWN) == len(PAIRS)


@pytest.fixture
def servers() -> Iterator[str]:
    """A new cluster with the topics that the programs read: offsets begin at 0."""
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for topic in ("clicks", "flights", "views", "orders", "measures", "copies", "fares"):
                admin.create_topic(topic, partitions=1)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number, b"k", [("h", b"v")])
                producer.send("measures", json.dumps({"delay": number + 1}).encode())
        yield cluster.bootstrap_servers


def run(program: str, servers: str, registry: str) -> str:
    placed = program.replace("127.0.0.1:9092", servers).replace("http://127.0.0.1:8081", registry)
    done = subprocess.run(
        [sys.executable, "-c", placed],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("form", ["before", "after"])
@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_both_forms_of_a_program_print_the_same(number: int, form: str, servers: str) -> None:
    program = getattr(PAIRS[number], form)
    if "schema_registry" in program and find_spec("fastavro") is None:
        pytest.skip("see CONTRIBUTING.md")
    with in_memory.running() as registry:
        shown = run(program, servers, registry.url)
    assert shown.splitlines()[-1] == SHOWN[number]
    if number == 0:
        assert shown.splitlines() == [f"clicks b'home' {offset}" for offset in range(3)]


class Reversed(ConfluentSerializer, ConfluentDeserializer):
    """Writes text backwards behind the part's name."""

    def __call__(self, obj: Any, ctx: Any = None) -> Any:
        start = f"{ctx.topic} {ctx.field.value} "
        if isinstance(obj, bytes):
            return obj.decode().removeprefix(start)[::-1]
        return f"{start}{obj[::-1]}".encode()


@pytest.mark.parametrize("kind", ["confluent", "kafka-python"])
def test_serializers_of_other_clients_work_as_they_are(kind: str, servers: str) -> None:
    both: Any = Reversed()
    if kind == "kafka-python":
        from kafka.serializer import Deserializer, Serializer

        class KafkaPythons(Serializer, Deserializer):  # type: ignore[misc]
            def serialize(self, topic: str, headers: Any, data: str) -> bytes:
                headers.append(("by", topic.encode()))
                return data[::-1].encode()

            def deserialize(self, topic: str, headers: Any, data: bytes) -> str:
                assert ("by", topic.encode()) in headers
                return data.decode()[::-1]

        both = KafkaPythons()
    with Producer(servers, key_serializer=both, value_serializer=both) as producer:
        producer.send("views", "page", key="home", partition=0)
        producer.send("views", None, partition=0)
    with Consumer(servers, key_deserializer=both, value_deserializer=both) as consumer:
        consumer.assign([("views", 0)])
        consumer.seek(("views", 0), 0)
        first, second = consumer.poll(10_000)
    with Consumer(servers) as consumer:
        consumer.assign([("views", 0)])
        consumer.seek(("views", 0), 0)
        raw = consumer.poll(10_000)[0]
    written = {
        "confluent": (b"views key emoh", b"views value egap"),
        "kafka-python": (b"emoh", b"egap"),
    }
    assert (raw.key, raw.value) == written[kind]
    assert (first.key, first.value, second.key, second.value) == ("home", "page", None, None)


def test_a_simple_serializer_of_confluents_writes_what_its_own_producer_writes(
    servers: str,
) -> None:
    with Producer(servers, value_serializer=IntegerSerializer()) as producer:
        producer.send("views", 7, partition=0)
    with Consumer(servers) as consumer:
        consumer.assign([("views", 0)])
        consumer.seek(("views", 0), 0)
        assert consumer.poll(10_000)[0].value == b"\0\0\0\7"


def test_the_table_of_options_is_read() -> None:
    assert len(OPTIONS) >= 25


@pytest.mark.parametrize(("name", "here"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_a_renamed_option_is_refused_with_its_name_here(name: str, here: str) -> None:
    for check in (producer_options, consumer_options):
        with pytest.raises(UsageError) as caught:
            check("127.0.0.1:9092", {name: "1"})
        for each in re.findall(r"`([a-z.]+\.[a-z.]+|acks|retries)`", here):
            assert each in str(caught.value)


def test_an_option_without_counterpart_is_refused() -> None:
    paragraph = re.search(r"These have no counterpart: (.*?)\. The error", TEXT, re.S)
    assert paragraph
    names = re.findall(r"`(.*?)`", paragraph[1])
    assert len(names) == 8
    for name in names:
        for check in (producer_options, consumer_options):
            with pytest.raises(UsageError, match=r"option .*: "):
                check("127.0.0.1:9092", {name: "1"})


@pytest.mark.parametrize(
    "options",
    [
        {
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 16384,
            "compression.type": "lz4",
            "enable.idempotence": "true",
            "retries": 5,
            "client.id": "a",
            "transactional.id": "t",
            "transaction.timeout.ms": 1000,
        },
        {
            "group.id": "g",
            "group.instance.id": "i",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 2000,
            "max.poll.interval.ms": 10_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "auto.commit.interval.ms": 1000,
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "fetch.min.bytes": 1,
            "max.partition.fetch.bytes": 1000,
            "allow.auto.create.topics": "false",
        },
    ],
    ids=["producer", "consumer"],
)
def test_options_of_librdkafka_with_kafkas_names_move_over(options: dict[str, object]) -> None:
    check = consumer_options if "group.id" in options else producer_options
    check({"bootstrap.servers": "127.0.0.1:9092", **options}, {})
