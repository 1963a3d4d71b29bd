"""`trimtab topics`: what it refuses, what it alters, and what it finds after a broker went away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from trimtab import Admin, Cluster
from trimtab.cli import main
from trimtab.cli.topics import read_assignment
from trimtab.client.admin import NewTopic
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Broker 2 is away."""
    of_two = {"min.insync.replicas": 2}
    with Cluster(brokers=3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [
                    NewTopic("whole", assignment={0: [0, 1]}, config={"retention.ms": 60_000}),
                    NewTopic("lost", assignment={0: [2], 1: [0]}),
                    NewTopic("enough", assignment={0: [0, 1, 2]}, config=of_two),
                    NewTopic("few", assignment={0: [1, 2]}, config=of_two),
                    NewTopic("__consumer_offsets", assignment={0: [0]}),
                ]
            )
        cluster.stop_broker(2)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab topics` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["topics", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capsys.readouterr()

    return run


def named_partitions(shown: str) -> list[str]:
    """`topic-partition` of each line."""
    fields = [line.split("\t") for line in shown.splitlines()]
    return [f"{each[1].split()[1]}-{each[2].split()[1]}" for each in fields]


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("--under-replicated-partitions", ["enough-0", "few-0", "lost-0"]),
        ("--unavailable-partitions", ["lost-0"]),
        ("--under-min-isr-partitions", ["few-0", "lost-0"]),
        ("--at-min-isr-partitions", ["__consumer_offsets-0", "enough-0", "lost-1"]),
    ],
)
def test_a_filter_shows_only_lines_of_its_partitions(
    run: Run, option: str, found: list[str]
) -> None:
    topics = ("--topic", "__consumer_offsets,enough,few,lost")
    assert named_partitions(run("--describe", option, *topics)[1]) == found
    shown = run("--describe", option, *topics, "--json")[1]
    described = [json.loads(line) for line in shown.splitlines()]
    assert [
        f"{each['topic']}-{partition['partition']}"
        for each in described
        for partition in each["partitions"]
    ] == found


def test_a_partition_that_left_the_isr_but_has_everything_is_eligible(run: Run) -> None:
    described = json.loads(run("--describe", "--topic", "few", "--json")[1])
    (partition,) = described["partitions"]
    assert (partition["isr"], partition["elr"]) == ([1], [2])


def test_partitions_may_come_in_pages_of_any_size(run: Run) -> None:
    whole = run("--describe")
    assert whole[0] == 0
    assert run("--describe", "--partition-size-limit-per-response", "1") == whole


def test_what_an_older_broker_does_not_tell_is_left_open(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: ErrorCode) -> Callable[..., object]:
        def asked(*_: object) -> object:
            raise BrokerError(code)

        return asked

    words = ("--describe", "--topic", "few")
    monkeypatch.setattr(Admin, "eligible_leaders", refuse(ErrorCode.UNSUPPORTED_VERSION))
    monkeypatch.setattr(Admin, "list_reassignments", refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert run(*words)[1].endswith("\tIsr: 1\tElr: N/A\tLastKnownElr: N/A\n")
    for method in ("eligible_leaders", "list_reassignments"):
        monkeypatch.setattr(Admin, method, refuse(ErrorCode.UNKNOWN_SERVER_ERROR))
        assert "UNKNOWN_SERVER_ERROR" in run(*words)[2]
        monkeypatch.undo()


def test_topics_with_overrides_come_without_their_partitions(run: Run) -> None:
    words = ("--describe", "--topics-with-overrides", "--topic", "whole,lost,few")
    lines = run(*words)[1].splitlines()
    assert [line.split("\t")[0] for line in lines] == ["Topic: few", "Topic: whole"]
    described = [json.loads(line) for line in run(*words, "--json")[1].splitlines()]
    assert [each["configs"] for each in described] == [
        {"min.insync.replicas": "2"},
        {"retention.ms": "60000"},
    ]
    assert "partitions" not in described[0]


def test_a_topic_is_found_by_its_id_whatever_the_name_says(run: Run) -> None:
    topic_id = json.loads(run("--describe", "--topic", "lost", "--json")[1])["topicId"]
    shown = run("--describe", "--topic-id", topic_id, "--topic", "whole")[1]
    assert shown.startswith(f"Topic: lost\tTopicId: {topic_id}\t")
    nobody = ("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    code, _, error = run(*nobody)
    assert code == 1
    assert "no topic has the id 'AAAAAAAAAAAAAAAAAAAAAQ'" in error
    assert run(*nobody, "--if-exists") == (0, "", "")


def test_internal_topics_are_left_out_on_demand(run: Run) -> None:
    assert "__consumer_offsets" in run("--list")[1].splitlines()
    assert "__consumer_offsets" not in run("--list", "--exclude-internal")[1].splitlines()
    shown = run("--describe", "--topic", "__.*", "--exclude-internal", "--if-exists")
    assert shown == (0, "", "")


def test_topics_that_match_get_more_partitions(run: Run) -> None:
    for name in ("more-1", "more-2"):
        run("--create", "--topic", name, "--replica-assignment", "0")
    altered = run("--alter", "--topic", "more-.", "--partitions", "2")
    assert altered == (
        0,
        "Altered topic more-1: it has 2 partitions.\nAltered topic more-2: it has 2 partitions.\n",
        "",
    )
    words = ("--alter", "--topic", "more-1", "--partitions", "4")
    assert run(*words, "--replica-assignment", "1,1,0,1", "--json")[0] == 0
    partitions = json.loads(run("--describe", "--topic", "more-1", "--json")[1])["partitions"]
    assert [each["replicas"] for each in partitions[2:]] == [[0], [1]]
    assert partitions[0]["replicas"] == [0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--topic", "whole", "--partitions", "1"), "Topic already has 1 partition(s)"),
        (("--topic", "nowhere", "--partitions", "1"), "no topic matches 'nowhere'"),
        (
            ("--topic", "whole", "--partitions", "3", "--replica-assignment", "0:1,0:1"),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
    ],
)
def test_what_cannot_be_altered_is_said_in_one_line(
    run: Run, words: tuple[str, ...], why: str
) -> None:
    code, shown, error = run("--alter", *words)
    assert (code, shown) == (1, "")
    assert why in error
    assert error.count("\n") == 1


def test_altering_a_topic_that_may_be_missing_does_nothing(run: Run) -> None:
    words = ("--alter", "--topic", "nowhere", "--partitions", "3", "--if-exists")
    assert run(*words) == (0, "", "")


def test_each_verb_tells_what_it_did_as_json(run: Run) -> None:
    topic = ("--topic", "told", "--json")
    create = ("--create", *topic, "--partitions", "1", "--if-not-exists")
    for words, told in (
        (create, {"topic": "told", "created": True}),
        (create, {"topic": "told", "created": False}),
        (("--alter", *topic, "--partitions", "2"), {"topic": "told", "partitions": 2}),
        (("--list", *topic), {"topic": "told"}),
        (("--delete", *topic), {"topic": "told", "deleted": True}),
    ):
        assert json.loads(run(*words)[1]) == told


def test_names_that_metrics_may_confuse_are_warned_about(run: Run) -> None:
    _, shown, _ = run("--create", "--topic", "a.b")
    assert shown.startswith("WARNING: Due to limitations in metric names")
    _, shown, error = run("--create", "--topic", "a_c", "--json")
    assert json.loads(shown) == {"topic": "a_c", "created": True}
    assert error.startswith("WARNING: ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--create", "--create needs a topic"),
        ("--delete", "--delete needs a topic"),
        ("--alter --partitions 3", "--alter needs a topic"),
        ("--alter --topic t", "add --partitions N"),
        ("--alter --topic t --partitions 3 --replication-factor 2", "trimtab reassign"),
        ("--alter --topic t --partitions 3 --config a=b", "trimtab configs --alter"),
        ("--alter --topic t --partitions 0", "--partitions 0: write a number from 1"),
        ("--create --topic t --replication-factor 32768", "from 1 to 32767"),
        ("--create --topic t --replica-assignment 0 --partitions 1", "leave out --partitions"),
        ("--create --topic t --replica-assignment 0 --replication-factor 1", "leave out --repl"),
        ("--create --topic t --if-exists", "--if-exists goes with --describe or --alter or --del"),
        ("--delete --topic t --if-not-exists", "--if-not-exists goes with --create"),
        ("--delete --topic t --exclude-internal", "--exclude-internal goes with --list or --desc"),
        ("--list --topic-id AAAAAAAAAAAAAAAAAAAAAQ", "--topic-id goes with --describe"),
        ("--list --topics-with-overrides", "--topics-with-overrides goes with --describe"),
        ("--list --unavailable-partitions", "--unavailable-partitions goes with --describe"),
        ("--describe --if-exists", "--if-exists needs a topic"),
        ("--describe --topics-with-overrides --at-min-isr-partitions", "give one"),
        ("--describe --partition-size-limit-per-response 0", "write a number from 1"),
        ("--describe --partitions 3", "--partitions goes with --create or --alter"),
        ("--describe --topic-id flights", "is not a topic id"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_fix(run: Run, words: str, why: str) -> None:
    code, shown, error = run(*words.split())
    assert (code, shown) == (1, "")
    assert error.startswith("trimtab topics: ")
    assert why in error


def test_an_assignment_names_the_brokers_of_each_partition() -> None:
    assert read_assignment("1,0,2") == [[1], [0], [2]]
    assert read_assignment("0:1,1:2") == [[0, 1], [1, 2]]
    assert read_assignment(None) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b", "write broker numbers"),
        ("0:1,2:2", "partition 1 names a broker twice"),
        ("0:1,2", "partition 1 has 1 replica"),
    ],
)
def test_other_assignments_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--replica-assignment .*{why}"):
        read_assignment(text)
