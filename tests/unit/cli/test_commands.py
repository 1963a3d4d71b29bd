"""The commands as a person types them, against a cluster."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator

import pytest

from trimtab import Admin, Cluster
from trimtab.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        yield cluster


@pytest.fixture
def run(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """A command with its words and standard input; exit code, output and errors."""

    def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main([*words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capfd.readouterr()

    return run


def test_a_topic_is_created_described_listed_and_deleted(run: Run) -> None:
    create = ("topics", "--create", "--topic", "life", "--partitions", "3")
    assert run(*create, "--config", "retention.ms=60000") == (0, "Created topic life.\n", "")
    code, shown, _ = run("topics", "--describe", "--topic", "life")
    assert code == 0
    lines = shown.splitlines()
    assert re.fullmatch(
        r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 3\tReplicationFactor: 1\t"
        r"Configs: retention.ms=60000",
        lines[0],
    )
    assert [
        re.fullmatch(
            rf"\tTopic: life\tPartition: {number}\tLeader: (\d)\tReplicas: \1\tIsr: \1"
            r"\tElr: \tLastKnownElr: ",
            line,
        )
        is not None
        for number, line in enumerate(lines[1:])
    ] == [True] * 3
    assert "life" in run("topics", "--list")[1].splitlines()
    assert run("topics", "--delete", "--topic", "life") == (0, "Deleted topic life.\n", "")
    assert "life" not in run("topics", "--list")[1].splitlines()


def test_a_topic_is_described_as_json(run: Run) -> None:
    run("topics", "--create", "--topic", "json", "--replica-assignment", "1,2,0")
    described = json.loads(run("topics", "--describe", "--topic", "json", "--json")[1])
    assert [each["leader"] for each in described["partitions"]] == [1, 2, 0]
    assert [each["rack"] for each in described["partitions"]] == ["b", "c", "a"]


def test_creating_twice_fails_unless_it_may_be_there(run: Run) -> None:
    create = ("topics", "--create", "--topic", "twice")
    assert run(*create)[0] == 0
    code, shown, error = run(*create)
    assert (code, shown) == (1, "")
    assert error.startswith("trimtab topics: topic twice: TOPIC_ALREADY_EXISTS (36)")
    assert run(*create, "--if-not-exists") == (0, "", "")


@pytest.mark.parametrize("verb", ["--describe", "--delete"])
def test_an_unknown_topic_fails_unless_it_may_be_missing(run: Run, verb: str) -> None:
    code, shown, error = run("topics", verb, "--topic", "nowhere")
    assert (code, shown) == (1, "")
    assert error.startswith("trimtab topics: no topic matches 'nowhere'")
    assert run("topics", verb, "--topic", "nowhere", "--if-exists") == (0, "", "")


def test_lines_go_in_and_come_out_with_their_keys(run: Run) -> None:
    run("topics", "--create", "--topic", "lines", "--partitions", "1")
    keyed = ("--reader-property", "parse.key=true", "key.separator=:")
    assert run("produce", "--topic", "lines", *keyed, stdin="a:1\nb:2\nc:ü\n") == (0, "", "")
    code, shown, error = run(
        *("consume", "--topic", "lines", "--from-beginning", "--max-messages", "3"),
        *("--formatter-property", "print.key=true", "print.offset=true", "key.separator=|"),
    )
    assert (code, shown) == (0, "Offset:0|a|1\nOffset:1|b|2\nOffset:2|c|ü\n")
    assert error == "Processed a total of 3 messages\n"


def test_consuming_begins_at_an_offset_and_ends_after_a_silence(run: Run) -> None:
    run("topics", "--create", "--topic", "middle", "--partitions", "1")
    run("produce", "--topic", "middle", stdin="0\n1\n2\n3\n")
    begin = ("consume", "--topic", "middle", "--partition", "0", "--timeout-ms", "300")
    assert run(*begin, "--offset", "2")[1] == "2\n3\n"
    assert run(*begin)[1] == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--topic", "nowhere"), "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION (3)"),
        (("--topic", "known", "--partition", "9"), "--partition 9: known has 2 partitions"),
        (("--topic", "known", "--offset", "5"), "--offset 5 needs --partition"),
        (("--topic", "known", "--offset", "then"), "--offset 'then': write a number"),
        (("--topic", "known", "-X", "fetch.max=1"), "unknown consumer option 'fetch.max'"),
    ],
)
def test_what_cannot_be_consumed_is_said_in_one_line(
    run: Run, words: tuple[str, ...], why: str
) -> None:
    run("topics", "--create", "--topic", "known", "--partitions", "2", "--if-not-exists")
    code, shown, error = run("consume", *words)
    assert (code, shown) == (1, "")
    assert error.startswith(f"trimtab consume: {why}")
    assert "Traceback" not in error


def test_the_clusters_id_is_shown(run: Run, cluster: Cluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        cluster_id = admin.cluster().cluster_id
    assert run("cluster", "cluster-id") == (0, f"Cluster ID: {cluster_id}\n", "")
    assert json.loads(run("cluster", "cluster-id", "--json")[1]) == {"clusterId": cluster_id}


def test_offsets_are_listed_by_partition_and_by_time(run: Run) -> None:
    run("topics", "--create", "--topic", "counted", "--partitions", "2")
    run("produce", "--topic", "counted", "--partition", "1", stdin="a\nb\n")
    offsets = ("offsets", "--topic", "counted")
    assert run(*offsets)[1] == "counted:0:0\ncounted:1:2\n"
    assert run(*offsets, "--time", "earliest")[1] == "counted:0:0\ncounted:1:0\n"
    assert run(*offsets, "--time", "1", "--partitions", "0,1")[1] == "counted:0:\ncounted:1:0\n"
    assert run("offsets", "--topic-partitions", "counted:1")[1] == "counted:1:2\n"
    assert run("offsets", "--topic", "nowhere")[0] == 1


def test_producer_perf_sends_what_it_says(run: Run) -> None:
    run("topics", "--create", "--topic", "perf", "--partitions", "3")
    code, shown, error = run(
        *("producer-perf", "--topic", "perf", "--num-records", "20000", "--record-size", "100"),
        *("--throughput", "-1", "--print-metrics", "--producer-props", "linger.ms=5", "acks=all"),
    )
    assert (code, error) == (0, "")
    total, *metrics = [line for line in shown.splitlines() if line]
    assert re.fullmatch(
        r"20000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, "
        r"[\d.]+ ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th\.",
        total,
    )
    sent = [line for line in metrics if "producer-node-metrics:outgoing-byte-total" in line]
    assert re.findall(r"node-id=node-(\d)", "".join(sent)) == ["0", "1", "2"]
    ends = run("offsets", "--topic", "perf")[1].split()
    assert sum(int(end.rpartition(":")[2]) for end in ends) == 20_000


def test_producer_perf_keeps_to_its_rate(run: Run) -> None:
    _, shown, _ = run(
        *("producer-perf", "--topic", "rate", "--num-records", "1000", "--record-size", "10"),
        *("--throughput", "2000"),
    )
    (rate,) = re.findall(r"sent, ([\d.]+) records/sec", shown)
    assert 1500 < float(rate) <= 2010


def test_records_that_fail_are_counted_and_the_command_fails(run: Run) -> None:
    run("topics", "--create", "--topic", "narrow", "--config", "max.message.bytes=100")
    code, _, error = run("produce", "--topic", "narrow", stdin="x" * 500 + "\n")
    assert code == 1
    assert error.startswith("1 of 1 record failed; the first: ")
    assert "MESSAGE_TOO_LARGE" in error


def test_without_a_broker_the_address_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    quickly = ("-X", "default.api.timeout.ms=200")
    assert main(["topics", "--list", "--bootstrap-server", "127.0.0.1:1", *quickly]) == 1
    error = capfd.readouterr().err
    assert "127.0.0.1:1" in error
    assert "Traceback" not in error


def test_offsets_as_json(run: Run) -> None:
    run("topics", "--create", "--topic", "json-offsets", "--partitions", "2")
    run("produce", "--topic", "json-offsets", "--partition", "1", stdin="a\nb\n")
    code, shown, _ = run("offsets", "--topic", "json-offsets", "--json")
    assert code == 0
    assert json.loads(shown) == [
        {"topic": "json-offsets", "partition": 0, "offset": 0, "timestamp": None},
        {"topic": "json-offsets", "partition": 1, "offset": 2, "timestamp": None},
    ]
    none = json.loads(
        run("offsets", "--topic", "json-offsets", "--time", "max-timestamp", "--json")[1]
    )
    assert none[0]["offset"] is None
    assert none[1]["offset"] in (0, 1)
    assert none[1]["timestamp"] > 0


def test_the_figures_of_producer_perf_as_json(run: Run) -> None:
    perf = (
        "producer-perf",
        "--topic",
        "json-measured",
        "--num-records",
        "200",
        "--record-size",
        "10",
    )
    code, shown, errors = run(*perf, "--throughput", "-1", "--warmup-records", "50", "--json")
    assert code == 0
    assert "Warmup first 50 records" in errors
    figures = json.loads(shown)
    assert list(figures) == ["failed", "all", "steady_state"]
    assert figures["failed"] == 0
    assert (figures["all"]["records"], figures["steady_state"]["records"]) == (200, 150)
    assert figures["all"]["latency_ms"]["max"] >= figures["all"]["latency_ms"]["average"] > 0
    shown = run(*perf, "--throughput", "-1", "--print-metrics", "--json")[1]
    assert any(name.startswith("producer-metrics:") for name in json.loads(shown)["metrics"])


def test_lines_that_were_sent_are_counted_as_json(run: Run) -> None:
    run("topics", "--create", "--topic", "counted-as-json", "--config", "max.message.bytes=200")
    code, shown, _ = run("produce", "--topic", "counted-as-json", "--json", stdin="1\n2\n3\n")
    assert (code, json.loads(shown)) == (0, {"records": 3, "failed": 0, "firstError": None})
    code, shown, error = run("produce", "--topic", "counted-as-json", "--json", stdin="x" * 1000)
    told = json.loads(shown)
    assert (code, told["records"], told["failed"]) == (1, 1, 1)
    assert "MESSAGE_TOO_LARGE" in told["firstError"]
    assert error.startswith("1 of 1 record failed; ")


def test_partitions_that_lack_replicas_are_marked_where_there_are_colours(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topics", "--create", "--topic", "marked", "--replica-assignment", "0:1,0:2")
    run("topics", "--create", "--topic", "gone", "--replica-assignment", "2")
    run("topics", "--create", "--topic", "lagging", "--partitions", "1")
    run("produce", "--topic", "lagging", stdin="1\n2\n")
    group = ("--group", "late", "--topic", "lagging")
    run("consume", *group, "--from-beginning", "--max-messages", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    describe = ("topics", "--describe", "--topic", "marked,gone")
    assert "\x1b" not in run(*describe)[1]
    assert "\x1b[33mlate " in run("groups", "--describe", "--group", "late")[1]
    cluster.stop_broker(2)
    try:
        gone, lost, head, whole, few = run(*describe)[1].splitlines()
    finally:
        cluster.start_broker(2)
    assert "\x1b" not in gone + head + whole
    assert few.startswith("\x1b[33m\tTopic: marked\tPartition: 1")
    assert lost.startswith("\x1b[31m\tTopic: gone\tPartition: 0")
