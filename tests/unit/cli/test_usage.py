"""The limits and replicas of a cluster, as its brokers and topics say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from trimtab.balance.limits import PartitionLimits
from trimtab.cli.usage import read_usage
from trimtab.config import LONG_MAX


class Described:
    """A cluster of the brokers 1 (rack a) and 2, which limits only the replicas of a broker."""

    def cluster(self) -> object:
        nodes = [SimpleNamespace(id=1, rack="a"), SimpleNamespace(id=2, rack=None)]
        return SimpleNamespace(nodes=nodes)

    def describe_configs(self, kind: str, name: int) -> list[object]:
        assert (kind, name) == ("broker", 1)
        return [
            SimpleNamespace(name="max.broker.partitions", value="40"),
            SimpleNamespace(name="broker.rack", value="a"),
        ]


def topic(*replicas: tuple[int, ...], is_internal: bool = False) -> object:
    partitions = [SimpleNamespace(replicas=each) for each in replicas]
    return SimpleNamespace(partitions=partitions, is_internal=is_internal)


def test_replicas_of_internal_topics_do_not_count_and_those_of_dead_brokers_do() -> None:
    views = cast(Any, [topic((1, 3), (3, 2)), topic((1, 2), is_internal=True)])
    usage = read_usage(cast(Any, Described()), views)
    assert usage.limits == PartitionLimits(40, LONG_MAX)
    assert usage.racks == {1: "a", 2: None}
    assert (usage.counts.on, usage.counts.preferred) == ({1: 1, 2: 1, 3: 2}, {1: 1, 3: 1})
    assert usage.counts.total == 4


def test_a_limit_on_the_command_line_replaces_the_clusters() -> None:
    usage = read_usage(cast(Any, Described()), [], {"max.broker.partitions": 7})
    assert usage.limits == PartitionLimits(7, LONG_MAX)
