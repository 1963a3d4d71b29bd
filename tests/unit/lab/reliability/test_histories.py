"""What is committed, and what an unclean election may cost."""

from __future__ import annotations

from typing import Any

import pytest

from lab.reliability.histories import History, StoredBatch, find_unclean_epoch
from lab.reliability.topic_kinds import TRANSIENT
from trimtab.cluster.metadata.image import RECOVERED, RECOVERING, PartitionRegistration
from trimtab.kafka.wire.sentinels import NO_LEADER


def _batch(offset: int) -> StoredBatch:
    return StoredBatch(offset, offset + 1, 0, offset, 100, 0)


class _View:
    def __init__(self, *batches: StoredBatch) -> None:
        self.batches = list(batches)


def _history(*batches: StoredBatch) -> History:
    history = History("loose-0", TRANSIENT)
    for batch in batches:
        history.commit(batch, 0)
    history.elect_uncleanly(1)
    return history


def _won_by(history: History, *batches: StoredBatch) -> int:
    winner: Any = _View(*batches)
    return history.cut_to(winner)


def test_what_the_winner_of_an_unclean_election_lacks_is_lost() -> None:
    history = _history(_batch(0), _batch(1))
    assert _won_by(history, _batch(0)) == 1
    assert history.lost_from == 1


def test_nothing_is_lost_if_the_winner_has_everything() -> None:
    history = _history(_batch(0), _batch(1))
    assert _won_by(history, _batch(0), _batch(1)) == 2
    history.commit_late(2)
    assert history.lost_from is None


def test_what_an_outdated_leader_commits_beyond_the_winner_is_lost() -> None:
    history = _history(_batch(0))
    _won_by(history, _batch(0))
    history.commit_late(3)
    assert history.lost_from == 1


def test_so_is_what_it_commits_before_the_winner_begins() -> None:
    history = _history(_batch(0))
    history.commit_late(3)
    assert history.lost_from is None
    _won_by(history, _batch(0))
    assert history.lost_from == 1


def _partition(
    leader: int, epoch: int, isr: tuple[int, ...], elr: tuple[int, ...], recovery: int = RECOVERED
) -> PartitionRegistration:
    return PartitionRegistration(
        0, leader, epoch, 0, (0, 1, 2), isr, elr=elr, leader_recovery_state=recovery
    )


@pytest.mark.parametrize(
    ("now", "unclean"),
    [
        (_partition(0, 5, (0, 2), ()), None),
        (_partition(0, 6, (0,), (2,)), None),
        (_partition(2, 6, (2,), ()), None),
        (_partition(1, 6, (1,), ()), 6),
        (_partition(0, 6, (0,), (), RECOVERING), 6),
        (_partition(NO_LEADER, 6, (), (0,)), None),
        (_partition(NO_LEADER, 7, (), (0,)), None),
        (_partition(NO_LEADER, 7, (), (1,)), 6),
        (_partition(1, 7, (1,), ()), 6),
        (_partition(2, 8, (2,), ()), None),
    ],
)
def test_an_unclean_election_is_found(now: PartitionRegistration, unclean: int | None) -> None:
    assert find_unclean_epoch(_partition(0, 5, (0,), (2,)), now) == unclean
