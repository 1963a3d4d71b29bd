"""The same command lines with Apache Kafka's tools and with trimtab's, about groups, records and
leaders: on trimtab's cluster and on Apache Kafka.

The order of groups, partitions and members is not compared: Kafka's tools list them in the order of
a hash table. Neither are messages of errors.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, call_java
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.cli import main
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.threads.clock import monotonic_clock

pytestmark = needs_kafka

PATIENCE_S = 60
TOPIC = "group-tools"
LONG = "group-tools-topic-with-a-rather-long-name"
IDLE, CLASSIC, MODERN, FOREIGN = (
    f"group-tools-{each}" for each in ("idle", "classic", "modern", "foreign")
)
ALL = (IDLE, CLASSIC, MODERN, FOREIGN)
TOOLS = {
    "groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "consume": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


@pytest.fixture(scope="module", params=["trimtab", "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """A cluster with a group that is idle, and with members of three others: two of trimtab's
    consumers in classic groups and in KIP-848's, and one of confluent-kafka."""
    with ExitStack() as running:
        if request.param == "trimtab":
            address = running.enter_context(Cluster(brokers=2)).bootstrap_servers
        else:
            kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
            address = kafka.address
        with Admin(address) as admin:
            admin.create_topic(TOPIC, partitions=3, config={"retention.ms": -1})
            admin.create_topic(LONG, partitions=1)
            with Producer(address) as producer:
                for number in range(30):
                    producer.send(TOPIC, b"%d" % number, partition=number % 3, timestamp=1000)
                    producer.send(LONG, b"x")
            admin.alter_group_offsets(
                IDLE, {(TOPIC, 0): 4, (TOPIC, 1): OffsetAndMetadata(10, "", 0), (LONG, 0): 2}
            )
            running.enter_context(reading(address, CLASSIC, "classic", [TOPIC]))
            running.enter_context(reading(address, CLASSIC, "classic", [TOPIC, LONG]))
            running.enter_context(reading(address, MODERN, "consumer", [TOPIC, LONG]))
            running.enter_context(reading_with_confluent(address, FOREIGN))
            await_members(admin, {CLASSIC: (2, 60), MODERN: (1, 60), FOREIGN: (1, 30)})
        yield address


@contextmanager
def polling(poll: Callable[[], object], close: Callable[[], object]) -> Iterator[None]:
    """Poll in a thread, until the end of the block."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            poll()
        close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


@contextmanager
def reading(address: str, group: str, protocol: str, topics: list[str]) -> Iterator[None]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.protocol": protocol},
        group_id=group,
        auto_offset_reset="earliest",
    )
    consumer.subscribe(topics)
    with polling(lambda: consumer.poll(timeout_ms=100), consumer.close):
        yield


@contextmanager
def reading_with_confluent(address: str, group: str) -> Iterator[None]:
    from confluent_kafka import Consumer as Confluent

    consumer = Confluent(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "group.instance.id": "static",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    with polling(lambda: consumer.poll(0.1), consumer.close):
        yield


def await_members(admin: Admin, expected: dict[str, tuple[int, int]]) -> None:
    """Wait until each group is stable, has so many members that all read, and has committed so
    many records."""
    deadline = monotonic_clock() + PATIENCE_S
    while True:
        found = admin.describe_groups(expected)
        if all(
            group in found
            and found[group].state == "Stable"
            and sum(bool(each.partitions) for each in found[group].members) == members
            and sum(at.offset for at in admin.list_group_offsets(group).values()) == records
            for group, (members, records) in expected.items()
        ):
            return
        assert monotonic_clock() < deadline, f"the groups are not stable: {found}"
        threading.Event().wait(0.1)


def run_theirs(servers: str, command: str, *words: str) -> tuple[int, str]:
    """Run Kafka's tool; returns exit code and standard output."""
    errors = subprocess.DEVNULL
    server = ("--bootstrap-server", servers)
    done = call_java(TOOLS[command], *server, *words, heap="128m", level="off", stderr=errors)
    return done.returncode, done.stdout


def run_ours(
    servers: str, capfd: pytest.CaptureFixture[str], command: str, *words: str
) -> tuple[int, str]:
    code = main([command, "--bootstrap-server", servers, *words])
    return code, capfd.readouterr().out


def groups_of(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--group", name)]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--describe", 3 + 4 + 4 + 3 + 4 * 2),
        ("--describe --verbose", 3 + 4 + 4 + 3 + 4 * 2),
        ("--describe --members", 2 + 1 + 1 + 4 * 2),
        ("--describe --members --verbose", 2 + 1 + 1 + 4 * 2),
        ("--describe --state", 4 * 3),
        ("--describe --state --verbose", 4 * 3),
    ],
)
def test_groups_are_described_alike(
    servers: str, capfd: pytest.CaptureFixture[str], words: str, lines: int
) -> None:
    command = ("groups", *words.split(), *groups_of(ALL))
    code, ours = run_ours(servers, capfd, *command)
    assert code == 0
    assert len(ours.splitlines()) == lines
    theirs = run_theirs(servers, *command)
    assert (theirs[0], sorted(theirs[1].splitlines())) == (0, sorted(ours.splitlines()))


@pytest.mark.parametrize("words", ["", "--state", "--type consumer", "--type --state stable"])
def test_groups_are_listed_alike(
    servers: str, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    command = ("groups", "--list", *words.split())
    code, ours = run_ours(servers, capfd, *command)
    assert (code, MODERN in ours) == (0, True)
    theirs = run_theirs(servers, *command)
    assert (theirs[0], sorted(theirs[1].splitlines())) == (0, sorted(ours.splitlines()))


@pytest.mark.parametrize(
    "words",
    [
        f"--topic {TOPIC}:0,1 --to-earliest",
        "--all-topics --to-latest",
        f"--topic {TOPIC} --topic {LONG} --to-current",
        f"--topic {TOPIC} --to-offset 7",
        "--all-topics --shift-by -3",
        f"--topic {TOPIC} --to-datetime 1970-01-01T00:00:00.500",
        f"--topic {TOPIC} --by-duration P1D --export",
        f"--topic {TOPIC} --to-earliest --export",
    ],
)
def test_offsets_are_reset_alike(
    servers: str, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    command = ("groups", "--reset-offsets", "--dry-run", "--group", IDLE, *words.split())
    ours = run_ours(servers, capfd, *command)
    assert ours[0] == 0
    assert f"{TOPIC}" in ours[1]
    code, theirs = run_theirs(servers, *command)
    told = [line for line in theirs.splitlines() if not line.startswith("Warn: Partition")]
    assert code == 0
    assert sorted(filter(None, told)) == sorted(filter(None, ours[1].splitlines()))


def test_what_java_exports_is_executed_and_deleted(
    servers: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    group = "group-tools-planned"
    plan = tmp_path / "plan.csv"
    reset = ("groups", "--reset-offsets", "--group", group)
    words = ("--topic", TOPIC, "--topic", LONG, "--to-latest", "--export", "--dry-run")
    plan.write_text(run_theirs(servers, *reset, *words)[1])
    assert run_ours(servers, capfd, *reset, "--from-file", str(plan), "--execute")[0] == 0
    with Admin(servers) as admin:
        offsets = {str(each): at.offset for each, at in admin.list_group_offsets(group).items()}
        assert offsets == {f"{LONG}-0": 30, **{f"{TOPIC}-{n}": 10 for n in range(3)}}
        named = ("--group", group, "--topic", f"{TOPIC}:0")
        assert run_ours(servers, capfd, "groups", "--delete-offsets", *named) == run_theirs(
            servers, "groups", "--delete-offsets", "--group", group, "--topic", f"{TOPIC}:0"
        )
        assert len(admin.list_group_offsets(group)) == 3
        delete = ("groups", "--delete", "--group")
        admin.alter_group_offsets(f"{group}-2", {(TOPIC, 0): 1})
        ours = run_ours(servers, capfd, *delete, group)
        code, theirs = run_theirs(servers, *delete, f"{group}-2")
        assert (code, theirs.replace("-2", "")) == ours
        assert admin.describe_groups([group, f"{group}-2"]) == {}


def test_groups_with_members_are_left_alone(
    servers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Admin(servers) as admin:
        before = {group: len(admin.describe_groups([group])[group].members) for group in ALL}
        for group in (CLASSIC, MODERN, FOREIGN):
            words = ("--group", group, "--topic", TOPIC, "--to-earliest", "--execute")
            assert run_ours(servers, capfd, "groups", "--reset-offsets", *words)[0] == 1
            assert run_ours(servers, capfd, "groups", "--delete", "--group", group)[0] == 1
            deletion = ("--delete-offsets", "--group", group, "--topic", f"{TOPIC}:0")
            assert run_ours(servers, capfd, "groups", *deletion)[0] == 1
        found = admin.describe_groups(ALL)
        assert {group: len(each.members) for group, each in found.items()} == before
        for group in (CLASSIC, MODERN, FOREIGN):
            offsets = admin.list_group_offsets(group)
            assert sum(at.offset for each, at in offsets.items() if each.topic == TOPIC) == 30


def test_records_are_deleted_alike(
    servers: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers = []
    with Admin(servers) as admin, Producer(servers) as producer:
        for name in ("group-tools-ours", "group-tools-java"):
            admin.create_topic(name, partitions=2)
            for number in range(20):
                producer.send(name, b"x", partition=number % 2)
            producer.flush()
            path = tmp_path / f"{name}.json"
            offsets = [
                {"topic": name, "partition": 0, "offset": 4},
                {"topic": name, "partition": 1, "offset": -1},
            ]
            path.write_text(json.dumps({"version": 1, "partitions": offsets}))
            words = ("delete-records", "--offset-json-file", str(path))
            told = (
                run_ours(servers, capfd, *words)
                if name == "group-tools-ours"
                else run_theirs(servers, *words)
            )
            answers.append((told[0], sorted(told[1].replace(name, "topic").splitlines())))
            starts = admin.list_offsets([(name, 0), (name, 1)], "earliest")
            assert sorted(each.offset for each in starts.values()) == [4, 10]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0


def test_leaders_are_elected_alike(servers: str, capfd: pytest.CaptureFixture[str]) -> None:
    kind = ("leader-election", "--election-type", "preferred")
    for which in ("--all-topic-partitions", f"--topic {TOPIC} --partition 1"):
        ours = run_ours(servers, capfd, *kind, *which.split())
        assert ours[0] == 0
        assert ours == run_theirs(servers, *kind, *which.split())


def test_consumers_print_alike(servers: str, capfd: pytest.CaptureFixture[str]) -> None:
    show = ["print.key=true", "print.offset=true", "print.partition=true", "print.timestamp=true"]
    words = ["--topic", TOPIC, "--from-beginning", "--max-messages", "30"]
    words += ["--timeout-ms", "20000"]
    words += [word for each in show for word in ("--formatter-property", each)]
    for group in ("", "group-tools-printed"):
        given = ("--group", group) if group else ()
        ours = run_ours(servers, capfd, "consume", *words, *given)
        given = ("--group", f"{group}-java") if group else ()
        theirs = run_theirs(servers, "consume", *words, *given)
        assert ours[0] == theirs[0] == 0
        assert sorted(ours[1].splitlines()) == sorted(theirs[1].splitlines())
        assert len(ours[1].splitlines()) == 30


@pytest.mark.parametrize("regex", ["load-[0-9]+|flights", "fo(?=o)", "a[", "(", "[[:alpha:]]{2}"])
def test_expressions_are_judged_alike(regex: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The reasons differ."""
    assert main(["groups", "--validate-regex", regex]) == 0
    ours = capfd.readouterr().out
    theirs = call_java(TOOLS["groups"], "--validate-regex", regex, heap="128m")
    assert theirs.returncode == 0
    assert ours.partition("valid")[0] == theirs.stdout.partition("valid")[0]
    assert ours.startswith(f"The regular expression `{regex}` is ")


def test_consumers_are_measured_in_the_same_columns(
    servers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        *("--topic", TOPIC, "--num-records", "30", "--timeout", "20000"),
        *("--print-metrics", "--date-format", "EEE d MMMM yyyy h:mm a XXX"),
    )
    ours, theirs = (
        told[1].splitlines()
        for told in (
            run_ours(servers, capfd, "consumer-perf", *words),
            run_theirs(servers, "consumer-perf", *words),
        )
    )
    assert ours[0] == theirs[0]
    rows = [lines[1].split(", ") for lines in (ours, theirs)]
    assert len(rows[0]) == len(rows[1]) == len(ours[0].split(", "))
    assert [(row[2], row[4]) for row in rows] == [(rows[0][2], "30")] * 2
    assert [[len(cell.partition(".")[2]) for cell in row] for row in rows] == [
        [0, 0, 4, 4, 0, 4, 0, 0, 4, 4]
    ] * 2
    form = r"\w{3} \d+ \w{3,9} \d{4} \d+:\d\d [AP]M (Z|[+-]\d\d:\d\d)"
    assert all(re.fullmatch(form, cell) for row in rows for cell in row[:2])
    assert ours[3].split() == theirs[3].split() == ["Metric", "Name", "Value"]
    names = [{line.partition(":{")[0] for line in lines[4:]} for lines in (ours, theirs)]
    assert names[0] - names[1] == {"consumer-metrics:requests-in-flight"}  # trimtab's own
