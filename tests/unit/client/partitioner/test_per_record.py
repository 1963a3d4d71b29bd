"""Round robin, and users' own functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from trimtab.client.partitioner.per_record import CallablePartitioner, RoundRobinPartitioner
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

MakeView = Callable[..., TopicView]


def test_round_robin_visits_every_partition_in_turn(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    chosen = [partitioner.partition(make_view([0, 1, 2]), None, b"") for _ in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]
    assert not hasattr(partitioner, "on_new_batch")  # KAFKA-9965: it counts once


def test_round_robin_leaves_out_partitions_without_a_leader(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    view = make_view([0, -1, 2])
    assert Counter(partitioner.partition(view, None, b"") for _ in range(100)) == {0: 50, 2: 50}


def test_round_robin_uses_all_when_none_has_a_leader(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    assert {partitioner.partition(make_view([-1, -1]), None, b"") for _ in range(4)} == {0, 1}


@pytest.mark.parametrize("answer", [3, -1, None, "1", 1.0])
def test_a_callable_that_names_no_partition_is_refused(make_view: MakeView, answer: object) -> None:
    partitioner = CallablePartitioner(lambda *_: answer)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"returned {answer!r} for topic topic, .* 0 to 2"):
        partitioner.partition(make_view([0, 1, 2]), None, None)


def test_numbers_of_other_kinds_are_partitions_too(make_view: MakeView) -> None:
    class Number:
        def __index__(self) -> int:
            return 1

    partitioner = CallablePartitioner(lambda *_: Number())  # type: ignore[arg-type]
    assert partitioner.partition(make_view([0, 1]), None, None) == 1
