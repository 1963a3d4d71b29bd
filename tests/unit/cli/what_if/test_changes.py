"""What the command line says is what is changed; what cannot be is refused with the way out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.what_if.recordings import record, snapshots
from trimtab.cli import main
from trimtab.kafka.records import TopicPartition


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six brokers with 6 MB/s each, in racks a, b, c."""
    return record(tmp_path_factory.mktemp("what-if") / "hour.jsonl.gz", snapshots(windows=4))


def forecast(capsys: pytest.CaptureFixture[str], recording: str, words: str) -> dict[str, Any]:
    assert main(["what-if", "--recording", recording, *shlex.split(words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def totals(found: dict[str, Any], word: str = "written") -> list[float | None]:
    """The means of the brokers in MB/s."""
    return [each["after"] and round(each["after"][word][1] / 1e6, 3) for each in found["brokers"]]


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("--growth 2", [12.0] * 6),
        ("--growth flights:2", [10.0] * 6),
        ("--growth flights:2 --growth 2", [20.0] * 6),
        ("--without-broker 5", [6.0] * 5 + [None]),
        ("--without-broker 0,5", [None, 6.0, 6.0, 6.0, 6.0, None]),
        ("--without-rack c", [6.0, 6.0, None, 6.0, 6.0, None]),
        ("--partitions flights:18", [6.0] * 6),
        ("--partitions flights:12", [6.0] * 6),
        ("--topic new:6:2:bytes=6e6,readers=1,kept=60", [8.0] * 6),
        ("--topic new:6:2:like=trips", [8.0] * 6),
        ("--topic new:6:2:like=trips --growth trips:2", [12.0] * 6),
        ("--topic a:6:1:like=trips --topic b:6:1:like=trips", [8.0] * 6),
        ("--plan level", [6.0] * 6),
    ],
)
def test_brokers_have_what_the_change_gives_them(
    words: str, written: list[float], recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert totals(forecast(capsys, recording, words)) == pytest.approx(written)


def test_changes_are_named_in_the_order_in_which_they_are_made(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--plan level --without-broker 5 --topic new:6:2:like=trips --partitions flights:24 "
        "--growth trips:1.5"
    )
    assert forecast(capsys, recording, words)["changes"] == [
        "trips: 1.5 x",
        "flights: 24 partitions instead of 12",
        "topic new more: 6 x 2, like=trips",
        "without broker 5",
        "level",
    ]


def test_what_a_new_topic_stores_and_sends_is_what_is_said(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each broker leads one partition: 1 MB/s to three readers and one follower."""
    words = "--topic new:6:2:bytes=6e6,readers=3,kept=100"
    found = forecast(capsys, recording, words)
    assert totals(found, "sent") == [6.0 + 4.0] * 6
    assert totals(found, "stored") == [6 * 3600 + 200] * 6


def test_a_drained_broker_has_nothing_and_the_others_are_level(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("highspy")
    found = forecast(capsys, recording, "--drain 5")
    assert totals(found)[5] == 0
    assert max(each or 0 for each in totals(found)) <= 8.0, "of whole partitions"
    assert found["changes"] == ["drained: broker 5"]


def test_what_is_out_of_level_is_levelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved: dict[TopicPartition, tuple[int, ...]] = {
        TopicPartition("flights", at): (0, 1) for at in range(12)
    }
    skewed = record(tmp_path / "skewed.jsonl.gz", snapshots(windows=4, moved=moved))
    found = forecast(capsys, skewed, "--plan level")
    assert found["brokers"][0]["before"]["written"] == 14e6
    assert max(each or 0 for each in totals(found)) <= 7.0


@pytest.mark.parametrize("form", ["balance", "reassign"])
def test_a_plan_file_of_either_command_is_carried_out(
    form: str, recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"topic": "flights", "partition": 0, "replicas": [4, 5]}
    documents = {
        "balance": {"levels": {}, "changes": [{**entry, "reason": "because"}]},
        "reassign": {"version": 1, "partitions": [entry]},
    }
    (tmp_path / "plan.json").write_text(json.dumps(documents[form]))
    found = forecast(capsys, recording, f"--plan {tmp_path / 'plan.json'}")
    assert totals(found) == [5.0, 5.0, 6.0, 6.0, 7.0, 7.0]
    moved = next(each for each in found["partitions"] if each["partition"] == 0)
    assert (moved["leader"], moved["replicas"]) == (4, [4, 5])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "no change is given: try --growth 2"),
        ("--growth 0", "--growth 0: write FACTOR or TOPIC:FACTOR"),
        ("--growth nan", "--growth nan: write"),
        ("--growth flights:x", "--growth flights:x: write"),
        ("--growth cargo:2", "topic 'cargo' is not measured"),
        ("--partitions flights", "--partitions flights: write TOPIC:N"),
        ("--partitions flights:0", "--partitions flights:0: write TOPIC:N"),
        ("--partitions flights:6", "Kafka takes none away"),
        ("--partitions cargo:6", "topic 'cargo' is not measured"),
        ("--topic new:6:2", "--topic new:6:2: write NAME:PARTITIONS:FACTOR:like=TOPIC, or"),
        ("--topic new:6:2:bytes=5e6", "--topic new:6:2:bytes=5e6: write"),
        ("--topic new:6:2:bytes=-1,readers=1,kept=1", "write NAME"),
        ("--topic new:0:2:like=trips", "--topic new:0:2:like=trips: write"),
        ("--topic new:6:2:like=trips,kept=1", "write NAME"),
        ("--topic new:6:2:like=cargo", "topic 'cargo' is not measured"),
        ("--topic flights:6:2:like=trips", "topic 'flights' exists"),
        ("--topic new:6:7:like=trips", "7 replicas need as many brokers, and 6 take replicas"),
        ("--without-broker x", "--without-broker 'x': write broker ids"),
        ("--without-broker 9", "there is no broker 9"),
        ("--without-rack d", "--without-rack d: there are a, b, c"),
        ("--drain 9", "drain 9: there is no such broker"),
        ("--plan nowhere.json", "--plan nowhere.json: "),
        ("--plan nowhere.json --drain 1", "--plan FILE and --drain: give one"),
        ("--growth 2 --sample x.csv", "--sample goes with --key"),
        ("--key flights", "--key flights: write TOPIC:COLUMN"),
        ("--producer flights", "--producer 'flights': write TOPIC:NAME=VALUE"),
        ("--producer flights:lingr.ms=5", "lingr.ms"),
        ("--producer-now flights:linger.ms=5", "goes with --producer flights"),
        ("--growth 2 --window 1", "--window 1: write 2 seconds or more"),
        ("--growth 2 --page /nowhere/page.html", "--page /nowhere/page.html: "),
    ],
)
def test_what_cannot_be_forecast_is_refused_with_the_reason(
    words: str, reason: str, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", "--recording", recording, *shlex.split(words)]) == 1
    shown = capsys.readouterr()
    assert reason in shown.err
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)


def test_a_file_that_is_no_plan_is_refused(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    for text in ("[]", '{"changes": [{}]}', '{"changes": 7}', '{"partitions": []}'):
        plan.write_text(text)
        assert main(["what-if", "--recording", recording, "--plan", str(plan)]) == 1
        assert "plan.json" in capsys.readouterr().err


def test_keys_decide_how_uneven_partitions_are_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rate(topic: str, partition: int, window: int) -> float:
        return 1e6 * (1 + partition % 2)

    skewed = record(tmp_path / "skewed.jsonl.gz", snapshots(windows=4, rate=rate))
    assert main(["what-if", "--recording", skewed, "--partitions", "flights:24"]) == 1
    assert "keys decide who gets what: name the key, such as --key flights:key" in (
        capsys.readouterr().err
    )
