from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

import pytest

from trimtab.cli.producer_perf import (
    DISTINCT_PAYLOADS,
    SAMPLES,
    Statistics,
    choose_payloads,
    configure,
    list_metrics,
    print_metrics,
    read_payloads,
)
from trimtab.errors import UsageError


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["--topic", "t", "--num-records", "10", "--throughput", "-1", *words])


def test_the_total_is_worded_as_kafka_words_it() -> None:
    statistics = Statistics(1000, 5000, 0, print)
    for number in range(1000):
        statistics.record(number + 0.5, 1024, 100)
    assert statistics.total(2000) == (
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
    assert re.search(r"50\.00 ms max latency, 50 ms 50th", statistics.total(1))


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


def test_metrics_are_named_as_kafkas_tools_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"record-send-total": 5, "node": {0: {"outgoing-byte-total": 1200}}}
    print_metrics(list_metrics(metrics, "perf"))
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(" +", " ", line) for line in lines] == [
        "",
        "Metric Name Value",
        "producer-metrics:record-send-total:{client-id=perf} : 5.000",
        "producer-node-metrics:outgoing-byte-total:{client-id=perf, node-id=node-0} : 1200.000",
    ]
    assert len({line.rindex(" : ") for line in lines[2:]}) == 1
