from __future__ import annotations

import argparse
import io
import re
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
    choose_format,
    configure,
    read_formatter,
    read_limit,
    read_options,
    read_registry,
    read_topics,
    wait_ms,
)
from trimtab.cli.consume.reading import read_bounds
from trimtab.client.partitioner.split_records import SPLIT_HEADER, write_split
from trimtab.kafka.errors import UsageError


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


def options_of(*words: str) -> dict[str, object]:
    arguments = parse("--topic", "t", *words)
    return read_options(arguments, read_bounds(arguments, 0))


def test_options_of_the_command_become_options_of_the_consumer() -> None:
    words = ("--group", "g", "--from-beginning", "-X", "fetch.min.bytes=5")
    options = options_of(*words, "--isolation-level", "read_committed")
    assert options == {
        "bootstrap.servers": "127.0.0.1:9092",
        "client.id": "console-consumer",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.min.bytes": "5",
    }
    assert "group.id" not in options_of("-X", "client.id=mine")
    assert options_of("-X", "client.id=mine")["client.id"] == "mine"
    assert options_of("--last", "5")["auto.offset.reset"] == "none"
    assert options_of("--from-beginning", "--until", "5s")["auto.offset.reset"] == "none"
    assert options_of("--since", "5s", "--follow")["auto.offset.reset"] == "earliest"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--group g -X group.id=h", "--group g, but group.id=h: give one"),
        ("--group g --partition 0", "--partition does not go with a group"),
        ("-X group.id=g --offset 5", "--offset does not go with a group"),
        ("--merge --partition 0", "--partition 0 does not go with --merge"),
        ("--from-beginning -X auto.offset.reset=latest", "--from-beginning, but auto.offset.reset"),
        ("--group g --last 5", "--last does not go with a group"),
        ("--group g --since 5s", "--since does not go with a group"),
        ("--group g --until 5s", "--until does not go with a group"),
        ("--group g --follow", "--follow does not go with a group"),
        ("--last 5 --merge", "--merge and --last are both given"),
        ("--last 5 --from-beginning", "--last and --from-beginning are both given"),
        ("--since 5s --offset earliest", "--since and --offset are both given"),
        ("--until 5s", "--until 5s needs where to begin: give --since, --last, --from"),
        ("--until 5s --offset latest", "--until 5s needs where to begin"),
        ("--until 5s --from-beginning --follow", "--until 5s does not go with --follow"),
        ("--from-beginning --follow", "--follow goes with --last or --since"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        options_of(*words.split())


def test_a_partition_is_one_of_a_topic() -> None:
    for words in ((), ("--last", "5")):
        arguments = parse("--include", "t", "--partition", "0", *words)
        with pytest.raises(UsageError, match="--partition 0 needs --topic"):
            read_options(arguments, read_bounds(arguments, 0))


def test_topics_are_listed_or_match() -> None:
    assert read_topics(parse("--topic", "a,b", "--topic", "c", "--topic", "a")) == ["a", "b", "c"]
    assert read_topics(parse("--include", "t.*")) == re.compile("t.*")
    with pytest.raises(UsageError, match=r"'t\['.* is not a regular expression"):
        read_topics(parse("--include", "t["))


@pytest.mark.parametrize("other", ["--json", "--property a=b", "--formatter-config /nowhere"])
def test_there_is_one_way_to_print(other: str) -> None:
    with pytest.raises(UsageError):
        choose_format(parse("--topic", "t", "--format", "{key}", *other.split()))


def test_settings_of_a_registry_need_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_registry(parse("--topic", "t")) is None
    with pytest.raises(UsageError, match="need its address: --schema-registry URL"):
        read_registry(parse("--topic", "t", "--schema-registry-property", "timeout=5"))
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    monkeypatch.delitem(sys.modules, "trimtab.cli.consume.decoding", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'trimtab\[schema-registry\]'"):
        read_registry(parse("--topic", "t", "--schema-registry", "http://127.0.0.1:1"))


def test_a_property_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "formatter.properties"
    file.write_text("print.key=true\nkey.separator=-\n")
    words = ("--topic", "t", "--formatter-config", str(file), "--property", "key.separator=+")
    assert read_formatter(parse(*words)) == {"print.key": "true", "key.separator": "+"}


# in a group, on a cluster

Run = Callable[..., tuple[int, str, str]]

RECORDS = 1200
BEGAN = 1_769_846_400_000
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
                value, at = b"%d" % number, BEGAN + number
                producer.send("split", value, None, headers, partition, at)
            for number in range(RECORDS):
                at = BEGAN + SPLIT + number
                producer.send("t", b"%d" % number, partition=number % 3, timestamp=at)
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


def test_several_topics_are_read(run: Run) -> None:
    words = ("--topic", "t,u", "--topic", "split", "--from-beginning")
    for group in ((), ("--group", "several")):
        code, shown, _ = run(*words, "--max-messages", str(RECORDS + SPLIT), *group)
        assert (code, len(shown.split())) == (0, RECORDS + SPLIT)
    code, shown, errors = run("--topic", "t,u", "--partition", "0")
    assert (code, "--partition 0 is of one topic: name only one" in errors) == (1, True)
    code, shown, errors = run("--topic", "t", "--offset", "5")
    assert (code, "--offset 5 needs --partition" in errors) == (1, True)


def test_the_last_records_are_printed_oldest_first_and_that_is_the_end(run: Run) -> None:
    code, shown, errors = run("--topic", "t,split", "--last", "5", "--format", "{topic} {value}")
    assert (code, errors) == (0, "Processed a total of 5 messages\n")
    assert shown.split("\n")[:-1] == [f"t {number}" for number in range(RECORDS - 5, RECORDS)]
    code, shown, _ = run("--topic", "t", "--partition", "1", "--last", "2")
    assert (code, shown) == (0, "1195\n1198\n")
    words = ("--topic", "t", "--last", "4", "--where", "value ~ '00$'", "--max-messages", "3")
    assert run(*words)[:2] == (0, "800\n900\n1000\n")
    assert run("--topic", "u", "--last", "4")[:2] == (0, "")


def test_after_the_last_records_come_new_ones(cluster: Cluster) -> None:
    words = ("--topic", "u", "--last", "2", "--follow", "--max-messages", "3")
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    command = [sys.executable, "-m", "trimtab", "consume", *words, *server]
    with Producer(cluster.bootstrap_servers) as producer:
        for text in (b"before", b"last"):
            producer.send("u", text).result()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(2)]
            producer.send("u", b"new").result()
            rest = process.stdout.read()
    assert (first, rest, process.returncode) == ([b"before\n", b"last\n"], b"new\n", 0)


def test_records_of_a_time_are_printed(cluster: Cluster, run: Run) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("timed", partitions=2)
    now = int(time.time() * 1000)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(100):
            at = now - (100 - number) * 60_000
            producer.send("timed", b"%d" % number, partition=number % 2, timestamp=at)
        producer.send("timed", b"out of order", partition=0, timestamp=now - 90 * 60_000)
    code, shown, errors = run("--topic", "timed", "--since", "10m30s")
    assert (code, sorted(map(int, shown.split()))) == (0, [*range(90, 100)])
    assert errors == "Processed a total of 10 messages\n"
    code, shown, _ = run("--topic", "timed", "--since", "10m30s", "--until", "5m30s", "--merge")
    assert (code, sorted(map(int, shown.split()))) == (0, [*range(90, 95)])
    code, shown, _ = run("--topic", "timed", "--from-beginning", "--until", "95.5m")
    assert (code, sorted(map(int, shown.split()))) == (0, [*range(5)])
    words = ("--topic", "timed", "--partition", "1", "--offset", "1", "--until", "94.5m")
    assert run(*words)[:2] == (0, "3\n5\n")
    code, shown, _ = run("--topic", "timed", "--since", "3.5m", "--follow", "--max-messages", "3")
    assert (code, sorted(map(int, shown.split()))) == (0, [97, 98, 99])


def test_a_group_has_read_no_further_than_what_it_has_printed(cluster: Cluster, run: Run) -> None:
    words = ("--topic", "t", "--group", "chosen", "--where", "value ~ '7$'")
    code, first, _ = run(*words, "--from-beginning", "--max-messages", "20")
    assert (code, len(first.split())) == (0, 20)
    rest = run(*words, "--timeout-ms", "2000")[1]
    assert sorted(map(int, (first + rest).split())) == [*range(7, RECORDS, 10)]


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
