"""`trimtab features`; where a test needs levels, with an admin client that has some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from trimtab import Cluster
from trimtab.cli import main
from trimtab.cli.features import levels_of, show_level
from trimtab.client.admin import Features, PartlyRefused
from trimtab.kafka.errors import BrokerError, ErrorCode


class Scripted:
    """Has two features, and refuses level 9."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_features(self, broker: int | None) -> Features:
        self.asked.append((broker,))
        return Features({"a": (0, 2), "metadata.version": (7, 99)}, {"metadata.version": 30}, 4)

    def update_features(self, levels: Mapping[str, int], change: str, is_dry: bool) -> None:
        self.asked.append((dict(levels), change, is_dry))
        if 9 in levels.values():
            error = BrokerError(ErrorCode.INVALID_UPDATE_VERSION, "Invalid update.", "feature a")
            raise PartlyRefused({name: error for name in levels}, [])


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr("trimtab.cli.features.connect", lambda options: scripted)
    return scripted


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


def test_levels_are_described(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "describe", "--node-id", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "Feature: a SupportedMinVersion: 0 SupportedMaxVersion: 2 FinalizedVersionLevel: 0 "
        "Epoch: 4",
        "Feature: metadata.version SupportedMinVersion: 3.3-IV3 SupportedMaxVersion: UNKNOWN 99 "
        "FinalizedVersionLevel: 4.3-IV0 Epoch: 4",
    ]
    assert len({line.index("FinalizedVersionLevel") for line in lines}) == 1
    assert main(["features", "describe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == (
        {"feature": "a", "supported_min": 0, "supported_max": 2, "finalized": 0, "epoch": 4}
    )
    assert scripted.asked == [(3,), (None,)]


@pytest.mark.parametrize(
    ("words", "asked", "told"),
    [
        ("upgrade --feature a=1", ({"a": 1}, "upgrade", False), "a was upgraded to 1."),
        (
            "downgrade --feature a=1 --unsafe",
            ({"a": 1}, "unsafe_downgrade", False),
            "a was downgraded to 1.",
        ),
        (
            "disable --feature b a --dry-run",
            ({"b": 0, "a": 0}, "safe_downgrade", True),
            "a can be disabled.\nb can be disabled.",
        ),
        (
            "upgrade --release-version 3.9",
            ({"metadata.version": 21, "kraft.version": 1}, "upgrade", False),
            "kraft.version was upgraded to 1.\nmetadata.version was upgraded to 21.",
        ),
    ],
)
def test_levels_are_changed(
    words: str,
    asked: tuple[object, ...],
    told: str,
    scripted: Scripted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["features", *words.split()]) == 0
    assert scripted.asked == [asked]
    assert capsys.readouterr() == (told + "\n", "")


def test_refused_levels_fail(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["features", "upgrade", "--feature", "b=1", "a=9"]
    assert main(words) == 1
    assert capsys.readouterr() == (
        "Could not upgrade a to 9. Invalid update.\nCould not upgrade b to 1. Invalid update.\n",
        "2 of 2 changes failed.\n",
    )
    assert main([*words, "--dry-run"]) == 1
    assert capsys.readouterr().out.startswith("Can not upgrade a to 9.")
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == (
        {"feature": "a", "level": 9, "error": "INVALID_UPDATE_VERSION"}
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("describe --feature a=1", "--feature goes with upgrade and downgrade and disable, not"),
        ("upgrade --feature a=1 --unsafe", "--unsafe goes with downgrade and disable, not with"),
        ("upgrade", "upgrade needs a feature: add --feature"),
        ("upgrade --feature a", "--feature a: write NAME=LEVEL, such as metadata.version=25"),
        ("upgrade --feature a=-1", "--feature a=-1: write NAME=LEVEL"),
        ("upgrade --feature a=1 a=2", "--feature a is given more than once"),
        ("upgrade --feature a=1 --release-version 4.3", "--feature and --release-version are both"),
        ("version-mapping --release-version 4", "--release-version 4: there are 3.3-IV3, 3.4-IV0"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["features", *words.split()]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"trimtab features: {why}")


def test_a_deprecated_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["features", "upgrade", "--metadata", "3.3-IV3"])
    assert "write --release-version" in capsys.readouterr().err


def test_a_release_has_its_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "version-mapping", "--release-version", "4.0-IV1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("metadata.version=23 (4.0-IV1)", "kraft.version=1", "transaction.version=0"),
        *("group.version=1", "eligible.leader.replicas.version=0"),
        *("share.version=0", "streams.version=0"),
    ]
    assert main(["features", "version-mapping", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == (
        {"feature": "metadata.version", "level": 30}
    )
    assert levels_of("4.0")["metadata.version"] == 25
    assert show_level("metadata.version", 25) == "4.0-IV3"
    assert show_level("metadata.version", 0) == "UNKNOWN 0"


def test_the_levels_of_our_own_cluster_are_changed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options may come before the verb, as for Kafka's tool."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    assert main(["features", *servers, "describe"]) == 0
    out, error = capsys.readouterr()
    levels = {words[1]: words[3:8:2] for line in out.splitlines() if (words := line.split())}
    assert error == ""
    assert levels["transaction.version"] == ["0", "2", "2"]
    assert levels["group.version"] == ["1", "1", "1"]
    lower = ("downgrade", "--feature", "transaction.version=1")
    assert main(["features", *servers, *lower]) == 0
    assert "transaction.version was downgraded to 1." in capsys.readouterr().out
    assert main(["features", *servers, "upgrade", "--feature", "group.version=2"]) == 1
    assert "only supports versions 1-1" in capsys.readouterr().out
    assert main(["features", *servers, "upgrade", "--feature", "transaction.version=2"]) == 0
