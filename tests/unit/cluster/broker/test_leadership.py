"""The leader's state and its followers' fetches (`trimtab.cluster.broker.leadership`)."""

from __future__ import annotations

from functools import partial
from typing import cast

import pytest

from trimtab.cluster.broker.leadership import Follower, Leadership
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.storage.log import Log
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET

LEADER, SECOND, THIRD = 1, 2, 3
EPOCH = 11
LIMIT_S = 30.0
REGISTRATION = PartitionRegistration(0, LEADER, 5, 7, (1, 2, 3), (1, 2, 3))


class Offsets:
    """The part of a log that a leadership uses."""

    def __init__(self, log_end_offset: int, high_watermark: int) -> None:
        self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark


class Scene:
    """Broker 1 leads 1, 2 and 3 from offset 100 on; its log goes to 200, committed up to 100.

    Attributes:
        active: brokers that may be in an ISR, all of epoch 11.
    """

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1) -> None:
        self.now_s = 1000.0
        self.log = Offsets(100, 100)
        self.active = {1, 2, 3}
        self.leadership = Leadership(
            LEADER,
            REGISTRATION._replace(isr=isr),
            cast(Log, self.log),
            min_isr,
            lambda broker, epoch: broker in self.active and epoch in (NO_EPOCH, EPOCH),
            self.now_s,
        )
        self.log.log_end_offset = 200

    def fetch(self, broker: int, offset: int, epoch: int = EPOCH) -> None:
        self.leadership.followers[broker].fetched(
            offset, epoch, self.log.log_end_offset, self.now_s
        )

    def committed(self) -> int:
        return self.leadership.committed_offset(self.now_s, LIMIT_S)

    def lagging(self) -> list[int]:
        return list(self.leadership.lagging(self.now_s, LIMIT_S))

    def decide(self, **changed: object) -> None:
        """The controller has changed the partition."""
        registration = REGISTRATION._replace(partition_epoch=8, **changed)  # type: ignore[arg-type]
        self.leadership.update(LEADER, registration, self.now_s)


# -- the high watermark


def test_records_on_every_in_sync_replica_are_committed() -> None:
    scene = Scene()
    scene.fetch(SECOND, 180)
    scene.fetch(THIRD, 150)
    assert scene.committed() == 150
    scene.fetch(THIRD, 200)
    assert scene.committed() == 180


def test_nothing_is_committed_before_every_in_sync_replica_has_fetched() -> None:
    scene = Scene()
    scene.fetch(SECOND, 180)
    assert scene.committed() == 100


def test_the_high_watermark_does_not_fall_when_a_follower_goes_back() -> None:
    scene = Scene()
    scene.fetch(SECOND, 180)
    scene.fetch(THIRD, 180)
    scene.log.high_watermark = 180
    scene.fetch(THIRD, 120)
    assert scene.committed() == 180


def test_a_leader_alone_in_the_isr_commits_everything() -> None:
    assert Scene(isr=(1,)).committed() == 200


@pytest.mark.kip(966)
def test_nothing_is_committed_while_too_few_replicas_are_in_sync() -> None:
    scene = Scene(isr=(1, 2), min_isr=3)
    scene.fetch(SECOND, 200)
    assert scene.leadership.is_under_min_isr
    assert scene.committed() == 100


def test_a_minimum_above_the_number_of_replicas_counts_as_all_of_them() -> None:
    scene = Scene(min_isr=5)
    assert scene.leadership.effective_min_isr == 3
    assert not scene.leadership.is_under_min_isr


def test_a_minimum_that_is_lowered_lets_the_leader_commit() -> None:
    scene = Scene(isr=(1, 2), min_isr=3)
    scene.fetch(SECOND, 200)
    scene.leadership.configure(2)
    assert scene.committed() == 200


def test_the_high_watermark_waits_for_a_follower_about_to_join() -> None:
    scene = Scene(isr=(1, 2))
    scene.log.log_end_offset = 150
    scene.fetch(SECOND, 150)
    scene.fetch(THIRD, 150)
    scene.log.log_end_offset = 200
    scene.fetch(SECOND, 200)
    assert scene.committed() == 150


def fetch_before_the_epoch(scene: Scene) -> None:
    scene.log.high_watermark = 50
    scene.fetch(THIRD, 99)


@pytest.mark.parametrize(
    "hinder",
    [
        pytest.param(lambda scene: scene.active.discard(THIRD), id="it is fenced"),
        pytest.param(lambda scene: scene.fetch(THIRD, 150, epoch=10), id="it is of an older life"),
        pytest.param(
            lambda scene: setattr(scene, "now_s", scene.now_s + LIMIT_S + 0.1), id="it lags"
        ),
        pytest.param(
            lambda scene: scene.fetch(THIRD, 90), id="its log ends before this epoch begins"
        ),
    ],
)
def test_the_high_watermark_does_not_wait_for_a_follower_that_may_not_join(hinder: object) -> None:
    scene = Scene(isr=(1, 2))
    scene.log.log_end_offset = 150
    scene.fetch(THIRD, 150)
    scene.log.log_end_offset = 200
    assert callable(hinder)
    hinder(scene)
    scene.fetch(SECOND, 200)
    assert scene.committed() == 200


# -- proposals


@pytest.mark.kip(497)
def test_a_larger_isr_counts_when_proposed() -> None:
    scene = Scene(isr=(1, 2))
    scene.fetch(SECOND, 200)
    scene.fetch(THIRD, 120)
    scene.active.discard(THIRD)  # not waited for by itself
    assert scene.committed() == 200
    scene.leadership.propose((1, 2, 3), 7)
    assert scene.leadership.maximal_isr == (1, 2, 3)
    assert scene.committed() == 120


@pytest.mark.kip(497)
def test_a_smaller_isr_counts_when_granted() -> None:
    scene = Scene()
    scene.fetch(SECOND, 200)
    scene.fetch(THIRD, 120)
    scene.now_s += LIMIT_S + 1
    scene.leadership.propose((1, 2), 7)
    assert list(scene.leadership.maximal_isr) == [1, 2, 3]
    assert scene.committed() == 120
    scene.decide(isr=(1, 2))
    assert list(scene.leadership.maximal_isr) == [1, 2]
    assert scene.committed() == 200


def test_a_proposal_does_not_help_to_reach_the_minimum() -> None:
    scene = Scene(isr=(1, 2), min_isr=3)
    scene.fetch(SECOND, 200)
    scene.fetch(THIRD, 200)
    scene.leadership.propose((1, 2, 3), 7)
    assert scene.leadership.is_under_min_isr
    assert scene.committed() == 100


def test_a_decision_ends_the_proposal() -> None:
    scene = Scene(isr=(1,))
    scene.leadership.propose((1, 2), 7)
    scene.decide(isr=(1, 3))
    assert scene.leadership.proposal is None
    assert scene.leadership.isr == (1, 3)


def test_new_replicas_have_unknown_offsets_and_the_others_keep_theirs() -> None:
    scene = Scene()
    scene.fetch(SECOND, 180)
    scene.decide(replicas=(1, 2, 4), isr=(1, 2))
    ends = {broker: each.end_offset for broker, each in scene.leadership.followers.items()}
    assert ends == {2: 180, 4: NO_OFFSET}


# -- joining the ISR


def joining() -> Scene:
    """Broker 3 has everything that is committed, in the leader's own epoch."""
    scene = Scene(isr=(1, 2))
    scene.log.high_watermark = 150
    scene.fetch(SECOND, 200)
    scene.fetch(THIRD, 150)
    return scene


def test_a_follower_with_everything_committed_may_join() -> None:
    assert joining().leadership.can_join(THIRD)


@pytest.mark.parametrize(
    "hinder",
    [
        pytest.param(lambda scene: scene.fetch(THIRD, 149), id="it lacks what is committed"),
        pytest.param(
            fetch_before_the_epoch,
            id="it lacks where the epoch begins",
        ),
        pytest.param(lambda scene: scene.leadership.propose((1,), 7), id="a proposal is under way"),
        pytest.param(lambda scene: scene.decide(isr=(1, 2, 3)), id="it is in sync already"),
        pytest.param(lambda scene: scene.active.discard(THIRD), id="it is fenced"),
        pytest.param(lambda scene: scene.fetch(THIRD, 150, epoch=10), id="it is of an older life"),
    ],
)
def test_a_follower_may_not_join_if(hinder: object) -> None:
    scene = joining()
    assert callable(hinder)
    hinder(scene)
    assert not scene.leadership.can_join(THIRD)


def test_a_follower_that_does_not_say_its_epoch_may_join() -> None:
    scene = joining()
    scene.fetch(THIRD, 150, epoch=NO_EPOCH)
    assert scene.leadership.can_join(THIRD)


# -- lagging


def test_a_follower_lags_when_it_was_behind_for_longer_than_the_limit() -> None:
    scene = Scene()
    for broker in (SECOND, THIRD):
        scene.fetch(broker, 200)
    scene.log.log_end_offset = 210
    scene.now_s += LIMIT_S
    scene.fetch(SECOND, 210)
    assert scene.lagging() == []
    scene.now_s += 0.001
    assert scene.lagging() == [THIRD]


def test_a_follower_that_never_fetched_has_until_the_limit() -> None:
    scene = Scene()
    scene.now_s += LIMIT_S
    assert scene.lagging() == []
    scene.now_s += 0.001
    assert scene.lagging() == [SECOND, THIRD]


def test_a_follower_that_has_everything_never_lags() -> None:
    scene = Scene()
    scene.fetch(SECOND, 200)
    scene.fetch(THIRD, 200)
    scene.now_s += 10 * LIMIT_S
    assert scene.lagging() == []


def test_only_members_of_the_isr_can_lag() -> None:
    scene = Scene(isr=(1, 2))
    scene.now_s += 2 * LIMIT_S
    assert scene.lagging() == [SECOND]


def test_a_follower_was_caught_up_if_it_has_reached_the_log_end_of_its_previous_fetch() -> None:
    """Otherwise a follower one fetch behind a busy leader would count as lagging."""
    follower = Follower(caught_up_s=0)
    follower.fetched(90, EPOCH, leader_end_offset=100, now_s=20)
    follower.fetched(100, EPOCH, leader_end_offset=120, now_s=40)
    assert follower.caught_up_s == 20
    follower.fetched(119, EPOCH, leader_end_offset=130, now_s=50)
    assert follower.caught_up_s == 20
    assert follower.lags(130, now_s=50.1, limit_s=LIMIT_S)
    follower.fetched(130, EPOCH, leader_end_offset=130, now_s=60)
    assert follower.caught_up_s == 60


# -- waiting requests


def test_waiting_requests_are_answered_in_order_when_their_offset_is_committed() -> None:
    scene = Scene()
    told: list[tuple[int, bool]] = []

    def tell(offset: int, done: bool) -> None:
        told.append((offset, done))

    for offset in (110, 120, 120, 130):
        scene.leadership.wait(offset, partial(tell, offset))
    scene.leadership.release(109)
    assert told == []
    scene.leadership.release(120)
    assert told == [(110, True), (120, True), (120, True)]
    scene.leadership.release(200)
    assert told[3:] == [(130, True)]


def test_a_duplicate_batch_waits_for_its_own_offset_only() -> None:
    scene = Scene()
    told: list[int] = []

    def tell(offset: int, done: bool) -> None:
        told.append(offset)

    for offset in (110, 130, 120):
        scene.leadership.wait(offset, partial(tell, offset))
    scene.leadership.release(120)
    assert told == [110, 120]


def test_waiting_requests_fail_when_the_leader_resigns() -> None:
    scene = Scene()
    told: list[bool] = []
    scene.leadership.wait(110, told.append)
    scene.leadership.wait(120, told.append)
    scene.leadership.release(110)
    scene.leadership.resign()
    assert told == [True, False]
    scene.leadership.release(200)
    assert told == [True, False]
