"""A table that is sent in parts: one delivery, and work that does not grow with the parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.client.odd_values import make_accumulator
from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.blocking.producer import OpenTable, Producer
from trimtab.client.topic_view import TopicView
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import Unavailable, UsageError

pa = pytest.importorskip("pyarrow")

MakeView = Callable[..., TopicView]

PART_ROWS = 2_000
"""As Spark's Arrow batches, the parts of a table do not grow with the number of partitions."""
ROWS_EACH = 4
"""Rows to each partition, in as many parts where the partitions are more than `PART_ROWS`."""


def settle_all(accumulator: Accumulator) -> int:
    """Acknowledge every batch; returns their number."""
    queues = [queue for queue in accumulator.take_changed() if queue.batches]
    for queue in queues:
        accumulator.complete(accumulator.take_batch(queue), 0, -1)
    return len(queues)


def count_lines(make_view: MakeView, partitions: int) -> int:
    """The lines of `table.py` that run to send a few rows to each partition, and to settle them."""
    accumulator = make_accumulator(
        batch_size=16_384,
        buffer_memory=1 << 30,
        on_callback_error=lambda error: pytest.fail(str(error)),
    )
    accumulator.update_topic(make_view((0,) * partitions))
    numbers = [number % partitions for number in range(ROWS_EACH * partitions)]
    rows = pa.table({"value": [b"x"] * len(numbers), "to": pa.array(numbers, pa.int32())})
    producer: Any = SimpleNamespace(_core=SimpleNamespace(accumulator=accumulator, max_block=1.0))
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def watch(frame: Any, event: str, argument: Any) -> Any:
        return count if frame.f_code.co_filename.endswith("accumulator/table.py") else None

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        table = OpenTable(producer, "topic", {"value": "value", "partition": "to"})
        for first in range(0, len(numbers), PART_ROWS):
            table.send(rows.slice(first, PART_ROWS))
        delivery = table.end_table()
        assert settle_all(accumulator) == partitions
    finally:
        sys.settrace(before)
    assert delivery.result(0).records == len(numbers)
    return lines


@pytest.mark.parametrize("partitions", [1_000, 10_000])
def test_rows_for_many_partitions_cost_each_no_more_than_for_few(
    make_view: MakeView, partitions: int
) -> None:
    few = count_lines(make_view, 100) / 100
    assert count_lines(make_view, partitions) / partitions < 1.2 * few


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    with Cluster(brokers=1) as cluster, Producer(cluster.bootstrap_servers) as producer:
        yield producer


def test_the_parts_of_a_table_have_one_delivery(producer: Producer) -> None:
    table = OpenTable(producer, "parts", {"value": "v", "partition": "p"})
    for value in (b"a", b"bc"):
        table.send(pa.table({"v": [value] * 2, "p": [0, 0]}))
    table.raise_failed()
    summary = table.end_table().result(30)
    assert (summary.records, summary.partitions[0].records) == (4, 4)
    assert (summary.partitions[0].first_offset, summary.partitions[0].last_offset) == (0, 3)


def test_a_partition_that_the_topic_lacks_is_an_error_after_another_look(
    producer: Producer,
) -> None:
    table = OpenTable(producer, "parts", {"value": "v", "partition": "p"}, patience=0.1)
    table.send(pa.table({"v": [b"a"], "p": [0]}))
    producer.flush()
    assert table.stored == 1
    lacking = r"partition 1 of topic parts is not there after 0.1 s: .* has 1 partitions, 0 to 0"
    with pytest.raises(Unavailable, match=lacking):
        table.send(pa.table({"v": [b"a", b"b"], "p": [0, 1]}))


def test_a_table_that_has_ended_or_failed_takes_no_more_parts(producer: Producer) -> None:
    part = pa.table({"value": [b"x"]})
    ended = OpenTable(producer, "parts", {"value": "value"})
    ended.send(part)
    ended.end_table()
    failed = OpenTable(producer, "parts", {"value": "missing"})
    with pytest.raises(UsageError, match="no column 'missing'"):
        failed.send(part)
    for table in (ended, failed):
        with pytest.raises(UsageError, match=r"topic parts has ended, or .*: open a new one"):
            table.send(part)
        with pytest.raises(UsageError, match="topic parts has ended"):
            table.end_table()
