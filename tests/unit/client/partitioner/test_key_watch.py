"""Heavy keys are seen while a producer sends: the right ones, with the right shares."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key
from trimtab.client.topic_view import TopicView

PARTITIONS = 12


@pytest.fixture
def make(
    in_form: Callable[[str], ModuleType], make_view: Callable[..., TopicView]
) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        made = in_form("trimtab.client.accumulator.accumulator_cy").Accumulator(
            batch_size=16_384,
            buffer_memory=1 << 26,
            max_request_size=1 << 20,
            compression=0,
            ignores_keys=options.pop("ignores_keys", False),
            make_partitioner=lambda: BuiltInPartitioner(BuiltInOptions(16_384, False), Random(3)),
            now=lambda: 100.0,
            wall_clock=lambda: 1_700_000_000.25,
            lock=threading.RLock(),
            wake=lambda: None,
            on_callback_error=lambda error: pytest.fail(str(error)),
            **options,
        )
        made.update_topic(make_view((0,) * PARTITIONS))
        return made

    return make


def draw(count: int) -> list[bytes]:
    """Keys of which "us" has 40 %, and "de" 15 %; the others are even."""
    random = Random(5)
    return random.choices(
        [b"us", b"de", *(b"k%d" % number for number in range(45))], [40, 15, *[1] * 45], k=count
    )


def append_all(accumulator: Any, keys: list[bytes], **fields: Any) -> None:
    record: dict[str, Any] = {"headers": None, "partition": None, "timestamp": 7, **fields}
    for key in keys:
        accumulator.append("topic", bytes(100), key, **record)


@pytest.mark.parametrize("is_plain", [True, False], ids=["common case", "with headers"])
def test_keys_above_their_fair_share_are_named_by_hash(
    make: Callable[..., Any], is_plain: bool
) -> None:
    accumulator = make()
    append_all(accumulator, draw(24_000), headers=None if is_plain else [("a", b"1")])
    us, de = accumulator.partitioning("topic").hot_keys
    for found, key, share in ((us, b"us", 0.4), (de, b"de", 0.15)):
        assert (found.hash, found.key) == (murmur2(key), None)
        assert found.partition == partition_for_key(key, PARTITIONS)
        assert found.share == pytest.approx(share, abs=0.05)


def test_keys_are_shown_if_asked_for(make: Callable[..., Any]) -> None:
    accumulator = make(shows_keys=True)
    append_all(accumulator, draw(24_000))
    assert [(each.key, each.hash) for each in accumulator.partitioning("topic").hot_keys] == [
        (b"us", murmur2(b"us")),
        (b"de", murmur2(b"de")),
    ]


def test_large_keys_are_known_by_hash_so_that_memory_is_bounded(make: Callable[..., Any]) -> None:
    accumulator = make(shows_keys=True)
    append_all(accumulator, [b"a" * 1025, b"b"] * 3000)
    (large,) = (each for each in accumulator.partitioning("topic").hot_keys if each.key is None)
    assert large.hash == murmur2(b"a" * 1025)
    assert large.share == pytest.approx(1125 / 1226, abs=0.05)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_keys_that_are_not_bytes_are_shown_too(make: Callable[..., Any], kind: Any) -> None:
    accumulator = make(shows_keys=True)
    append_all(accumulator, [kind(b"us")] * 100)
    assert [each.key for each in accumulator.partitioning("topic").hot_keys] == [b"us"]


def test_shares_are_of_bytes(make: Callable[..., Any]) -> None:
    accumulator = make(shows_keys=True)
    for _ in range(3000):
        accumulator.append("topic", bytes(1000), b"large", None, None, 7)
        append_all(accumulator, [b"a", b"b", b"c"])
    (large,) = (each for each in accumulator.partitioning("topic").hot_keys if each.key == b"large")
    assert large.share == pytest.approx(1005 / (1005 + 3 * 101), abs=0.05)


def test_a_pattern_of_the_keys_is_seen_as_it_is(make: Callable[..., Any]) -> None:
    """32 keys in turn, as many as the mean distance of two samples."""
    accumulator = make(shows_keys=True)
    append_all(accumulator, [b"%d" % number for number in range(32)] * 2000)
    found = accumulator.topic("topic").keys.heaviest(40)
    assert len(found) == 32
    assert all(share == pytest.approx(1 / 32, rel=0.4) for _, share, _ in found)


def test_only_records_count_whose_key_decides(make: Callable[..., Any]) -> None:
    accumulator = make()
    append_all(accumulator, [b"a"] * 100, partition=3)
    for _ in range(100):
        accumulator.append("topic", b"x", None, None, None, 7)
    assert accumulator.partitioning("topic").hot_keys == ()
    ignoring = make(ignores_keys=True)
    append_all(ignoring, [b"a"] * 100)
    assert ignoring.partitioning("topic").hot_keys == ()


def test_the_twenty_heaviest_of_many_keys_are_found(in_form: Callable[[str], ModuleType]) -> None:
    """Zipf 1.4 over 100,000 keys, every record counted: all of the twenty heaviest, in order."""
    random = Random(2)
    keys = random.choices(range(100_000), [(n + 1) ** -1.4 for n in range(100_000)], k=40_000)
    watch = in_form("trimtab.client.partitioner.key_watch_cy").KeyWatch(False, lambda: 0.0)
    for key in keys:
        watch.count_key(key, None, 1, key % 7)
    found = watch.heaviest(20)
    right = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))[:20]
    assert [key for key, _, _ in found] == [key for key, _ in right]
    for (key, share, partition), (_, count) in zip(found, right, strict=True):
        assert share <= count / len(keys)
        assert share == pytest.approx(count / len(keys), rel=0.05)
        assert partition == key % 7


def test_keys_that_were_hot_long_ago_fade(in_form: Callable[[str], ModuleType]) -> None:
    now = 0.0
    watch = in_form("trimtab.client.partitioner.key_watch_cy").KeyWatch(False, lambda: now)
    for _ in range(6400):
        watch.count_key(1, None, 100, 0)
    for _ in range(10):
        now += 300.0
        for _ in range(640):
            watch.count_key(2, None, 100, 0)
    (first, second) = watch.heaviest(5)
    assert (first[0], second[0]) == (2, 1)
    assert second[1] < 0.02
    assert first[1] + second[1] == pytest.approx(1.0, abs=0.01)
    assert watch.total < 2 * 64_000


def test_a_producer_shows_its_hot_keys_and_the_share_of_each_partition() -> None:
    keys = draw(24_000)
    with Cluster() as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        with Producer(servers, partitioner_keys_shown=True, linger_ms=5) as producer:
            for key in keys:
                producer.send("t", bytes(100), key)
            producer.flush()
            partitioning = producer.partitioning("t")
            metrics = producer.metrics()["partitioner-metrics"]["t"]
    assert [each.key for each in partitioning.hot_keys] == [b"us", b"de"]
    counts = Counter(partition_for_key(key, PARTITIONS) for key in keys)
    stored = [each.stored_bytes for each in partitioning.partitions]
    for partition, count in counts.items():
        assert stored[partition] / sum(stored) == pytest.approx(count / len(keys), rel=0.05)
    assert isinstance(metrics, dict)
    assert metrics["hot-keys"] == 2
    assert metrics["hot-key-share-max"] == partitioning.hot_keys[0].share
    assert metrics["partition-ratio-max"] == max(stored) * PARTITIONS / sum(stored)
