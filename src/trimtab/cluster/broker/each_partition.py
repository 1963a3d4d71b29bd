"""What the requests about partitions have in common: topics in order, and each one's partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from trimtab.cluster.server.turns import Pace, Steps

Topic = TypeVar("Topic")
Partition = TypeVar("Partition")
TopicAnswer = TypeVar("TopicAnswer")
Answer = TypeVar("Answer")


def answer_each_partition(
    topics: Iterable[Topic],
    partitions_of: Callable[[Topic], Iterable[Partition]],
    answer: Callable[[Topic, Partition], Steps[Answer]],
    put_together: Callable[[Topic, list[Answer]], TopicAnswer],
    pace: Pace,
) -> Steps[list[TopicAnswer]]:
    """The answers about partitions, topic by topic, in the order of the request.

    A topic costs 1 of the pace, and so does a partition; `answer` spends what it costs beyond that.
    """
    answered = []
    for topic in topics:
        if pace.spend():
            yield
        answers = []
        for partition in partitions_of(topic):
            if pace.spend():
                yield
            answers.append((yield from answer(topic, partition)))
        answered.append(put_together(topic, answers))
    return answered
