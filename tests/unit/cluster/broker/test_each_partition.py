"""Answers about partitions, topic by topic."""

from __future__ import annotations

from trimtab.cluster.broker.each_partition import answer_each_partition
from trimtab.cluster.server.turns import Pace, Steps


def run(topics: list[tuple[str, list[int]]], pace: Pace) -> tuple[list[tuple[str, list[str]]], int]:
    def answer(topic: tuple[str, list[int]], partition: int) -> Steps[str]:
        return f"{topic[0]}-{partition}"
        yield

    steps = answer_each_partition(
        topics, lambda topic: topic[1], answer, lambda t, a: (t[0], a), pace
    )
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_answers_come_in_the_order_of_the_request() -> None:
    found, _ = run([("b", [1, 0]), ("a", []), ("b", [1])], Pace())
    assert found == [("b", ["b-1", "b-0"]), ("a", []), ("b", ["b-1"])]


def test_topics_cost_as_much_as_partitions() -> None:
    assert run([("t", [])] * 100, Pace(10))[1] == 10
    assert run([("t", list(range(99)))], Pace(10))[1] == 10
