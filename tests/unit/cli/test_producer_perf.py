from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from trimtab.cli.producer_perf import (
    DISTINCT_PAYLOADS,
    SAMPLES,
    PerfSummary,
    Statistics,
    choose_keys,
    choose_payloads,
    choose_transactions,
    configure,
    read_payloads,
    run,
    send_all,
)
from trimtab.cli.results import Failures
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.blocking.producer import Producer


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["--topic", "t", "--num-records", "10", "--throughput", "-1", *words])


def test_the_total_is_worded_as_kafka_words_it() -> None:
    statistics = Statistics(1000, 5000, 0, print)
    for number in range(1000):
        statistics.record(number + 0.5, 1024, 100)
    assert str(statistics.total(2000)) == (
        "1000 records sent, 500.000000 records/sec (0.49 MB/sec), 500.00 ms avg latency, "
        "999.50 ms max latency, 500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99.9th."
    )


def test_a_window_is_reported_when_its_time_is_over_and_the_next_begins_empty() -> None:
    lines: list[str] = []
    statistics = Statistics(100, 5000, 1000, lines.append)
    statistics.record(2, 100, 5999)
    assert lines == []
    statistics.record(4, 100, 6000)
    statistics.record(8, 100, 11_000)
    assert lines == [
        "2 records sent, 0.4 records/sec (0.00 MB/sec), 3.0 ms avg latency, 4.0 ms max latency.",
        "1 records sent, 0.2 records/sec (0.00 MB/sec), 8.0 ms avg latency, 8.0 ms max latency.",
    ]


def test_percentiles_of_many_records_come_from_a_bounded_sample() -> None:
    statistics = Statistics(4 * SAMPLES, 5000, 0, print)
    for latency in (1, 2, 3, 4, 50, 6, 7, 8):  # every fourth is kept: 1 and 50
        statistics.record(latency, 1, 1)
    assert re.search(r"50\.00 ms max latency, 50 ms 50th", str(statistics.total(1)))


def test_payloads_of_a_size_are_random_letters() -> None:
    next_payload = choose_payloads(parse("--record-size", "100"), random.Random(1))
    first = [next_payload() for _ in range(10)]
    assert len(set(first)) == 10
    assert all(re.fullmatch(rb"[A-Z]{100}", payload) for payload in first)
    assert next_payload() == first[0]
    assert DISTINCT_PAYLOADS > 10


def test_monotonic_payloads_count() -> None:
    next_payload = choose_payloads(parse("--payload-monotonic"), random.Random(1))
    assert [next_payload() for _ in range(3)] == [b"0", b"1", b"2"]


def test_payloads_of_a_file_are_split_at_the_delimiter(tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_bytes("a\nü\nc\n".encode())
    assert read_payloads(str(file), "\\n") == [b"a", "ü".encode(), b"c"]
    file.write_bytes(b"a|b|c")
    assert read_payloads(str(file), "|") == [b"a", b"b", b"c"]


def test_an_empty_or_missing_payload_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="is empty"):
        read_payloads(str(tmp_path / "empty"), "\\n")
    with pytest.raises(UsageError, match="cannot read the payload file"):
        read_payloads(str(tmp_path / "none"), "\\n")


def test_after_the_warm_up_the_lines_say_so() -> None:
    lines: list[str] = []
    statistics = Statistics(100, 1000, 0, lines.append, is_steady=True)
    statistics.record(2, 100, 1000)
    statistics.record(4, 100, 2000)
    assert lines[0] == "In steady state."
    assert [line.partition(",")[0] for line in lines[1:]] == ["1 records sent"] * 2
    assert str(statistics.total(2000)).startswith(
        "2 steady state records sent, 1.000000 records/sec"
    )


def test_who_is_silenced_still_counts() -> None:
    lines: list[str] = []
    statistics = Statistics(100, 1000, 0, lines.append)
    statistics.silence()
    statistics.record(2, 100, 5000)
    assert lines == []
    assert statistics.count == 1


class ScriptedProducer:
    """Acknowledges each record at once, and notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[bytes | None] = []

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        on_delivery: Callable[[ScriptedProducer], None],
    ) -> None:
        self.calls.append("send")
        self.keys.append(key)
        on_delivery(self)

    def exception(self) -> None:
        return None

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self) -> None:
        self.calls.append("commit")

    def flush(self) -> None:
        self.calls.append("flush")


def send(transaction_ms: float | None, *words: str) -> tuple[ScriptedProducer, list[PerfSummary]]:
    arguments = parse("--payload-monotonic", *words)
    producer = ScriptedProducer()
    summaries = send_all(
        cast("Producer", producer),
        arguments,
        choose_payloads(arguments, random.Random(0)),
        choose_keys(arguments, random.Random(0)),
        transaction_ms,
        Failures(),
    )
    return producer, summaries


def test_without_transactions_none_is_begun() -> None:
    assert send(None)[0].calls == ["send"] * 10 + ["flush"]


def test_a_transaction_is_committed_when_its_time_is_over_and_at_the_end() -> None:
    assert send(0)[0].calls == ["begin", "send", "commit"] * 10 + ["flush"]
    assert send(1e9)[0].calls == ["begin"] + ["send"] * 10 + ["commit", "flush"]


def test_a_warm_up_gives_a_second_summary(capsys: pytest.CaptureFixture[str]) -> None:
    whole, steady = map(str, send(None, "--warmup-records", "4")[1])
    assert whole.startswith("10 records sent, ")
    assert steady.startswith("6 steady state records sent, ")
    assert capsys.readouterr().out.startswith("Warmup first 4 records. Steady state")


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ((), {}, (None, None)),
        ((), {"transactional.id": "a"}, (3000, "a")),
        (("--transactional-id", "b"), {"transactional.id": "a"}, (3000, "b")),
        (("--transactional-id", "b", "--transaction-duration-ms", "7"), {}, (7, "b")),
    ],
)
def test_a_transactional_id_comes_from_three_places(
    words: tuple[str, ...], options: dict[str, Any], expected: tuple[int | None, str | None]
) -> None:
    duration = choose_transactions(parse("--record-size", "1", *words), options)
    assert (duration, options.get("transactional.id")) == expected


def test_a_duration_alone_makes_up_a_transactional_id() -> None:
    options: dict[str, Any] = {}
    words = ("--record-size", "1", "--transaction-duration-ms", "9")
    assert choose_transactions(parse(*words), options) == 9
    assert re.fullmatch(r"performance-producer-[0-9a-f-]{36}", options["transactional.id"])


def test_keys_come_in_turn_or_at_random() -> None:
    words = ("--key-distribution", "range", "--record-key-range", "3")
    assert send(None, *words)[0].keys == [b"0", b"1", b"2"] * 3 + [b"0"]
    words = ("--key-distribution", "random", "--record-key-range", "3")
    first = send(None, *words)[0].keys
    assert set(first) == {b"0", b"1", b"2"}
    assert send(None, *words)[0].keys == first


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--record-key-range", "3"), "needs --key-distribution"),
        (("--key-distribution", "range"), "needs --record-key-range"),
    ],
)
def test_keys_need_a_range_and_a_distribution(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose_keys(parse("--record-size", "1", *words), random.Random(0))


def test_a_warm_up_of_everything_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than --num-records 10"):
        run(parse("--record-size", "1", "--warmup-records", "10"))


@pytest.mark.parametrize("rate", ["0", "-2", "nan"])
def test_a_rate_is_positive_or_unlimited(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--record-size", "1", "--throughput", rate)
    assert "records per second, or -1" in capsys.readouterr().err
