"""Real producers in virtual time say who gets what with other options."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.unit.cli.what_if.recordings import WINDOW_S, record, snapshots
from trimtab.cli import main
from trimtab.cli.what_if import producers
from trimtab.cli.what_if.measured import Measured, read_snapshots
from trimtab.cli.what_if.producers import ProducerShares, read_producer_options
from trimtab.client.measure.watch import Answers
from trimtab.kafka.errors import UsageError

RACK = {"partitioner.rack.aware": "true", "client.rack": "a"}


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_SECONDS", 2.0)
    monkeypatch.setattr(producers, "_RECORDS_S", 500.0)


def measured(**settings: Any) -> Measured:
    """Three brokers in racks a, b, c lead two of six partitions each."""
    found = snapshots(brokers=3, topics={"flights": 6}, windows=4, **settings)
    return read_snapshots("a recording", found, WINDOW_S)


def test_rack_aware_producers_write_to_their_rack() -> None:
    shares = ProducerShares(measured(), "flights", {}, RACK)
    assert shares.error < 0.5
    found = shares("flights", 6, Random(0))
    assert found[[0, 3]].sum() > 0.95
    assert found.sum() == pytest.approx(1)


def test_a_slow_broker_gets_less_of_adaptive_producers() -> None:
    """Broker 1 answers in 80 ms, others in 2 ms. Today's producers share by chance."""
    slow = measured(answers=lambda *_: Answers(0.002, 0.1))
    slow = slow._replace(
        answered=[
            [each._replace(median_s=0.08) if each.broker == 1 else each for each in window]
            for window in slow.answered
        ]
    )
    now = {"partitioner.adaptive.partitioning.enable": "false"}
    found = ProducerShares(slow, "flights", now, {})("flights", 6, Random(0))
    assert found[[1, 4]].sum() < 0.25


def test_new_partitions_get_their_part() -> None:
    found = ProducerShares(measured(), "flights", {}, {})("flights", 9, Random(0))
    assert len(found) == 9
    assert found == pytest.approx([1 / 9] * 9, abs=0.06)


def test_the_same_seed_gives_the_same_shares_and_others_differ() -> None:
    shares = ProducerShares(measured(), "flights", {}, {})
    first, again, *others = (shares("flights", 6, Random(seed)) for seed in (0, 0, 1, 2, 3, 4))
    assert (first == again).all()
    assert any((first != each).any() for each in others)


def test_what_present_options_do_not_explain_is_refused() -> None:
    skewed = measured(rate=lambda *each: 1e6 * (1 + 9 * (each[1] == 2)))
    with pytest.raises(
        UsageError, match=r"of flights \d+% of the mean more or less.*--producer-now"
    ):
        ProducerShares(skewed, "flights", {}, RACK)


def test_a_quiet_or_leaderless_topic_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing was written to flights"):
        ProducerShares(measured(rate=lambda *_: 0.0), "flights", {}, RACK)
    with pytest.raises(UsageError, match="'cargo' is not measured"):
        ProducerShares(measured(), "cargo", {}, RACK)


def test_options_are_read_by_topic() -> None:
    words = ["flights:linger.ms=5,batch.size=1000", "trips:acks=all", "flights:acks=1"]
    assert read_producer_options(words) == {
        "flights": {"linger.ms": "5", "batch.size": "1000", "acks": "1"},
        "trips": {"acks": "all"},
    }


def test_a_forecast_has_the_error_of_its_producers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = snapshots(brokers=3, topics={"flights": 6}, windows=4)
    recording = record(tmp_path / "hour.jsonl.gz", found)
    options = ",".join(f"{name}={value}" for name, value in RACK.items())
    words = ["what-if", "--recording", recording, "--producer", f"flights:{options}", "--json"]
    assert main(words) == 0
    shown = json.loads(capsys.readouterr().out)
    assert 0 < shown["back_test"]["producers of flights"] < 0.5
    assert shown["brokers"][0]["after"]["sent"][1] > 2 * shown["brokers"][1]["after"]["sent"][1]
