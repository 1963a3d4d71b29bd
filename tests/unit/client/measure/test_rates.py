"""Rates from samples, against rates that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from tests.unit.client.measure.made_samples import ROUND_S, Log, make_sample
from trimtab.balance.cluster_load import PartitionLoad
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.rates import LoadMeter, MeteredLoad
from trimtab.client.measure.sample import LoadSample
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition

P = TopicPartition("flights", 0)
Q = TopicPartition("flights", 1)


def measure(*samples: LoadSample, window_s: float = 30.0) -> MeteredLoad:
    meter = LoadMeter(window_s)
    for sample in samples:
        meter.add(sample)
    return meter.measure()


def rate_of(measured: MeteredLoad, partition: TopicPartition = P) -> PartitionLoad:
    return next(each for each in measured.load.partitions if each.partition == partition)


def of_logs(*logs: Log, step: float = 10.0) -> MeteredLoad:
    """One partition, sampled every `step` seconds."""
    return measure(*(make_sample(step * turn, {P: log}) for turn, log in enumerate(logs)))


def test_growth_between_two_samples_is_exact() -> None:
    measured = of_logs(Log(1000, 10), Log(51_000, 500))
    assert rate_of(measured).bytes_in == 5000.0
    assert rate_of(measured).bytes_out == 0.0
    assert rate_of(measured).size == 51_000
    assert measured.records_in[P] == 49.0
    assert measured.load.measured_s == 1010.0 + ROUND_S


def test_a_cluster_without_traffic_has_rates_of_zero() -> None:
    measured = measure(*(make_sample(at, {P: Log(0, 0), Q: Log(70, 7)}) for at in (0.0, 10.0)))
    assert [each.bytes_in for each in measured.load.partitions] == [0.0, 0.0]
    assert measured.left_out == {}


def test_a_cluster_without_topics_has_an_empty_load() -> None:
    measured = measure(make_sample(0, {}), make_sample(10, {}))
    assert list(measured.load.partitions) == []
    assert list(measured.load.brokers) == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_samples_are_refused_with_their_number(count: int) -> None:
    meter = LoadMeter()
    for turn in range(count):
        meter.add(make_sample(turn, {P: Log(0, 0)}))
    assert not meter.is_ready
    with pytest.raises(UsageError, match=f"{count} of the 2 samples"):
        meter.measure()


def test_samples_out_of_order_are_refused() -> None:
    meter = LoadMeter()
    meter.add(make_sample(10, {}))
    with pytest.raises(UsageError, match="one after the other"):
        meter.add(make_sample(5, {}))


def test_a_window_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="window_s=0"):
        LoadMeter(0)


def test_deleted_segments_do_not_lower_the_rate() -> None:
    """The size falls by 900,000 while 10,000 records of 100 bytes are written."""
    measured = of_logs(
        Log(1_000_000, 10_000), Log(2_000_000, 20_000), Log(2_100_000, 30_000, start=9_000)
    )
    assert rate_of(measured).bytes_in == pytest.approx(100_000.0)


def test_a_deletion_is_imputed_from_the_log_if_no_growth_was_seen() -> None:
    measured = of_logs(Log(1_000_000, 10_000), Log(1_100_000, 20_000, start=9_000))
    assert rate_of(measured).bytes_in == pytest.approx(100_000.0)


def test_records_deleted_within_a_segment_make_no_spike() -> None:
    """DeleteRecords: the start rises to the end, and the segments stay."""
    measured = of_logs(Log(1_000_000, 10_000), Log(1_010_000, 10_100, start=10_099))
    assert rate_of(measured).bytes_in == pytest.approx(1000.0)


def test_a_log_that_was_emptied_keeps_its_known_bytes_per_record() -> None:
    measured = of_logs(Log(1_000_000, 10_000), Log(1_100_000, 11_000), Log(0, 12_000, start=12_000))
    assert rate_of(measured).bytes_in == pytest.approx(10_000.0)


def test_a_compacted_topic_is_imputed_although_it_grows() -> None:
    """40 of 100 bytes are left of each record; the cleaner runs meanwhile."""
    logs = Log(40_000, 1_000), Log(44_000, 1_100)
    samples = (
        make_sample(10.0 * turn, {P: log}, compacted=[P.topic]) for turn, log in enumerate(logs)
    )
    assert rate_of(measure(*samples)).bytes_in == pytest.approx(400.0)
    shrunk = Log(40_000, 1_000), Log(20_000, 1_100)
    samples = (
        make_sample(10.0 * turn, {P: log}, compacted=[P.topic]) for turn, log in enumerate(shrunk)
    )
    assert rate_of(measure(*samples)).bytes_in == pytest.approx(100 * 20_000 / 1_100 / 10)


def test_a_compacted_topic_that_grows_by_more_than_its_mean_counts_its_growth() -> None:
    logs = Log(1_000, 1_000), Log(11_000, 1_100)
    samples = (
        make_sample(10.0 * turn, {P: log}, compacted=[P.topic]) for turn, log in enumerate(logs)
    )
    assert rate_of(measure(*samples)).bytes_in == pytest.approx(1000.0)


def test_a_new_leaders_log_of_another_size_is_no_traffic() -> None:
    """Followers delete segments at other times than leaders."""
    measured = of_logs(
        Log(1_000_000, 10_000),
        Log(1_100_000, 11_000),
        Log(9_999_999, 12_000, leader=1),
        Log(10_099_999, 13_000, leader=1),
    )
    assert rate_of(measured).bytes_in == pytest.approx(10_000.0)
    assert rate_of(measured).leader == 1


def test_a_topic_that_was_created_again_is_left_out_and_then_right() -> None:
    logs = [
        Log(9_000_000, 90_000),
        Log(9_100_000, 91_000),
        Log(500_000, 5_000, topic_id="b"),
        Log(600_000, 6_000, topic_id="b"),
    ]
    measured = of_logs(*logs[:3])
    assert list(measured.load.partitions) == []
    assert "only one sample has it" in measured.left_out[P]
    assert rate_of(of_logs(*logs)).bytes_in == pytest.approx(10_000.0)


def test_offsets_that_fall_without_a_topic_id_begin_again() -> None:
    logs = [Log(9_000_000, 90_000), Log(500_000, 5_000), Log(600_000, 6_000)]
    assert list(of_logs(*logs[:2]).load.partitions) == []
    assert rate_of(of_logs(*logs)).bytes_in == pytest.approx(10_000.0)


def test_a_group_that_follows_into_the_new_topic_makes_no_spike() -> None:
    old, new = Log(1_000, 10), Log(500_000, 5_000, topic_id="b")
    measured = measure(
        make_sample(0, {P: old}, {"g": {P: 10}}),
        make_sample(10, {P: new}, {"g": {P: 4_000}}),
        make_sample(20, {P: new._replace(size=510_000, end=5_100)}, {"g": {P: 4_100}}),
    )
    assert rate_of(measured).bytes_out == pytest.approx(1000.0)


def test_a_partition_that_appears_has_the_rate_since_then() -> None:
    both = {P: Log(2_000, 20), Q: Log(70_000, 700)}
    samples = [
        make_sample(0, {P: Log(0, 0)}),
        make_sample(10, both),
        make_sample(20, {P: Log(4_000, 40), Q: Log(71_000, 710)}),
    ]
    assert Q in measure(*samples[:2]).left_out
    assert rate_of(measure(*samples), Q).bytes_in == pytest.approx(100.0)


def test_a_deleted_topic_is_forgotten() -> None:
    measured = measure(*(make_sample(0, {P: Log(0, 0)}), make_sample(10, {})))
    assert list(measured.load.partitions) == []
    assert measured.left_out == {}


def test_a_leader_that_does_not_answer_leaves_its_partitions_unknown_and_named() -> None:
    logs = {P: Log(0, 0), Q: Log(0, 0, leader=1)}
    measured = measure(*(make_sample(at, logs, silent=[1]) for at in (0.0, 10.0)))
    assert [each.partition for each in measured.load.partitions] == [P]
    assert "broker 1, has not answered" in measured.left_out[Q]
    assert measured.unknown == ["broker 1: sizes of logs: no answer within 5 s"]
    assert measured.load.brokers[1].disk is None
    # It would look idle otherwise, and get more.
    assert not measured.load.brokers[1].takes_replicas
    assert not measured.load.brokers[1].is_alive
    assert measured.is_partial


def test_one_partition_of_ten_may_be_unknown() -> None:
    known = {TopicPartition("t", index): Log(0, 0) for index in range(9)}
    for left_out, is_partial in ((1, False), (2, True)):
        logs = known | {TopicPartition("u", n): Log(0, 0, leader=1) for n in range(left_out)}
        measured = measure(*(make_sample(at, logs, silent=[1]) for at in (0.0, 10.0)))
        assert measured.is_partial == is_partial


def test_an_answer_that_is_missing_once_costs_nothing() -> None:
    measured = measure(
        make_sample(0, {P: Log(0, 0)}, {"g": {P: 0}}),
        make_sample(10, {P: Log(10_000, 100)}, silent=[0]),
        make_sample(20, {P: Log(20_000, 200)}, {"g": {P: 200}}),
    )
    assert rate_of(measured).bytes_in == pytest.approx(1000.0)
    assert rate_of(measured).bytes_out == pytest.approx(1000.0)


def test_a_leader_that_is_silent_for_longer_than_the_window_is_no_longer_known() -> None:
    samples = [make_sample(at, {P: Log(at * 100, at)}) for at in (0, 10)]
    silence = [make_sample(at, {P: Log(0, 0)}, silent=[0]) for at in (20, 30, 40, 50)]
    assert rate_of(measure(*samples, *silence[:3])).bytes_in == pytest.approx(100.0)
    assert "has not answered" in measure(*samples, *silence).left_out[P]


def test_a_partition_without_leader_is_left_out() -> None:
    measured = of_logs(Log(0, 0, leader=-1), Log(0, 0, leader=-1))
    assert measured.left_out == {P: "it has no leader"}


def test_a_part_that_is_refused_is_named() -> None:
    samples = [replace(make_sample(at, {P: Log(0, 0)}), logs={}) for at in (0, 10)]
    assert measure(*samples).left_out == {P: "its leader, broker 0, has not told its size"}


def test_bytes_out_are_those_of_all_groups() -> None:
    measured = measure(
        make_sample(0, {P: Log(100_000, 1_000)}, {"g": {P: 500}, "h": {P: 0}}),
        make_sample(10, {P: Log(100_000, 1_000)}, {"g": {P: 700}, "h": {P: 100}}),
    )
    assert rate_of(measured).bytes_out == pytest.approx(3000.0)
    assert rate_of(measured).bytes_in == 0.0


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {P: 900}), ({P: 900}, {P: 100}), ({P: 900}, {})],
    ids=["a first commit", "back", "forgotten"],
)
def test_an_offset_that_was_not_reached_by_reading_is_not_read(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]
) -> None:
    log = {P: Log(100_000, 1_000)}
    measured = measure(make_sample(0, log, {"g": before}), make_sample(10, log, {"g": after}))
    assert rate_of(measured).bytes_out == 0.0


def test_records_that_were_deleted_are_not_read() -> None:
    """A group was at 10 when 900 records were deleted, and goes on at 900."""
    log = {P: Log(100_000, 1_000, start=900)}
    measured = measure(make_sample(0, log, {"g": {P: 10}}), make_sample(10, log, {"g": {P: 950}}))
    assert rate_of(measured).bytes_out == pytest.approx(50 * 1000 / 10)


def test_offsets_of_a_group_that_were_refused_once_are_counted_later() -> None:
    error = BrokerError(ErrorCode.NOT_COORDINATOR, "", "group g")
    log = {P: Log(100_000, 1_000)}
    measured = measure(
        make_sample(0, log, {"g": {P: 0}}),
        make_sample(10, log, refused_groups={"g": error}),
        make_sample(20, log, {"g": {P: 200}}),
    )
    assert rate_of(measured).bytes_out == pytest.approx(1000.0)


def test_commits_in_steps_are_evened_out_by_the_window() -> None:
    """100 records/s, committed every 5 s, sampled every 2 s."""
    meter = LoadMeter(30.0)
    for turn in range(40):
        at = 2.0 * turn
        end = int(100 * at)
        committed = 100 * 5 * int(at / 5)
        meter.add(make_sample(at, {P: Log(100 * end, end)}, {"g": {P: committed}}))
        if turn > 15:
            assert rate_of(meter.measure()).bytes_out == pytest.approx(10_000, rel=5 / 30)


def test_the_window_slides() -> None:
    meter = LoadMeter(20.0)
    size = 0
    for turn in range(12):
        meter.add(make_sample(5.0 * turn, {P: Log(size, size // 100)}))
        size += 5 * (1000 if turn < 5 else 3000)
    assert rate_of(meter.measure()).bytes_in == pytest.approx(3000.0)


def test_samples_every_second_need_no_more_memory_than_a_window_has_parts() -> None:
    meter = LoadMeter(30.0)
    for at in range(300):
        meter.add(make_sample(at, {P: Log(700 * at, 7 * at)}))
    assert len(meter._tracks[P].marks) <= 12 * 5
    assert rate_of(meter.measure()).bytes_in == pytest.approx(700.0)


def test_partitions_that_are_moved_are_named_and_stay_in_the_load() -> None:
    measured = measure(
        *(make_sample(at, {P: Log(0, 0), Q: Log(0, 0)}, moving=[Q]) for at in (0, 9))
    )
    assert measured.load.moving == {Q}
    assert [each.partition for each in measured.load.partitions] == [P, Q]


def test_reassignments_that_are_not_told_are_still_the_last_known_ones() -> None:
    log = {P: Log(0, 0), Q: Log(0, 0)}
    untold = replace(make_sample(9, log), moving=None, refused={"reassignments": "refused"})
    measured = measure(make_sample(0, log, moving=[Q]), untold)
    assert measured.load.moving == {Q}
    assert measured.unknown == ["reassignments: refused"]


def test_the_probes_topic_is_left_out() -> None:
    probe = TopicPartition(PROBE_TOPIC, 0)
    measured = measure(*(make_sample(at, {P: Log(0, 0), probe: Log(0, 0)}) for at in (0, 9)))
    assert [each.partition for each in measured.load.partitions] == [P]
    assert measured.left_out == {}


def test_brokers_have_racks_volumes_and_what_their_limit_allows() -> None:
    logs = {P: Log(0, 0, replicas=(0, 7)), Q: Log(0, 0)}
    samples = [make_sample(at, logs, totals={0: 10**12}, limit=10) for at in (0, 9)]
    brokers = measure(*samples).load.brokers
    assert list(brokers) == [0, 1, 2, 7]
    assert brokers[0] == (0, "rack-0", 8, 10**12, True, True)
    assert brokers[7] == (7, None, 9, None, False, False)


def test_brokers_without_limit_have_room_for_any_number() -> None:
    samples = [make_sample(at, {P: Log(0, 0)}) for at in (0, 9)]
    assert measure(*samples).load.brokers[2].free == LONG_MAX


def test_partitions_are_in_order_of_topic_and_number() -> None:
    names = [TopicPartition(topic, index) for topic in "cab" for index in (0, 1, 2)]
    samples = [make_sample(at, {each: Log(0, 0) for each in names}) for at in (0, 9)]
    found = [each.partition for each in measure(*samples).load.partitions]
    assert found == sorted(names)


@pytest.mark.parametrize("seed", range(20))
def test_random_deletions_leader_changes_and_silences_do_not_change_a_rate(seed: int) -> None:
    random = Random(seed)
    each, rate = random.randrange(50, 2000), random.randrange(20, 5000)
    meter = LoadMeter(random.choice((20.0, 30.0, 60.0)))
    at, start, leader = 0.0, 0, 0
    for turn in range(60):
        end = int(rate * at)
        # The other replica has deleted less.
        size = each * (end - (start if leader == 0 else start // 2))
        meter.add(
            make_sample(
                at,
                {P: Log(size, end, start, leader)},
                {"g": {P: end}, "h": {P: max(0, end - 50)}},
                silent=[0, 1] if turn > 2 and random.random() < 0.1 else [],
            )
        )
        if turn > 8:
            found = rate_of(meter.measure())
            assert found.bytes_in == pytest.approx(rate * each, rel=0.01)
            assert found.bytes_out == pytest.approx(2 * rate * each, rel=0.01)
        at += random.choice((3.0, 5.0, 8.0))
        if turn and random.random() < 0.2:
            start += random.randrange(0, end - start + 1)
        if turn and random.random() < 0.2:
            leader = 1 - leader


def test_twenty_thousand_partitions_take_seconds() -> None:
    """What grows faster than their number takes minutes here."""
    partitions = [
        TopicPartition(f"t{topic}", index) for topic in range(200) for index in range(100)
    ]
    meter = LoadMeter()
    for turn in range(4):
        logs = {each: Log(1000 * turn, 10 * turn, leader=turn % 3) for each in partitions}
        meter.add(make_sample(10.0 * turn, logs))
    assert len(meter.measure().load.partitions) == len(partitions)
