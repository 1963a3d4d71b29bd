"""Snapshots in a file: what is written is read, also if the file is cut short or damaged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.unit.cli.live.made_snapshots import TAKEN_S, Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.limits import PartitionLimits
from trimtab.cli.live.findings import find
from trimtab.cli.live.recording import FILE, Recorder, find_recorded_plan, read_recording
from trimtab.cli.live.rows import summarize
from trimtab.cli.live.source import Recorded
from trimtab.client.collector import Snapshot
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

FLIGHTS = TopicPartition("flights", 0)


def make_full(number: int, rate: float = 4000.0, **parts: Any) -> Snapshot:
    """A snapshot with all that there can be, in whole numbers, as a recording keeps them."""
    topics = {
        "flights": [Made(rate, out=20.0, leader=1), Made(None, leader=-1, in_sync=())],
        "__consumer_offsets": [Made(3.0)],
    }
    given: dict[str, Any] = {
        "brokers": [
            BrokerState(0, "a", 7, 1000),
            BrokerState(1, None, 9, None, is_alive=False, takes_replicas=False),
            BrokerState(2, "b", 1 << 62),
        ],
        "volumes": {0: (1000, 10), 2: (None, None)},
        "limits": PartitionLimits(10, 100),
        "slow": SlowBrokers({2: "slow"}, {}, {0: "suspected"}),
        "answers": {0: Answers(0.002, 0.5), 2: Answers(0.1, None)},
        "lags": [PartitionLag("g", FLIGHTS, 5, 9, 4, 1.5, None, None)],
        "tails": {FLIGHTS: make_tail({"LH400": 0.8, "": 0.1})},
        **parts,
    }
    return make_snapshot(topics, number=number, taken_s=TAKEN_S + 10 * number, **given)


def write(path: Path, *snapshots: Snapshot) -> Path:
    recorder = Recorder(path)
    for snapshot in snapshots:
        recorder.write(snapshot)
    recorder.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    snapshots = [make_full(1), make_full(2, rate=9.0, limits=None, lags=[], tails={})]
    assert [*read_recording(write(tmp_path / "r", *snapshots))] == snapshots


def test_numbers_are_those_of_the_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "r", make_full(41), make_full(57))
    assert [each.number for each in read_recording(path)] == [1, 2]


def test_topics_come_and_go_and_come_again_as_another_one(tmp_path: Path) -> None:
    def make(number: int, **topics: list[Made]) -> Snapshot:
        ids = {name: number for name in topics}
        return make_snapshot(topics, number=number, taken_s=TAKEN_S + 10 * number, ids=ids, lags=[])

    snapshots = [
        make(1, a=spread([1.0, 2.0, 3.0]), b=spread([1.0])),
        make(2, b=spread([1.0])),
        make(3, a=spread([9.0])),
        make(4),
    ]
    assert [*read_recording(write(tmp_path / "r", *snapshots))] == snapshots


def test_topics_that_have_not_changed_are_written_once(tmp_path: Path) -> None:
    path = write(tmp_path / "r", make_full(1), make_full(2), make_full(3, rate=8.0))
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file][1:]
    assert [len(line["topics"]) for line in lines] == [2, 0, 0]


def test_a_snapshot_is_written_each_two_seconds_at_most(tmp_path: Path) -> None:
    taken = [0, 1, 1.5, 2, 3, 3.5, 4, 30]
    snapshots = [make_full(9)._replace(taken_s=TAKEN_S + at) for at in taken]
    path = write(tmp_path / "r", *snapshots)
    assert [each.taken_s - TAKEN_S for each in read_recording(path)] == [0, 2, 4, 30]


def test_a_recording_of_many_partitions_has_fewer_lines(tmp_path: Path) -> None:
    shown = make_snapshot({"large": [Made(1.0)] * 10_000})
    snapshots = [shown._replace(taken_s=TAKEN_S + at) for at in (0, 5, 8, 10, 15, 20)]
    path = write(tmp_path / "r", *snapshots)
    assert [each.taken_s - TAKEN_S for each in read_recording(path)] == [0, 10, 20]


def test_a_directory_stands_for_the_file_in_it(tmp_path: Path) -> None:
    write(tmp_path / FILE, make_full(1))
    assert len([*read_recording(tmp_path)]) == 1


def test_a_file_that_is_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    path = write(tmp_path / "r", *(make_full(number) for number in range(1, 6)))
    whole = path.read_bytes()
    counts = []
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        try:
            counts.append(len([*read_recording(path)]))
        except UsageError:
            counts.append(-1)  # not even the first line
    assert counts == sorted(counts)
    assert {*counts} == {-1, 0, 1, 2, 3, 4, 5}


def test_a_process_that_is_killed_leaves_what_it_has_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r")
    recorder.write(make_full(1))
    left = (tmp_path / "r").read_bytes()
    recorder.close()
    (tmp_path / "left").write_bytes(left)
    assert len([*read_recording(tmp_path / "left")]) == 1


def test_a_flipped_byte_is_an_error_or_changes_a_value_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "r", *(make_full(number) for number in range(1, 4)))
    whole, random, outcomes = path.read_bytes(), Random(7), set()
    for _ in range(600):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        try:
            outcomes.add("read" if Recorded(path).summary is not None else "")
        except UsageError as error:
            outcomes.add("refused" if str(path) in str(error) else str(error))
    assert outcomes == {"refused", "read"}  # no check sum covers the header of gzip


def damage(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda line: line.update(changes)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line.pop("lags"),
        damage(at="noon"),
        damage(brokers=[["x"]]),
        damage(brokers=7),
        damage(gone=["never"]),
        damage(rates={"flights": [[1, 2, 3, 4]] * 9}),
        damage(rates={"unknown": [[1, 2, 3, 4]]}),
        damage(rates={"flights": [["a", "b", "c", "d"]]}),
        damage(tails=[["flights", 0, 1, 1, 1, [], []]]),
        damage(lags=[["g", "flights", 0, 1, 2, "many", None, None, None]]),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    path = write(tmp_path / "r", make_full(1), make_full(2, rate=9000.0))  # the busiest is shown
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    spoil(lines[2])
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    with pytest.raises(UsageError, match=r"r, line 3: no recording"):
        Recorded(path)


@pytest.mark.parametrize("data", [b"", b"plain text\n", gzip.compress(b"", mtime=0)])
def test_what_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(UsageError, match=r"/r.*(no recording|cannot be read|Not a gzipped)"):
        [*read_recording(tmp_path / "r")]


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(gzip.compress(b'{"trimtab":"recording","version":2}\n'))
    with pytest.raises(UsageError, match=r"^\S+/r is no recording of this version"):
        [*read_recording(tmp_path / "r")]


def test_a_file_that_is_missing_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist: write one with trimtab dashboard"):
        [*read_recording(tmp_path)]


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name a file to write"):
        Recorder(tmp_path)


def test_a_closed_recorder_writes_no_more(tmp_path: Path) -> None:
    path = write(tmp_path / "r", make_full(1))
    recorder = Recorder(tmp_path / "other")
    recorder.close()
    recorder.write(make_full(2))
    recorder.close()
    assert len([*read_recording(path)]) == 1
    assert [*read_recording(tmp_path / "other")] == []


def test_a_plan_is_made_for_the_recorded_load() -> None:
    topics = {"flights": [Made(1000.0, (0, 1)) for _ in range(6)]}
    shown = find_recorded_plan(make_snapshot(topics))
    assert shown.plan is not None
    assert shown.plan.plan.changes
    relieved = find_recorded_plan(
        make_snapshot(topics, slow=SlowBrokers({0: "its probes take 90 ms"}, {}, {}))
    )
    assert relieved.plan is not None
    assert 0 not in {change.leader for change in relieved.plan.plan.changes}


def test_a_recording_has_the_history_of_all_and_the_rows_of_the_busiest(tmp_path: Path) -> None:
    rates = (1.0, 2.0, 3.0, 0.0)
    path = write(tmp_path / "r", *(make_full(*each) for each in enumerate(rates)))
    recorded = Recorded(path)
    assert recorded.history.of_topic("flights").values == rates
    assert recorded.snapshot is not None
    assert recorded.snapshot.number == 3
    assert recorded.summary == summarize(recorded.snapshot)
    assert [*recorded.findings] == find(recorded.summary)
    assert recorded.findings
    assert (recorded.is_live, recorded.is_over) == (False, True)


def test_a_recording_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the recording has no snapshot"):
        Recorded(write(tmp_path / "r"))
