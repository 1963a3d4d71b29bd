"""Every argument of `send` and `Delivery` as every kind of value, in the form of this process.

`test_two_forms.py` runs it in a process of each form.
"""

from __future__ import annotations

import array
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import numpy as np

from tests.unit.client.conftest import view_of
from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.intake_cy import Intake
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.threads.waiting import new_lock


class Index:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def __repr__(self) -> str:
        return f"Index({self.value!r})"


class Length:
    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __repr__(self) -> str:
        return "Length()"


class Bytes(bytes):
    def __len__(self) -> int:
        return 1


class Int(int):
    pass


class Str(str):
    pass


class Colour(IntEnum):
    RED = 1


def _numbers() -> list[Any]:
    ends = [0, 1, 2, 7, 2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**100]
    return [*ends, *(-each for each in ends[1:]), -(2**63) - 1, Int(1), Int(-5), Colour.RED]


def _values() -> list[Any]:
    return [
        *(None, True, False, 0.0, 1.0, 1.5, -0.5, float("nan"), float("inf"), 1e300, 1j),
        *_numbers(),
        *("", "1", "x" * 300, "\ud800", Str("s"), b"", b"1", Bytes(b"four"), bytearray(b"ba")),
        *(memoryview(b"mv"), memoryview(b"stride")[::2], memoryview(array.array("I", [1, 2]))),
        memoryview(bytes(6)).cast("B", (2, 3)),
        *(array.array("i", [1]), Decimal(1), Decimal("1.5"), Fraction(1, 1), Fraction(1, 2)),
        *(datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=1), object, print),
        *(Index(1), Index(-1), Index(2**70), Index("no"), Index(ValueError("no")), Length()),
        *(np.int8(1), np.int32(1), np.int64(1), np.int64(-2), np.uint64(2**64 - 1), np.bool_(True)),
        *(np.float64(1.0), np.str_("s"), np.bytes_(b"b"), np.array(1), np.array([1])),
        *(np.datetime64(1, "ms"), range(2), [], [1], (), (1,), {}, {"a": b"b"}, set(), ["ab"]),
        *([("h", b"v")], (("h", b"v"),), [["h", b"v"]], [("h", None)], [("h", "text")], [("h",)]),
        *([(b"h", b"v")], [("", b"")], [("é", b"v")], [("\ud800", b"v")], [None], [("h", 1)]),
        *([("h", bytearray(b"v"))], [("h", memoryview(b"stride")[::2])], [("h", b"v", 1)]),
        *(
            {"h": b"v"}.items(),
            iter([("h", b"v")]),
            [(Str("h"), Bytes(b"four"))],
            [("h", Length())],
        ),
    ]


ADDRESS = re.compile("0x[0-9a-f]{6,}")
ARGUMENTS = ("topic", "value", "key", "headers", "partition", "timestamp", "on_delivery")


def _outcome(call: Callable[[], object]) -> str:
    try:
        returned = call()
    except Exception as error:
        return ADDRESS.sub("0x", f"{type(error).__name__}: {error}")
    return "Delivery" if isinstance(returned, Delivery) else repr(returned)


class Sender(Intake):
    """What must wait is said, not waited for."""

    def _send_when_possible(self, *record: Any) -> Any:
        return None

    def _hand_over(self) -> None: ...


def make_accumulator(**options: Any) -> Accumulator:
    arguments: dict[str, Any] = {
        "batch_size": 1000,
        "buffer_memory": 1 << 24,
        "max_request_size": 1 << 20,
        "compression": 0,
        "ignores_keys": False,
        "make_partitioner": lambda: BuiltInPartitioner(BuiltInOptions(1000), Random(3)),
        "now": lambda: 100.0,
        "wall_clock": lambda: 1_700_000_000.25,
        "lock": new_lock(),
        "wake": lambda: None,
        "on_callback_error": lambda error: None,
    }
    made = Accumulator(**{**arguments, **options})
    made.update_topic(view_of((0, 0, 0), name="topic"))
    return made


def outcomes() -> list[tuple[str, str]]:
    """The attempts and their outcomes, and at the end the stored records."""
    found: list[tuple[str, str]] = []
    accumulator = make_accumulator()
    sender = Sender(accumulator)
    for argument in ARGUMENTS:
        for value in _values():
            record: dict[str, Any] = {"topic": "topic", "value": b"v", "timestamp": 5}
            record[argument] = value
            shown = f"send({argument}={value!r:.60})"
            # Twice: the first may begin a batch, the second goes into an open one.
            found += [(shown, _outcome(partial(sender.send, **record))) for _ in range(2)]
    settled = make_accumulator()
    delivery = Sender(settled).send("topic", b"v", partition=0, timestamp=5)
    settled.complete(settled.take_batch(settled.topic("topic").queues[0]), 7, -1)
    for value in _values():
        for method in ("result", "exception", "add_done_callback"):
            if value is not print:
                shown = f"{method}({value!r:.60})"
                found.append((shown, _outcome(partial(getattr(delivery, method), value))))
    for queue in accumulator.topic("topic").queues:
        for batch in queue.batches:
            found += [(f"stored in {queue}", repr(tuple(each))) for each in batch.builder.records()]
    return [(ADDRESS.sub("0x", tried), outcome) for tried, outcome in found]
