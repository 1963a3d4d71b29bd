"""`trimtab copy`, within a cluster and to another one; what goes wrong meanwhile.

Long because all of it copies one topic, between the same two clusters.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from trimtab import Admin, BrokerError, Cluster, Consumer, Producer, Record, TopicPartition
from trimtab.cli import copy, main, make_parser
from trimtab.cli.consume import reading
from trimtab.cli.consume.reading import Source, find_span
from trimtab.cli.copy import copier
from trimtab.cli.copy.copier import Copier, Job, carry_headers
from trimtab.cli.copy.target import LEFT_OUT, Topics
from trimtab.cli.stopping import Stop
from trimtab.client.blocking.merged_records import merge_split
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    read_moved,
    write_moved,
    write_split,
)
from trimtab.kafka.errors import KafkaError

RECORDS = 3000
PARTITIONS = 3

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with Cluster(brokers=1) as one, Cluster(brokers=1) as other:
        with Admin(one.bootstrap_servers) as admin:
            admin.create_topic("flights", PARTITIONS, config={"retention.ms": 10**15})
        with Producer(one.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send(
                    "flights",
                    None if number % 7 == 0 else b'{"number": %d}' % number,
                    None if number % 5 == 1 else b"key-%d" % (number % 11),
                    [("a", b"1"), ("b", None), ("a", b"2")] if number % 3 == 0 else None,
                    number * number % 7 % 3,
                    1_769_846_400_000 + number if number != 1 else -1,
                )
        yield one, other


@pytest.fixture
def servers(clusters: tuple[Cluster, Cluster]) -> str:
    return clusters[0].bootstrap_servers


@pytest.fixture
def elsewhere(clusters: tuple[Cluster, Cluster]) -> str:
    """The other cluster's."""
    return clusters[1].bootstrap_servers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Of the test's own, to copy to."""
    return str(request.node.name.replace("[", "-").replace("]", "").replace(" ", "-"))


@pytest.fixture
def run(servers: str, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["copy", *words, "--bootstrap-server", servers])
        return code, *capfd.readouterr()

    return run


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """All records of a topic, by partition."""
    options = {"bootstrap.servers": servers, "isolation.level": isolation}
    with (
        Admin(servers) as admin,
        Consumer({**options, "auto.offset.reset": "none"}) as consumer,
        Stop() as stop,
    ):
        count = admin.describe_topics([topic])[topic].partition_count
        partitions = [TopicPartition(topic, index) for index in range(count)]
        span = find_span(consumer, partitions, reading.Bounds())
        return sorted(reading.read_span(consumer, span, stop), key=lambda record: record[1:3])


def contents(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """What a copy keeps, in the order of the partitions."""
    return [
        (each.partition, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in records
    ]


def committed(servers: str, group: str) -> int:
    with Admin(servers) as admin:
        return sum(each.offset for each in admin.list_group_offsets(group).values())


def test_everything_is_kept_within_a_cluster_and_to_another(
    run: Run, servers: str, elsewhere: str, topic: str
) -> None:
    code, shown, errors = run("--topic", "flights", "--to-topic", topic, "--create", "--json")
    assert code == 0
    done = json.loads(shown)
    size = sum(len(each.key or b"") + len(each.value or b"") for each in read(servers, topic))
    assert done.pop("seconds") < 60
    assert done == {
        "topic": "flights",
        "toTopic": topic,
        "records": RECORDS,
        "bytes": size,
        "leftOut": 0,
    }
    assert errors == (
        f"created {topic}: 3 partitions, 1 replica of each, 1 option of flights\n"
        f"copying flights to {topic}: each record keeps its partition; it begins anew each time\n"
    )
    wanted = contents(read(servers, "flights"))
    assert contents(read(servers, topic)) == wanted
    code, shown, _ = run("--topic", "flights", "--to-bootstrap-server", elsewhere, "--create")
    assert (code, shown.startswith("copied 3,000 records (")) == (0, True)
    assert contents(read(elsewhere, "flights")) == wanted


def test_pyarrow_is_needed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, errors = run("--topic", "flights", "--to-topic", "x", "--create")
    assert (code, "copy needs pyarrow, which is not installed" in errors) == (1, True)


def test_a_topic_with_other_partitions_gets_records_by_their_keys(
    run: Run, servers: str, topic: str
) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=5)
    code, _, errors = run("--topic", "flights", "--to-topic", topic)
    assert (code, f"copying flights to {topic}: by key;" in errors) == (0, True)
    found, source = read(servers, topic), read(servers, "flights")
    assert Counter(each[1:] for each in contents(found)) == Counter(
        each[1:] for each in contents(source)
    )
    keyed = [each for each in found if each.key is not None]
    assert {each.partition for each in keyed} > {0, 1}
    assert all(each.partition == (murmur2(each.key) & 0x7FFFFFFF) % 5 for each in keyed)


def test_the_way_can_be_chosen(run: Run, servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=5)
    assert run("--topic", "flights", "--to-topic", topic, "--keep-partitions")[0] == 0
    assert contents(read(servers, topic)) == contents(read(servers, "flights"))
    same = f"{topic}-same"
    assert run("--topic", "flights", "--to-topic", same, "--create", "--by-key")[0] == 0
    keyed = [each for each in read(servers, same) if each.key is not None]
    assert all(each.partition == (murmur2(each.key) & 0x7FFFFFFF) % 3 for each in keyed)
    code, _, errors = run("--topic", topic, "--to-topic", "flights", "--keep-partitions")
    assert code == 1
    assert f"--keep-partitions: {topic} has 5 partitions, flights 3: add partitions" in errors


def test_a_topic_is_created_with_the_partitions_and_options_of_the_source(
    run: Run, servers: str, topic: str
) -> None:
    config = {"cleanup.policy": "compact", "max.message.bytes": 5000, "min.insync.replicas": 1}
    assert "min.insync.replicas" in LEFT_OUT
    with Admin(servers) as admin:
        admin.create_topic(f"{topic}-source", 4, config=config)
    for _ in range(2):  # the second time it exists
        code, _, _ = run("--topic", f"{topic}-source", "--to-topic", topic, "--create")
        assert code == 0
    with Admin(servers) as admin:
        assert admin.describe_topics([topic])[topic].partition_count == 4
        options = {
            each.name: each.value
            for each in admin.describe_configs("topic", topic)
            if each.source == 1
        }
    assert options == {"cleanup.policy": "compact", "max.message.bytes": "5000"}


def test_a_topic_in_a_smaller_cluster_has_fewer_replicas(
    elsewhere: str, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Cluster(brokers=2) as large:
        with Admin(large.bootstrap_servers) as admin:
            admin.create_topic(topic, 1, 2)
        words = ("--topic", topic, "--create", "--to-bootstrap-server", elsewhere)
        assert main(["copy", *words, "--bootstrap-server", large.bootstrap_servers]) == 0
    wanted = f"created {topic}: 1 partition, 1 replica of each ({topic} has 2), 0 options"
    assert wanted in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--topic flights", "flights would be copied to itself: name another topic"),
        ("--topic flights --to-topic nope", "there is no topic nope to copy to: create it, or"),
        ("--topic nope --to-topic flights", "nope: UNKNOWN_TOPIC_OR_PARTITION"),
        ("--topic flights --to-topic x --group g --last 5", "--last does not go with a group"),
        ("--topic flights --to-topic x --group g --since 5s", "--since does not go with a group"),
        ("--topic flights --to-topic x --group g --until 5s", "--until does not go with a group"),
        ("--topic flights --to-topic x --to-property acks=1", "acks=1: a copy needs acks=all"),
        (
            "--topic flights --to-topic x --to-property enable.idempotence=false",
            "enable.idempotence=false: a copy needs enable.idempotence=true",
        ),
        ("--topic flights --to-topic x -X group.id=g", "group.id=g: name the group with --group"),
        ("--topic flights --to-topic x -X lingr.ms=5", "consumer option 'lingr.ms'"),
        ("--topic flights --to-topic x --to-property lingr.ms=5", "did you mean linger.ms?"),
        ("--topic flights --to-topic x --where key=1", "--where, column 4"),
    ],
)
def test_what_cannot_be_copied_is_refused(run: Run, words: str, why: str) -> None:
    code, shown, errors = run(*words.split())
    assert (code, shown) == (1, "")
    assert why in errors
    assert errors.count("\n") == 1


def test_options_of_the_source_count_for_the_target_in_the_same_cluster(servers: str) -> None:
    words = ["--topic", "t", "-X", "request.timeout.ms=5000", "fetch.max.bytes=1000", "retries=9"]
    words += ["--bootstrap-server", servers]
    arguments = make_parser("copy").parse_args([*words, "--to-property", "linger.ms=7"])
    options = copy.read_target_options(arguments)
    assert options["bootstrap.servers"] == servers
    assert (options["request.timeout.ms"], options["linger.ms"]) == ("5000", "7")
    assert options["retries"] == "9"
    assert "fetch.max.bytes" not in options
    options = copy.read_source_options(arguments)
    assert options["fetch.max.bytes"] == "1000"
    assert "retries" not in options
    arguments.to_bootstrap_server = "elsewhere:9092"
    options = copy.read_target_options(arguments)
    assert options["bootstrap.servers"] == "elsewhere:9092"
    assert "request.timeout.ms" not in options


def test_only_some_records_are_copied(run: Run, servers: str, topic: str) -> None:
    source = read(servers, "flights")
    words = ("--topic", "flights", "--create", "--to-topic")
    code, shown, _ = run(*words, f"{topic}-where", "--where", "value.number in (5, 8, 15)")
    assert (code, shown.endswith(", left out 2,997\n")) == (0, True)
    found = read(servers, f"{topic}-where")
    assert sorted(json.loads(each.value)["number"] for each in found) == [5, 8, 15]
    newest = sorted(source, key=lambda record: record.timestamp)[-100:]
    assert run(*words, f"{topic}-last", "--last", "100")[0] == 0
    wanted = contents(sorted(newest, key=lambda record: record[1:3]))
    assert contents(read(servers, f"{topic}-last")) == wanted
    times = ("--since", "1769846401000", "--until", "1769846401500")
    assert run(*words, f"{topic}-times", *times)[0] == 0
    wanted = contents([each for each in source if 1000 <= each.timestamp % 10**6 - 400_000 < 1500])
    assert contents(read(servers, f"{topic}-times")) == wanted
    assert len(wanted) == 500
    both = ("--last", "3", "--where", "value.number < 1000")
    assert run(*words, f"{topic}-both", *both)[0] == 0
    found = read(servers, f"{topic}-both")
    assert sorted(json.loads(each.value)["number"] for each in found) == [997, 998, 999]


def test_a_copy_is_no_faster_than_it_may_be_and_says_how_far_it_is(
    run: Run, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "PROGRESS_S", 1.0)
    words = ("--topic", "flights", "--to-topic", topic, "--create", "--max-rate", "10000")
    for way in (), ("--where", "true"):
        code, shown, errors = run(*words, *way, "--json")
        done = json.loads(shown)
        assert (code, done["records"], done["bytes"]) == (0, RECORDS, 52_403)
        said = re.findall(r"^copied ([\d,]+) records \(.*\), ([\d,]+) offsets to go$", errors, re.M)
        assert len(said) >= 2
        assert all(0 <= int(count.replace(",", "")) < RECORDS for count, _ in said)
        assert done["seconds"] > 3  # without a wait for the first second and for the last table


def test_aborted_records_are_not_copied(run: Run, servers: str, topic: str) -> None:
    with Producer(servers, transactional_id=topic) as producer, Admin(servers) as admin:
        admin.create_topic(f"{topic}-source", 1)
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(f"{topic}-source", end.__name__.encode()).result()
            end()
    assert run("--topic", f"{topic}-source", "--to-topic", topic, "--create")[0] == 0
    found = [each.value for each in read(servers, topic, "read_uncommitted")]
    assert found == [b"commit_transaction"]


# with a group


def test_a_group_goes_on_where_it_has_copied_to(
    run: Run, servers: str, elsewhere: str, topic: str
) -> None:
    words = ("--topic", "flights", "--to-topic", topic, "--create", "--group")
    wanted = contents(read(servers, "flights"))
    for group, to, promise in (
        (f"{topic}-1", servers, f"exactly once, as group {topic}-1\n"),
        (f"{topic}-2", elsewhere, f"at least once, as group {topic}-2: after an error"),
    ):
        target = () if to == servers else ("--to-bootstrap-server", to)
        for count in (RECORDS, 0):
            code, shown, errors = run(*words, group, *target, "--json")
            assert (code, json.loads(shown)["records"]) == (0, count)
            assert promise in errors
        assert contents(read(to, topic)) == wanted
        assert committed(servers, group) >= RECORDS
    code, shown, _ = run(*words, f"{topic}-3", "--by-key", "--where", "false", "--json")
    assert (code, json.loads(shown)["leftOut"]) == (0, RECORDS)
    assert committed(servers, f"{topic}-3") == RECORDS


def test_two_copies_of_a_group_share_the_partitions(
    run: Run, servers: str, elsewhere: str, topic: str
) -> None:
    with Admin(servers) as admin, Admin(elsewhere) as target:
        admin.create_topic(topic, PARTITIONS)
        target.create_topic(topic, PARTITIONS)
    for to, way in ((servers, "transactional.id"), (elsewhere, "client.id")):
        group = f"{topic}-{way}"
        words = ["--topic", "flights", "--to-topic", topic, "--group", group]
        words += ["-X", "heartbeat.interval.ms=100"]
        if to == elsewhere:
            words += ["--to-bootstrap-server", to]
        slow = ["--bootstrap-server", servers, "--max-rate", "5000"]
        command = [sys.executable, "-m", "trimtab", "copy", *words, *slow]
        own = ["--to-property", f"{way}={topic}"]
        with subprocess.Popen([*command, *own], stdout=subprocess.PIPE) as process:
            while committed(servers, group) == 0:
                pass
            code, shown, _ = run(*words)
            assert process.stdout is not None
            other = process.stdout.read().decode()
        assert (code, process.returncode) == (0, 0)
        counts = [int(each.split()[1].replace(",", "")) for each in (shown, other)]
        assert sum(counts) == RECORDS
        assert min(counts) > 0
        assert contents(read(to, topic)) == contents(read(servers, "flights"))


class Crash(Exception):
    """Ends a copy as if its process had died: nothing is flushed or committed."""


def copy_with(
    servers: str,
    to: str,
    topic: str,
    *,
    group: str = "",
    by_key: bool = False,
    at_records: Callable[[int], object] | None = None,
    source: str = "flights",
    **options: Any,
) -> Copier:
    """A copy in this process, which calls `at_records` with the count of the records so far."""
    seen = 0

    def is_wanted(record: Record) -> bool:
        nonlocal seen
        seen += 1
        if at_records is not None:
            at_records(seen)
        return True

    in_transactions = bool(group) and servers == to
    if in_transactions:
        options["transactional_id"] = group
    reading_options = {
        "bootstrap.servers": servers,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "auto.offset.reset": "none",
        **({"group.id": group} if group else {}),
    }
    with (
        Admin(servers) as admin,
        Admin(to) as target,
        Producer(to, batch_size=1000, **options) as producer,
        Consumer(reading_options) as consumer,
        Stop() as stop,
    ):
        count = admin.describe_topics([source])[source].partition_count
        partitions = [TopicPartition(source, index) for index in range(count)]
        target_count = target.describe_topics([topic])[topic].partition_count
        topics = Topics(source, topic, partitions, target_count, servers == to)
        span = find_span(consumer, partitions, reading.Bounds())
        merged = merge_split(consumer) if by_key else None
        job = Job(topics, not by_key, is_wanted, group or None, in_transactions)
        copied = Copier(job, Source(consumer, span, merged), consumer, producer, merged, stop)
        copied.copy(span)
        return copied


def crash_at(count: int) -> Callable[[int], object]:
    def at_records(seen: int) -> None:
        if seen == count:
            raise Crash

    return at_records


@pytest.mark.parametrize("by_key", [False, True])
def test_within_a_cluster_each_record_is_copied_once_however_often_it_crashes(
    servers: str, topic: str, by_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "COMMIT_S", 0.0)
    monkeypatch.setattr(copier, "_RECORDS", 100)
    with Admin(servers) as admin:
        admin.create_topic(topic, PARTITIONS)
    at = committed(servers, topic) if by_key else 0
    for count in (150, 1250, 950):
        with pytest.raises(Crash):
            copy_with(
                servers, servers, topic, group=topic, by_key=by_key, at_records=crash_at(count)
            )
        assert at < committed(servers, topic) or count == 150
        at = committed(servers, topic)
    assert 0 < at < RECORDS
    copy_with(servers, servers, topic, group=topic, by_key=by_key)
    found, wanted = contents(read(servers, topic)), contents(read(servers, "flights"))
    if by_key:
        assert Counter(each[1:] for each in found) == Counter(each[1:] for each in wanted)
    else:
        assert found == wanted


def test_to_another_cluster_nothing_is_lost_and_little_is_copied_twice(
    servers: str, elsewhere: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "COMMIT_S", 0.0)
    monkeypatch.setattr(copier, "_RECORDS", 100)
    with Admin(elsewhere) as admin:
        admin.create_topic(topic, PARTITIONS)
    for count in (150, 1250, 950):
        with pytest.raises(Crash):
            copy_with(servers, elsewhere, topic, group=topic, at_records=crash_at(count))
    copy_with(servers, elsewhere, topic, group=topic)
    found, wanted = read(elsewhere, topic), read(servers, "flights")
    assert set(contents(found)) == set(contents(wanted))
    assert len(found) <= len(wanted) + 3 * 200


def test_ctrl_c_commits_what_is_copied(servers: str, topic: str) -> None:
    words = ("--topic", "flights", "--to-topic", topic, "--create", "--group", topic)
    rate = ("--max-rate", "20000", "--follow", "--bootstrap-server", servers)
    command = [sys.executable, "-m", "trimtab", "copy", *words, *rate]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        while committed(servers, topic) == 0:
            pass
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        shown = process.stdout.read().decode()
    assert process.returncode == 130
    count = int(shown.split()[1].replace(",", ""))
    assert 0 < count < RECORDS
    found = read(servers, topic)
    assert len(found) == count
    assert main(["copy", *words, "--bootstrap-server", servers]) == 0
    assert contents(read(servers, topic)) == contents(read(servers, "flights"))


def test_with_follow_new_records_are_copied(servers: str, elsewhere: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, 1)
    words = ("--topic", topic, "--to-bootstrap-server", elsewhere, "--create", "--follow")
    command = [sys.executable, "-m", "trimtab", "copy", *words, "--bootstrap-server", servers]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        Producer(servers) as producer,
    ):
        assert process.stderr is not None
        process.stderr.readline()
        with Consumer(elsewhere, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            for number in range(3):
                producer.send(topic, b"%d" % number).result()
                while not (found := consumer.poll(5000)):
                    pass
                assert [each.value for each in found] == [b"%d" % number]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


# what goes wrong


@pytest.mark.parametrize("way", ["tables", "records"])
def test_a_record_that_is_too_large_is_named_and_the_copy_goes_on_once_it_fits(
    run: Run, servers: str, topic: str, way: str
) -> None:
    words = ["--topic", f"{topic}-source", "--to-topic", topic, "--group", topic]
    words += [] if way == "tables" else ["--where", "true"]
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic(f"{topic}-source", 2)
        admin.create_topic(topic, 2, config={"max.message.bytes": 2000})
        for number in range(100):
            value = bytes(3000) if number == 57 else b"%d" % number
            producer.send(f"{topic}-source", value, partition=number % 2)
        producer.flush()
        code, _, errors = run(*words)
        assert code == 1
        last = errors.splitlines()[-1]
        named = f"trimtab copy: a record, {topic}-source-1 at 28, was not copied: {topic}-1 "
        assert last.startswith(named)
        assert "MESSAGE_TOO_LARGE" in last
        assert last.endswith(f"; it has 3,000 bytes: raise max.message.bytes of {topic}")
        assert committed(servers, topic) == 0
        admin.alter_configs("topic", topic, {"max.message.bytes": 5000})
    assert run(*words)[0] == 0
    assert contents(read(servers, topic)) == contents(read(servers, f"{topic}-source"))


def test_to_another_cluster_an_error_commits_nothing_after_it(
    run: Run, servers: str, elsewhere: str, topic: str
) -> None:
    with Admin(servers) as admin, Admin(elsewhere) as target, Producer(servers) as producer:
        admin.create_topic(topic, 1)
        target.create_topic(topic, 1, config={"max.message.bytes": 2000})
        for number in range(100):
            producer.send(topic, bytes(3000) if number == 57 else b"%d" % number)
        producer.flush()
        words = ("--topic", topic, "--to-bootstrap-server", elsewhere, "--group", topic)
        code, _, errors = run(*words)
        assert (code, f"{topic}-0 at 57, was not copied" in errors) == (1, True)
        assert committed(servers, topic) == 0
        target.alter_configs("topic", topic, {"max.message.bytes": 5000})
        assert run(*words)[0] == 0
    assert set(contents(read(elsewhere, topic))) == set(contents(read(servers, topic)))


def test_a_source_that_is_deleted_meanwhile_ends_the_copy(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "GONE_S", 0.5)
    monkeypatch.setattr(copier, "_RECORDS", 10)
    with Admin(servers) as admin, Producer(servers) as producer:
        for name in (topic, f"{topic}-source"):
            admin.create_topic(name, 1)
        for _ in range(100):  # more than one fetch brings
            producer.send(f"{topic}-source", bytes(50_000))
        producer.flush()

        def delete(count: int) -> None:
            if count == 5:
                admin.delete_topic(f"{topic}-source")

        with pytest.raises(BrokerError, match="the topic was deleted meanwhile"):
            copy_with(servers, servers, topic, source=f"{topic}-source", at_records=delete)


def test_a_broker_that_goes_away_loses_nothing(topic: str) -> None:
    with Cluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin, Producer(servers) as producer:
            for name in ("flights", topic):
                admin.create_topic(name, 3, 3)
            for number in range(2000):
                producer.send("flights", b"%d" % number, partition=number % 3)

        def kill(count: int) -> None:
            if count == 700:
                cluster.kill_broker(1)

        copied = copy_with(servers, servers, topic, at_records=kill)
        assert copied.copied == 2000
        assert contents(read(servers, topic)) == contents(read(servers, "flights"))


def test_two_copies_of_a_group_do_not_copy_twice(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, PARTITIONS)

    def second(count: int) -> None:
        if count == 10:
            with Producer(servers, transactional_id=topic) as producer:
                producer.init_transactions()

    # The broker refuses a record, or the coordinator the producer.
    said = r"another copy as group .* may have begun|another producer with this transactional.id"
    with pytest.raises(KafkaError, match=said):
        copy_with(servers, servers, topic, group=topic, at_records=second)
    assert read(servers, topic) == []
    assert committed(servers, topic) == 0


# keys that producers have split or moved


def test_marks_of_split_keys_stay_with_the_partitions() -> None:
    split = (SPLIT_HEADER, write_split(7, 3, 1))
    moved = (MOVED_HEADER, write_moved(2, 500))
    other = (SPLIT_HEADER, b"of somebody else")
    kept = carry_headers([("a", None), split, moved, other], keeps_partitions=True)
    assert [*kept] == [("a", None), split, (MOVED_HEADER, write_moved(2, -1)), other]
    assert carry_headers([split, ("a", b"1"), moved, other], keeps_partitions=False) == [
        ("a", b"1"),
        other,
    ]


@pytest.fixture(scope="module")
def hot(clusters: tuple[Cluster, Cluster]) -> int:
    """The number of a split key's records in the topic `hot`; one of them was moved besides."""
    servers = clusters[0].bootstrap_servers
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic("hot", PARTITIONS)
        for number in range(400):
            headers: list[tuple[str, bytes | None]] = [(SPLIT_HEADER, write_split(7, number, 0))]
            producer.send("hot", b"%d" % number, b"hot", headers, number * number % 7 % 3)
        for number in range(3):
            headers = [(MOVED_HEADER, write_moved(1, 10**6))] if number == 0 else []
            producer.send("hot", b"m%d" % number, b"moved", headers, 2)
    return 400


def merge(servers: str, topic: str, key: bytes) -> list[bytes]:
    with Consumer(servers, auto_offset_reset="none") as consumer, Stop():
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        source = Source(
            consumer, find_span(consumer, partitions, reading.Bounds()), merge_split(consumer)
        )
        consumer.assign(partitions)
        for each in partitions:
            source.seek(each, 0)
        found: list[Record] = []
        while not source.is_over:
            found += source.poll()
    return [each.value for each in found if each.key == key]


def test_split_keys_can_be_merged_in_a_copy(run: Run, servers: str, topic: str, hot: int) -> None:
    assert run("--topic", "hot", "--to-topic", topic, "--create")[0] == 0
    assert merge(servers, topic, b"hot") == [b"%d" % number for number in range(hot)]
    assert merge(servers, topic, b"moved") == [b"m0", b"m1", b"m2"]
    marks = [
        read_moved(content)
        for each in read(servers, topic)
        for name, content in each.headers
        if name == MOVED_HEADER
    ]
    assert marks == [(1, -1)]


def test_by_key_split_keys_come_together_in_order(
    run: Run, servers: str, topic: str, hot: int
) -> None:
    assert run("--topic", "hot", "--to-topic", topic, "--create", "--by-key")[0] == 0
    found = read(servers, topic)
    of_key = [each for each in found if each.key == b"hot"]
    assert [each.value for each in of_key] == [b"%d" % number for number in range(hot)]
    assert len({each.partition for each in of_key}) == 1
    assert all(not each.headers for each in found)
