"""The partitioner for each combination of options, and users' own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest

from tests.unit.client.scripted_load import ScriptedLoad
from trimtab.client.network.options import Options
from trimtab.client.options import PRODUCER
from trimtab.client.partitioner.built_in import BuiltInPartitioner
from trimtab.client.partitioner.factory import PartitionerMaker, make_partitioner
from trimtab.client.partitioner.java import JavaPartitioner
from trimtab.client.partitioner.per_record import (
    CallableNewBatchPartitioner,
    RoundRobinPartitioner,
)
from trimtab.client.partitioner.protocol import PerRecordPartitioner
from trimtab.client.partitioner.soonest import SoonestPartitioner
from trimtab.client.partitioner.sticky import StickyPartitioner
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

MakeView = Callable[..., TopicView]
LOAD = ScriptedLoad()


def make(custom: object | None = None, **given: object) -> PartitionerMaker:
    options = Options(PRODUCER, {"bootstrap_servers": "127.0.0.1:9092", **given})
    return make_partitioner(options, custom, Random(5))


def per_record(maker: PartitionerMaker) -> PerRecordPartitioner:
    partitioner = maker()
    assert not hasattr(partitioner, "next_turn")
    return partitioner


class LastPartition:
    """A partitioner with everything that Kafka's interface has."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.configured: Mapping[str, object] = {}
        self.is_closed = False

    def configure(self, options: Mapping[str, object]) -> None:
        self.configured = options

    def partition(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partitions: Sequence[int],
        available: Sequence[int],
    ) -> int:
        self.seen.append((topic, key, value, list(partitions), list(available)))
        return partitions[-1]

    def close(self) -> None:
        self.is_closed = True


class WithNewBatch(LastPartition):
    def on_new_batch(self, topic: str, partitions: Sequence[int], previous: int) -> None:
        self.seen.append((topic, list(partitions), previous))


class Needy:
    def __init__(self, what: str) -> None:
        self.what = what


def last_partition(
    topic: str, key: bytes | None, value: bytes | None, all_: Sequence[int], free: Sequence[int]
) -> int:
    return all_[-1]


def test_round_robin_counts_for_each_topic_on_its_own(make_view: MakeView) -> None:
    maker = make(partitioner_class="round_robin")
    one, other = per_record(maker), per_record(maker)
    view, chosen = make_view([0, 1, 2]), Counter[int]()
    for record in range(30):
        chosen[one.partition(view, b"key" if record % 2 else None, b"")] += 1
        if record % 5 == 0:
            other.partition(make_view([0, 1], name="other"), None, b"")
    assert chosen == {0: 10, 1: 10, 2: 10}


def test_a_callable_decides(make_view: MakeView) -> None:
    seen: list[object] = []

    def last(topic: str, key: bytes | None, value: bytes | None, all_: object, free: object) -> int:
        seen.append((topic, key, value, list(all_), list(free)))  # type: ignore[call-overload]
        return 2

    partitioner = per_record(make(last))
    assert partitioner.partition(make_view([0, -1, 2]), b"k", b"v") == 2
    assert seen == [("topic", b"k", b"v", [0, 1, 2], [0, 2])]
    assert not hasattr(partitioner, "on_new_batch")


@pytest.mark.parametrize("is_class", [True, False])
def test_an_object_is_configured_asked_and_closed(make_view: MakeView, is_class: bool) -> None:
    maker = make(LastPartition if is_class else LastPartition(), linger_ms=7)
    assert per_record(maker).partition(make_view([0, 1]), None, b"v") == 1
    assert per_record(maker).partition(make_view([0], name="b"), None, b"v") == 0
    user: LastPartition = maker.close.__self__  # type: ignore[attr-defined]
    assert [seen[0] for seen in user.seen] == ["topic", "b"]  # type: ignore[index]
    assert user.configured["linger.ms"] == 7
    assert set(user.configured) == {option.name for option in PRODUCER}
    maker.close()
    assert user.is_closed


@pytest.mark.kip(794)
def test_on_new_batch_is_called_and_deprecated(make_view: MakeView) -> None:
    user = WithNewBatch()
    with pytest.warns(DeprecationWarning, match="on_new_batch of WithNewBatch is deprecated"):
        maker = make(user)
    partitioner = maker()
    assert isinstance(partitioner, CallableNewBatchPartitioner)
    partitioner.on_new_batch(make_view([0, -1]), 1)
    assert partitioner.partition(make_view([0, -1]), b"k", b"v") == 1
    assert user.seen == [("topic", [0, 1], 1), ("topic", b"k", b"v", [0, 1], [0])]


@pytest.mark.parametrize("separator", [":", "."])
@pytest.mark.parametrize("name", ["last_partition", "LastPartition"])
def test_a_partitioner_is_loaded_by_its_path(
    make_view: MakeView, separator: str, name: str
) -> None:
    maker = make(partitioner_class=f"{__name__}{separator}{name}")
    assert per_record(maker).partition(make_view([0, 1, 2]), None, None) == 2


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("stikcy", "is not known; give round_robin, sticky, uniform_sticky, module:Name"),
        ("org.apache.kafka.Nothing", "cannot be loaded: No module named 'org'"),
        (
            "trimtab.client.partitioner.factory:Nothing",
            "cannot be loaded: .*has no attribute 'Nothing'",
        ),
        (".partitioner:Nothing", "is not known"),
        ("trimtab.client.partitioner.factory:_BUILT_IN_OPTIONS", "is not a partitioner"),
        (f"{__name__}:Needy", "cannot be created without arguments"),
    ],
)
def test_an_object_that_is_no_partitioner_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        make(partitioner_class=name)


@pytest.mark.parametrize(
    ("name", "kind", "ignores_keys"),
    [
        ("round_robin", RoundRobinPartitioner, True),
        ("RoundRobinPartitioner", RoundRobinPartitioner, True),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", RoundRobinPartitioner, True),
        ("sticky", StickyPartitioner, False),
        ("uniform_sticky", StickyPartitioner, True),
    ],
)
def test_options_without_a_warning(
    caplog: pytest.LogCaptureFixture, name: str, kind: type, ignores_keys: bool
) -> None:
    maker = make(partitioner_class=name)
    assert not caplog.records
    assert type(maker()) is kind
    assert maker.ignores_keys is ignores_keys
    assert maker.close() is None


@pytest.mark.kip(794)
@pytest.mark.parametrize(
    ("name", "ignores_keys"),
    [
        ("DefaultPartitioner", False),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", False),
        ("UniformStickyPartitioner", True),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", True),
    ],
)
def test_names_that_kafka_deprecated(
    caplog: pytest.LogCaptureFixture, name: str, ignores_keys: bool
) -> None:
    with pytest.warns(DeprecationWarning, match=r"deprecated since Apache Kafka 3\.3"):
        maker = make(partitioner_class=name)
    assert type(maker()) is StickyPartitioner
    assert type(maker()) is StickyPartitioner
    assert maker.ignores_keys is ignores_keys
    assert [record.message.partition(" ")[0] for record in caplog.records] == [
        name.rpartition(".")[2]
    ]


@pytest.mark.kip(794)
@pytest.mark.parametrize("ignores_keys", [True, False])
def test_without_a_class_the_logic_is_the_built_in(ignores_keys: bool) -> None:
    maker = make(partitioner_ignore_keys=ignores_keys)
    assert type(maker()) is BuiltInPartitioner
    assert maker() is not maker()
    assert maker.ignores_keys is ignores_keys


def test_java_is_an_option_of_the_built_in(caplog: pytest.LogCaptureFixture) -> None:
    assert type(make(partitioner_compat="java")()) is JavaPartitioner
    assert not caplog.records


@pytest.mark.parametrize("balance", ["strict", "free", 0.1, "0.25", 1, 1e-05, ".5"])
def test_with_a_balance_turns_go_where_they_end_soonest(
    balance: object, caplog: pytest.LogCaptureFixture
) -> None:
    maker = make(partitioner_balance=balance, partitioner_ignore_keys=True)
    assert type(maker()) is SoonestPartitioner
    assert maker.ignores_keys
    assert not caplog.records


@pytest.mark.parametrize("balance", ["even", 0, 1.5, -0.1, "1e3", "nan", "0.0", True, b"free"])
def test_a_balance_is_strict_free_or_a_part_of_the_mean(balance: object) -> None:
    with pytest.raises(UsageError, match=r"partitioner\.balance="):
        make(partitioner_balance=balance)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"partitioner_compat": "java"}, "is not Java's"),
        ({"partitioner_adaptive_partitioning_enable": False}, "set one of the two"),
        ({"acks": 0, "enable_idempotence": False}, "with acks=0 there are none; set acks to 1"),
    ],
)
def test_a_balance_contradicts_some_options(other: Mapping[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=rf"partitioner\.balance=strict .*{why}"):
        make(partitioner_balance="strict", **other)


@pytest.mark.kip(794)
def test_batch_size_0_makes_turns_of_one_byte(make_view: MakeView) -> None:
    partitioner = make(batch_size=0)()
    assert isinstance(partitioner, BuiltInPartitioner)
    assert partitioner.next_turn(make_view([0, 1]), 0, 0, LOAD)[1] == 0


@pytest.mark.kip(794)
def test_without_adaptive_its_settings_are_said_to_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    maker = make(
        partitioner_adaptive_partitioning_enable=False,
        partitioner_availability_timeout_ms=5,
    )
    assert type(maker()) is BuiltInPartitioner
    assert [record.message for record in caplog.records] == [
        "without effect: partitioner.availability.timeout.ms;"
        " partitioner.adaptive.partitioning.enable is false"
    ]


@pytest.mark.kip(794)
@pytest.mark.parametrize("custom", [None, last_partition])
def test_settings_of_the_built_in_are_said_once_to_have_no_effect_with_another(
    caplog: pytest.LogCaptureFixture, custom: object | None
) -> None:
    given = {} if custom else {"partitioner_class": "sticky"}
    maker = make(custom, partitioner_ignore_keys=True, partitioner_rack_aware=True, **given)
    maker()
    maker()
    assert not maker.ignores_keys
    assert [record.message for record in caplog.records] == [
        "without effect: partitioner.ignore.keys, partitioner.rack.aware;"
        " partitioner.class is set, and they are for the built-in logic"
    ]


@pytest.mark.kip(1123)
@pytest.mark.parametrize("rack", ["", "  "])
def test_rack_awareness_without_a_rack_warns_once_and_uses_all(
    caplog: pytest.LogCaptureFixture, make_view: MakeView, rack: str
) -> None:
    with caplog.at_level(logging.WARNING):
        maker = make(partitioner_rack_aware=True, client_rack=rack)
        partitioner = maker()
        maker()
    assert [r.message.partition(":")[0] for r in caplog.records] == [
        "partitioner.rack.aware is on but client.rack is empty"
    ]
    assert isinstance(partitioner, BuiltInPartitioner)
    view = make_view([0, 1], ["a", None])
    assert {partitioner.next_turn(view, -1, 0, LOAD)[0] for _ in range(9)} == {0, 1}


@pytest.mark.kip(1123)
@pytest.mark.parametrize(
    "how",
    [
        {"partitioner_rack_aware_strict": True},
        {"partitioner_rack_aware_strict": True, "partitioner_class": "round_robin"},
        {"partitioner_compat": "java"},
    ],
)
def test_rack_awareness_without_a_rack_is_an_error_where_it_is_javas(
    how: dict[str, object],
) -> None:
    with pytest.raises(UsageError, match=r"partitioner\.rack\.aware is on but client\.rack is"):
        make(partitioner_rack_aware=True, client_rack=" ", **how)


@pytest.mark.kip(1123)
def test_the_rack_is_passed_on(make_view: MakeView) -> None:
    partitioner = make(partitioner_rack_aware=True, client_rack="b")()
    assert isinstance(partitioner, BuiltInPartitioner)
    view = make_view([0, 1, 2], ["a", "b", "c"])
    assert {partitioner.next_turn(view, -1, 0, LOAD)[0] for _ in range(9)} == {1}
    partitioner = make(client_rack="b")()
    assert isinstance(partitioner, BuiltInPartitioner)
    assert {partitioner.next_turn(view, -1, 0, LOAD)[0] for _ in range(9)} == {0, 1, 2}
