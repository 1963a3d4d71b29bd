"""Wrong calls, each beside the right one: mypy and pyright refuse them, and so do the functions.

A user's program is made of the calls. Type checkers see trimtab as a user's do: the `.pyi` files
stand for the compiled modules, and no setting is changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trimtab import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Cluster, Consumer, Producer
from trimtab.kafka.errors import UsageError
from trimtab.pytest.faults import Faults
from trimtab.pytest.reading import ReadRecords, TopicReader, expect_records
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World

SOURCE = Path(__file__).parents[2] / "src"


class Call(NamedTuple):
    """A right call, the same done wrong, and what the error of the wrong one says."""

    right: str
    wrong: str
    says: str


BLOCKING = [
    Call('Producer(servers, acks="all").close()', 'Producer(servers, acsk="all")', "acks"),
    Call('Producer(servers, acks="1").close()', 'Producer(servers, acks="most")', "acks='most'"),
    Call("Producer(servers, linger_ms=9).close()", 'Producer(servers, linger_ms="soon")', "linger"),
    Call(
        'Producer(servers, compression_type="zstd").close()',
        'Producer(servers, compression_type="zip")',
        "compression.type='zip'",
    ),
    Call('Producer("127.0.0.1:9092").close()', "Producer(9092)", "9092"),
    Call('producer.send(topic, b"text")', 'producer.send(topic, "text")', "value is of type str"),
    Call('producer.send(topic, key=b"7")', "producer.send(topic, key=7)", "key is of type int"),
    Call('producer.send(topic, b"x")', 'producer.send([topic], b"x")', "topic"),
    Call(
        'producer.send(topic, b"x", headers=[("a", b"b")])',
        'producer.send(topic, b"x", headers={"a": b"b"})',
        "headers",
    ),
    Call(
        'producer.send(topic, b"x", partition=0)',
        'producer.send(topic, b"x", partition="0")',
        "partition",
    ),
    Call(
        'producer.send(topic, b"x", on_delivery=print)',
        'producer.send(topic, b"x", on_delivery="print")',
        "on_delivery",
    ),
    Call("producer.flush(10)", 'producer.flush("10 s")', "timeout='10 s'"),
    Call('producer.send(topic, b"x").result(9)', 'producer.send(topic, b"x").result("9")', "'9'"),
    Call("len(producer.partitions_for(topic).leaders)", "producer.partitions_for(0)", "topic"),
    Call(
        'Consumer(servers, auto_offset_reset="earliest").close()',
        'Consumer(servers, auto_offset_reset="beginning")',
        "auto.offset.reset='beginning'",
    ),
    Call('Consumer(servers, group_id="g").close()', 'Consumer(servers, group="g")', "'group'"),
    Call(
        "Consumer(servers, value_deserializer=json.loads).close()",
        'Consumer(servers, value_deserializer="json")',
        "value.deserializer",
    ),
    Call("consumer.assign([(topic, 0)])", "consumer.assign([topic])", "partition"),
    Call("consumer.poll(1)", 'consumer.poll("1 s")', "timeout_ms='1 s'"),
    Call("consumer.poll(max_records=9, timeout_ms=1)", "consumer.poll(timeout=1)", "'timeout'"),
    Call("consumer.seek((topic, 0), 0)", 'consumer.seek((topic, 0), "end")', "offset='end'"),
    Call("consumer.commit({(topic, 0): 1})", "consumer.commit([((topic, 0), 1)])", "offsets"),
    Call("consumer.pause((topic, 0))", "consumer.pause(topic)", "partition"),
    Call("consumer.end_offsets([(topic, 0)])", "consumer.end_offsets((topic, 0))", "partition"),
    Call("member.subscribe([topic])", "member.subscribe(7)", "topics=7"),
    Call(
        "member.subscribe([topic], on_revoked=print)",
        "member.subscribe([topic], on_revoke=print)",
        "'on_revoke'",
    ),
    Call(
        'admin.create_topic("six", partitions=6)',
        'admin.create_topic("six", partitions="6")',
        "partitions='6'",
    ),
    Call(
        'admin.create_topic("old", config={"retention.ms": 1})',
        'admin.create_topic("old", configs={"retention.ms": 1})',
        "'configs'",
    ),
    Call('admin.delete_topic("old")', 'admin.delete_topic(["old"])', "topic=['old']"),
    Call(
        'admin.list_offsets([(topic, 0)], at="latest")',
        'admin.list_offsets([(topic, 0)], at="newest")',
        "at='newest'",
    ),
    Call(
        'admin.alter_configs("topic", topic, {"retention.ms": 1})',
        'admin.alter_configs("topics", topic, {"retention.ms": 1})',
        "'topics'",
    ),
    Call("Admin(servers, client_id='a').close()", "Admin(servers, client_id=7)", "client.id=7"),
    Call("Cluster(brokers=3)", 'Cluster(brokers="3")', "brokers='3'"),
    Call('Cluster(racks=["a"])', 'Cluster(rack="a")', "'rack'"),
    Call(
        'Cluster(config={"log.retention.ms": 1})',
        'Cluster(config=["log.retention.ms=1"])',
        "config",
    ),
    Call("kafka_cluster.slow(0, 1)", 'kafka_cluster.slow(0, "1 ms")', "produce_ms='1 ms'"),
    Call("kafka_cluster.kill_broker(0)", 'kafka_cluster.kill_broker("0")', "broker='0'"),
    Call("kafka_cluster.start_broker(0)", "kafka_cluster.start_broker()", "'broker'"),
    Call("kafka_faults.slow(broker=0)", "kafka_faults.slow(brokers=0)", "'brokers'"),
    Call("kafka_faults.slow(0, 0)", 'kafka_faults.slow(0, "0 ms")', "produce_ms='0 ms'"),
    Call("kafka_records(topic)", "kafka_records(7)", "topic"),
    Call("kafka_records(topic, timeout_s=1)", "kafka_records(topic, timeout=1)", "'timeout'"),
    Call("assert_produces(topic, [b'x'])", "assert_produces(topic, value=b'x')", "'value'"),
    Call("assert_produces(topic, count=1)", 'assert_produces(topic, count="1")', "count='1'"),
    Call("virtual_kafka.isolate(0)", 'virtual_kafka.isolate("0")', "broker='0'"),
    Call("virtual_kafka.slow(0, 5)", "virtual_kafka.slow(0, delay_ms=5)", "'delay_ms'"),
]
"""In the order in which the right ones run."""

ASYNCHRONOUS = [
    Call(
        "await AsyncProducer(servers, linger_ms=9).close()",
        "AsyncProducer(servers, linger=9)",
        "linger.ms",
    ),
    Call("await producer.send(topic, b'1')", "await producer.send(topic, 1)", "value is of"),
    Call("(await producer.send(topic)).done()", "producer.send(topic)[0]", "coroutine"),
    Call(
        "await AsyncConsumer(servers, fetch_min_bytes=1).close()",
        "AsyncConsumer(servers, fetch_min_bytes=1.5)",
        "fetch.min.bytes=1.5",
    ),
    Call("consumer.assign([(topic, 0)])", "consumer.assign(topic)", "partition"),
    Call("len(await consumer.poll(1))", "len(consumer.poll(1))", "coroutine"),
    Call("aiter(consumer)", "iter(consumer)", "AsyncConsumer"),
    Call("await admin.topics()", 'await admin.topics(include_internal="no")', "include_internal"),
    Call("await admin.create_topics([])", "await admin.create_topics([topic])", "NewTopic"),
    Call("await admin.cluster()", "with admin: pass", "AsyncAdmin"),
]

PROGRAM = """\
import json

from trimtab import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Cluster, Consumer, Producer
from trimtab.pytest.faults import Faults
from trimtab.pytest.reading import AssertProduces, ReadRecords, TopicReader
from trimtab.pytest.virtual import VirtualKafka


def test_calls(
    servers: str,
    topic: str,
    consumer: Consumer,
    member: Consumer,
    admin: Admin,
    kafka_cluster: Cluster,
    kafka_faults: Faults,
    kafka_records: ReadRecords,
    assert_produces: AssertProduces,
    virtual_kafka: VirtualKafka,
) -> None:
    producer = Producer(servers)
    {blocking}


async def test_asynchronous_calls(
    servers: str,
    topic: str,
    consumer: AsyncConsumer,
    admin: AsyncAdmin,
) -> None:
    producer = AsyncProducer(servers)
    {asynchronous}
"""


def write_program(directory: Path, name: str) -> tuple[Path, dict[int, str]]:
    """Write the right or the wrong calls as a program; returns its file, and the calls by line."""
    blocks = {
        kind: "\n    ".join(getattr(call, name) for call in calls)
        for kind, calls in (("blocking", BLOCKING), ("asynchronous", ASYNCHRONOUS))
    }
    program = directory / f"{name}.py"
    program.write_text(PROGRAM.format(**blocks))
    calls = {getattr(call, name) for call in (*BLOCKING, *ASYNCHRONOUS)}
    lines = enumerate(program.read_text().splitlines(), 1)
    return program, {number: line.strip() for number, line in lines if line.strip() in calls}


PYRIGHT = (sys.executable, "-m", "pyright")


def refused_by_mypy(*programs: Path) -> set[tuple[str, int]]:
    directory = programs[0].parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent"),
            *("--cache-dir", str(directory / "cache"), *map(str, programs)),
        ],
        cwd=directory,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\w+)\.py:(\d+): error:", done.stdout, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


def refused_by_pyright(*programs: Path) -> set[tuple[str, int]]:
    try:
        subprocess.run([*PYRIGHT, "--version"], capture_output=True, check=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("needs pyright, whose first run needs npm's registry")
    directory = programs[0].parent
    (directory / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCE)]}))
    done = subprocess.run(
        [
            *(*PYRIGHT, "--outputjson", "--project", str(directory)),
            *("--pythonpath", sys.executable),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (Path(each["file"]).stem, each["range"]["start"]["line"] + 1)
        for each in found
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("refused_by", [refused_by_mypy, refused_by_pyright])
def test_a_type_checker_refuses_the_wrong_calls_and_no_right_one(
    refused_by: Callable[..., set[tuple[str, int]]], tmp_path: Path
) -> None:
    right, _ = write_program(tmp_path, "right")
    wrong, calls = write_program(tmp_path, "wrong")
    assert len(calls) == len(BLOCKING) + len(ASYNCHRONOUS)
    refused = refused_by(right, wrong)
    assert {line for name, line in refused if name == "right"} == set()
    passed = {call for line, call in calls.items() if ("wrong", line) not in refused}
    assert passed == set()
    assert len(refused) == len(calls)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def names(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The names that the blocking calls use."""
    servers = cluster.bootstrap_servers
    topic = "wrong-calls"
    with ExitStack() as opened:
        admin = opened.enter_context(Admin(servers))
        if topic not in admin.topics():
            admin.create_topic(topic)
        consumer = opened.enter_context(Consumer(servers, group_id="wrong-calls"))
        consumer.assign([(topic, 0)])
        kafka = VirtualKafka(opened.enter_context(World(1)), 1, None)
        opened.callback(kafka.close)
        kafka.start_all()
        faults = Faults(cluster)
        opened.callback(faults.end_faults)
        reader = TopicReader(servers)
        opened.callback(reader.close)
        yield {
            **globals(),
            "servers": servers,
            "topic": topic,
            "producer": opened.enter_context(Producer(servers)),
            "consumer": consumer,
            "member": opened.enter_context(Consumer(servers, group_id="wrong-calls-member")),
            "admin": admin,
            "kafka_cluster": cluster,
            "kafka_faults": faults,
            "kafka_records": ReadRecords(reader),
            "assert_produces": partial(expect_records, reader),
            "virtual_kafka": kafka,
        }


async def call_asynchronously(servers: str, *lines: str) -> None:
    async with (
        AsyncProducer(servers) as producer,
        AsyncConsumer(servers) as consumer,
        AsyncAdmin(servers) as admin,
    ):
        consumer.assign([("asynchronous", 0)])
        names = {**globals(), "servers": servers, "topic": "asynchronous"}
        names |= {"producer": producer, "consumer": consumer, "admin": admin}
        body = "".join(f"\n    {line}" for line in lines)
        exec(f"async def call():{body}", names)
        await names["call"]()


def test_the_right_blocking_calls_succeed(names: dict[str, Any]) -> None:
    for call in BLOCKING:
        exec(call.right, names)


@pytest.mark.parametrize("call", BLOCKING, ids=lambda call: call.wrong)
def test_a_wrong_blocking_call_names_what_is_wrong(call: Call, names: dict[str, Any]) -> None:
    with pytest.raises((UsageError, TypeError), match=re.escape(call.says)):
        exec(call.wrong, names)


def test_the_right_asynchronous_calls_succeed(cluster: Cluster) -> None:
    rights = (call.right for call in ASYNCHRONOUS)
    asyncio.run(call_asynchronously(cluster.bootstrap_servers, *rights))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("call", ASYNCHRONOUS, ids=lambda call: call.wrong)
def test_a_wrong_asynchronous_call_names_what_is_wrong(call: Call, cluster: Cluster) -> None:
    with pytest.raises((UsageError, TypeError), match=re.escape(call.says)):
        asyncio.run(call_asynchronously(cluster.bootstrap_servers, call.wrong))
