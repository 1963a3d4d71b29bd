"""What a reader reports to its fetcher, and the leader epochs of its positions."""

from __future__ import annotations

from trimtab.client.fetcher.plan import Batches, Fetched
from trimtab.client.fetcher.taken import Taken
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def fetched(
    partition: TopicPartition = A,
    size: int = 10,
    start: int = 0,
    end: int = 10,
    epochs: tuple[tuple[int, int], ...] = (),
    epoch: int = 1,
) -> Fetched:
    return Fetched(
        partition, epoch, Batches(partition, start, end, end, memoryview(bytes(size)), epochs)
    )


def test_the_fetcher_is_told_when_half_of_what_was_unread_is_begun() -> None:
    taken = Taken()
    results = [fetched() for _ in range(8)]
    for each in results:
        taken.add_result(each)
    told = []
    for number, each in enumerate(results, 1):
        taken.begin_result(each)
        taken.begin_result(each)  # to go on with it is not to begin it again
        if taken.is_due():
            told.append(number)
            assert list(taken.begun) == results[:number][-len(taken.begun) :]
            taken.begun.clear()
    assert told == [4, 6, 7, 8]
    assert not taken.is_due()


def test_a_reader_that_has_to_wait_reports_everything() -> None:
    taken = Taken()
    small, large = fetched(size=1), fetched(B, size=100)
    taken.add_result(small)
    taken.add_result(large)
    taken.begin_result(small)
    assert not taken.is_due()
    assert taken.is_due(is_waiting=True)


def test_an_error_is_reported_as_well() -> None:
    taken = Taken()
    error = Fetched(A, 1, CorruptData("damaged"))
    taken.add_result(error)
    assert not taken.is_due(is_waiting=True)
    taken.begin_result(error)
    assert taken.is_due()
    assert list(taken.begun) == [error]


def test_the_epoch_of_a_position_is_that_of_the_record_before() -> None:
    taken = Taken()
    taken.add_result(fetched(start=5, end=20, epochs=((4, 1), (5, 2), (12, 4))))
    epochs = [taken.leader_epoch(A, 1, position) for position in (4, 5, 6, 12, 13, 20)]
    assert epochs == [-1, 1, 2, 2, 4, 4]
    taken.add_result(fetched(start=20, end=30, epochs=((19, 4), (25, 6))))
    assert [taken.leader_epoch(A, 1, position) for position in (20, 25, 26)] == [4, 4, 6]
    assert taken.leader_epoch(B, 1, 20) == -1


def test_epochs_end_with_the_assignment() -> None:
    taken = Taken()
    taken.add_result(fetched(start=5, end=20, epochs=((5, 2),)))
    assert taken.leader_epoch(A, 2, 20) == -1, "sought elsewhere since"
    taken.add_result(fetched(start=50, end=60, epochs=((50, 1),), epoch=2))
    assert [taken.leader_epoch(A, 2, position) for position in (20, 51)] == [-1, 1]


def test_epochs_after_a_truncation_are_the_new_ones() -> None:
    taken = Taken()
    taken.add_result(fetched(start=0, end=30, epochs=((0, 1), (10, 3), (20, 5))))
    taken.add_result(fetched(start=5, end=5, size=0, epochs=((4, 1),)))
    taken.add_result(fetched(start=5, end=15, epochs=((4, 1), (5, 6))))
    assert [taken.leader_epoch(A, 1, position) for position in (5, 6, 8, 15)] == [1, 6, 6, 6]
