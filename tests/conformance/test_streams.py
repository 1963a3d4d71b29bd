"""The stream reader on trimtab's cluster and on Apache Kafka: transactions, deleted records, sizes
that it scans or probes.

Without Spark: `Query` drives the reader as Spark does. Tests on Apache Kafka are skipped without
Java.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from tests.unit.spark.stream.test_reader import Query, reader, size_of
from trimtab import Admin, Cluster, Producer, TopicPartition
from trimtab.kafka.errors import DataLoss

LIMIT = 20_000
DELETED = "streams-deleted"


@pytest.fixture(scope="module", params=["trimtab", "kafka"])
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "trimtab":
        with Cluster() as cluster:
            yield cluster.bootstrap_servers
        return
    apache_kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
    yield apache_kafka.address


def run_all(query: Query) -> None:
    try:
        query.reader.prepareForTriggerAvailableNow()
        while query.step():
            pass
    finally:
        query.reader.stop()


@pytest.mark.parametrize("source", ["auto", "probe"])
def test_only_what_is_committed_is_read_and_once(kafka: str, source: str) -> None:
    """Also markers and aborted records count as bytes; an open transaction ends the partition."""
    topic = f"streams-{source}"
    with Admin(kafka) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(kafka, transactional_id=topic, linger_ms=0, batch_size=1000) as producer:
        producer.init_transactions()
        committed, offset = [], 0
        for number in range(12):
            producer.begin_transaction()
            for _ in range(10):
                producer.send(topic, bytes(900))
            if number % 3 == 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed += [(0, offset + n) for n in range(10)]
            offset += 11  # and the marker
        producer.begin_transaction()
        producer.send(topic, b"open").result(30)
        options = {"maxBytesPerTrigger": str(LIMIT), "sizeSource": source}
        isolated = {"kafka.isolation.level": "read_committed"} | options
        query = Query(reader(kafka, subscribe=topic, **isolated))
        run_all(query)
        assert query.read == committed
        assert max(map(size_of, query.batches)) <= LIMIT * (1 if source == "auto" else 2)
        told = {each["sizeSource"] for each in query.states}
        assert told == {"scan" if source == "auto" else source}
        counted = sum(each["batchBytes"] for each in query.states)
        error = 0.5 if source == "probe" else 0.02
        assert abs(counted / (120 * 970 + 12 * 78) - 1) < error
        uncommitted = Query(reader(kafka, subscribe=topic, **options))
        run_all(uncommitted)
        assert len(uncommitted.read) == 12 * 10 + 1
        producer.abort_transaction()


def test_records_that_were_deleted_before_they_were_read(kafka: str) -> None:
    with Admin(kafka) as admin:
        admin.create_topic(DELETED, partitions=1)
    with Producer(kafka, linger_ms=0, batch_size=1000) as producer:
        for _ in range(60):
            producer.send(DELETED, bytes(900))
    options = {"maxBytesPerTrigger": str(LIMIT)}
    careful = Query(reader(kafka, subscribe=DELETED, **options))
    assert careful.step()
    with Admin(kafka) as admin:
        admin.delete_records({TopicPartition(DELETED, 0): 50})
    stood = careful.start
    with pytest.raises(DataLoss, match="the first one left is 50"):
        run_all(careful)
    bold = Query(reader(kafka, subscribe=DELETED, failOnDataLoss="false", **options), stood)
    run_all(bold)
    assert bold.read == [(0, n) for n in range(50, 60)]
