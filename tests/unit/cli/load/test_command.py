"""`trimtab load report`: what is refused before Spark is started."""

from __future__ import annotations

import importlib.util
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.cli import main
from trimtab.cli.load import _ask, _check_history, configure, read_topics
from trimtab.cli.load.survey import SurveyRequest
from trimtab.client.admin.answers import GroupListing
from trimtab.client.fetcher.offsets import OffsetAndTimestamp
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.load.snapshots import Snapshot


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("trimtab.spark.session.local.start_session", refuse)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--since", "yesterday"), "option --since='yesterday': write a time, such as 15m"),
        (("--max-bytes", "lots"), "option --max-bytes='lots': write a number of bytes"),
        (("--top", "0"), "--top 0: write 1 or more"),
        (("--cost-per-gb", "-1"), "--cost-per-gb -1.0: write 0 or more"),
        (("--cost-per-gb", "nan"), "--cost-per-gb nan: write 0 or more"),
        (("--cores", "0"), "--cores 0: write 1 or more"),
        (("--clients", "/none.csv"), "cannot read /none.csv"),
        (("--window", "often"), "--window 'often'"),
    ],
)
def test_a_mistake_is_one_line_and_fails(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert main(["load", "report", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("trimtab load: ")
    assert why in err


def test_packages_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name == "pyspark" else find_spec(name, *rest),
    )
    assert main(["load", "report"]) == 1
    said = capsys.readouterr().err
    assert "Spark needs pyspark" in said
    assert "pip install 'trimtab[spark]'" in said
    assert "Java 17 or later" in said


def test_topics_are_names_or_patterns_and_each_must_match() -> None:
    names = ["audit.a", "audit.b", "flights"]
    assert read_topics(None, names) == names
    assert read_topics("flights, audit.*,flights", names) == names
    assert read_topics("audit.b", names) == ["audit.b"]
    with pytest.raises(UsageError, match="no topic matches 'carriers'"):
        read_topics("flights,carriers", names)
    with pytest.raises(UsageError, match="names no topic"):
        read_topics(" , ", names)
    assert read_topics(None, []) == []


def test_a_directory_is_for_one_cluster(tmp_path: Path) -> None:
    _check_history(tmp_path, "one")
    summary = tmp_path / "summary.json"
    summary.write_text('{"cluster": "one"}')
    _check_history(tmp_path, "one")
    with pytest.raises(UsageError, match=r"reports of another cluster \(one, this is two\)"):
        _check_history(tmp_path, "two")
    for text in ("{}", "[", "[1]"):
        summary.write_text(text)
        with pytest.raises(UsageError, match="not of a load report: choose another --out"):
            _check_history(tmp_path, "one")
    with pytest.raises(UsageError, match="Not a directory: name a directory"):
        _check_history(summary, "one")


class FakeAdmin:
    """One broker with the topics `kept` and, when they were listed, `gone`."""

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def topics(self) -> list[str]:
        return ["gone", "kept"]

    def cluster(self) -> Any:
        return SimpleNamespace(cluster_id="c")

    def list_groups(self) -> list[GroupListing]:
        kinds = {"billing": "consumer", "connect-cluster": "connect", "stored": ""}
        return [GroupListing(name, kind, "Stable", "classic") for name, kind in kinds.items()]

    def list_offsets(self, partitions: Iterable[TopicPartition], at: object) -> Any:
        return dict.fromkeys(partitions, OffsetAndTimestamp(0, 0, 0))


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
REFUSED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "", "broker 1")
SNAPSHOT = Snapshot(
    partitions=[(NOW, "kept", 0, 1, None, [1], [None], [1])],
    offsets=[(NOW, "kept", 0, 0, 10)],
    brokers=[(NOW, 1, "h", 9092, None, None, None)],
    directories=[],
    # Broker 2 led it when it was asked for its logs.
    replicas=[
        (NOW, 2, "/d", "kept", 0, 1000, 0, False),
        (NOW, 2, "/e", "kept", 0, 5000, 0, True),
    ],
    group_offsets=[(NOW, "billing", "kept", 0, 4)],
)


def ask(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, denied: list[BrokerError], *words: str
) -> tuple[SurveyRequest, list[str]]:
    """The request of a command, and the groups that the cluster was asked for."""
    asked: list[str] = []

    def take(
        _: object, __: object, groups: list[str], denied: Callable[[BrokerError], None]
    ) -> Snapshot:
        asked.extend(groups)
        for error in refusals:
            denied(error)
        return snapshot

    refusals = denied
    monkeypatch.setattr("trimtab.cli.load.connect_admin", lambda _: FakeAdmin())
    monkeypatch.setattr("trimtab.spark.load.snapshots.take_snapshot", take)
    parser = ArgumentParser()
    configure(parser)
    return _ask(parser.parse_args(["report", *words]))[0], asked


def test_a_topic_deleted_after_it_was_listed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request, _ = ask(monkeypatch, SNAPSHOT, [], "--out", str(tmp_path))
    assert request.topics == ["kept"]
    # Its only log that is known is of a broker that leads it no more.
    assert request.reading.bytes == 1000


def test_groups_are_names_with_spaces_around_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--groups", "billing, search,", "--out", str(tmp_path))
    request, asked = ask(monkeypatch, SNAPSHOT, [REFUSED], *words)
    assert asked == ["billing", "search"]
    assert request.denied == [str(REFUSED)]
    assert capsys.readouterr().err.splitlines() == [
        f"Left out, because it is not authorized: {REFUSED}",
        "Left out, because it has no committed offsets: group search",
    ]
    forbidden = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "", "group search")
    ask(monkeypatch, SNAPSHOT, [forbidden], *words)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_names_the_lag_of_all_groups_of_consumers_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path))
    assert ask(monkeypatch, SNAPSHOT, [], *out)[1] == ["billing", "stored"]
    assert ask(monkeypatch, SNAPSHOT, [], "--groups", "", *out)[1] == []
    assert capsys.readouterr().err == ""


def test_a_limit_of_bytes_needs_the_sizes_of_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"10g cannot be kept.*broker 1.*allow the operation"):
        ask(monkeypatch, SNAPSHOT._replace(replicas=[]), [REFUSED], "--out", str(tmp_path))
