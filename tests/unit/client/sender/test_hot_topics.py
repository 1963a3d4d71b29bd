"""Which topics' hot keys a producer treats, what contradicts, and which topics refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from trimtab import Admin, AsyncProducer, Cluster, Consumer, Producer, TopicPartition
from trimtab.client.options import producer_options
from trimtab.client.partitioner.split_records import SPLIT_HEADER
from trimtab.client.sender.hot_topics import Treatment, read_treatments
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("plain", partitions=8)
            for policy in ("compact", "compact,delete"):
                name = f"compacted-{len(policy)}"
                admin.create_topic(name, partitions=8, config={"cleanup.policy": policy})
        yield cluster.bootstrap_servers


def test_treatments_are_read_by_topic() -> None:
    options, _, _ = producer_options(
        "h:1", {"partitioner_hot_keys": "a.b=split,c_d=move,e-f=shard:4"}
    )
    assert read_treatments(options, False) == {
        "a.b": Treatment("split"),
        "c_d": Treatment("move"),
        "e-f": Treatment("split", 4),
    }
    assert read_treatments(producer_options("h:1", {})[0], True) == {}


@pytest.mark.parametrize(
    "text", ["", "t", "t=", "t=cut", "t=shard", "t=shard:1", "t=split,", "=split", "t=split;u=move"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"partitioner\.hot\.keys"):
        producer_options("h:1", {"partitioner_hot_keys": text})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"partitioner_compat": "java"}, "Java's partitions"),
        ({"partitioner_ignore_keys": True}, "without regard to keys"),
        ({"acks": 0}, "ever acknowledged"),
        ({"partitioner_class": "round_robin"}, "decides alone"),
        ({"partitioner_class": lambda *_: 0}, "decides alone"),
        ({"partitioner_hot_keys": "t=move", "enable_idempotence": False}, "in order"),
        ({"partitioner_hot_keys": "t=move,t=split"}, "topic t twice"),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, object], reason: str) -> None:
    options = {"partitioner_hot_keys": "t=split", **given}
    with pytest.raises(UsageError, match=reason), Producer("127.0.0.1:1", **options):  # type: ignore[call-overload]
        pass


@pytest.mark.parametrize("topic", ["compacted-7", "compacted-14"])
def test_a_compacted_topic_is_refused_at_each_send(servers: str, topic: str) -> None:
    with Producer(servers, partitioner_hot_keys=f"{topic}=split") as producer:
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"{topic}, which is compacted.*leave the topic"):
                producer.send(topic, b"v", b"k")
        producer.send("plain", b"v", b"k").result()


def test_a_compacted_topic_is_refused_on_a_loop_too(servers: str) -> None:
    async def send() -> None:
        async with AsyncProducer(servers, partitioner_hot_keys="compacted-7=move") as producer:
            with pytest.raises(UsageError, match="compacted"):
                await producer.send("compacted-7", b"v", b"k")

    asyncio.run(send())


def test_a_topic_is_asked_about_before_its_first_record(servers: str) -> None:
    """Also a table's first row, and a record with a given partition."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"key": [b"a"], "value": [b"b"]})
    with Producer(servers, partitioner_hot_keys="compacted-7=split,plain=split") as producer:
        with pytest.raises(UsageError, match="compacted"):
            producer.send_table("compacted-7", table, key="key")
        with pytest.raises(UsageError, match="compacted"):
            producer.send("compacted-7", b"v", partition=3)
        with pytest.raises(UsageError, match="compacted"):
            producer.partitions_for("compacted-7")
        assert producer.send_table("plain", table, key="key").result()


def test_a_producer_splits_a_hot_key_also_in_tables(servers: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    count = 12_000
    with Admin(servers) as admin:
        admin.create_topic("split", partitions=8)
    with Producer(
        servers, partitioner_hot_keys="split=split", partitioner_keys_shown=True, linger_ms=5
    ) as producer:
        for number in range(count):
            producer.send("split", b"%06d" % number, b"hot" if number % 2 else b"%d" % number)
        rows = {
            "key": [b"hot" if number % 2 else b"%d" % number for number in range(count)],
            "value": [b"%06d" % number for number in range(count, 2 * count)],
            "headers": [[("trace", b"1")]] * count,
        }
        schema = pyarrow.schema(
            {
                "key": pyarrow.binary(),
                "value": pyarrow.binary(),
                "headers": pyarrow.map_(pyarrow.string(), pyarrow.binary()),
            }
        )
        table = pyarrow.table(rows, schema=schema)
        delivered = producer.send_table("split", table, key="key", headers="headers").result()
        assert delivered.records == count
        producer.flush()
        partitioning = producer.partitioning("split")
        metrics = producer.metrics()["partitioner-metrics"]["split"]
    (hot,) = partitioning.hot_keys
    assert hot.key == b"hot"
    assert len(hot.partitions) >= 6
    assert hot.partitions[0] == hot.partition
    assert partitioning.treated_keys == 1
    assert isinstance(metrics, dict)
    assert metrics["hot-keys-treated"] == 1
    assert metrics["partition-ratio-max"] < 1.2
    with Consumer(servers) as consumer:
        consumer.assign([TopicPartition("split", number) for number in range(8)])
        consumer.seek_to_beginning()
        records: list[Record] = []
        while len(records) < 2 * count:
            records += consumer.poll()
    rows_back = [each for each in records if dict(each.headers).get("trace")]
    assert len(rows_back) == count
    marked = [each for each in rows_back if SPLIT_HEADER in dict(each.headers)]
    assert {each.key for each in marked} == {b"hot"}
    assert len(marked) == count // 2
    assert {each.value for each in records} == {b"%06d" % number for number in range(2 * count)}
