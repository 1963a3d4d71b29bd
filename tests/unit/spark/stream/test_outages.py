"""Errors that a stream rides out, and those that end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    DataLoss,
    ErrorCode,
    KafkaError,
    Unavailable,
)
from trimtab.spark.stream.outages import OUTAGE_SECONDS, Outages, may_pass


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def answers(*given: KafkaError | int) -> Iterator[KafkaError | int]:
    return iter(given)


def take(from_: Iterator[KafkaError | int]) -> int:
    answer = next(from_)
    if isinstance(answer, KafkaError):
        raise answer
    return answer


def test_before_the_first_answer_nothing_is_waited_for() -> None:
    clock = Clock()
    outages = Outages(clock, clock.wait)
    with pytest.raises(Unavailable):
        outages.insist(lambda: take(answers(Unavailable("away"))))
    assert clock.now == 0


def test_what_may_pass_is_waited_for_and_the_rest_is_not() -> None:
    clock = Clock()
    outages = Outages(clock, clock.wait)
    outages.note_answer()
    given = answers(Unavailable("away"), Unavailable("away"), 7)
    assert outages.insist(lambda: take(given)) == 7
    assert clock.now > 0
    assert not outages.is_one
    assert outages.attempt(lambda: take(answers(Unavailable("away")))) is None
    assert outages.is_one
    clock.now += OUTAGE_SECONDS + 1
    with pytest.raises(Unavailable):
        outages.attempt(lambda: take(answers(Unavailable("away"))))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (Unavailable("away"), True),
        (BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "", "t-0"), True),
        (BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "", "t-0"), True),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "", "t"), False),
        (AuthenticationFailed("no"), False),
        (DataLoss("gone"), False),
    ],
)
def test_what_may_pass(error: KafkaError, passes: bool) -> None:
    assert may_pass(error) is passes
