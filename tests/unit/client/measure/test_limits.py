"""The limits that a broker describes."""

from __future__ import annotations

from types import SimpleNamespace

from tests.unit.client.measure.made_samples import Log, make_sample
from trimtab.client.measure.limits import count_replicas, read_limits
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition

OPTIONS = [
    SimpleNamespace(name="max.broker.partitions", value="40"),
    SimpleNamespace(name="max.partitions", value=None),
    SimpleNamespace(name="broker.rack", value="a"),
]


def test_a_limit_that_a_broker_lacks_is_the_largest_long() -> None:
    assert read_limits(OPTIONS) == (40, LONG_MAX)
    assert read_limits([]) == (LONG_MAX, LONG_MAX)


def test_given_limits_come_first() -> None:
    assert read_limits(OPTIONS, {"max.broker.partitions": 7, "max.partitions": 9}) == (7, 9)


def test_replicas_of_internal_topics_do_not_count() -> None:
    sample = make_sample(
        0,
        {
            TopicPartition("t", 0): Log(0, 0, replicas=(1, 3)),
            TopicPartition("t", 1): Log(0, 0, replicas=(3, 2)),
            TopicPartition("__consumer_offsets", 0): Log(0, 0, replicas=(1, 2)),
        },
    )
    counts = count_replicas(sample.topics.value.values())
    assert (counts.on, counts.preferred, counts.total) == ({1: 1, 2: 1, 3: 2}, {1: 1, 3: 1}, 4)
