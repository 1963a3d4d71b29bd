"""The errors of type checkers in users' programs, and that the stubs are correct."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[3]
STUBS = sorted((ROOT / "src").rglob("*.pyi"))

RIGHT = """
import json
from typing import Any

from trimtab import Admin, AsyncProducer, Consumer, Delivery, OffsetAndMetadata, Producer
from trimtab import Record, RecordMetadata, TopicPartition


def tell(delivery: Delivery) -> None:
    if delivery.exception() is None:
        print(delivery.result().offset)


def bury(producer: Producer, lost: Record) -> Delivery:
    return producer.send("dead", lost.value, key=lost.key, headers=lost.headers)


def write(value: dict[str, int]) -> bytes:
    return json.dumps(value).encode()


class Numbers:
    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: int) -> bytes:
        return data.to_bytes(4)


def main() -> None:
    with Producer("a:1", linger_ms=5, acks=1, compression_type=None) as producer:
        delivery = producer.send(
            "t", b"v", key=bytearray(b"k"), headers=[("h", None)], timestamp=1, on_delivery=tell
        )
        stored: RecordMetadata = delivery.result(timeout=1.5)
        delivery.add_done_callback(tell)
        if delivery.record is not None:
            bury(producer, delivery.record)
        offset: int | None = delivery.offset
        print(offset, delivery.partition + 1, producer.send_and_wait("t", b"v").offset + 1)
        print(stored.partition + 1, len(producer), producer.purge(), producer.metrics())
    with Producer({"bootstrap.servers": "a:1", "linger.ms": 5}) as other:
        other.flush(1)
    settings: dict[str, Any] = {"linger_ms": 5, "acks": "all"}
    Producer("a:1", **settings).send("t", b"v")
    with Producer("a:1", key_serializer=str.encode, value_serializer=write) as objects:
        objects.send("t", {"a": 1}, key="k").result()
        objects.send("t", None)
    Producer("a:1", value_serializer=lambda value: json.dumps(value).encode()).send("t", [1], b"k")
    Producer("a:1", value_serializer=Numbers()).send("t", 7)
    Consumer("a:1", key_deserializer=bytes.decode, value_deserializer=json.loads)
    with Consumer(["a:1", "b:2"]) as consumer, Admin("a:1") as admin:
        consumer.assign([("t", 0)])
        ends = consumer.end_offsets([("t", 0)])
        consumer.commit(ends)
        consumer.commit({("t", 0): 3, ("t", 1): OffsetAndMetadata(4, "note")})
        consumer.offsets_for_times({TopicPartition("t", 0): 5})
        print(admin.delete_records(ends))
        for record in consumer:
            print(record.value, record.headers, admin.topics())


async def later() -> RecordMetadata:
    async with AsyncProducer("a:1") as producer:
        delivery = await producer.send("t", b"v")
        await delivery
        return await producer.send_and_wait("t", b"v", b"k", partition=0)


async def later_objects(producer: AsyncProducer[str, int]) -> None:
    await producer.send("t", 7, "k")
    async with AsyncProducer("a:1", key_serializer=str.encode, value_serializer=Numbers()) as made:
        await later_objects(made)
"""

WRONG = """
from trimtab import Admin, AsyncProducer, Consumer, Delivery, Producer, RecordMetadata

producer, consumer, admin = Producer("a:1"), Consumer("a:1"), Admin("a:1")
consumer.commit({("t", "0"): 3})  # wrong
consumer.commit({("t", 0): "3"})  # wrong
admin.delete_records([("t", 0)])  # wrong
delivery = producer.send("t")
Producer(9092)  # wrong
producer.send(b"t")  # wrong
producer.send("t", "text")  # wrong
producer.send("t", key="k")  # wrong
producer.send("t", headers={"a": b"1"})  # wrong
producer.send("t", headers=[("a", "1")])  # wrong
producer.send("t", partition="0")  # wrong
producer.send("t", timestamp=1.5)  # wrong
producer.send("t", on_delivery="print")  # wrong
producer.send("t", on_delivery=lambda: None)  # wrong
producer.send("t", valeu=b"v")  # wrong
producer.sned("t", b"v")  # wrong
delivery.result("1")  # wrong
delivery.result().offst  # wrong
name: str = delivery.result().offset  # wrong
delivery.exception().args  # wrong
delivery.record.value  # wrong
delivery.resutl()  # wrong
delivery.offset + 1  # wrong
delivery.partition = 3  # wrong
producer.send_and_wait("t", "text")  # wrong
producer.send_and_wait("t").result()  # wrong
delivery.add_done_callback(lambda metadata: metadata.timestamp)  # wrong
producer.flush("1")  # wrong
producer.partitioning("t").partition  # wrong
producer.send_offsets_to_transaction({"t": 1}, "g")  # wrong
consumer.seek(("t", 0), "1")  # wrong
consumer.assign("t")  # wrong
for record in consumer: record.valeu  # wrong
admin.list_offsets([("t", 0)], at="newest")  # wrong
admin.create_topic("t", partitions="6")  # wrong

def write(value: dict[str, int]) -> bytes: return b""
objects = Producer("a:1", key_serializer=str.encode, value_serializer=write)
objects.send("t", b"v")  # wrong
objects.send("t", {"a": "b"})  # wrong
objects.send("t", key=b"k")  # wrong
Producer("a:1", value_serializer=write).send("t", key="k")  # wrong
Producer("a:1", key_serializer=str.encode).send("t", "text")  # wrong
def relay(producer: Producer) -> None: ...
relay(objects)  # wrong

async def later(producer: AsyncProducer) -> None:
    await AsyncProducer("a:1", value_serializer=write).send("t", b"v")  # wrong
    await producer.send("t", "text")  # wrong
    found: Delivery = producer.send("t")  # wrong
    stored: RecordMetadata = await producer.send("t")  # wrong
    (await producer.send("t")).reslt()  # wrong
    await (await producer.send_and_wait("t"))  # wrong
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> object:
    directory = tmp_path_factory.mktemp("programs")

    def run(program: str) -> list[int]:
        """The lines at which `mypy --strict` finds something."""
        path = directory / "program.py"
        path.write_text(program, encoding="utf-8")
        cache = ROOT / ".mypy_cache" / "users"
        found, failure, _ = api.run(
            ["--strict", "--config-file=", f"--cache-dir={cache}", str(path)]
        )
        assert failure == ""
        return [int(line) for line in re.findall(r"^.*program\.py:(\d+): error", found, re.M)]

    return run


def test_a_right_program_is_right(check: object) -> None:
    assert callable(check)
    assert check(RIGHT) == []


def test_every_mistake_is_refused_where_it_is(check: object) -> None:
    assert callable(check)
    wrong = [n for n, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
    assert len(wrong) >= 20
    assert sorted(set(check(WRONG))) == wrong


def signatures(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Of each class's methods: arguments with their types and defaults, and the return type."""
    found: dict[str, tuple[str, str]] = {}
    for kind in tree.body:
        if isinstance(kind, ast.ClassDef):
            for method in kind.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    returned = ast.unparse(method.returns) if method.returns else ""
                    name = f"{kind.name}.{method.name}"
                    found[name] = ast.unparse(method.args).replace("'", ""), returned
    return found


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.name)
def test_stubs_match_their_sources(stub: Path) -> None:
    source = ast.parse(stub.with_suffix(".py").read_text(encoding="utf-8"))
    written = signatures(source)
    told = signatures(ast.parse(stub.read_text(encoding="utf-8")))
    assert told
    for name, (arguments, returned) in told.items():
        if name.endswith(".__init__"):
            continue  # the client's own
        assert written[name][0] == arguments, name
        assert written[name][1] in (returned, "Any"), name
    told_kinds = {name.split(".")[0] for name in told}
    public = {
        name
        for name in written
        if name.split(".")[0] in told_kinds
        and (not name.split(".")[1].startswith("_") or name.endswith("__"))
    }
    assert public == set(told)


def test_there_are_stubs_and_the_mark_that_there_are_types() -> None:
    # tests/conformance/test_packaging.py finds them in the wheel
    assert [stub.name for stub in STUBS] == ["intake_cy.pyi", "queues_cy.pyi"]
    assert (ROOT / "src" / "trimtab" / "py.typed").exists()
