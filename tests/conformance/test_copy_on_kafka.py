"""`trimtab copy`, and `trimtab consume` of the last records, on Apache Kafka."""

from __future__ import annotations

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition
from trimtab.cli import main
from trimtab.cli.consume.reading import Bounds, find_span, read_span
from trimtab.cli.stopping import Stop

RECORDS = 5000
BEGAN = 1_769_846_400_000


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    found = apache_kafka.address
    with Admin(found) as admin, Producer(found, linger_ms=5) as producer:
        admin.create_topic("copied", 3, config={"retention.ms": -1})
        for number in range(RECORDS):
            key = b"key-%d" % (number % 11)
            producer.send("copied", b"%d" % number, key, None, number % 3, BEGAN + number)
    return found


def read(servers: str, topic: str) -> list[tuple[int, int, bytes, bytes]]:
    options = {"isolation.level": "read_committed", "auto.offset.reset": "none"}
    with Consumer({"bootstrap.servers": servers, **options}) as consumer, Stop() as stop:
        partitions = [TopicPartition(topic, index) for index in range(3)]
        span = find_span(consumer, partitions, Bounds())
        records = sorted(read_span(consumer, span, stop), key=lambda record: record[1:3])
        return [(each.partition, each.timestamp, each.key, each.value) for each in records]


def test_the_last_records_and_those_of_a_time_are_printed(
    servers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    server = ("--bootstrap-server", servers)
    assert main(["consume", "--topic", "copied", "--last", "4", *server]) == 0
    assert capfd.readouterr().out.split() == ["4996", "4997", "4998", "4999"]
    times = ("--since", str(BEGAN + 100), "--until", str(BEGAN + 130))
    assert main(["consume", "--topic", "copied", *times, *server]) == 0
    assert sorted(map(int, capfd.readouterr().out.split())) == [*range(100, 130)]


def test_a_topic_is_copied_exactly_once_within_the_cluster_and_to_another(
    servers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = read(servers, "copied")
    words = ["copy", "--topic", "copied", "--bootstrap-server", servers, "--create"]
    for count in ("5,000", "0"):
        assert main([*words, "--to-topic", "copied-once", "--group", "copying"]) == 0
        assert capfd.readouterr().out.startswith(f"copied {count} records")
    assert read(servers, "copied-once") == wanted
    with Cluster(brokers=1) as cluster:
        other = ("--to-bootstrap-server", cluster.bootstrap_servers)
        assert main([*words, "--group", "copying-on", *other]) == 0
        assert read(cluster.bootstrap_servers, "copied") == wanted
        back = ("--to-bootstrap-server", servers, "--to-topic", "copied-back", "--create")
        here = ("--topic", "copied", "--bootstrap-server", cluster.bootstrap_servers)
        assert main(["copy", *here, *back]) == 0
    assert read(servers, "copied-back") == wanted
