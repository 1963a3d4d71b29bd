from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import consume, main, make_parser
from trimtab.cli.consume import (
    TextFormat,
    configure,
    read_formatter,
    read_limit,
    read_options,
    read_pattern,
    wait_ms,
    write_json,
)
from trimtab.client.partitioner.split_records import SPLIT_HEADER, write_split
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TimestampType

RECORD = Record(
    topic="t",
    partition=2,
    offset=7,
    timestamp=1700000000000,
    timestamp_type=TimestampType.CREATE_TIME,
    key=b"k",
    value="ü".encode(),
    headers=[("a", b"1"), ("b", None)],
)
EVERYTHING = {
    f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "headers", "key")
}


def test_only_the_value_is_printed_unless_more_is_asked_for() -> None:
    assert TextFormat({}).write(RECORD) == "ü\n".encode()


def test_everything_is_printed_in_the_order_of_kafkas_formatter() -> None:
    assert TextFormat(EVERYTHING).write(RECORD) == (
        "CreateTime:1700000000000\tPartition:2\tOffset:7\ta:1,b:null\tk\tü\n".encode()
    )


def test_nothing_is_shown_as_nothing() -> None:
    bare = RECORD._replace(key=None, value=None, headers=[], timestamp_type=TimestampType.NONE)
    assert TextFormat(EVERYTHING | {"null.literal": "-"}).write(bare) == (
        b"NO_TIMESTAMP\tPartition:2\tOffset:7\tNO_HEADERS\t-\t-\n"
    )


def test_separators_can_be_chosen() -> None:
    chosen = TextFormat({"print.key": "true", "key.separator": "=", "line.separator": "\\n\\n"})
    assert chosen.write(RECORD) == "k=ü\n\n".encode()


def test_an_unknown_property_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown formatter property 'print.keys'"):
        TextFormat({"print.keys": "true"})


def test_json_holds_everything_and_bytes_as_base64() -> None:
    assert json.loads(write_json(RECORD._replace(key=b"\xff"))) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1700000000000,
        "timestampType": "CREATE_TIME",
        "keyBase64": "/w==",
        "value": "ü",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }


def test_a_poll_waits_no_longer_than_the_timeout_leaves() -> None:
    now = time.monotonic()
    assert wait_ms(None, now) == 200
    assert wait_ms(10_000, now) == 200
    assert 0 < wait_ms(100, now) <= 100
    assert wait_ms(200, now - 1) == 0


def test_minus_one_message_is_all_of_them_as_in_kafka() -> None:
    assert [read_limit(count) for count in (None, -1, 0, 5)] == [None, None, 0, 5]
    with pytest.raises(UsageError, match="--max-messages -2: write a number"):
        read_limit(-2)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


def test_options_of_the_command_become_options_of_the_consumer() -> None:
    words = ("--topic", "t", "--group", "g", "--from-beginning", "-X", "fetch.min.bytes=5")
    options = read_options(parse(*words, "--isolation-level", "read_committed"))
    assert options == {
        "bootstrap.servers": "127.0.0.1:9092",
        "client.id": "console-consumer",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.min.bytes": "5",
    }
    assert "group.id" not in read_options(parse("--topic", "t", "-X", "client.id=mine"))
    assert read_options(parse("--topic", "t", "-X", "client.id=mine"))["client.id"] == "mine"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--group g -X group.id=h", "--group g, but group.id=h: give one"),
        ("--group g --partition 0", "--partition does not go with a group"),
        ("-X group.id=g --offset 5", "--offset does not go with a group"),
        ("--merge --partition 0", "--partition 0 does not go with --merge"),
        ("--from-beginning -X auto.offset.reset=latest", "--from-beginning, but auto.offset.reset"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_options(parse("--topic", "t", *words.split()))


def test_a_partition_is_one_of_a_topic() -> None:
    with pytest.raises(UsageError, match="--partition 0 needs --topic"):
        read_options(parse("--include", "t", "--partition", "0"))
    with pytest.raises(UsageError, match=r"'t\['.* is not a regular expression"):
        read_pattern("t[")


def test_a_property_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "formatter.properties"
    file.write_text("print.key=true\nkey.separator=-\n")
    words = ("--topic", "t", "--formatter-config", str(file), "--property", "key.separator=+")
    assert read_formatter(parse(*words)) == {"print.key": "true", "key.separator": "+"}


# in a group, on a cluster

Run = Callable[..., tuple[int, str, str]]

RECORDS = 1200
SPLIT = 300
"""Records of a split key, in the topic `split`."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=3)
            admin.create_topic("u", partitions=1)
            admin.create_topic("split", partitions=3)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(SPLIT):
                headers = [(SPLIT_HEADER, write_split(7, number, 0))]
                partition = number * number % 3
                producer.send("split", b"%d" % number, partition=partition, headers=headers)
            for number in range(RECORDS):
                producer.send("t", b"%d" % number, partition=number % 3)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trimtab consume` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["consume", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capfd.readouterr()

    return run


def committed(cluster: Cluster, group: str) -> int:
    """How many records of `t` the group has read, by its offsets."""
    with Admin(cluster.bootstrap_servers) as admin:
        return sum(each.offset for each in admin.list_group_offsets(group).values())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_where_it_has_ended(cluster: Cluster, run: Run, protocol: str) -> None:
    group = f"goes-on-{protocol}"
    words = ("--topic", "t", "--group", group, "-X", f"group.protocol={protocol}")
    code, first, errors = run(*words, "--from-beginning", "--max-messages", "700")
    assert (code, errors) == (0, "Processed a total of 700 messages\n")
    assert committed(cluster, group) == 700
    rest = run(*words, "--timeout-ms", "1000")[1]
    assert sorted(map(int, (first + rest).split())) == list(range(RECORDS))
    assert committed(cluster, group) == RECORDS
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.describe_groups([group])[group].state == "Empty"


def test_split_keys_are_merged(run: Run) -> None:
    words = ("--topic", "split", "--from-beginning", "--timeout-ms", "1000")
    code, shown, errors = run(*words, "--merge")
    assert (code, errors) == (0, f"Processed a total of {SPLIT} messages\n")
    assert [*map(int, shown.split())] == list(range(SPLIT))


def test_a_group_that_merges_commits_what_was_printed(cluster: Cluster, run: Run) -> None:
    words = ("--topic", "split", "--group", "merging", "--merge", "--from-beginning")
    code, first, _ = run(*words, "--max-messages", "50")
    assert (code, committed(cluster, "merging")) == (0, 50)
    rest = run(*words, "--timeout-ms", "2000")[1]
    assert [*map(int, (first + rest).split())] == list(range(SPLIT))
    code, _, errors = run(*words, "-X", "enable.auto.commit=true")
    assert (code, "enable.auto.commit=true would commit" in errors) == (1, True)


def test_topics_are_included_by_an_expression(run: Run) -> None:
    words = ("--include", "[tu]", "--from-beginning", "--max-messages", str(RECORDS))
    for group in ((), ("--group", "included")):
        code, shown, _ = run(*words, *group)
        assert (code, len(shown.split())) == (0, RECORDS)
    code, shown, errors = run("--include", "[xyz]")
    assert (code, shown) == (1, "")
    assert errors.startswith("trimtab consume: --include '[xyz]': no topic matches")


def test_records_that_could_not_be_printed_are_not_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def flush(self) -> None:
            if self.tell() > 0:
                raise OSError(28, "No space left on device")

    class Output:
        buffer = Full()

    monkeypatch.setattr(sys, "stdout", Output())
    words = ["--topic", "t", "--group", "full", "--from-beginning"]
    with pytest.raises(OSError, match="No space left"):
        consume.run(
            make_parser("consume").parse_args(
                [*words, "--bootstrap-server", cluster.bootstrap_servers]
            )
        )
    assert len(Output.buffer.getvalue().split()) > 0
    assert committed(cluster, "full") == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_after_what_it_has_printed(
    cluster: Cluster, number: int, code: int
) -> None:
    group = f"ended-{number}"
    words = ("--topic", "t", "--group", group, "--from-beginning", "-X", "max.poll.records=10")
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    command = [sys.executable, "-m", "trimtab", "consume", *words, *server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.stderr is not None
        errors = process.stderr.read()
    count = len((printed + rest).split())
    assert (process.returncode, errors.decode()) == (
        *(code, f"Processed a total of {count} messages\n"),
    )
    assert committed(cluster, group) == count
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.describe_groups([group])[group].state == "Empty"
