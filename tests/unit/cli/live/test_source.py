"""A cluster that is watched in a thread of its own, the options for it, and a recording."""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.live.made_snapshots import make_snapshot, spread
from trimtab import Admin, Cluster, Producer
from trimtab.cli.live.options import (
    LIVE_OPTIONS,
    check_live_options,
    choose_keys,
    watch,
)
from trimtab.cli.live.recording import Recorder, read_recording
from trimtab.cli.live.source import Recorded, Watched
from trimtab.cli.options import add_client_options, add_options
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.kafka.errors import Unavailable, UsageError

PATIENCE_S = 60.0
THREAD = "trimtab-collector"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("flights", partitions=2, replication_factor=2)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("flights", bytes(1000), key=b"LH400")
        yield cluster


def make(cluster: Cluster, **parts: Any) -> Watched:
    given = {"window_s": 2.0, **parts}
    return Watched({"bootstrap.servers": cluster.bootstrap_servers}, **given)


def is_running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_snapshots_come_one_after_the_other_with_their_rows(cluster: Cluster) -> None:
    told = threading.Event()
    with make(cluster) as source:
        source.listen(told.set)
        first = source.wait(0, PATIENCE_S)
        later = source.wait(first.number, PATIENCE_S)
        assert later.number > first.number
        assert told.wait(PATIENCE_S)
        assert source.summary is not None
        assert [row.topic for row in source.summary.topics] == ["flights"]
        assert source.summary.snapshot.number >= later.number
        assert len(source.history.of_topic("flights").times) >= 1
        assert (source.is_live, source.is_over, source.trouble) == (True, False, "")
    assert source.is_over
    assert not is_running()


def test_the_rows_are_there_when_the_snapshot_is(cluster: Cluster) -> None:
    with make(cluster) as source:
        snapshot = source.wait(0, PATIENCE_S)
        summary = source.summary
        assert summary is not None
        assert summary.snapshot.number >= snapshot.number


def test_the_topic_for_probes_is_removed_at_the_end(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        with make(cluster, probes=True) as source:
            source.wait(0, PATIENCE_S)
            assert PROBE_TOPIC in admin.topics()
        assert PROBE_TOPIC not in admin.topics()


def test_an_error_in_the_block_ends_the_watch_too(cluster: Cluster) -> None:
    def interrupted() -> None:
        with make(cluster, probes=True) as source:
            source.wait(0, PATIENCE_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running()
    with Admin(cluster.bootstrap_servers) as admin:
        assert PROBE_TOPIC not in admin.topics()


def test_what_is_recorded_can_be_read(cluster: Cluster, tmp_path: Path) -> None:
    with make(cluster, record=tmp_path / "r") as source:
        shown = source.wait(0, PATIENCE_S)
    [first, *_] = read_recording(tmp_path / "r")
    assert first.taken_s == shown.taken_s
    assert [*first.topics] == ["flights"]


def test_a_recording_that_ends_early_is_said_until_the_end(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Recorder, "write", refuse)
    with make(cluster, record=tmp_path / "r") as source:
        first = source.wait(0, PATIENCE_S)
        source.wait(first.number, PATIENCE_S)
        assert source.trouble == "the recording has ended: no space"


def test_a_cluster_that_is_not_there_ends_the_watch_with_the_reason() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 500}
    source = Watched(options)

    def wait() -> None:
        with source:
            source.wait(0, PATIENCE_S)

    with pytest.raises(Unavailable) as raised:
        wait()
    assert "127.0.0.1:1" in str(raised.value)  # not only in its notes
    assert source.is_over
    assert not is_running()


def test_a_wait_ends_although_nothing_comes(cluster: Cluster) -> None:
    with make(cluster) as source, pytest.raises(Unavailable, match=r"within 0\.01 s"):
        source.wait(10**9, 0.01)


def test_wrong_options_are_refused_and_nothing_is_left(cluster: Cluster, tmp_path: Path) -> None:
    for source in (
        make(cluster, window_s=1.0, record=tmp_path / "r"),
        Watched({"bootstrap.servers": cluster.bootstrap_servers, "no.such.option": "1"}),
    ):
        with pytest.raises(UsageError), source:
            raise AssertionError("it is entered")
    assert not is_running()
    assert [*read_recording(tmp_path / "r")] == []


def test_actions_are_for_a_cluster_that_is_watched(cluster: Cluster) -> None:
    source = make(cluster)
    with pytest.raises(UsageError, match="is not watched"):
        source.act(lambda collector: collector.pause())
    with source:
        on: list[str] = []
        source.act(lambda _: on.append(threading.current_thread().name))
        assert on == [THREAD]
        with pytest.raises(UsageError, match="no plan is being carried out"):
            source.act(lambda collector: collector.pause())


def test_a_recording_is_over_and_waits_for_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r")
    recorder.write(make_snapshot({"a": spread([1.0])}))
    recorder.close()
    source = Recorded(tmp_path / "r")
    assert source.wait(0, PATIENCE_S) is source.snapshot
    assert source.snapshot is not None
    assert source.snapshot.plan is not None
    with pytest.raises(Unavailable, match="This is a recording"):
        source.wait(1, PATIENCE_S)


# The options


def read(*words: str) -> Namespace:
    parser = ArgumentParser()
    options = {"--window SECONDS=30": "", **LIVE_OPTIONS}
    types = {"--window": float, "--cost-per-gb": float}
    add_options(parser, options, types=types)
    add_client_options(parser)
    return parser.parse_args(words)


def test_options_have_a_range() -> None:
    check_live_options(read())
    check_live_options(read("--window", "2", "--cost-per-gb", "0"))
    for words, why in {
        ("--window", "1.9"): "--window 1.9: write 2 to 3600 seconds",
        ("--window", "nan"): "--window nan",
        ("--window", "3601"): "--window 3601",
        ("--cost-per-gb", "-1"): "--cost-per-gb -1: write 0 or more",
        ("--cost-per-gb", "inf"): "--cost-per-gb inf",
        ("--cost-per-gb", "nan"): "--cost-per-gb nan",
    }.items():
        with pytest.raises(UsageError, match=why):
            check_live_options(read(*words))


def test_options_name_the_cluster(cluster: Cluster) -> None:
    words = ("--bootstrap-server", cluster.bootstrap_servers, "--window", "2", "--keys", "hash")
    with watch(read(*words)) as source:
        assert source.wait(0, PATIENCE_S).number == 1


def test_keys_are_shown_as_text_or_hash_or_not_read() -> None:
    text, hashed = choose_keys("text"), choose_keys("hash")
    assert text is not None
    assert hashed is not None
    assert (text(b"LH400"), text(b"\xff\x00")) == ("LH400", "0xff00")
    assert hashed(b"LH400") != hashed(b"LH401")
    assert "LH400" not in hashed(b"LH400")
    assert choose_keys("none") is None
