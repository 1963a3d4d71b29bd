"""Arrow batches of several partitions, and small ones made into one."""

from __future__ import annotations

import pyarrow as pa

from tests.unit.client.scripted_broker import batch
from trimtab.client.fetcher.arrow import SMALL_BYTES, Projection, join_small
from trimtab.kafka.records import TopicPartition


def rows(*values: int, size: int) -> pa.RecordBatch:
    padding = b"." * size
    return pa.RecordBatch.from_pydict({"n": list(values), "v": [padding for _ in values]})


def test_small_batches_are_joined_in_order() -> None:
    small, large = 10, SMALL_BYTES
    given = [
        *(rows(1, 2, size=small), rows(3, size=small), rows(4, size=large)),
        *(rows(5, size=small), rows(6, size=large), rows(7, size=small)),
    ]
    joined = [each.column("n").to_pylist() for each in join_small(given)]
    assert joined == [[1, 2, 3], [4], [5], [6], [7]]


def test_small_batches_are_joined_until_they_are_large() -> None:
    each = rows(1, size=SMALL_BYTES // 4)
    assert [made.num_rows for made in join_small([each] * 10)] == [4, 4, 2]


def test_partitions_of_several_topics_keep_their_names() -> None:
    projection = Projection(("topic", "partition", "value"))
    parts = []
    for topic, partition, values in (
        ("t", 0, (b"a", b"b", b"c")),
        ("u", 1, (b"d",)),
        ("t", 2, (b"e", b"f")),
    ):
        data = memoryview(batch(0, *values))
        found, _, _ = projection.scan(TopicPartition(topic, partition), data, 0, 9, 1 << 20)
        parts.append(found)
    table = projection.table(parts)
    assert table.column("topic").to_pylist() == ["t", "t", "t", "u", "t", "t"]
    assert table.column("partition").to_pylist() == [0, 0, 0, 1, 2, 2]
    assert table.column("value").to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f"]
