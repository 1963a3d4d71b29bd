"""Creates the assignors that `partition.assignment.strategy` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from trimtab.client.group.assignors.load import CooperativeLoadAssignor, LoadAssignor
from trimtab.client.group.assignors.protocol import Assignor
from trimtab.client.group.assignors.ranges import RangeAssignor
from trimtab.client.group.assignors.round_robin import RoundRobinAssignor
from trimtab.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from trimtab.kafka.errors import UsageError

_OPTION = "partition.assignment.strategy"
_JAVA = "org.apache.kafka.clients.consumer."

ASSIGNORS: dict[str, Callable[[], Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "load": LoadAssignor,
    "cooperative-load": CooperativeLoadAssignor,
}
"""By the name that members use in JoinGroup, which librdkafka also uses in its options."""

_CLASSES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def make_assignors(value: str | Sequence[object]) -> list[Assignor]:
    """The assignors in the order of preference.

    Eager and cooperative ones may be mixed, as in Java: members then behave as all of them allow,
    until a rolling restart has removed the eager ones (KIP-429).

    Args:
        value: names, separated by commas or in a list: those of `ASSIGNORS`, or of Java's classes
            with or without their package. A list may also have assignors.

    Raises:
        UsageError: a name is unknown or used twice, or there is none.
    """
    if isinstance(value, str):
        value = [each for each in value.split(",") if each.strip()]
    assignors = [_make(each) for each in (value if isinstance(value, list | tuple) else [value])]
    names = [each.name for each in assignors]
    if not names:
        raise UsageError(f"{_OPTION} is empty; name at least one of {', '.join(ASSIGNORS)}")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{_OPTION} names {name} {names.count(name)} times; name it once")
    return assignors


def _make(given: object) -> Assignor:
    if isinstance(given, str):
        name = given.strip().removeprefix(_JAVA)
        make = ASSIGNORS.get(_CLASSES.get(name, name))
        if make is not None:
            return make()
    elif not isinstance(given, type) and all(
        hasattr(given, each)
        for each in ("name", "is_cooperative", "user_data", "subscriber", "assign")
    ):
        return cast(Assignor, given)
    raise UsageError(
        f"{_OPTION}={given!r} is no assignor; choose from {', '.join(ASSIGNORS)},"
        f" or use Java's names: {', '.join(_JAVA + each for each in _CLASSES)}"
    )
