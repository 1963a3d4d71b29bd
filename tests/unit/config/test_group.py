"""The options of groups are those that Apache Kafka 4.3.0 describes, with the bounds it has."""

from __future__ import annotations

import pytest

from trimtab.config import write
from trimtab.config.group import GROUP
from trimtab.errors import UsageError

NUMBERS = {
    "consumer.assignment.interval.ms": (1000, 0, 15_000),
    "consumer.heartbeat.interval.ms": (5000, 5000, 15_000),
    "consumer.session.timeout.ms": (45_000, 45_000, 60_000),
    "share.assignment.interval.ms": (1000, 0, 15_000),
    "share.delivery.count.limit": (5, 2, 10),
    "share.heartbeat.interval.ms": (5000, 5000, 15_000),
    "share.partition.max.record.locks": (2000, 100, 4000),
    "share.record.lock.duration.ms": (30_000, 15_000, 60_000),
    "share.session.timeout.ms": (45_000, 45_000, 60_000),
    "streams.assignment.interval.ms": (1000, 0, 15_000),
    "streams.heartbeat.interval.ms": (5000, 5000, 15_000),
    "streams.initial.rebalance.delay.ms": (3000, 0, 2**31 - 1),
    "streams.num.standby.replicas": (0, 0, 2),
    "streams.session.timeout.ms": (45_000, 45_000, 60_000),
}
WORDS = {
    "share.auto.offset.reset": "latest",
    "share.isolation.level": "read_uncommitted",
    "share.renew.acknowledge.enable": "true",
}


def test_names_and_defaults() -> None:
    defaults = {name: str(default) for name, (default, _, _) in NUMBERS.items()}
    assert {option.name: write(option.default) for option in GROUP} == {**defaults, **WORDS}


@pytest.mark.parametrize(("name", "low", "high"), [(n, b[1], b[2]) for n, b in NUMBERS.items()])
def test_bounds(name: str, low: int, high: int) -> None:
    for good in (low, high):
        assert GROUP[name].check(str(good)) == good
    for bad in (low - 1, high + 1):
        with pytest.raises(UsageError, match=name):
            GROUP[name].check(str(bad))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("earliest", True),
        ("by_duration:PT1H", True),
        ("by_duration:P1DT0.5S", True),
        ("by_duration:pt5m", True),
        ("by_duration:P", False),
        ("by_duration:PT", False),
        ("by_duration:1h", False),
        ("EARLIEST", False),
        ("", False),
    ],
)
def test_where_a_share_group_begins(text: str, fits: bool) -> None:
    option = GROUP["share.auto.offset.reset"]
    if fits:
        assert option.check(text) == text
    else:
        with pytest.raises(UsageError, match=r"by_duration:PnDTnHnMn\.nS"):
            option.check(text)
