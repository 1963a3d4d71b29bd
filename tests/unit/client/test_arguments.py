"""Arguments of callers: every wrong one raises a UsageError, and nothing breaks."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import TableDelivery
from trimtab.client.admin import AsyncAdmin, NewTopic
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.arguments import (
    checked_each,
    checked_integer,
    checked_partition,
    checked_partitions,
    checked_seconds,
    checked_time,
    checked_topic,
    checked_wait_ms,
)
from trimtab.kafka.errors import KafkaError, Unavailable, UsageError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Odd:
    """Is nothing that anybody takes."""

    def __repr__(self) -> str:
        return "Odd()"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topic("t", 3)
        yield running


SENDS: list[tuple[dict[str, Any], str]] = [
    ({"topic": b"t"}, r"topic=b't': is bytes; give a str"),
    ({"topic": None}, r"topic=None: is of type NoneType; give a str"),
    ({"topic": ["t"]}, r"topic=\['t'\]: is of type list"),
    ({"topic": ""}, "topic='': is empty"),
    ({"topic": "\ud800"}, "surrogate"),
    ({"topic": "x" * 250}, "250 bytes; at most 249"),
    ({"value": "text"}, r"record value is of type str: .*by its \.encode\(\)"),
    ({"value": 7}, "record value is of type int"),
    ({"key": "text"}, "record key is of type str"),
    ({"key": {}}, "record key is of type dict"),
    ({"headers": {"a": b"1"}}, r"headers are of type dict: give list\(headers\.items\(\)\)"),
    ({"headers": {}}, "headers are of type dict"),
    ({"headers": (pair for pair in [("a", b"1")])}, "headers are of type generator: give a list"),
    ({"headers": "ab"}, "headers are of type str"),
    ({"headers": 0}, "headers are of type int"),
    ({"headers": ["ab"]}, r"record header 'ab' is no pair"),
    ({"headers": [("a", b"1", b"2")]}, "is no pair"),
    ({"headers": [(b"a", b"1")]}, r"record header name=b'a': is bytes; give a str"),
    ({"headers": [(7, b"1")]}, r"record header name=7: is of type int"),
    ({"headers": [("\ud800", b"1")]}, "surrogate"),
    ({"headers": [("a", "1")]}, "record header value is of type str"),
    ({"headers": [("a", 1)]}, "record header value is of type int"),
    ({"partition": "0"}, "partition='0': is of type str; give an int"),
    ({"partition": True}, "partition=True: is of type bool"),
    ({"partition": 0.0}, r"partition=0\.0: is of type float"),
    ({"partition": -1}, "partition=-1: must be from 0"),
    ({"partition": 2**31}, "partition=2147483648: must be from 0 to 2147483647"),
    ({"partition": 2**80}, "must be from 0"),
    ({"timestamp": 1.5}, r"timestamp=1\.5: .*milliseconds .*int\(seconds \* 1000\)"),
    ({"timestamp": NOW}, r"timestamp=datetime.*as by int\(when\.timestamp\(\) \* 1000\)"),
    ({"timestamp": "now"}, "timestamp='now': is of type str"),
    ({"timestamp": False}, "timestamp=False: is of type bool"),
    ({"timestamp": -2}, "timestamp=-2: must be from -1"),
    ({"timestamp": 2**63 - 1}, "must be from -1 to 9223372036854775806"),
    ({"timestamp": 2**63}, "must be from -1 to 9223372036854775806"),
    ({"on_delivery": "print"}, "on_delivery='print': .*cannot be called"),
]


@pytest.mark.parametrize("topic", ["t", "u"], ids=["known", "unknown"])
def test_a_record_that_cannot_be_sent_is_refused_before_anything_else(
    cluster: Cluster, topic: str
) -> None:
    with Producer(cluster.bootstrap_servers, max_block_ms=2000) as producer:
        producer.partitions_for("t")
        for given, why in SENDS:
            with pytest.raises(UsageError, match=why):
                producer.send(**{"topic": topic, "value": b"v", **given})
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 0
        two: Any = np.int64(2)
        five: Any = np.int64(5)
        assert producer.send("t", b"v", partition=two).result(20).partition == 2
        stamped = producer.send("t", b"v", headers=[("ä", None)], timestamp=five)
        assert stamped.result(20).timestamp == 5
        known = set(producer.metrics()["producer-topic-metrics"])
        assert known == {"t"}


def test_the_refusals_of_both_forms_are_the_same(
    in_form: Callable[[str], Any], make_view: Callable[..., Any]
) -> None:
    import threading
    from random import Random

    from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner

    accumulator = in_form("trimtab.client.accumulator.accumulator_cy").Accumulator(
        batch_size=1000,
        buffer_memory=1 << 20,
        max_request_size=1 << 20,
        compression=0,
        ignores_keys=False,
        make_partitioner=lambda: BuiltInPartitioner(BuiltInOptions(1000, False), Random(3)),
        now=lambda: 100.0,
        wall_clock=lambda: 1_700_000_000.25,
        lock=threading.RLock(),
        wake=lambda: None,
        on_callback_error=print,
    )
    accumulator.update_topic(make_view((0,)))
    intake = in_form("trimtab.client.accumulator.intake_cy").Intake(accumulator)
    for given, why in SENDS:
        if given.get("topic") in ("", "\ud800", "x" * 250):
            continue  # left to the face, as an unknown topic
        if "generator" in why:
            given = {"headers": iter([("a", b"1")])}
            why = "headers are of type list_iterator: give a list"
        with pytest.raises(UsageError, match=why):
            intake.send(**{"topic": "topic", "value": b"v", **given})
    assert accumulator.oldest() is None
    assert intake.send("topic", b"v", partition=0, timestamp=2**63 - 2) is not None
    assert intake.send("topic", b"v", partition=0, timestamp=-1) is not None


def test_wrong_arguments_of_a_delivery(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        delivery = producer.send("t", b"v")
        for wrong in ("1", True, [1], timedelta(1)):
            for wait in (delivery.result, delivery.exception):
                with pytest.raises(UsageError, match=r"timeout=.*must be a number of seconds"):
                    wait(wrong)
        uncallable: Any
        for uncallable in (None, 5, "print"):
            with pytest.raises(UsageError, match=r"function=.*cannot be called"):
                delivery.add_done_callback(uncallable)
        assert delivery.result(20).topic == "t"
        assert delivery.result(-1).topic == "t"


def test_a_generator_of_headers_is_left_as_it_was(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        pairs: Any = (pair for pair in [("a", b"1"), ("b", b"2")])
        with pytest.raises(UsageError, match="generator"):
            producer.send("t", b"v", headers=pairs)
        assert list(pairs) == [("a", b"1"), ("b", b"2")]


WRONG: list[Any] = [
    *(None, True, 0, -1, 7, 1.5, float("nan"), 2**31, 2**64, "", "x", "\ud800", b"t", b""),
    *(Odd(), [], ["x"], [b"t"], [None], [[]], {}, {"a": 1}, {1: {}}, ("t",), ("t", 0), ("t", "0")),
    *([("t", -1)], [("t", 2**31)], [("t", True)], {("t", 0): 1.5}, {("t", 0): Odd()}),
    *({("t", 0): -1}, {("t", 0): NOW}, {("t", 0): [1.5]}, timedelta(1), NOW, np.int64(0), print),
    *(
        {"retention.ms": Odd()},
        {5: 5},
        {0: "x"},
        {0: [None]},
        Decimal(1),
        range(2),
        (x for x in "t"),
    ),
]

CALLS: dict[type, dict[str, dict[str, Any]]] = {
    Producer: {
        "send_and_wait": {
            "topic": "t",
            "value": b"v",
            **dict.fromkeys(("key", "headers", "partition", "timestamp", "on_delivery"), None),
        },
        "flush": {"timeout": None},
        "partitions_for": {"topic": "t"},
        "partitioning": {"topic": "t"},
        "init_transactions": {"after": None},
        "resume_transactions": {"identity": ProducerIdentity("id", 1, 0)},
        "change_transactional_id": {"transactional_id": "id"},
        "begin_transaction": {"two_phase": True},
        "complete_transaction": {"prepared": PreparedTransaction("id", 1, 0), "commit": True},
        "send_offsets_to_transaction": {"offsets": {("t", 0): 1}, "group": "g"},
        "send_table": {
            "topic": "t",
            "data": [],
            **dict.fromkeys(("value", "key", "headers", "partition", "timestamp"), None),
        },
    },
    Consumer: {
        "assign": {"partitions": [("t", 0)]},
        "seek": {"partition": ("t", 0), "offset": 0, "end": None},
        "poll": {"timeout_ms": 0, "max_records": 1},
        "fetch_batches": {"timeout_ms": 0},
        "arrow": {"max_bytes": 1, "timeout_ms": 0, "columns": ["value"]},
        "lag": {"partitions": [("t", 0)]},
        "position": {"partition": ("t", 0)},
        "beginning_offsets": {"partitions": [("t", 0)]},
        "end_offsets": {"partitions": [("t", 0)]},
        "offsets_for_times": {"timestamps": {("t", 0): 0}},
        "problem": {"partition": ("t", 0)},
        "subscribe": {"topics": ["t"], "on_assigned": None, "on_revoked": None, "on_lost": None},
        "commit": {"offsets": {("t", 0): 0}},
        "committed": {"partitions": [("t", 0)]},
    },
    Admin: {
        "topics": {"include_internal": False},
        "describe_topics": {"names": ["t"]},
        "eligible_leaders": {"names": ["t"], "page_size": 1},
        "create_topic": {
            "name": "made",
            "partitions": 1,
            "replication_factor": 1,
            "assignment": None,
            "config": {},
            "validate_only": True,
        },
        "create_topics": {"topics": [NewTopic("made", 1, 1)], "validate_only": True},
        "create_partitions": {"name": "t", "count": 4, "assignment": None, "validate_only": True},
        "delete_topic": {"name": "gone"},
        "list_offsets": {
            "partitions": [("t", 0)],
            "at": "latest",
            "isolation": "read_committed",
        },
        "describe_configs": {"kind": "topic", "name": "t"},
        "describe_topic_configs": {"names": ["t"], "options": ["retention.ms"]},
        "alter_configs": {
            "kind": "topic",
            "name": "t",
            "changes": {},
            "append": {},
            "subtract": {},
            "validate_only": True,
        },
        "alter_reassignments": {"targets": {}, "allow_replication_factor_change": False},
        "list_reassignments": {"partitions": [("t", 0)]},
        "list_replica_ends": {"replicas": {0: [("t", 0)]}},
        "describe_log_dirs": {"brokers": [0]},
        "cluster": {"timeout_ms": 1000, "include_fenced": False},
        "unregister_broker": {"broker": 99},
        "describe_features": {"broker": 0},
        "update_features": {
            "levels": {"metadata.version": 25},
            "change": "upgrade",
            "validate_only": True,
        },
        "list_transactions": {
            "prefix": "",
            "states": ["Ongoing"],
            "pattern": "o.*",
            "longer_than_ms": 1,
            "producer_ids": [1],
        },
        "describe_producers": {"partitions": [("t", 0)], "broker": 0},
        "abort_transaction": {
            "partition": ("t", 0),
            "producer_id": 1,
            "producer_epoch": 0,
            "coordinator_epoch": 0,
        },
        "describe_transactions": {"transactional_ids": ["id"]},
        "fence_producers": {"transactional_ids": ["id"]},
        "list_groups": {"states": ["Stable"], "types": ["classic"]},
        "describe_groups": {"group_ids": ["g"]},
        "delete_groups": {"group_ids": ["gone"]},
        "list_group_offsets": {"group": "g"},
        "list_offsets_of_groups": {"group_ids": ["g"]},
        "alter_group_offsets": {"group": "g", "offsets": {("t", 0): 0}},
        "delete_group_offsets": {"group": "g", "partitions": [("t", 0)]},
        "delete_records": {"offsets": {("t", 0): 0}},
        "elect_leaders": {"partitions": [("t", 0)], "unclean": False},
    },
}
"""Every method with arguments, and arguments that are right."""

# A lookup waits for the fetch before it, on the same connection.
LIMITS: dict[type, dict[str, Any]] = {
    Producer: {"max_block_ms": 50},
    Consumer: {
        "default_api_timeout_ms": 100,
        "fetch_max_wait_ms": 5,
        "group_id": "g",
        "auto_offset_reset": "earliest",
    },
    Admin: {"default_api_timeout_ms": 100},
}
UNCHECKED = {"__init__", "__exit__", "__aexit__", "close", "send"}
POSITIONAL: dict[type, tuple[str, ...]] = {
    Consumer: ("seek_to_beginning", "seek_to_end", "pause", "resume"),
}


def calls(kind: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each method with one wrong argument, the others right."""
    for method, right in CALLS[kind].items():
        for name in right:
            for wrong in WRONG:
                if not (name.startswith("timeout") and wrong in (2**31, 2**64)):  # waits that long
                    yield method, {**right, name: wrong}


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_every_method_with_arguments_is_walked(kind: type) -> None:
    import inspect

    methods = {
        name
        for name, method in inspect.getmembers(kind, callable)
        if (not name.startswith("_") or name in UNCHECKED)
        and len(inspect.signature(method).parameters) > 1
    }
    assert methods - UNCHECKED - set(POSITIONAL.get(kind, ())) == set(CALLS[kind])


def send_patiently(producer: Any) -> Any:
    """On a busy machine metadata takes longer than this producer waits at a time."""
    for _ in range(400):
        with suppress(Unavailable):
            return producer.send("t", b"still", partition=0).result(20)
    pytest.fail("the topic is not known after 20 s")


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_a_wrong_argument_is_refused_and_nothing_is_broken(cluster: Cluster, kind: type) -> None:
    broken: list[str] = []
    with kind(cluster.bootstrap_servers, **LIMITS[kind]) as client:
        for method, arguments in calls(kind):
            if kind is Consumer and method != "assign":
                client.assign([("t", 0)])
            try:
                getattr(client, method)(**arguments)
            except KafkaError:
                pass
            except Exception as error:
                broken.append(f"{method}({arguments}): {error!r}")
        for name in POSITIONAL.get(kind, ()):
            for wrong in WRONG:
                try:
                    getattr(client, name)(wrong)
                except KafkaError:
                    pass
                except Exception as error:
                    broken.append(f"{name}({wrong!r}): {error!r}")
        assert broken == []
        if isinstance(client, Producer):
            assert send_patiently(client).topic == "t"
        elif isinstance(client, Consumer):
            client.assign([("t", 0)])
            client.seek(("t", 0), 0)
            assert client.poll(20_000)
        else:
            assert "t" in client.topics()


def test_a_wrong_argument_of_the_asynchronous_faces(cluster: Cluster) -> None:
    async def scenario() -> list[str]:
        broken: list[str] = []
        faces = {Producer: AsyncProducer, Consumer: AsyncConsumer, Admin: AsyncAdmin}
        for kind, face in faces.items():
            async with face(cluster.bootstrap_servers, **LIMITS[kind]) as client:
                for method, arguments in calls(kind):
                    if kind is Consumer and method != "assign":
                        client.assign([("t", 0)])
                    try:
                        made = getattr(client, method)(**arguments)
                        if asyncio.iscoroutine(made):
                            await made
                    except KafkaError:
                        pass
                    except Exception as error:
                        broken.append(f"{face.__name__}.{method}({arguments}): {error!r}")
        return broken

    assert asyncio.run(scenario()) == []


def test_times_to_wait() -> None:
    assert checked_seconds("timeout", None) is None
    assert checked_seconds("timeout", -3) == 0
    assert checked_seconds("timeout", float("inf")) == 1e8
    assert checked_seconds("timeout", 10**400) == 1e8
    assert checked_wait_ms("timeout_ms", 1500) == 1.5
    for wrong in ("1", True, float("nan"), timedelta(seconds=1), Decimal(1)):
        with pytest.raises(UsageError, match="must be a number of seconds"):
            checked_seconds("timeout", wrong)
    with pytest.raises(UsageError, match=r"as by its \.total_seconds\(\)"):
        checked_seconds("timeout", timedelta(seconds=1))
    with pytest.raises(UsageError, match="timeout_ms=None: must be a number of milliseconds"):
        checked_wait_ms("timeout_ms", None)
    with pytest.raises(UsageError, match=r"milliseconds, as by its \.total_seconds\(\) \* 1000"):
        checked_wait_ms("timeout_ms", timedelta(seconds=1))


def test_numbers_and_names() -> None:
    assert checked_integer("n", np.int32(7)) == 7
    assert type(checked_integer("n", np.int32(7))) is int
    assert checked_time("at", 0) == 0
    assert checked_partition(["t", np.int64(1)]) == ("t", 1)
    assert checked_partitions([("t", 1), ("t", 0), ("t", 1)]) == [("t", 1), ("t", 0)]
    assert checked_topic("ä") == "ä"
    for wrong in (True, np.bool_(True), "7", None, 7.0):
        with pytest.raises(UsageError, match="give an int"):
            checked_integer("n", wrong)
    with pytest.raises(UsageError, match=r"give a list of \(topic, number\)"):
        checked_partitions("t")
    with pytest.raises(UsageError) as refusal:
        checked_topic(["x" * 1000])
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_clients_and_deliveries_are_neither_pickled_nor_copied(
    cluster: Cluster, duplicate: Callable[[object], object]
) -> None:
    servers = cluster.bootstrap_servers

    async def refuse_on_a_loop() -> None:
        async with (
            AsyncProducer(servers) as producer,
            AsyncAdmin(servers) as admin,
            AsyncConsumer(servers) as consumer,
        ):
            for thing in (producer, admin, consumer):
                with pytest.raises(UsageError, match="works only in the process that made it"):
                    duplicate(thing)

    asyncio.run(refuse_on_a_loop())
    with Producer(servers) as producer, Consumer(servers) as consumer, Admin(servers) as admin:
        delivery = producer.send("t", b"x")
        for thing in (producer, consumer, admin, cluster, delivery, TableDelivery("t")):
            with pytest.raises(UsageError, match=f"{type(thing).__name__} cannot be pickled or co"):
                duplicate(thing)
        duplicate(delivery.result(30))


def test_a_delivery_comes_from_send_alone() -> None:
    with pytest.raises(UsageError, match="a Delivery cannot be created directly"):
        Delivery()


def test_a_closed_producer_says_so_by_its_name(cluster: Cluster) -> None:
    producer = Producer(cluster.bootstrap_servers)
    producer.close()
    calls: list[Callable[[], object]] = [
        producer.flush,
        producer.purge,
        lambda: producer.partitions_for("t"),
        lambda: producer.send("new", b"x"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"^Producer\('127.*'\) is closed; make a new one"):
            call()


def test_a_list_where_partitions_come_one_by_one_is_refused_with_the_star() -> None:
    for wrong in ([("t", 0)], [("t", 0), ("t", 1)], [], {("t", 0)}):
        with pytest.raises(UsageError, match=r"one by one; write pause\(\*partitions\)"):
            checked_each("pause", [wrong])
    assert checked_each("pause", [("t", 0), ["t", 1]]) == [("t", 0), ("t", 1)]
