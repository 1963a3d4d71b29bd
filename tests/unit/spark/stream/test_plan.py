"""What each batch of a stream reads.

Long because the limits of a batch act on each other, so the cases share one scene.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from trimtab.client.fetcher.ranges import GONE_SECONDS, OffsetRange
from trimtab.kafka.errors import (
    BrokerError,
    DataLoss,
    ErrorCode,
    KafkaError,
    Unavailable,
    UsageError,
)
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.source import read_stream_options
from trimtab.spark.stream import outages
from trimtab.spark.stream import plan as stream_plan
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.cluster_state import ClusterObserver, ClusterState
from trimtab.spark.stream.offsets import STATE, read_offset
from trimtab.spark.stream.plan import StreamPlan
from trimtab.spark.stream.size_sources.contract import FoundSizes, SizeRequest, SizeSource
from trimtab.spark.stream.sizes import Sizes
from trimtab.spark.stream.topics import Known, StreamTopics

REQUIRED = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "startingOffsets": "earliest"}
ZERO, ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Topics(StreamTopics):
    """A cluster: where its partitions begin and end, and the ids of its topics."""

    def __init__(self, **ends: int) -> None:
        self.begins: dict[TopicPartition, int] = {}
        self.ends = {TopicPartition(name[0], int(name[1:])): end for name, end in ends.items()}
        self.ids = {"t": "id-of-t"}
        self.hidden: set[TopicPartition] = set()
        self.empty: set[str] = set()
        """Topics that are shown without their hidden partitions."""
        self.error: KafkaError | None = None
        self.asked = 0
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.refusal: KafkaError | None = None

    def known(self, refresh: bool = False) -> Known:
        self._answer()
        shown = tuple(each for each in sorted(self.ends) if each not in self.hidden)
        topics = {each.topic for each in shown} | self.empty
        ids = {topic: each for topic, each in self.ids.items() if topic in topics}
        leaders = {topic: tuple(number % 2 for number in range(100)) for topic in topics}
        return Known(shown, ids, leaders)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._answer()
        return {each: self.begins.get(each, 0) for each in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._answer()
        self.asked += 1
        return {each: self.ends[each] for each in partitions}

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {each: at if at < self.ends[each] else None for each, at in times.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.commits.append((group, dict(offsets)))
        if self.refusal is not None:
            raise self.refusal

    def committed(self, group: str) -> dict[TopicPartition, int]:
        mine = [offsets for name, offsets in self.commits if name == group]
        return {p: at for offsets in mine for p, at in offsets.items()}

    def close(self) -> None: ...

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Listed(SizeSource):
    """Sizes of record batches of ten offsets each, all known at once."""

    name, tails, bytes_read = "listed", False, 7

    def __init__(self, sizes: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.sizes = sizes
        self.most = 1000

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: object = None
    ) -> list[FoundSizes]:
        found = []
        for partition, (start, end, _) in wanted.items():
            ends = range(start - start % 10 + 10, end + 1, 10)
            sizes = self.sizes[partition]
            pieces = [Piece(at, sizes[at // 10 - 1], 1000 * at) for at in ends]
            found.append(FoundSizes(partition, start, pieces[: self.most]))
        return found

    def close(self) -> None: ...


def plan(
    topics: Topics,
    clock: Clock | None = None,
    sizes: Sizes | None = None,
    **options: str,
) -> StreamPlan:
    clock = clock or Clock()
    return StreamPlan(read_stream_options(REQUIRED | options), topics, sizes, clock, clock.wait)


def offsets(written: Mapping[str, Any]) -> dict[str, int]:
    return {f"{topic}{n}": at for (topic, n), at in read_offset(written).offsets.items()}


def test_a_stream_begins_where_its_first_answer_said() -> None:
    topics = Topics(t0=5, t1=7)
    stream = plan(topics, startingOffsets="latest")
    first = stream.first()
    assert offsets(first) == {"t0": 5, "t1": 7}
    topics.ends[ZERO] = 9
    assert stream.first() == first  # Spark asks twice
    end = stream.next(first, takes_all=True)
    assert stream.ranges(first, end) == [OffsetRange("t", 0, 5, 9)]
    # The driver dies within the batch; Spark asks a third time, and has the batch's end.
    topics.ends[ZERO] = 12
    again = plan(topics, startingOffsets="latest")
    assert offsets(again.first())["t0"] == 12
    assert again.ranges(again.first(), end) == [OffsetRange("t", 0, 5, 9)]
    # The batch after it knows nothing of the beginning.
    later = again.next(end, takes_all=True)
    assert "begins" not in later[STATE]
    assert again.ranges(end, later) == [OffsetRange("t", 0, 9, 12)]


def test_an_empty_first_batch_and_what_follows_it() -> None:
    topics = Topics(t0=5)
    stream = plan(topics, startingOffsets="latest")
    first = stream.first()
    assert stream.next(first, takes_all=True) == first
    assert stream.ranges(first, first) == []
    topics.ends[ZERO] = 6
    end = stream.next(first, takes_all=True)
    assert stream.ranges(first, end) == [OffsetRange("t", 0, 5, 6)]


def test_an_idle_stream_looks_now_and_then_and_says_the_same() -> None:
    topics, clock = Topics(t0=5), Clock()
    stream = plan(topics, clock)
    start = stream.next(stream.first(), takes_all=True)
    topics.asked = 0
    began = clock.now
    assert stream.next(start, takes_all=True) is start
    assert clock.now - began >= stream_plan.IDLE_SECONDS
    assert topics.asked <= 20


def test_limits_in_offsets_are_those_of_sparks_source() -> None:
    topics, clock = Topics(t0=90, t1=10), Clock()
    stream = plan(topics, clock, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="8")
    end = stream.next(stream.first(), takes_all=False)
    assert offsets(end) == {"t0": 9, "t1": 1}
    assert offsets(stream.next(end, takes_all=True)) == {"t0": 90, "t1": 10}  # Trigger.Once
    start = stream.next(end, takes_all=True)
    topics.ends[ZERO] = 97
    assert stream.next(start, takes_all=False) is start  # seven are too few
    clock.now += 15 * 60
    assert offsets(stream.next(start, takes_all=False)) == {"t0": 97, "t1": 10}
    stream.freeze()
    assert offsets(stream.next(start, takes_all=False)) == {"t0": 97, "t1": 10}


def test_available_now_ends_where_the_partitions_ended_when_it_began() -> None:
    topics = Topics(t0=10)
    stream = plan(topics, maxOffsetsPerTrigger="6")
    stream.freeze()
    start: Mapping[str, Any] = stream.first()
    topics.ends |= {ZERO: 100, ONE: 100}
    seen = []
    while (end := stream.next(start, takes_all=False)) != start:
        seen.append(offsets(end))
        start = end
    assert seen == [{"t0": 6}, {"t0": 10}]


def test_batches_in_bytes() -> None:
    topics = Topics(t0=50, t1=20)
    # Bytes of each ten offsets.
    source = Listed({ZERO: [30, 30, 30, 30, 30], ONE: [45, 5]})
    sizes = Sizes(lambda: source, 100, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerTrigger="100", maxBytesPerPartition="40")
    start: Mapping[str, Any] = stream.first()
    seen, tasks, batch_bytes = [], [], []
    try:
        stream.freeze()
        while (end := stream.next(start, takes_all=False)) != start:
            seen.append(offsets(end))
            tasks.append(
                [(each.partition, each.start, each.end) for each in stream.ranges(start, end)]
            )
            batch_bytes.append(stream.report()[STATE]["batchBytes"])  # type: ignore[index]
            start = end
    finally:
        stream.close()
    assert seen[-1] == {"t0": 50, "t1": 20}
    assert sum(batch_bytes) == 200
    assert max(batch_bytes) <= 100
    assert len(seen) <= 3
    read = sorted(each for batch in tasks for each in batch)
    assert [(p, s // 10) for p, s, _ in read] == [(0, n) for n in range(5)] + [(1, 0), (1, 1)]
    report = stream.report()
    assert report is not None
    assert report["t"] == {"0": 50, "1": 20}
    assert (report[STATE]["lagRecords"], report[STATE]["lagBytes"]) == (0, 0)
    assert report[STATE]["sizeSource"] == "listed"


def test_bytes_of_a_batch_that_nobody_has_counted_are_not_said() -> None:
    topics = Topics(t0=50)
    source = Listed({ZERO: [30] * 5})
    source.most = 1
    sizes = Sizes(lambda: source, 20, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerTrigger="20")
    try:
        stream.next(stream.first(), takes_all=True)
    finally:
        stream.close()
    report = stream.report()
    assert report is not None
    assert report[STATE]["batchRecords"] == 50
    assert "batchBytes" not in report[STATE]


def test_available_now_does_not_take_late_sizes_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_plan, "_STALL_SECONDS", 0.0)
    may_answer = threading.Event()

    class Late(Listed):
        def find(
            self, wanted: Mapping[TopicPartition, SizeRequest], changed: object = None
        ) -> list[FoundSizes]:
            return super().find(wanted) if may_answer.wait(0.01) else []

    class Awaited(Sizes):
        waits = 0

        def await_fair(self, limit: int, timeout: float) -> bool:
            self.waits += 1
            if self.waits == 5:
                may_answer.set()
                timeout = 60.0
            return super().await_fair(limit, timeout)

    sizes = Awaited(lambda: Late({ZERO: [30] * 5}), 65, 1)
    stream = plan(Topics(t0=50), sizes=sizes, maxBytesPerTrigger="65")
    stream.freeze()
    assert offsets(stream.next(stream.first(), takes_all=False)) == {"t0": 20}
    stream.close()


def test_lag_in_records_bytes_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.spark.stream.plan.time.time", lambda: 100.0)
    topics = Topics(t0=50)
    sizes = Sizes(lambda: Listed({ZERO: [30] * 5}), 65, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerTrigger="65")
    try:
        stream.next(stream.first(), takes_all=False)
    finally:
        stream.close()
    report = stream.report()
    assert report is not None
    lag = report[STATE]
    assert (lag["batchRecords"], lag["batchBytes"]) == (20, 60)
    assert (lag["lagRecords"], lag["lagBytes"]) == (30, 90)
    assert lag["lagSeconds"] == 70.0  # the third record batch is of second 30


def test_a_batch_of_a_checkpoint_is_cut_by_bytes_too() -> None:
    topics = Topics(t0=50)
    sizes = Sizes(lambda: Listed({ZERO: [30] * 5}), 1000, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerPartition="60")
    try:
        ranges = stream.ranges({"t": {"0": 0}}, {"t": {"0": 50}})
    finally:
        stream.close()
    assert [each.size for each in ranges] == [20, 20, 10]


def test_a_checkpoint_of_sparks_source_is_continued() -> None:
    topics = Topics(t0=50)
    stream = plan(topics)
    end = stream.next({"t": {"0": 23}}, takes_all=True)
    assert end == {"t": {"0": 50}, STATE: {"ids": {"t": "id-of-t"}}}
    assert stream.ranges({"t": {"0": 23}}, end) == [OffsetRange("t", 0, 23, 50)]
    assert stream.ranges({"t": {"0": 5}}, {"t": {"0": 23}}) == [OffsetRange("t", 0, 5, 23)]


def test_the_first_batch_of_sparks_source_cannot_be_repeated_with_certainty() -> None:
    stream = plan(Topics(t0=50), startingOffsets="latest")
    with pytest.raises(DataLoss, match="first batch is unfinished"):
        stream.ranges(stream.first(), {"t": {"0": 23}})


def test_new_partitions_and_topics_begin_at_the_beginning() -> None:
    topics = Topics(t0=5)
    stream = plan(topics, startingOffsets="latest")
    start = stream.next(stream.first(), takes_all=True)
    topics.ends |= {ONE: 3, OTHER: 2}
    end = stream.next(start, takes_all=True)
    assert offsets(end) == {"t0": 5, "t1": 3, "u0": 2}
    both = [OffsetRange("t", 1, 0, 3), OffsetRange("u", 0, 0, 2)]
    assert stream.ranges(start, end) == both
    assert plan(topics).ranges(start, end) == both  # after a restart


def test_a_new_partition_that_has_lost_its_beginning() -> None:
    topics = Topics(t0=5)
    stream = plan(topics)
    start = stream.next(stream.first(), takes_all=True)
    topics.ends[ONE], topics.begins[ONE] = 9, 4
    with pytest.raises(DataLoss, match="t-1 is new and begins at offset 4, not at 0"):
        stream.next(start, takes_all=True)
    stream = plan(topics, failOnDataLoss="false")
    end = stream.next(start, takes_all=True)
    assert stream.ranges(start, end) == [OffsetRange("t", 1, 4, 9)]


def looks(stream: StreamPlan, start: Mapping[str, Any], clock: Clock, seconds: float) -> None:
    """Spark asks for a batch again and again, and there is none."""
    end = clock.now + seconds
    while clock.now < end:
        assert stream.next(start, takes_all=True) is start


@pytest.mark.parametrize("empty", [{"t"}, set()], ids=["without partitions", "unknown"])
@pytest.mark.parametrize("hidden", [{ZERO, ONE}, {ONE}, {ZERO}])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_partitions_that_are_not_shown_for_a_while_keep_their_offsets(
    fails: str, hidden: set[TopicPartition], empty: set[str]
) -> None:
    topics, clock = Topics(t0=5, t1=5), Clock()
    stream = plan(topics, clock, failOnDataLoss=fails)
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden, topics.empty = hidden, empty
    looks(stream, start, clock, 20)
    again = plan(topics, clock, failOnDataLoss=fails)  # the driver is started again meanwhile
    looks(again, start, clock, 5)
    topics.hidden = set()
    topics.ends |= {ZERO: 6, ONE: 7}
    for each in (stream, again):
        end = each.next(start, takes_all=True)
        assert offsets(end) == {"t0": 6, "t1": 7}
        assert sorted(each.ranges(start, end)) == [
            OffsetRange("t", 0, 5, 6),
            OffsetRange("t", 1, 5, 7),
        ]


def test_without_fail_on_data_loss_the_others_are_read_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = Topics(t0=5, t1=5)
    stream = plan(topics, failOnDataLoss="false", commitGroup="g")
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {ONE}
    topics.ends |= {ZERO: 6, ONE: 6}
    end = stream.next(start, takes_all=True)
    assert offsets(end) == {"t0": 6, "t1": 5}
    assert read_offset(end).ids == {"t": "id-of-t"}
    assert stream.ranges(start, end) == [OffsetRange("t", 0, 5, 6)]
    assert stream.next(end, takes_all=True) is end
    assert caplog.text.count("t-1: the cluster does not show it now") == 1
    assert topics.commits[-1] == ("g", {ZERO: 6})
    topics.hidden = set()
    assert stream.ranges(end, stream.next(end, takes_all=True)) == [OffsetRange("t", 1, 5, 6)]


def test_a_topic_that_is_not_shown_keeps_its_id_in_the_batches_of_the_others() -> None:
    topics = Topics(t0=5, u0=5)
    topics.ids["u"] = "id-of-u"
    stream = plan(topics, subscribe="t,u", failOnDataLoss="false")
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {OTHER}
    topics.ends[ZERO] = 6
    end = stream.next(start, takes_all=True)
    assert read_offset(end).ids == {"t": "id-of-t", "u": "id-of-u"}


def test_sizes_of_partitions_that_are_not_shown_are_not_looked_up() -> None:
    class Tailing(Listed):
        tails = True

        def find(
            self, wanted: Mapping[TopicPartition, SizeRequest], changed: object = None
        ) -> list[FoundSizes]:
            asked.update(wanted)
            return super().find(wanted)

    asked: set[TopicPartition] = set()
    topics = Topics(t0=10, t1=10)
    sizes = Sizes(lambda: Tailing({ZERO: [1] * 9, ONE: [1] * 9}), 1000, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerTrigger="1000", failOnDataLoss="false")
    try:
        start = stream.next(stream.first(), takes_all=False)
        assert asked == {ZERO, ONE}
        topics.hidden = {ONE}
        topics.ends[ZERO] = 20
        end = stream.next(start, takes_all=False)
        assert ONE not in sizes._horizon.partitions
        assert offsets(end) == {"t0": 20, "t1": 10}
    finally:
        stream.close()


def test_a_topic_that_is_gone_for_good(caplog: pytest.LogCaptureFixture) -> None:
    topics, clock = Topics(t0=5, u0=5), Clock()
    topics.ids["u"] = "id-of-u"
    stream = plan(topics, clock, subscribe="t,u")
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {OTHER}
    looks(stream, start, clock, GONE_SECONDS - 1)
    clock.now += 1
    with pytest.raises(DataLoss, match=r"topic u, id id-of-u, was deleted: .* for 30 s.*failOn"):
        stream.next(start, takes_all=True)
    # Without failOnDataLoss the offset stays: it is worth something if the same topic is back.
    stream = plan(topics, clock, subscribe="t,u", failOnDataLoss="false")
    looks(stream, start, clock, 2 * GONE_SECONDS)
    assert caplog.text.count("was deleted") == 1
    topics.hidden = set()
    topics.ends[OTHER] = 6
    end = stream.next(start, takes_all=True)
    assert stream.ranges(start, end) == [OffsetRange("u", 0, 5, 6)]
    # Of a new topic it is not.
    topics.hidden = {OTHER}
    looks(stream, end, clock, 2 * GONE_SECONDS)
    topics.hidden, topics.ids["u"] = set(), "another"
    later = stream.next(end, takes_all=True)
    assert stream.ranges(end, later) == [OffsetRange("u", 0, 0, 6)]


def test_a_topic_without_an_id_that_is_gone_for_good_is_forgotten() -> None:
    topics, clock = Topics(t0=5, u0=5), Clock()
    stream = plan(topics, clock, subscribe="t,u", failOnDataLoss="false")
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {OTHER}
    looks(stream, start, clock, GONE_SECONDS - 1)
    clock.now += 1
    end = stream.next(start, takes_all=True)
    assert offsets(end) == {"t0": 5}


def test_looks_that_are_far_apart_prove_nothing() -> None:
    topics, clock = Topics(t0=5), Clock()
    stream = plan(topics, clock)
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {ZERO}
    for _ in range(3):
        looks(stream, start, clock, 1)
        clock.now += 2 * GONE_SECONDS  # a batch runs


def test_a_topic_that_is_no_longer_subscribed_is_not_called_deleted() -> None:
    topics = Topics(t0=5, u0=5)
    ways = {
        "subscribe": ("t,u", "t"),
        "subscribePattern": (".", "t"),
        "assign": ('{"t":[0],"u":[0]}', '{"t":[0]}'),
    }
    for name, (before, now) in ways.items():
        given = {"kafka.bootstrap.servers": "x:1", "startingOffsets": "earliest"}

        def selecting(value: str, way: str = name, **more: str) -> StreamPlan:
            options = read_stream_options(given | {way: value} | more)  # noqa: B023
            return StreamPlan(options, topics, None, clock := Clock(), clock.wait)

        topics.hidden = set()
        stream = selecting(before)
        start = stream.next(stream.first(), takes_all=True)
        topics.hidden = {OTHER}
        with pytest.raises(DataLoss, match="u-0: no longer subscribed, but the checkpoint has"):
            selecting(now).next(start, takes_all=True)
        end = selecting(now, failOnDataLoss="false").next(start, takes_all=True)
        assert offsets(end) == {"t0": 5}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_available_now_waits_for_partitions_that_are_not_shown(fails: str) -> None:
    topics = Topics(t0=5, t1=5)
    stream = plan(topics, failOnDataLoss=fails)
    start = stream.next(stream.first(), takes_all=True)
    topics.hidden = {ONE}
    topics.ends[ONE] = 9

    class Shown(Clock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            if self.now > 1010:
                topics.hidden = set()

    stream = plan(topics, Shown(), failOnDataLoss=fails)
    stream.freeze()
    end = stream.next(start, takes_all=True)
    assert stream.ranges(start, end) == [OffsetRange("t", 1, 5, 9)]


def test_available_now_names_both_ids_of_a_topic_that_was_created_again() -> None:
    topics = Topics(t0=5)
    stream = plan(topics, maxOffsetsPerTrigger="3")
    stream.freeze()
    start = stream.first()
    middle = stream.next(start, takes_all=False)
    assert offsets(middle) == {"t0": 3}
    topics.ids["t"] = "another"
    with pytest.raises(DataLoss, match="its id was id-of-t and is another now"):
        stream.next(middle, takes_all=False)
    topics.ends[ZERO] = 4
    stream = plan(topics, maxOffsetsPerTrigger="3", failOnDataLoss="false")
    stream.freeze()
    topics.ids["t"], topics.ends = "a third", {ZERO: 2}
    end = stream.next(middle, takes_all=False)
    assert stream.ranges(middle, end) == [OffsetRange("t", 0, 0, 2)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_begins_where_it_began_before_the_driver_ended(fails: str) -> None:
    topics = Topics(t0=5)
    stream = plan(topics, failOnDataLoss=fails)
    first = stream.first()
    topics.ends[OTHER] = 3  # in the first batch
    start = stream.next(first, takes_all=True)
    topics.ends[ONE] = 50
    end = stream.next(start, takes_all=True)
    topics.begins = {ONE: 20, OTHER: 2}
    again = plan(topics, failOnDataLoss=fails)
    assert OffsetRange("u", 0, 0, 3) in again.ranges(again.first(), start)
    assert again.ranges(start, end) == [OffsetRange("t", 1, 0, 50)]
    # So the task that reads it finds the loss. A checkpoint that does not say where it began:
    del end[STATE]["begins"]
    again = plan(topics)
    with pytest.raises(DataLoss, match="t-1 is new and begins at offset 20, not at 0"):
        again.ranges(start, end)


def test_a_log_that_ends_before_the_stream() -> None:
    topics = Topics(t0=5)
    stream = plan(topics)
    start = stream.next(stream.first(), takes_all=True)
    topics.ends[ZERO] = 3
    with pytest.raises(DataLoss, match="is at offset 5, and the log ends at 3"):
        stream.next(start, takes_all=True)
    stream = plan(topics, failOnDataLoss="false")
    end = stream.next(start, takes_all=True)
    assert offsets(end) == {"t0": 3}
    assert stream.ranges(start, end) == []
    topics.ends[ZERO] = 7
    later = stream.next(end, takes_all=True)
    assert stream.ranges(end, later) == [OffsetRange("t", 0, 3, 7)]


def test_a_broker_that_is_late_raises_no_alarm() -> None:
    topics = Topics(t0=5)

    class Late(Clock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            topics.ends[ZERO] = 8

    stream = plan(topics, Late())
    start = stream.next(stream.first(), takes_all=True)
    topics.ends[ZERO] = 4
    assert offsets(stream.next(start, takes_all=True)) == {"t0": 8}


def test_a_topic_that_was_made_again_is_noticed_and_read_from_its_beginning() -> None:
    topics = Topics(t0=5)
    stream = plan(topics)
    start = stream.next(stream.first(), takes_all=True)
    topics.ids["t"] = "another"
    topics.ends[ZERO] = 9
    with pytest.raises(DataLoss, match="topic t was deleted and created again: its id was id-of-t"):
        stream.next(start, takes_all=True)
    stream = plan(topics, failOnDataLoss="false")
    end = stream.next(start, takes_all=True)
    assert stream.ranges(start, end) == [OffsetRange("t", 0, 0, 9)]
    assert plan(topics).ranges(start, end) == [OffsetRange("t", 0, 0, 9)]
    assert stream.next(end, takes_all=True) is end


def test_errors_that_may_pass_are_ridden_out() -> None:
    topics, clock = Topics(t0=5), Clock()
    stream = plan(topics, clock)
    start = stream.next(stream.first(), takes_all=True)
    topics.error = Unavailable("all brokers are down")
    for _ in range(100):
        assert stream.next(start, takes_all=True) is start
    topics.error = None
    topics.ends[ZERO] = 6
    end = stream.next(start, takes_all=True)
    assert offsets(end) == {"t0": 6}
    topics.error = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader", "t-0")
    assert stream.next(end, takes_all=True) is end
    clock.now += outages.OUTAGE_SECONDS
    with pytest.raises(BrokerError, match="no leader"):
        stream.next(end, takes_all=True)


def test_available_now_does_not_take_an_outage_for_the_end() -> None:
    topics = Topics(t0=5)

    class Restored(Clock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            topics.error = None

    stream = plan(topics, Restored())
    stream.freeze()
    start = stream.first()
    topics.error = Unavailable("gone for a moment")
    assert offsets(stream.next(start, takes_all=True)) == {"t0": 5}


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed", "topic t"),
        UsageError("no such option"),
    ],
)
def test_errors_that_do_not_pass_end_the_query(error: KafkaError) -> None:
    topics = Topics(t0=5)
    stream = plan(topics)
    start = stream.first()
    topics.error = error
    with pytest.raises(type(error), match=re.escape(str(error))):
        stream.next(start, takes_all=True)


def test_a_query_that_never_reached_the_cluster_says_so_at_once() -> None:
    topics = Topics(t0=5)
    topics.error = Unavailable("x:1 cannot be reached")
    calls: list[Callable[[StreamPlan], object]] = [
        lambda stream: stream.first(),
        lambda stream: stream.freeze(),
        lambda stream: stream.next({"t": {"0": 1}}, takes_all=True),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="cannot be reached"):
            call(plan(topics))


def test_topics_that_are_named_must_be_there() -> None:
    with pytest.raises(BrokerError, match="the topic does not exist"):
        plan(Topics(t0=5), subscribe="t,v").first()
    options = {"kafka.bootstrap.servers": "x:1", "assign": '{"t":[0,1]}'}
    assigned = StreamPlan(read_stream_options(options), Topics(t0=5), None)
    with pytest.raises(BrokerError, match="assign names it"):
        assigned.first()


def test_a_start_that_is_gone() -> None:
    topics = Topics(t0=5)
    topics.begins[ZERO] = 3
    start = '{"t":{"0":1}}'
    with pytest.raises(DataLoss, match=r"t-0: .* start at offset 1, and .* holds 3 to 5"):
        plan(topics, startingOffsets=start).first()
    first = plan(topics, startingOffsets=start, failOnDataLoss="false").first()
    assert offsets(first) == {"t0": 3}
    assert offsets(plan(topics, startingOffsets='{"t":{"0":-1}}').first()) == {"t0": 5}
    assert offsets(plan(topics, startingTimestamp="4").first()) == {"t0": 4}


def test_tasks_by_count() -> None:
    topics = Topics(t0=100, t1=10)
    stream = plan(topics, minPartitions="4", maxRecordsPerPartition="60")
    start = stream.first()
    ranges = stream.ranges(start, stream.next(start, takes_all=True))
    assert len(ranges) >= 3
    assert max(each.size for each in ranges) <= 60
    assert [each.size for each in ranges] == sorted((each.size for each in ranges), reverse=True)


def test_small_partitions_share_tasks_largest_first() -> None:
    topics = Topics(**{f"t{number}": 20 + number % 7 for number in range(80)}, t80=200_000)
    for most, options in ((65, REQUIRED), (10, REQUIRED | {"maxPartitions": "10"})):
        stream = plan(topics, None, None, **options)
        start = stream.first()
        tasks = stream.tasks(start, end := stream.next(start, takes_all=True))
        sizes = [sum(each.size for each in task) for task in tasks]
        assert sizes == sorted(sizes, reverse=True)
        assert (sizes[0], len(tasks)) == (200_000, most)
        read = sorted(each for task in tasks for each in task)
        assert read == sorted(stream.ranges(start, end))
        mixed = [task for task in tasks if len({each.partition % 2 for each in task}) > 1]
        assert len(mixed) <= 1
    alone = plan(topics, maxPartitions="unlimited")
    assert alone.tasks(start, end) == [(each,) for each in alone.ranges(start, end)]


def test_tasks_that_are_shared_stay_within_the_bytes_of_one() -> None:
    topics = Topics(**{f"t{number}": 10 for number in range(90)})
    bytes_of = {partition: [10 + partition.partition] for partition in topics.ends}
    sizes = Sizes(lambda: Listed(bytes_of), 10_000, 1)
    stream = plan(topics, sizes=sizes, maxBytesPerPartition="150", maxPartitions="40")
    try:
        start = stream.first()
        tasks = stream.tasks(start, stream.next(start, takes_all=True))
    finally:
        stream.close()
    assert sorted(each.partition for task in tasks for each in task) == [*range(90)]
    assert max(sum(10 + each.partition for each in task) for task in tasks) <= 150
    assert len(tasks) < 80


def test_what_is_done_is_committed_to_the_group_that_is_named() -> None:
    topics, clock = Topics(t0=5), Clock()
    stream = plan(topics, clock, commitGroup="g")
    start = stream.first()
    end = stream.next(start, takes_all=True)
    assert topics.commits == [("g", {ZERO: 0})]
    assert stream.next(end, takes_all=True) is end
    assert stream.next(end, takes_all=True) is end
    assert topics.commits == [("g", {ZERO: 0}), ("g", {ZERO: 5})]
    # What is shown goes by it, and no more: an error later does not end the query.
    topics.ends[ZERO] = 6
    end = stream.next(end, takes_all=True)
    topics.refusal = BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "it has members", "group g")
    for _ in range(3):
        assert stream.next(end, takes_all=True) is end
    assert len(topics.commits) == 3
    clock.now += 60
    topics.refusal = None
    assert stream.next(end, takes_all=True) is end
    assert topics.commits[-1] == ("g", {ZERO: 6})


def test_two_queries_with_one_group_get_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    topics = Topics(t0=5, t1=5)
    streams = [plan(topics, commitGroup="g", maxOffsetsPerTrigger=most) for most in ("2", "4")]
    starts = [stream.first() for stream in streams]
    for _ in range(4):
        for index, stream in enumerate(streams):
            starts[index] = dict(stream.next(starts[index], takes_all=False))
    assert caplog.text.count("commitGroup=g: another query or consumer commits to this group") == 2
    caplog.clear()
    alone = plan(topics, commitGroup="other", maxOffsetsPerTrigger="2")
    start = alone.first()
    topics.hidden = {ONE}
    for _ in range(4):
        start = dict(alone.next(start, takes_all=False))
    assert "another query" not in caplog.text


def test_a_cluster_without_groups_says_so_at_once() -> None:
    topics = Topics(t0=5)
    topics.refusal = BrokerError(ErrorCode.UNSUPPORTED_VERSION, "no groups here", "group g")
    stream = plan(topics, commitGroup="g")
    start = stream.first()
    with pytest.raises(BrokerError, match="no groups here"):
        stream.next(start, takes_all=True)


def test_what_was_frozen_is_looked_at_again_and_nothing_newer() -> None:
    topics, clock = Topics(t0=5), Clock()
    observer = ClusterObserver(read_stream_options(REQUIRED), topics, clock, clock.wait)
    begun = observer.first()
    observer.freeze()
    topics.ends[ZERO] = 9
    assert observer.observe(begun) == ClusterState(
        {ZERO: 0}, {ZERO: 5}, {"t": "id-of-t"}, {}, is_elsewhere=False, missing=[]
    )
