from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.consumer_perf import (
    DETAILED_HEAD,
    HEAD,
    JoinClock,
    Period,
    configure,
    read_options,
)
from trimtab.kafka.records import TopicPartition

Run = Callable[..., tuple[int, str, str]]

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
RECORDS = 2000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A topic whose records have keys of 1 and values of 9 bytes."""
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"x" * 9, b"%d" % (number % 10))
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab consumer-perf` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["consumer-perf", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capsys.readouterr()

    return run


def test_all_records_are_read_and_counted(run: Run) -> None:
    code, shown, errors = run("--topic", "t", "--num-records", str(RECORDS))
    assert (code, errors) == (0, "")
    head, line = shown.splitlines()
    assert head == HEAD
    fields = line.split(", ")
    assert len(fields) == len(head.split(", "))
    assert all(re.fullmatch(TIME, each) for each in fields[:2])
    assert (fields[2], fields[4]) == (f"{RECORDS * 10 / 2**20:.4f}", str(RECORDS))
    assert int(fields[6]) > 0  # joining takes time


def test_topics_may_be_found_by_an_expression_and_shown_as_json(run: Run) -> None:
    words = ("--include", "[a-t]", "--messages", str(RECORDS), "--group", "json", "--json")
    told = json.loads(run(*words)[1])
    assert told["records"] == RECORDS
    assert told["megabytes"] == RECORDS * 10 / 2**20
    code, shown, errors = run(*words, "--timeout", "300")  # the group has read everything
    assert (code, json.loads(shown)["records"]) == (0, 0)
    assert errors == (
        f"WARNING: only 0 of {RECORDS:,} records: none arrived for 300 ms; --timeout waits longer\n"
    )


def test_times_have_the_given_form_and_metrics_follow(run: Run) -> None:
    words = ("--topic", "t", "--num-records", str(RECORDS), "--print-metrics")
    shown = run(*words, "--date-format", "yyyy'y'", "--hide-header", "-X", "client.id=me")[1]
    line, blank, head, *metrics = shown.splitlines()
    assert re.match(r"\d{4}y, \d{4}y, 0\.", line)
    assert (blank, head.split()) == ("", ["Metric", "Name", "Value"])
    read = "consumer-fetch-manager-metrics:records-consumed-total:{client-id=me"
    assert [each.split(" : ")[1] for each in metrics if each.startswith(read + "}")] == (
        [f"{RECORDS}.000"]
    )
    assert any(each.startswith(f"{read}, topic=t}}") for each in metrics)
    told, listed = run(*words, "--json")[1].splitlines()
    assert json.loads(told)["records"] == RECORDS
    assert json.loads(listed)["metrics"][f"{read[:-2]}perf-consumer-client}}"] == RECORDS


def test_details_are_printed_each_interval(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each look at the clock takes a millisecond."""
    monkeypatch.setattr("trimtab.cli.consumer_perf._now_ms", count().__next__)
    words = ("--topic", "t", "--num-records", str(RECORDS), "--show-detailed-stats")
    small = ("--reporting-interval", "1", "-X", "max.poll.records=100")
    head, *lines = run(*words, *small)[1].splitlines()
    assert head == DETAILED_HEAD
    assert len(lines) >= RECORDS / 100
    counts = [int(line.split(", ")[4]) for line in lines]
    assert counts == sorted(counts)
    assert counts[-1] == RECORDS
    assert all(re.fullmatch(rf"{TIME}, 0", ", ".join(line.split(", ")[:2])) for line in lines)
    assert run(*words, "--hide-header")[1] == ""


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--date-format=YYYY", "'YYYY': Y is not supported"),
        ("--num-records=0", "'0' must be a whole number greater than zero"),
    ],
)
def test_what_is_no_value_is_refused(
    option: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["consumer-perf", "--topic", "t", "--num-records", "1", option])
    assert why in capsys.readouterr().err


def test_options_of_the_command_come_before_properties_and_defaults() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    words = ("--topic", "t", "--num-records", "1", "--fetch-size", "5", "--from-latest")
    given = ("-X", "max.partition.fetch.bytes=6", "receive.buffer.bytes=7", "group.id=g")
    options = read_options(parser.parse_args([*words, *given]))
    assert options == {
        "bootstrap.servers": "127.0.0.1:9092",
        "client.id": "perf-consumer-client",
        "check.crcs": "false",
        "group.id": "g",
        "receive.buffer.bytes": "7",
        "max.partition.fetch.bytes": 5,
        "auto.offset.reset": "latest",
    }
    alone = read_options(parser.parse_args(words[:4]))
    assert (alone["max.partition.fetch.bytes"], alone["auto.offset.reset"]) == (2**20, "earliest")
    assert alone["group.id"].startswith("perf-consumer-")


def test_rates_are_those_of_the_period() -> None:
    mib = 2**20
    period = Period(100.0, 102.0, (1 * mib, 10), 5 * mib, 50, 1000, False, write_time=str)
    assert period.rates == (2.0, 20.0)
    assert period.fetching_ms == 1000
    assert period.fetch_rates == (4.0, 40.0)
    assert str(period).split(", ") == (
        ["102.0", "0", "5.0000", "2.0000", "50", "20.0000", "1000", "1000", "4.0000", "40.0000"]
    )
    assert period._replace(ended=101.0).fetch_rates == (0.0, 0.0)
    assert len(str(period._replace(is_whole=True)).split(", ")) == 10


def test_only_the_time_without_partitions_is_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("trimtab.cli.consumer_perf._now_ms", lambda: now)
    clock = JoinClock()
    now = 5
    clock.assigned([T0])
    now = 100
    clock.assigned([T1])
    clock.revoked([T0])
    now = 200
    clock.assigned([T0])
    assert clock.total_ms == 5
    clock.revoked([T0, T1])
    now = 230
    clock.assigned([T1])
    assert clock.total_ms == 35
