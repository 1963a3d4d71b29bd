"""Apache Kafka's own tools, run on trimtab's cluster and files; skipped without their jars.

The jars are expected in `TRIMTAB_KAFKA_JARS` or in trimtab's cache (`python -m
lab.benchmarks.jars`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.jars import find_kafka_jars, java_command
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Producer
from trimtab.client.admin import NewTopic
from trimtab.threads.clock import monotonic_clock

pytestmark = needs_kafka

RECORDS = 50_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        brokers=3, racks=["a", "b", "c"], config={"log.segment.bytes": 4_000_000}
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("codec", CODECS)
def test_producer_performance_with_its_defaults_is_served(cluster: Cluster, codec: str) -> None:
    """By default the producer is idempotent, with acks=all."""
    topic = f"perf-{codec}"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=6, replication_factor=3)
    text = run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100"),
        *("--throughput", "-1", "--bootstrap-server", cluster.bootstrap_servers),
        *("--command-property", f"compression.type={codec}"),
    )
    assert f"{RECORDS} records sent" in text
    assert "WARN" not in text
    assert "Exception" not in text
    offsets = run_java(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
    )
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets.split()) == RECORDS


def test_console_consumer_reads_what_trimtab_produced(cluster: Cluster) -> None:
    topic = "console"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=3)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type="zstd") as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    text = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
        *("--partition", "0", "--offset", "earliest", "--max-messages", "100"),
    )
    assert [int(line) for line in text.splitlines() if line.isdecimal()] == list(range(100))


def test_topic_command_describes_our_topics(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("described", partitions=3, config={"retention.ms": "60000"})
    text = run_java(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--describe", "--topic", "described"),
    )
    assert re.search(
        r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=60000", text
    )
    assert len(re.findall(r"Leader: [012]\s+Replicas: [012]\s+Isr: [012]", text)) == 3


# --- replicated topics ----------------------------------------------------------------------------


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


def run_tool(cluster: Cluster, name: str, *words: str) -> str:
    """Run one of Apache Kafka's tools on the cluster; returns its output."""
    main = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    return run_java(main, "--bootstrap-server", cluster.bootstrap_servers, *words, heap="128m")


def fill(cluster: Cluster, topic: str, records: int, size: int = 100) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for number in range(records):
            producer.send(topic, number.to_bytes(4, "big") * (size // 4), partition=0)


def await_in_sync(admin: Admin, topic: str, replicas: tuple[int, ...]) -> None:
    deadline = monotonic_clock() + PATIENCE_S
    while any(
        set(each.in_sync_replicas) != set(replicas)
        for each in admin.describe_topics([topic])[topic].partitions
    ):
        assert monotonic_clock() < deadline, f"{topic} is not in sync with {replicas}"
        Event().wait(0.05)


def test_topic_command_changes_replicated_topics(cluster: Cluster, admin: Admin) -> None:
    name = ("--topic", "replicated")
    factors = ("--partitions", "3", "--replication-factor", "3")
    run_tool(cluster, "TopicCommand", "--create", *name, *factors)
    run_tool(cluster, "TopicCommand", "--alter", *name, "--partitions", "4")
    cluster.stop_broker(2)
    try:
        behind = run_tool(cluster, "TopicCommand", "--describe", "--under-replicated-partitions")
        assert len(re.findall(r"Topic: replicated\s.*\sIsr: (?:0,1|1,0)\s", behind)) == 4
        endpoints = run_java(
            "org.apache.kafka.tools.ClusterTool",
            *("list-endpoints", "--include-fenced-brokers"),
            *("--bootstrap-server", cluster.bootstrap_servers),
        )
    finally:
        cluster.start_broker(2)
    assert re.findall(r"^(\d) .* (\w+) +broker", endpoints, re.MULTILINE) == [
        ("0", "unfenced"),
        ("1", "unfenced"),
        ("2", "fenced"),
    ]
    await_in_sync(admin, "replicated", (0, 1, 2))
    behind = run_tool(cluster, "TopicCommand", "--describe", "--under-replicated-partitions")
    assert "replicated" not in behind


def test_config_command_changes_a_topic_a_broker_and_all_brokers(
    cluster: Cluster, admin: Admin
) -> None:
    admin.create_topic(
        "configured", partitions=1, replication_factor=3, config={"segment.bytes": 9_000_000}
    )
    main = "kafka.admin.ConfigCommand"
    topic = ("--entity-type", "topics", "--entity-name", "configured")
    brokers = ("--entity-type", "brokers")
    options = ("--add-config", "retention.ms=60000", "--delete-config", "segment.bytes")
    run_tool(cluster, main, *topic, "--alter", *options)
    of_all = ("--entity-default", "--add-config", "max.connections=2000")
    run_tool(cluster, main, *brokers, "--alter", *of_all)
    of_one = ("--entity-name", "1", "--add-config", "max.connections=1000")
    run_tool(cluster, main, *brokers, "--alter", *of_one)
    assert run_tool(cluster, main, *topic, "--describe") == (
        "Dynamic configs for topic configured are:\n"
        "  retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000, "
        "DEFAULT_CONFIG:log.retention.hours=168}\n"
    )
    assert run_tool(cluster, main, *brokers, "--describe") == (
        "Dynamic configs for broker 0 are:\n"
        "Dynamic configs for broker 1 are:\n"
        "  max.connections=1000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:"
        "max.connections=1000, DYNAMIC_DEFAULT_BROKER_CONFIG:max.connections=2000, "
        "DEFAULT_CONFIG:max.connections=2147483647}\n"
        "Dynamic configs for broker 2 are:\n"
        "Default configs for brokers in the cluster are:\n"
        "  max.connections=2000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:"
        "max.connections=2000}\n"
    )


def test_reassign_partitions_moves_throttles_and_cancels(
    cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic("moved", assignment={0: [0]})])
    fill(cluster, "moved", 300, 10_000)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"moved","partition":0,"replicas":[1,2]}]}')
    main = "reassign.ReassignPartitionsCommand"
    file = ("--reassignment-json-file", str(plan))
    started = run_tool(cluster, main, *file, "--execute", "--throttle", "20000")
    assert "Successfully started partition reassignment for moved-0" in started
    assert str(cluster_directory(admin, 0)) in started
    listed = run_tool(cluster, main, "--list")
    assert "moved-0: replicas: 1,2,0. adding: 1,2. removing: 0." in listed
    cancelled = run_tool(cluster, main, *file, "--cancel")
    assert "Successfully cancelled partition reassignment for: moved-0" in cancelled
    assert admin.describe_topics(["moved"])["moved"].partitions[0].replicas == (0,)
    run_tool(cluster, main, *file, "--execute")
    await_in_sync(admin, "moved", (1, 2))
    verified = run_tool(cluster, main, *file, "--verify")
    assert "Reassignment of partition moved-0 is completed." in verified
    assert admin.describe_topics(["moved"])["moved"].partitions[0].replicas == (1, 2)
    offsets = run_tool(cluster, "GetOffsetShell", "--topic", "moved")
    assert offsets.split() == ["moved:0:300"]


def cluster_directory(admin: Admin, broker: int) -> str:
    options = {each.name: each.value for each in admin.describe_configs("broker", broker)}
    return str(options["log.dirs"])


def test_leader_election_gives_partitions_back_to_their_first_replica(
    cluster: Cluster, admin: Admin
) -> None:
    admin.create_topics([NewTopic("led", assignment={0: [0, 1, 2], 1: [0, 2, 1]})])
    cluster.stop_broker(0)
    cluster.start_broker(0)
    await_in_sync(admin, "led", (0, 1, 2))
    assert admin.describe_topics(["led"])["led"].leaders == (1, 2)
    elected = run_tool(
        cluster,
        "LeaderElectionCommand",
        *("--election-type", "preferred", "--all-topic-partitions"),
    )
    assert re.search(r"Successfully completed leader election \(PREFERRED\) .*led-0", elected)
    assert admin.describe_topics(["led"])["led"].leaders == (0, 0)


def test_delete_records_deletes_earlier_records(
    cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("dropped", partitions=1, replication_factor=3)
    fill(cluster, "dropped", 100)
    offsets = tmp_path / "offsets.json"
    offsets.write_text('{"version":1,"partitions":[{"topic":"dropped","partition":0,"offset":40}]}')
    told = run_tool(cluster, "DeleteRecordsCommand", "--offset-json-file", str(offsets))
    assert "partition: dropped-0\tlow_watermark: 40" in told
    words = ("--topic", "dropped", "--time", "earliest")
    assert run_tool(cluster, "GetOffsetShell", *words).split() == ["dropped:0:40"]


def test_log_dirs_finds_every_replica(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("stored", partitions=2, replication_factor=3)
    fill(cluster, "stored", 100)
    told = run_tool(cluster, "LogDirsCommand", "--describe", "--topic-list", "stored")
    found = {
        each["broker"]: {log["partition"]: log["size"] for log in each["logDirs"][0]["partitions"]}
        for each in json.loads(told.splitlines()[-1])["brokers"]
    }
    assert set(found) == {0, 1, 2}
    assert found[0] == found[1] == found[2]
    assert found[0]["stored-0"] > 10_000
    assert found[0]["stored-1"] == 0


def test_metadata_quorum_shows_the_controller_and_its_followers(cluster: Cluster) -> None:
    status = run_tool(cluster, "MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId: +3000\n", status)
    assert 'CurrentObservers:       [{"id": 0}, {"id": 1}, {"id": 2}]' in status
    replication = run_tool(cluster, "MetadataQuorumCommand", "describe", "--replication")
    nodes = re.findall(r"^(\d+)\s.*\s(Leader|Observer)\s*$", replication, re.MULTILINE)
    assert nodes == [("3000", "Leader"), *((str(id), "Observer") for id in range(3))]


def test_transactions_command_describes_producers(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("known", partitions=1, replication_factor=3)
    fill(cluster, "known", 10)
    told = run_tool(
        cluster,
        "TransactionsCommand",
        *("describe-producers", "--topic", "known", "--partition", "0"),
    )
    # Producer id and epoch, the coordinator's epoch, the last sequence.
    assert re.search(r"^\d+\s+0\s+-1\s+9\s+\d{13}\s+None\s*$", told, re.MULTILINE)


def test_java_knows_every_api_of_our_brokers(cluster: Cluster) -> None:
    told = run_tool(cluster, "BrokerApiVersionsCommand")
    assert "UNKNOWN(" not in told
    assert "Fetch(1): 4 to 18" in told


def test_acl_command_learns_that_there_is_no_authorizer(cluster: Cluster) -> None:
    with pytest.raises(
        RuntimeError, match="SecurityDisabledException: No Authorizer is configured"
    ):
        run_tool(cluster, "AclCommand", "--list")


def test_replica_verification_finds_no_difference(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("verified", partitions=1, replication_factor=3)
    fill(cluster, "verified", 1000)
    with subprocess.Popen(
        [
            *(*java_command("128m"), "-cp", f"{find_kafka_jars()}/*"),
            *("org.apache.kafka.tools.ReplicaVerificationTool", "--topics-include", "verified"),
            *("--broker-list", cluster.bootstrap_servers, "--report-interval-ms", "1000"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            report = next((line for line in process.stdout if "max lag" in line), "")
        finally:
            process.kill()
    assert "max lag is 0 for partition verified-0 at offset 1000 among 1 partitions" in report


# --- files ----------------------------------------------------------------------------------------


def test_dump_log_segments_reads_our_files_without_complaint(tmp_path: Path) -> None:
    topic = "dumped"
    with Cluster(brokers=1, data=tmp_path, config={"log.segment.bytes": 1_000_000}) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(topic, partitions=1)
        for codec in CODECS:
            with Producer(
                {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec}
            ) as producer:
                for number in range(20_000):
                    producer.send(topic, b"value-%d" % number * 3, key=b"%d" % number)
    logs = sorted(tmp_path.rglob(f"{topic}-0/*.log"))
    indexes = sorted(tmp_path.rglob(f"{topic}-0/*index"))
    assert len(logs) > 1
    dumped = dump("--deep-iteration", logs)
    assert dumped.count("isvalid: true") == dumped.count("baseOffset: ")
    counts = [int(count) for count in re.findall(r"baseOffset: .*? count: (\d+)", dumped)]
    assert sum(counts) == 20_000 * len(CODECS)
    # The tool begins to count at -1, so it finds a gap at the start of each file but the first.
    gaps = {(int(a), int(b)) for a, b in re.findall(r"(-?\d+) is followed by (\d+)", dumped)}
    assert gaps == {(-1, int(log.stem)) for log in logs[1:]}
    sane = dump("--index-sanity-check", indexes)
    assert sane.count("passed sanity check") == len(indexes)
    verified = dump("--verify-index-only", indexes)
    for complaint in ("Mismatches", "mismatch", "out of order", "not found", "invalid bytes"):
        assert complaint not in dumped + sane + verified


def dump(how: str, files: list[Path]) -> str:
    return run_java(
        "org.apache.kafka.tools.DumpLogSegments", how, "--files", ",".join(map(str, files))
    )
