"""One replica on its own (`trimtab.cluster.broker.partition`): roles, ISR, high watermark,
truncation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cluster.broker.replica_stand import SECOND, SELF, THIRD, Stand, sent
from tests.unit.cluster.storage.logs import in_memory
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.storage.leader_epochs import LeaderEpoch
from trimtab.cluster.storage.log_appending import Appended
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import verify


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.log.abandon()


def refused_with(refusal: pytest.ExceptionInfo[Refused]) -> ErrorCode:
    return refusal.value.code


# -- roles


def test_a_replica_without_a_role_neither_appends_nor_serves_followers(stand: Stand) -> None:
    for act in (
        lambda: stand.append(),
        lambda: stand.fetched(SECOND, 0),
        lambda: stand.partition.delete_records_before(0),
    ):
        with pytest.raises(Refused) as refusal:
            act()
        assert refused_with(refusal) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_begins_its_epoch_at_the_end_of_its_log(stand: Stand) -> None:
    stand.follow(leader_epoch=4)
    stand.partition.append_replicated(memoryview(sent(0, 3, 2)), 0, 0)
    leadership = stand.lead(leader=SELF, leader_epoch=5).leadership
    assert leadership is not None
    assert leadership.start_offset == 3
    stand.append()
    assert stand.log.epochs.entries == [LeaderEpoch(2, 0), LeaderEpoch(5, 3)]


def test_a_leader_alone_commits_everything_when_it_begins(stand: Stand) -> None:
    stand.follow(leader_epoch=4)
    stand.partition.append_replicated(memoryview(sent(0, 3, 4)), 1, 0)
    assert stand.partition.high_watermark == 1
    assert stand.lead(leader=SELF, leader_epoch=5, isr=(1,)).high_watermark == 3


def test_waiting_requests_fail_when_the_leader_becomes_a_follower(stand: Stand) -> None:
    told: list[bool] = []
    leadership = stand.lead().leadership
    assert leadership is not None
    leadership.wait(stand.append().next_offset, told.append)
    stand.follow(leader_epoch=6)
    assert told == [False]
    assert not stand.partition.is_leader


def test_requests_keep_waiting_when_the_leader_is_elected_again(stand: Stand) -> None:
    """A reassignment that removes a replica raises the leader epoch."""
    told: list[bool] = []
    leadership = stand.lead().leadership
    assert leadership is not None
    leadership.wait(stand.append().next_offset, told.append)
    stand.lead(leader_epoch=6, partition_epoch=8, replicas=(1, 2), isr=(1, 2))
    assert told == []
    stand.fetched(SECOND, 1)
    assert told == [True]


def test_removing_a_replica_fails_waiting_requests(stand: Stand) -> None:
    told: list[bool] = []
    leadership = stand.lead().leadership
    assert leadership is not None
    leadership.wait(stand.append().next_offset, told.append)
    stand.watching.told.clear()
    stand.partition.retire()
    assert told == [False]
    assert stand.watching.told == ["changed"]


def test_a_change_of_role_or_epoch_wakes_waiting_fetches(stand: Stand) -> None:
    stand.lead()
    assert stand.watching.told == ["changed"]
    stand.lead(partition_epoch=8, isr=(1, 2))  # within the epoch: nothing new for them
    stand.follow(leader_epoch=6)
    stand.follow(partition_epoch=9)
    assert stand.watching.told == ["changed"] * 2
    stand.follow(leader_epoch=7)
    assert stand.watching.told == ["changed"] * 3


def test_older_metadata_changes_nothing(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.fetched(THIRD, 0)
    before = stand.registration
    stand.decide(isr=(1, 2, 3))
    stand.partition.lead(before)
    assert stand.partition.registration.isr == (1, 2, 3)
    assert stand.partition.leadership is not None
    assert stand.partition.leadership.isr == (1, 2, 3)


# -- appending, and the followers' progress


def test_a_leader_notifies_watchers_of_appends_and_commits(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.watching.told.clear()
    stand.append(3)
    stand.fetched(SECOND, 3)
    assert stand.watching.told == ["appended up to 3", "committed up to 3"]


def test_a_leader_alone_in_the_isr_commits_as_it_appends(stand: Stand) -> None:
    stand.lead(isr=(1,))
    assert stand.append(2) == Appended(0, 2, -1)
    assert stand.partition.high_watermark == 2


def test_acks_all_is_refused_while_too_few_are_in_sync(stand: Stand) -> None:
    stand.partition.configure(stand.values(min_insync_replicas="2"))
    stand.lead(isr=(1,))
    with pytest.raises(Refused, match=r"1 replicas are in sync, \[1\]") as refusal:
        stand.append(acks=-1)
    assert refused_with(refusal) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert stand.append(acks=1).base_offset == 0
    assert stand.partition.high_watermark == 0  # KIP-966


def test_a_lower_minimum_commits_waiting_records(stand: Stand) -> None:
    stand.partition.configure(stand.values(min_insync_replicas="2"))
    stand.lead(isr=(1,))
    stand.append()
    stand.partition.configure(stand.values(min_insync_replicas="1"))
    assert stand.partition.high_watermark == 1


def test_a_fetch_of_a_broker_that_is_not_a_replica_is_to_be_retried(stand: Stand) -> None:
    stand.lead()
    with pytest.raises(Refused) as refusal:
        stand.fetched(4, 0)
    assert refused_with(refusal) is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.kip(903)
def test_a_fetch_with_an_older_broker_epoch_is_refused(stand: Stand) -> None:
    """KAFKA-15221: the restarted broker may have lost records that it had before."""
    stand.lead()
    stand.append(5)
    stand.fetched(THIRD, 5)
    stand.fetched(SECOND, 2)
    with pytest.raises(Refused) as refusal:
        stand.fetched(SECOND, 5, epoch=10)
    assert refused_with(refusal) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stand.partition.high_watermark == 2


# -- the ISR


def test_a_caught_up_follower_is_proposed_once(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.append()
    stand.fetched(SECOND, 1)
    stand.fetched(THIRD, 0)
    assert stand.host.proposals == []
    stand.fetched(THIRD, 1)
    stand.fetched(THIRD, 1)
    assert stand.host.proposals == [(1, 2, 3)]


def test_lagging_followers_are_proposed_to_leave_and_leave_when_granted(stand: Stand) -> None:
    stand.lead()
    stand.append()
    stand.fetched(SECOND, 1)
    stand.host.now_s += 30.1
    stand.partition.review_isr()
    assert stand.host.proposals == [(1, 2)]
    assert stand.partition.high_watermark == 0
    stand.decide(isr=(1, 2))
    assert stand.partition.high_watermark == 1


def test_nothing_is_proposed_while_a_proposal_is_under_way(stand: Stand) -> None:
    stand.lead()
    stand.append()
    stand.host.now_s += 30.1
    stand.partition.review_isr()
    stand.host.now_s += 30.1
    stand.partition.review_isr()
    assert stand.host.proposals == [(1,)]


def test_the_lag_limit_begins_with_the_append_that_ends_idleness(stand: Stand) -> None:
    """An idle session does not name the partition, so its fetches show no progress (KIP-227)."""
    stand.lead()
    stand.fetched(SECOND, 0)
    stand.fetched(THIRD, 0)
    stand.host.now_s += 3600
    stand.append()
    stand.host.now_s += 29
    stand.append()
    stand.partition.review_isr()
    assert stand.host.proposals == []
    stand.host.now_s += 1.1
    stand.partition.review_isr()
    assert stand.host.proposals == [(1,)]


def test_a_restarted_follower_is_not_caught_up_just_because_nothing_was_appended(
    stand: Stand,
) -> None:
    """Otherwise commits would wait for it after its restart until it has caught up."""
    stand.lead(isr=(1, 2))
    stand.host.active = {1, 2}
    stand.fetched(SECOND, 0)
    stand.fetched(THIRD, 0)
    stand.host.now_s += 3600
    stand.append(5)
    stand.fetched(SECOND, 5)
    stand.host.active = {1, 2, 3}
    stand.fetched(THIRD, 0)
    stand.append()
    stand.fetched(SECOND, 6)
    assert stand.partition.high_watermark == 6


def test_a_follower_may_join_without_a_fetch_when_it_becomes_eligible(stand: Stand) -> None:
    stand.lead(isr=(1,))
    stand.append()
    stand.host.active = {1}
    stand.fetched(SECOND, 1)
    stand.fetched(THIRD, 1)
    assert stand.host.proposals == []
    stand.host.active = {1, 2, 3}
    stand.partition.review_isr()
    assert stand.host.proposals == [(1, 2, 3)]


def test_a_lagging_follower_does_not_rejoin_without_a_fetch(stand: Stand) -> None:
    """Below `min.insync.replicas` nothing is committed, so it lacks nothing committed."""
    stand.partition.configure(stand.values(min_insync_replicas="2"))
    stand.lead(replicas=(1, 2), isr=(1, 2))
    stand.fetched(SECOND, 0)
    stand.append()
    for _ in range(3):
        stand.host.now_s += 30.1
        stand.partition.review_isr()
        if stand.host.proposals == [(1,)] and stand.registration.isr == (1, 2):
            stand.decide(isr=(1,))
    assert stand.host.proposals == [(1,)]


def test_a_refused_proposal_is_dropped(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.append()
    stand.fetched(SECOND, 1)
    stand.host.now_s += 31
    stand.append()
    stand.fetched(THIRD, 1)
    stand.fetched(SECOND, 2)
    assert stand.partition.high_watermark == 1
    stand.partition.isr_refused()
    stand.host.now_s += 31
    stand.partition.raise_high_watermark()
    assert stand.partition.high_watermark == 2


def test_a_response_after_a_leader_change_is_ignored(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.fetched(THIRD, 0)
    stand.follow(leader_epoch=6)
    stand.partition.isr_refused()
    assert stand.partition.leadership is None


# -- the follower


def test_a_follower_copies_offsets_epochs_and_the_high_watermark(stand: Stand) -> None:
    stand.follow()
    stand.watching.told.clear()
    batches = sent(0, 2, 3) + sent(2, 3, 5)
    assert stand.partition.append_replicated(memoryview(batches), 4, 0) == 5
    assert stand.log.epochs.entries == [LeaderEpoch(3, 0), LeaderEpoch(5, 2)]
    assert bytes(in_memory(stand.log.read(0, 1 << 20))) == bytes(batches)
    assert stand.watching.told == ["appended up to 5", "committed up to 4"]


def test_a_followers_high_watermark_never_exceeds_its_log_end_or_falls(stand: Stand) -> None:
    partition = stand.follow()
    partition.append_replicated(memoryview(sent(0, 2, 5)), 100, 0)
    assert partition.high_watermark == 2
    partition.append_replicated(memoryview(sent(2, 2, 5)), 1, 0)
    assert partition.high_watermark == 2
    partition.append_replicated(memoryview(b""), 4, 0)
    assert partition.high_watermark == 4


def test_a_followers_log_begins_where_the_leaders_does(stand: Stand) -> None:
    partition = stand.follow()
    partition.append_replicated(memoryview(sent(0, 5, 5)), 5, 3)
    assert partition.log.log_start_offset == 3
    partition.append_replicated(memoryview(b""), 5, 9)  # the rest is on its way
    assert partition.log.log_start_offset == 5


@pytest.mark.kip(107)
def test_an_empty_log_that_begins_within_a_batch_stores_the_whole_batch(stand: Stand) -> None:
    partition = stand.follow()
    partition.log.restart_at(3)
    stand.watching.told.clear()
    assert partition.append_replicated(memoryview(sent(0, 5, 5)), 5, 1) == 5
    assert (partition.log.log_start_offset, partition.log.first_base_offset) == (3, 0)
    assert stand.watching.told == ["appended up to 5", "committed up to 5"]
    with pytest.raises(CorruptData):
        partition.append_replicated(memoryview(sent(4, 5, 5)), 5, 3)


def test_batches_that_do_not_continue_the_log_are_not_stored(stand: Stand) -> None:
    partition = stand.follow()
    partition.append_replicated(memoryview(sent(0, 5, 5)), 0, 0)
    damaged = sent(5, 1, 5)
    damaged[-1] ^= 1
    for records in (sent(4, 1, 5), damaged):
        with pytest.raises(CorruptData):
            partition.append_replicated(memoryview(records), 0, 0)
    assert partition.log.log_end_offset == 5


def diverged(stand: Stand) -> Partition:
    """A follower with epochs 1, 3 and 5, of four records each."""
    partition = stand.follow()
    for number, epoch in enumerate((1, 3, 5)):
        for index in range(4):
            records = memoryview(sent(4 * number + index, 1, epoch))
            partition.append_replicated(records, 5, 0)
    return partition


@pytest.mark.parametrize(
    ("leader_epoch", "leader_end", "end", "why"),
    [
        (5, 10, 10, "both know the epoch, and the leader's part of it is shorter"),
        (5, 20, 12, "both know it, and there is nothing to cut off but what is said"),
        (4, 10, 8, "only the leader knows it: the end of the one before it here"),
        (3, 6, 6, "an earlier epoch that both know"),
        (2, 7, 4, "only the leader knows it: the end of the one before it here"),
        (0, 3, 0, "an epoch before all that are known here: where these begin"),
        (6, 9, 9, "an epoch after all that are known here: the leader's end"),
        (-1, 3, 3, "the leader has no epoch"),
    ],
)
@pytest.mark.kip(101)
@pytest.mark.kip(279)
def test_a_follower_truncates_what_its_leader_does_not_have(
    stand: Stand, leader_epoch: int, leader_end: int, end: int, why: str
) -> None:
    partition = diverged(stand)
    assert partition.truncate_to_leader(leader_epoch, leader_end) == end, why
    assert partition.log.log_end_offset == end
    assert partition.high_watermark == min(5, end)
    assert all(each.start_offset < end for each in partition.log.epochs.entries)


def test_logs_that_diverged_several_times_are_truncated_to_their_common_part(stand: Stand) -> None:
    """The leader's answers to one fetch after the other (KIP-595)."""
    leader = Stand()
    leader.lead(isr=(1,))
    for offset, epoch in ((0, 1), (2, 2), (6, 4), (9, 6)):
        leader.log.append_replicated(
            records := memoryview(sent(offset, 2, epoch)), [verify(records, 0)]
        )
    follower = diverged(stand)
    for _ in range(10):
        log = follower.log
        answer = leader.partition.diverging_epoch(log.epochs.latest, log.log_end_offset)
        if answer is None:
            break
        follower.truncate_to_leader(*answer)
    assert follower.log.log_end_offset == 2
    assert follower.log.epochs.entries == [LeaderEpoch(1, 0)]


@pytest.mark.kip(279)
def test_truncating_to_the_leader_keeps_the_log_start(stand: Stand) -> None:
    """The log began again at 51, and a crash has brought back an epoch from before that."""
    partition = diverged(stand)
    log = partition.log
    log.restart_at(51)
    log.epochs.begin_leader_epoch(2, 40)
    assert log.epochs.latest == 2
    assert partition.truncate_to_leader(1, 40) == 51
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (51, 51, 51)
    assert log.epochs.entries == [], "or the leader would say the same again"


def test_a_failed_disk_makes_no_progress(stand: Stand) -> None:
    partition = stand.follow()
    stand.disk.fault = lambda action, path: 5 if action == "append" else 0
    with pytest.raises(StorageError):
        partition.append_replicated(memoryview(sent(0, 1, 5)), 1, 0)
    stand.disk.fault = None
    assert partition.append_replicated(memoryview(sent(0, 1, 5)), 1, 0) == 1


# -- reads


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (5, None),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
@pytest.mark.kip(320)
def test_a_reader_with_another_epoch_is_refused(
    stand: Stand, epoch: int, code: ErrorCode | None
) -> None:
    stand.lead()
    if code is None:
        stand.partition.check_epoch(epoch)
    else:
        with pytest.raises(Refused) as refusal:
            stand.partition.check_epoch(epoch)
        assert refused_with(refusal) is code


def test_an_epoch_that_the_leader_does_not_know_is_out_of_range(stand: Stand) -> None:
    stand.lead()
    with pytest.raises(Refused) as refusal:
        stand.partition.diverging_epoch(6, 0)
    assert refused_with(refusal) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.kip(392)
def test_only_a_leader_names_a_preferred_replica_and_only_to_consumers_with_a_rack(
    stand: Stand,
) -> None:
    stand.lead()
    assert stand.partition.preferred_replica("near", 0) == SECOND
    assert stand.partition.preferred_replica("", 0) == -1
    stand.follow(leader_epoch=6)
    assert stand.partition.preferred_replica("near", 0) == -1


@pytest.mark.kip(73)
def test_in_sync_replicas_are_not_throttled(stand: Stand) -> None:
    listed = {"leader_replication_throttled_replicas": "0:1"}
    stand.lead(isr=(1, 2))
    assert not stand.partition.throttles(THIRD)
    stand.partition.configure(stand.values(**listed))
    assert stand.partition.throttles(THIRD)
    assert not stand.partition.throttles(SECOND)
    stand.follow(leader_epoch=6)
    assert not stand.partition.throttles(THIRD)


@pytest.mark.kip(107)
def test_records_are_deleted_up_to_the_high_watermark(stand: Stand) -> None:
    stand.lead(isr=(1, 2))
    stand.append(5)
    stand.fetched(SECOND, 3)
    partition = stand.partition
    for offset in (4, -2):
        with pytest.raises(Refused) as refusal:
            partition.delete_records_before(offset)
        assert refused_with(refusal) is ErrorCode.OFFSET_OUT_OF_RANGE
    stand.watching.told.clear()
    assert partition.delete_records_before(2) == 2
    assert partition.delete_records_before(1) == 2
    assert partition.delete_records_before(-1) == 3
    assert stand.watching.told == ["changed"] * 2
