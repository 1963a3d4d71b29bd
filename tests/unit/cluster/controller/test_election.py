"""Changes of one partition, as tables: current state, wanted state, active brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trimtab.cluster.controller.election import Election, change_partition
from trimtab.cluster.metadata.image import RECOVERED, RECOVERING, PartitionRegistration
from trimtab.kafka.wire.sentinels import NO_LEADER

T = b"t" * 16
ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


def partition(
    leader: int = 1,
    isr: Iterable[int] = (1, 2, 3),
    elr: Iterable[int] = (),
    last: Iterable[int] = (),
    **others: Any,
) -> PartitionRegistration:
    base = PartitionRegistration(0, leader, 5, 7, (1, 2, 3), tuple(isr))
    return base._replace(elr=tuple(elr), last_known_elr=tuple(last), **others)


def change(
    before: PartitionRegistration,
    alive: Iterable[int] = (1, 2, 3),
    min_isr: int = 1,
    election: Election = ONLINE,
    lost: Iterable[int] = (),
    **wanted: Any,
) -> PartitionRegistration:
    """The partition after the change."""
    record = change_partition(
        T,
        before,
        before._replace(**wanted),
        set(alive).__contains__,
        min_isr,
        election,
        tuple(lost),
    )
    return before if record is None else before.merge(record)


def brief(after: PartitionRegistration) -> tuple[Any, ...]:
    return after.leader, after.isr, after.elr, after.last_known_elr


@pytest.mark.parametrize("election", list(Election))
def test_a_partition_in_order_stays_as_it_is(election: Election) -> None:
    before = partition()
    assert change(before, election=election) is before


# Leaders

ELECTIONS: list[tuple[str, PartitionRegistration, set[int], Election, int]] = [
    ("the leader stays while it is in sync", partition(2), {1, 2, 3}, ONLINE, 2),
    ("the leader stays, unclean allowed", partition(2), {1, 2, 3}, UNCLEAN, 2),
    ("the first replica in sync follows a leader that is gone", partition(1), {2, 3}, ONLINE, 2),
    ("by the order of the replicas, not of the ISR", partition(1, [3, 2]), {2, 3}, ONLINE, 2),
    ("nobody out of sync", partition(1, [1]), {2, 3}, ONLINE, NO_LEADER),
    ("nobody out of sync is preferred", partition(2, [2, 3]), {1, 2, 3}, PREFERRED, 2),
    ("the preferred replica comes first", partition(2), {1, 2, 3}, PREFERRED, 1),
    ("a dead one is not preferred", partition(2), {2, 3}, PREFERRED, 2),
    ("any other before none", partition(2), {3}, PREFERRED, 3),
    ("a preferred election is clean", partition(1, [1]), {2, 3}, PREFERRED, NO_LEADER),
    ("an unclean one takes the first that lives", partition(1, [1]), {2, 3}, UNCLEAN, 2),
    ("but in sync comes before", partition(1, [1, 3]), {2, 3}, UNCLEAN, 3),
    ("an unclean one needs somebody", partition(1, [1]), set(), UNCLEAN, NO_LEADER),
    ("an eligible one if the ISR is empty", partition(-1, [], [3]), {2, 3}, ONLINE, 3),
    ("no eligible one while the ISR has a member", partition(-1, [1], [3]), {3}, ONLINE, NO_LEADER),
    ("an eligible one before an unclean one", partition(-1, [], [3]), {2, 3}, UNCLEAN, 3),
    ("an eligible one is preferred", partition(2, [], [1, 2]), {1, 2}, PREFERRED, 1),
    ("the last leader, where nobody is eligible", partition(-1, [], [], [2]), {2, 3}, ONLINE, 2),
    ("nobody but the last leader", partition(-1, [], [], [1]), {2, 3}, ONLINE, NO_LEADER),
    ("not the last leader while others are eligible", partition(-1, [], [3], [2]), {2}, ONLINE, -1),
    ("the last leader only if it is one", partition(-1, [], [], [1, 2]), {1, 2}, ONLINE, NO_LEADER),
    ("unclean, where the last leader is gone", partition(-1, [], [], [1]), {3}, UNCLEAN, 3),
]


@pytest.mark.parametrize(
    ("before", "alive", "election", "leader"),
    [e[1:] for e in ELECTIONS],
    ids=[e[0] for e in ELECTIONS],
)
def test_who_is_elected(
    before: PartitionRegistration, alive: set[int], election: Election, leader: int
) -> None:
    after = change(before, alive, min_isr=2, election=election)
    assert after.leader == leader
    assert after.leader_epoch == before.leader_epoch + (leader != before.leader)


def test_a_clean_leader_keeps_the_isr() -> None:
    after = change(partition(1), {2, 3}, isr=(2, 3))
    assert (brief(after), after.leader_recovery_state) == ((2, (2, 3), (), ()), RECOVERED)


def test_an_eligible_leader_is_alone_in_the_isr_and_need_not_recover() -> None:
    after = change(partition(-1, [], [2, 3], [1]), {2, 3}, min_isr=2)
    assert (brief(after), after.leader_recovery_state) == ((2, (2,), (3,), ()), RECOVERED)


@pytest.mark.parametrize(
    ("before", "election"),
    [
        (partition(1, [1]), UNCLEAN),
        (partition(-1, [1], [3], [1]), UNCLEAN),
        (partition(-1, [], [], [2]), ONLINE),
    ],
    ids=["out of sync", "eligible, but the ISR is not empty", "the last leader"],
)
def test_an_unclean_leader_is_alone_and_recovers(
    before: PartitionRegistration, election: Election
) -> None:
    after = change(before, {2}, min_isr=2, election=election)
    assert (brief(after), after.leader_recovery_state) == ((2, (2,), (), ()), RECOVERING)


def test_a_clean_successor_of_a_recovering_leader_keeps_recovering() -> None:
    before = partition(1, [1, 2], leader_recovery_state=RECOVERING)
    assert change(before, {2}, isr=(2,)).leader_recovery_state == RECOVERING
    assert change(before, leader_recovery_state=RECOVERED).leader_recovery_state == RECOVERED


# Eligible leader replicas (KIP-966)

SHRINKING: list[tuple[str, PartitionRegistration, tuple[int, ...], set[int], tuple[Any, ...]]] = [
    ("enough in sync", partition(1), (1, 2), {1, 2}, (1, (1, 2), (), ())),
    ("too few: who leaves is eligible", partition(1, [1, 2]), (1,), {1}, (1, (1,), (2,), ())),
    ("they add up", partition(1, [1], [2]), (), {3}, (NO_LEADER, (), (1, 2), (1,))),
    ("two at once", partition(1, [1, 2, 3]), (3,), {3}, (3, (3,), (1, 2), ())),
    ("enough again", partition(1, [1], [2]), (1, 3), {1, 3}, (1, (1, 3), (), ())),
    ("in sync is not eligible too", partition(1, [1], [2, 3]), (1, 2), {1}, (1, (1, 2), (), ())),
    ("the last leader is noted", partition(2, [2], [1]), (), set(), (-1, (), (1, 2), (2,))),
    ("only the first time", partition(-1, [], [1], [2]), (), {3}, (-1, (), (1,), (2,))),
    ("and forgotten", partition(-1, [], [1], [2]), (), {1}, (1, (1,), (), ())),
]


@pytest.mark.parametrize(
    ("before", "isr", "alive", "after"), [s[1:] for s in SHRINKING], ids=[s[0] for s in SHRINKING]
)
@pytest.mark.kip(966)
def test_which_replicas_are_in_the_elr(
    before: PartitionRegistration,
    isr: tuple[int, ...],
    alive: set[int],
    after: tuple[Any, ...],
) -> None:
    assert brief(change(before, alive, min_isr=2, isr=isr)) == after


def test_an_isr_below_three_fills_the_elr() -> None:
    assert brief(change(partition(1), {1, 2}, min_isr=3, isr=(1, 2))) == (1, (1, 2), (3,), ())
    # A minimum above the number of replicas means all of them.
    assert brief(change(partition(1), {1, 2}, min_isr=9, isr=(1, 2))) == (1, (1, 2), (3,), ())
    assert brief(change(partition(1), min_isr=9, isr=(1, 2, 3))) == (1, (1, 2, 3), (), ())


def test_the_elr_is_empty_if_the_leader_may_commit_alone() -> None:
    before = partition(-1, [], [1, 2], [1])
    assert brief(change(before, {1}, min_isr=2)) == (1, (1,), (2,), ())
    assert brief(change(before, {1}, min_isr=1)) == (1, (1,), (), ())


@pytest.mark.kip(966)
def test_a_replica_that_lost_records_is_not_eligible() -> None:
    for before, isr, after in [
        (partition(1, [1]), (), (NO_LEADER, (), (), (1,))),
        (partition(-1, [], [1, 2], [3]), (), (2, (2,), (), ())),
        (partition(2, [2], [1]), (2,), (2, (2,), (), ())),
    ]:
        assert brief(change(before, {2, 3}, min_isr=2, isr=isr, lost=[1])) == after


# Reassignments


def reassigned(isr: tuple[int, ...], leader: int = 1) -> PartitionRegistration:
    """From 1, 2, 3 to 4, 5, 3."""
    return partition(
        leader,
        isr,
        replicas=(4, 5, 3, 1, 2),
        adding_replicas=(4, 5),
        removing_replicas=(1, 2),
    )


def test_a_reassignment_waits_for_all_new_replicas() -> None:
    after = change(reassigned((1, 2, 3)), range(9), isr=(1, 2, 3, 4))
    assert after.isr == (1, 2, 3, 4)
    assert after._replace(isr=(1, 2, 3), partition_epoch=7) == reassigned((1, 2, 3))


def test_a_reassignment_completes_with_its_isr_and_removes_the_old_leader() -> None:
    after = change(reassigned((1, 2, 3, 4)), range(9), isr=(1, 2, 3, 4, 5), min_isr=2)
    assert (after.replicas, after.isr) == ((4, 5, 3), (3, 4, 5))
    assert (after.adding_replicas, after.removing_replicas) == ((), ())
    assert (after.leader, after.leader_epoch, after.elr) == (4, 6, ())


def test_a_reassignment_need_not_wait_for_replicas_that_were_there_before() -> None:
    after = change(reassigned((1, 2)), {1, 4, 5}, isr=(1, 4, 5), min_isr=3)
    assert (after.replicas, after.isr, after.elr) == ((4, 5, 3), (4, 5), ())


def test_a_leader_gets_a_new_epoch_when_replicas_are_removed() -> None:
    after = change(reassigned((3, 4), leader=3), range(9), isr=(3, 4, 5))
    assert (after.leader, after.leader_epoch, after.replicas) == (3, 6, (4, 5, 3))
    wanted = change(partition(1), replicas=(2, 1, 3))
    assert (wanted.leader, wanted.leader_epoch, wanted.replicas) == (1, 5, (2, 1, 3))


def test_removed_replicas_are_not_eligible() -> None:
    before = partition(4, (1, 2, 3, 4), replicas=(4, 1, 2, 3), removing_replicas=(1, 2, 3))
    after = change(before, range(9), min_isr=2)
    assert (after.replicas, after.isr, after.elr) == ((4,), (4,), ())
