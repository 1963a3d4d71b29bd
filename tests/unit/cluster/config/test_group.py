"""The options of groups are those that Apache Kafka 4.3.0 describes, with the bounds it has."""

from __future__ import annotations

import pytest

from trimtab.cluster.config import BROKER, check_broker, check_group, resolve_group
from trimtab.cluster.config.group import GROUP
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import Value, read, write

NUMBERS = {
    "consumer.assignment.interval.ms": (1000, 0, 2**31 - 1),
    "consumer.heartbeat.interval.ms": (5000, 1, 2**31 - 1),
    "consumer.session.timeout.ms": (45_000, 1, 2**31 - 1),
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


def broker(**given: Value) -> dict[str, Value]:
    """All options of a broker; those of consumer groups are given without `group.consumer.`."""
    return read(BROKER, {f"group_consumer_{name}": value for name, value in given.items()})


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("assignment.interval.ms", 0, 15_000),
        ("heartbeat.interval.ms", 5000, 15_000),
        ("session.timeout.ms", 45_000, 60_000),
    ],
)
def test_the_brokers_have_bounds(name: str, low: int, high: int) -> None:
    option, options = f"consumer.{name}", broker()
    for good in (low, high):
        check_group({option: good}, options)
        assert resolve_group(options, {option: str(good)})[option] == good
    for bad, nearest in ((low - 1, low), (high + 1, high)):
        with pytest.raises(UsageError, match=f"{option}={bad}: must be between group.consumer.min"):
            check_group({option: bad}, options)
        assert resolve_group(options, {option: str(bad)})[option] == nearest


def test_a_group_has_the_brokers_values_unless_it_has_its_own() -> None:
    options = broker(assignment_interval_ms=7, heartbeat_interval_ms=9000)
    assert resolve_group(options, {"consumer.heartbeat.interval.ms": "8000"}) == {
        "consumer.assignment.interval.ms": 7,
        "consumer.heartbeat.interval.ms": 8000,
        "consumer.session.timeout.ms": 45_000,
    }


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    options = broker(min_session_timeout_ms=1)
    check_group({"consumer.session.timeout.ms": 5001}, options)
    with pytest.raises(UsageError, match=r"group consumer\.session\.timeout\.ms=5000"):
        check_group({"consumer.session.timeout.ms": 5000}, options)
    with pytest.raises(UsageError, match=r"group\.consumer\.session\.timeout\.ms=5000"):
        check_broker({**options, "group.consumer.session.timeout.ms": 5000})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"heartbeat_interval_ms": 100},
            "broker group.consumer.heartbeat.interval.ms=100: must be",
        ),
        ({"session_timeout_ms": 90_000}, "group.consumer.max.session.timeout.ms=60000"),
        ({"min_assignment_interval_ms": 16_000}, "assignment.interval.ms=1000: must be between"),
        ({"assignors": ()}, "group.consumer.assignors"),
    ],
)
def test_a_broker_whose_options_contradict_each_other(given: dict[str, Value], says: str) -> None:
    check_broker(broker())
    with pytest.raises(UsageError, match=says):
        check_broker(broker(**given))


def test_a_broker_is_not_fenced_between_two_heartbeats() -> None:
    options = {**read(BROKER, {}), "broker.heartbeat.interval.ms": 500}
    check_broker({**options, "broker.session.timeout.ms": 501})
    with pytest.raises(UsageError, match=r"broker\.session\.timeout\.ms=500: must be more than"):
        check_broker({**options, "broker.session.timeout.ms": 500})
