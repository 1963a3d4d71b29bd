"""The bounds of `read`, and the offsets that they mean."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from trimtab.client.blocking.bounds import Bounds, Time, checked_bounds, find_ranges
from trimtab.client.fetcher.ranges import DELETED
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

NOW = 1_700_000_000_000
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
LOG = {ZERO: (10, 50), ONE: (0, 5)}


def bounds(start: object = "earliest", end: object = "latest") -> Bounds:
    return checked_bounds(start, end, NOW)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (7, 7),
        (-7, -7),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("-500ms", Time(NOW - 500)),
        ("-90s", Time(NOW - 90_000)),
        ("-30m", Time(NOW - 30 * 60_000)),
        ("-1h", Time(NOW - 3_600_000)),
        ("-1.5h", Time(NOW - 5_400_000)),
        ("-7d", Time(NOW - 7 * 86_400_000)),
        ("-2w", Time(NOW - 14 * 86_400_000)),
        ("-9999w", Time(0)),
        ("1970-01-02", Time(86_400_000)),
        ("1970-01-01T00:00:01Z", Time(1000)),
        ("1970-01-01T01:00:01+01:00", Time(1000)),
        (datetime(1970, 1, 1, 0, 0, 1), Time(1000)),
        (datetime(1970, 1, 1, 0, 0, 0, 1001, UTC), Time(2)),  # not a record of the time before it
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), Time(0)),
        ({0: 3, 1: "-1s"}, {0: 3, 1: Time(NOW - 1000)}),
    ],
)
def test_a_bound_is_an_offset_an_end_or_a_time(written: object, meant: object) -> None:
    assert bounds(start=written).start == meant
    assert bounds(end=written).end == meant


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": "yesterday"}, r"start='yesterday': give an offset, .* as '-1h' \(ms, s, m,"),
        ({"start": "-1y"}, "start='-1y': give an offset"),
        ({"end": "20260131"}, "end='20260131': give an offset"),
        ({"start": None}, "start=None: is of type NoneType; give an offset"),
        ({"start": 1.5}, "start=1.5: is of type float; give an offset"),
        ({"start": True}, "start=True: is of type bool"),
        ({"start": 2**63}, "start=9223372036854775808: must be from -9223372036854775807"),
        ({"start": datetime(1969, 1, 1)}, "start=-31536000000: must be from 0"),
        ({"end": {0: "never"}}, r"end\[0\]='never': give an offset"),
        ({"end": {"0": 1}}, "end: partition='0': is of type str"),
        ({"start": -8, "end": -9}, "start=-8 is after end=-9; exchange the two"),
        ({"start": 9, "end": 8}, "start=9 is after end=8; exchange the two"),
        ({"start": "-1h", "end": "-2h"}, "start='-1h' is after end='-2h'; exchange the two"),
    ],
)
def test_another_bound_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bounds(**given)


def test_a_time_without_a_zone_is_utc_wherever_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert bounds(datetime(1970, 1, 1, 0, 0, 1), "1970-01-01T00:00:02") == (
            Time(1000),
            Time(2000),
        )
    finally:
        monkeypatch.undo()
        time.tzset()


class Losses(list[tuple[str, str]]):
    def __call__(self, detail: str, cause: str = DELETED) -> None:
        self.append((detail, cause))


def offsets(wanted: Bounds, losses: Losses | None = None) -> dict[int, tuple[int, int]]:
    def find_time(ms: int, asked: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: {1: 20, 2: 99}.get(ms, -1) for each in asked}

    lost = Losses() if losses is None else losses
    ranges = find_ranges(wanted, LOG, find_time, lost)
    assert losses is not None or not lost
    return {each.partition: (each.start, each.end) for each in ranges}


def test_ends_of_the_log() -> None:
    assert offsets(bounds()) == {0: (10, 50), 1: (0, 5)}
    assert offsets(bounds("latest")) == {0: (50, 50), 1: (5, 5)}
    assert offsets(bounds("earliest", "earliest")) == {0: (10, 10), 1: (0, 0)}


def test_times() -> None:
    # Partition 0 has a record of time 1 at offset 20; of time 2 one that came after the look at the
    # log; and none of time 3.
    first, second, third = (datetime(1970, 1, 1, 0, 0, 0, ms * 1000) for ms in (1, 2, 3))
    assert offsets(bounds({0: first, 1: 0})) == {0: (20, 50), 1: (0, 5)}
    assert offsets(bounds({0: second, 1: first})) == {0: (50, 50), 1: (5, 5)}
    assert offsets(bounds(end={0: first, 1: third})) == {0: (10, 20), 1: (0, 5)}


def test_negative_offsets_count_from_the_end_as_in_a_slice() -> None:
    assert offsets(bounds(-3)) == {0: (47, 50), 1: (2, 5)}
    assert offsets(bounds(-20)) == {0: (30, 50), 1: (0, 5)}
    assert offsets(bounds(-3, -1)) == {0: (47, 49), 1: (2, 4)}
    assert offsets(bounds({0: 12, 1: -5}, -4)) == {0: (12, 46), 1: (0, 1)}
    with pytest.raises(UsageError, match="t-1: the start, offset 2, is after the end, offset 1"):
        offsets(bounds(2, -4))


def test_an_end_beyond_the_log_is_its_end() -> None:
    assert offsets(bounds(end=1000)) == {0: (10, 50), 1: (0, 5)}


def test_offsets_that_the_log_has_not_are_reported_and_left_out() -> None:
    losses = Losses()
    assert offsets(bounds({0: 3, 1: 6}), losses) == {0: (10, 50), 1: (5, 5)}
    (deleted, why), (beyond, because) = losses
    assert deleted == "t-0: start=3, but the log has offsets 10 to 50"
    assert why == DELETED
    assert beyond == "t-1: start=6, but the log has offsets 0 to 5"
    assert because.startswith("Either they are not written yet")
    losses.clear()
    assert offsets(bounds(end=9), losses) == {0: (10, 10), 1: (0, 5)}
    assert [detail for detail, _ in losses] == ["t-0: end=9, but the log has offsets 10 to 50"]


def test_a_start_after_its_end_is_refused() -> None:
    with pytest.raises(UsageError, match=r"t-0: the start, offset 50, is after the end, offset 30"):
        offsets(bounds("latest", {0: 30, 1: 5}))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({0: 20}, r"start= must name every .*: missing \[1\], not read \[\]; partitions="),
        ({0: 20, 1: 0, 2: 0}, r"missing \[\], not read \[2\]"),
    ],
)
def test_a_dictionary_names_the_partitions_that_are_read(
    named: dict[int, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        offsets(bounds(named))
