"""Quix Streams' tutorial on trimtab's cluster: a stream into another, then sums with state.

State is kept by partition in topics of changes, which the next run reads again. Exactly-once
processing needs transactions, which the cluster does not serve (SKIPPED.md).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab import Admin, Cluster, Consumer, TopicPartition

pytest.importorskip("quixstreams", reason="Quix Streams is not installed: see CONTRIBUTING.md")

from quixstreams import Application, State
from quixstreams.models import TopicConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

READINGS = 200
SENSORS = 5
PARTITIONS = 4
PATIENCE_S = 60.0
CONFIG = TopicConfig(num_partitions=PARTITIONS, replication_factor=3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


def make_application(cluster: Cluster, group: str, state: Path, guarantee: Any) -> Any:
    return Application(
        broker_address=cluster.bootstrap_servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        state_dir=str(state),
        commit_interval=0.5,
        loglevel="WARNING",
        processing_guarantee=guarantee,
    )


def produce(application: Any, topic: Any, numbers: range) -> None:
    with application.get_producer() as producer:
        for number in numbers:
            message = topic.serialize(key=f"sensor-{number % SENSORS}", value={"number": number})
            producer.produce(topic=topic.name, key=message.key, value=message.value)


def read(cluster: Cluster, topic: str) -> list[tuple[bytes, bytes]]:
    """The records of a topic, keys and values."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        records: list[tuple[bytes, bytes]] = []
        while any(consumer.position(each) < end for each, end in ends.items()):
            records += [(each.key or b"", each.value or b"") for each in consumer.poll(500)]
    return records


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_is_filtered_and_changed(cluster: Cluster, tmp_path: Path, guarantee: str) -> None:
    group = f"quix-{guarantee}"
    application = make_application(cluster, group, tmp_path, guarantee)
    source = application.topic(f"readings-{group}", value_deserializer="json", config=CONFIG)
    result = application.topic(f"even-{group}", value_serializer="json", config=CONFIG)
    produce(application, source, range(READINGS))
    stream = application.dataframe(source)
    stream = stream[stream["number"] % 2 == 0]
    stream["double"] = stream["number"] * 2
    stream = stream.to_topic(result)
    application.run(count=READINGS, timeout=PATIENCE_S)
    values = Counter(value for _, value in read(cluster, f"even-{group}"))
    assert len(values) == READINGS // 2
    assert values[b'{"number":8,"double":16}'] == 1
    with Admin(cluster.bootstrap_servers) as admin:
        assert sum(at.offset for at in admin.list_group_offsets(group).values()) == READINGS


def test_sums_go_on_after_a_restart_with_state_from_the_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The second run has lost its directory: it gets the sums from the topic of changes."""
    half = READINGS // 2
    for run, numbers in enumerate((range(half), range(half, READINGS))):
        application = make_application(cluster, "quix-sums", tmp_path / "state", "at-least-once")
        source = application.topic("sensors", value_deserializer="json", config=CONFIG)
        result = application.topic("sums", value_serializer="json", config=CONFIG)
        produce(application, source, numbers)

        def add(value: dict[str, int], state: State) -> dict[str, int]:
            total = state.get("total", 0) + value["number"]
            state.set("total", total)
            return {"total": total}

        application.dataframe(source).apply(add, stateful=True).to_topic(result)
        application.run(count=half, timeout=PATIENCE_S)
        sums = [value for key, value in read(cluster, "sums") if key == b"sensor-0"]
        assert len(sums) == len(range(0, (run + 1) * half, SENSORS))
        shutil.rmtree(tmp_path / "state")
    assert sums[-1] == b'{"total":%d}' % sum(range(0, READINGS, SENSORS))
