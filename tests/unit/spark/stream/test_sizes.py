"""Learning how many bytes lie ahead of a stream, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import pytest

from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import FoundSizes, SizeRequest, SizeSource
from trimtab.spark.stream.sizes import Sizes

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
PATIENCE = 20.0


class Played(SizeSource):
    """A source whose answers the test supplies; `find` waits for them."""

    name, tails, bytes_read = "played", False, 0

    def __init__(self) -> None:
        self.asked: list[Mapping[TopicPartition, SizeRequest]] = []
        self.changes: list[set[TopicPartition]] = []
        self.answers: list[list[FoundSizes] | Exception] = []
        self.may_answer = threading.Semaphore(0)
        self.is_closed = threading.Event()

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        self.asked.append(dict(wanted))
        self.changes.append(set(changed))
        self.may_answer.acquire()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed.set()

    def play(self, answer: list[FoundSizes] | Exception) -> None:
        self.answers.append(answer)
        self.may_answer.release()


def test_sizes_are_learned_for_two_batches_and_no_more() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0, ONE: 0}, {ZERO: 1000, ONE: 1000})
    source.play([FoundSizes(ZERO, 0, [Piece(n, 50) for n in range(1, 11)])])
    assert not sizes.await_fair(100, 0.0)  # partition 1 may have as much
    source.play([FoundSizes(ONE, 0, [Piece(1, 60)])])
    assert sizes.await_fair(100, PATIENCE)
    source.play([FoundSizes(ONE, 1, [Piece(2, 60)])])
    assert sizes.await_known({ONE: 2}, PATIENCE)
    assert set(source.asked[0]) == {ZERO, ONE}
    assert source.changes[:3] == [{ZERO, ONE}, {ZERO}, {ONE}]
    assert [set(each) for each in source.asked[1:3]] == [{ONE}, {ONE}]
    assert source.asked[1][ONE] == SizeRequest(0, 1000, 200)
    assert source.asked[2][ONE] == SizeRequest(1, 1000, 140)
    # Both have more than half of two batches. When the stream has read some, more is wanted.
    sizes.follow({ZERO: 8, ONE: 0}, {ZERO: 1000, ONE: 1000})
    source.play([])
    source.play([])
    sizes.close()
    assert source.is_closed.wait(PATIENCE)


def test_a_stream_that_goes_elsewhere_is_followed() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play([FoundSizes(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_known({ZERO: 10}, PATIENCE)
    assert sizes.knows({ZERO: 0}, {ZERO: 10})
    sizes.follow({ZERO: 70}, {ZERO: 1000})
    assert not sizes.knows({ZERO: 70}, {ZERO: 71})
    source.play([FoundSizes(ZERO, 10, [Piece(75, 500)])])  # late
    source.play([FoundSizes(ZERO, 70, [Piece(80, 7)])])
    assert sizes.await_known({ZERO: 80}, PATIENCE)
    assert sizes.pieces({ZERO: 80}) == {ZERO: [Piece(80, 7)]}
    source.play([])
    sizes.close()


def test_errors_of_the_source_reach_who_waits_and_it_is_asked_again() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play(Unavailable("nobody answers"))
    with pytest.raises(Unavailable, match="nobody answers"):
        sizes.await_fair(100, PATIENCE)
    source.play([FoundSizes(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_fair(100, PATIENCE)
    sizes.close()


def test_a_source_that_cannot_be_made_is_an_error_and_is_tried_again() -> None:
    source = Played()
    made: list[SizeSource | BrokerError] = [
        BrokerError(ErrorCode.REQUEST_TIMED_OUT, "late"),
        source,
    ]

    def make() -> SizeSource:
        first = made.pop(0)
        if isinstance(first, BrokerError):
            raise first
        return first

    sizes = Sizes(make, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    with pytest.raises(BrokerError, match="late"):
        sizes.await_fair(100, PATIENCE)
    source.play([FoundSizes(ZERO, 0, [Piece(10, 500)])])
    assert sizes.await_fair(100, PATIENCE)
    sizes.close()


def test_a_source_that_breaks_is_an_error_whenever_sizes_are_waited_for() -> None:
    source = Played()
    sizes = Sizes(lambda: source, 100, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1000})
    source.play(ZeroDivisionError("a bug"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            sizes.await_fair(100, PATIENCE)
    assert source.is_closed.wait(PATIENCE)
