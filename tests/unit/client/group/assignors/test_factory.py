"""`partition.assignment.strategy` in our names, Java's and librdkafka's."""

from __future__ import annotations

import pytest

from trimtab.client.group.assignors.factory import ASSIGNORS, make_assignors
from trimtab.client.group.assignors.protocol import Subscriber, Topic
from trimtab.client.group.assignors.ranges import RangeAssignor
from trimtab.kafka.errors import UsageError

JAVA = "org.apache.kafka.clients.consumer."


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("range", ["range"]),
        ("range,roundrobin", ["range", "roundrobin"]),
        (["sticky", " load "], ["sticky", "load"]),
        (f"{JAVA}RangeAssignor, {JAVA}CooperativeStickyAssignor", ["range", "cooperative-sticky"]),
        ([f"{JAVA}StickyAssignor", "RoundRobinAssignor"], ["sticky", "roundrobin"]),
        ([RangeAssignor()], ["range"]),
    ],
)
def test_names_and_assignors(value: str | list[object], names: list[str]) -> None:
    assert [each.name for each in make_assignors(value)] == names


def test_each_assignor_has_the_name_that_it_is_chosen_by() -> None:
    assert [each.name for each in make_assignors(list(ASSIGNORS))] == list(ASSIGNORS)
    cooperative = [each.name for each in make_assignors(list(ASSIGNORS)) if each.is_cooperative]
    assert cooperative == ["cooperative-sticky", "cooperative-load"]


@pytest.mark.parametrize("value", ["", [], ","])
def test_none_is_refused(value: str | list[object]) -> None:
    with pytest.raises(UsageError, match="is empty; name at least one of range, roundrobin"):
        make_assignors(value)


@pytest.mark.parametrize("value", ["ranges", ["range", None], [RangeAssignor], "range, sticki", 5])
def test_an_unknown_one_is_refused_with_the_choices(value: object) -> None:
    with pytest.raises(UsageError, match="is no assignor; choose from range, roundrobin"):
        make_assignors(value)  # type: ignore[arg-type]


def test_one_that_is_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="names range 2 times; name it once"):
        make_assignors(f"range,{JAVA}RangeAssignor")


@pytest.mark.parametrize("name", ASSIGNORS)
def test_nothing_to_assign(name: str) -> None:
    assignor = ASSIGNORS[name]()
    assert assignor.assign([], {"a": Topic(3)}) == {}
    alone = Subscriber("m", None, frozenset({"gone", "empty"}))
    assert assignor.assign([alone], {"empty": Topic(0), "other": Topic(3)}) == {"m": []}
    assert assignor.assign([alone], {}) == {"m": []}
