"""What a group must never do, and what it may."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest

from lab.reliability.checkers import Violation
from lab.reliability.group_checker import GroupChecker, Membership
from trimtab.kafka.records import Record, TimestampType, TopicPartition

P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)


class _Checkers:
    def fail(self, what: str) -> NoReturn:
        raise Violation(what)


def make_checker(keeps_generations: bool = True) -> GroupChecker:
    return GroupChecker("g", [P, Q], cast(Any, _Checkers()), keeps_generations)


def read(checker: GroupChecker, member: Membership, *offsets: int, number: int = 0) -> None:
    for offset in offsets:
        value = b"0 %d " % (offset + number)
        checker.process(
            member, Record("t", 0, offset, 0, TimestampType.CREATE_TIME, None, value, ())
        )


def commit(checker: GroupChecker, member: Membership, offset: int) -> None:
    checker.acknowledge(member, {P: offset}, checker.ask(member, {P: offset}))


@pytest.fixture
def checker() -> GroupChecker:
    return make_checker()


@pytest.fixture
def one() -> Membership:
    return Membership("member-1", 1)


@pytest.fixture
def two() -> Membership:
    return Membership("member-2", 1)


def test_a_member_may_read_again_but_leave_nothing_out(
    checker: GroupChecker, one: Membership, two: Membership
) -> None:
    read(checker, one, 0, 1, 2)
    read(checker, two, 1, 2, 3)
    assert checker.processed == {P: 4, Q: 0}
    one.let_go([P])
    with pytest.raises(Violation, match=r"begins at offset 5 of .* nobody has read from 4 on"):
        read(checker, one, 5)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_member_reads_on_in_order(checker: GroupChecker, one: Membership, offset: int) -> None:
    read(checker, one, 0, 1)
    with pytest.raises(Violation, match=f"reads offset {offset} of .*, not 2"):
        read(checker, one, offset)


def test_an_offset_has_one_record(checker: GroupChecker, one: Membership, two: Membership) -> None:
    read(checker, one, 0)
    with pytest.raises(Violation, match="was read before"):
        read(checker, two, 0, number=1)


def test_nobody_takes_the_commit_of_another_member_back(
    checker: GroupChecker, one: Membership, two: Membership
) -> None:
    read(checker, one, 0, 1)
    read(checker, two, 0, 1, 2)
    commit(checker, two, 3)
    with pytest.raises(Violation, match="after member-2/1 has committed 3"):
        commit(checker, one, 2)


def test_nobody_commits_what_another_member_owns(
    checker: GroupChecker, one: Membership, two: Membership
) -> None:
    checker.own(one, 3, [P])
    read(checker, one, 0, 1)
    commit(checker, one, 1)
    before = checker.ask(one, {P: 2})
    checker.own(two, 4, [P])
    checker.own(one, 3, [P])
    checker.acknowledge(one, {P: 2}, before)
    with pytest.raises(Violation, match="which member-2/1 owns"):
        commit(checker, one, 2)


def test_a_commit_that_is_asked_for_first_may_be_acknowledged_last(
    checker: GroupChecker, one: Membership, two: Membership
) -> None:
    read(checker, one, 0, 1)
    read(checker, two, 0, 1, 2)
    before = checker.ask(one, {P: 2})
    commit(checker, two, 3)
    checker.acknowledge(one, {P: 2}, before)
    assert checker.commits == 2


def test_a_late_commit_of_the_same_member_may_be_where_the_next_begins(
    checker: GroupChecker, one: Membership, two: Membership
) -> None:
    read(checker, one, 0, 1)
    commit(checker, one, 1)
    commit(checker, one, 2)  # and then the first request is carried out once more
    read(checker, two, 1)
    commit(checker, two, 1)
    assert one.committed == {P: 2}


def test_a_partition_has_one_owner_in_a_generation(one: Membership, two: Membership) -> None:
    checker = make_checker()
    checker.own(one, 3, [P])
    checker.own(two, 3, [Q])
    checker.own(two, 4, [P])
    checker.own(Membership("member-1", 2), 3, [P])  # a static member that has returned
    checker.own(two, -1, [P])
    with pytest.raises(Violation, match="two owners in generation 3"):
        checker.own(two, 3, [P])


def test_generations_that_start_again_are_not_compared(one: Membership, two: Membership) -> None:
    checker = make_checker(keeps_generations=False)
    checker.own(one, 3, [P])
    checker.own(two, 3, [P])
    assert checker.processed == {P: 0, Q: 0}


@pytest.mark.parametrize(
    ("finished", "is_over"),
    [
        ({"a": [P], "b": [Q]}, True),
        ({"a": [P, Q], "b": []}, True),
        ({"a": [P], "b": []}, False),
        ({"a": [P], "b": [P, Q]}, False),
    ],
)
def test_each_partition_is_read_to_its_end_by_one_member(
    checker: GroupChecker, finished: dict[str, list[TopicPartition]], is_over: bool
) -> None:
    assert (checker.find_unfinished(finished, {P: 0, Q: 0}) == "") is is_over
    assert "up to" in checker.find_unfinished(finished, {P: 1, Q: 0})
