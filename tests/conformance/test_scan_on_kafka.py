"""`trimtab.read` on Apache Kafka: times, aborted transactions, deleted and compacted records."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from trimtab import Admin, DataLoss, Producer, TopicScan, read

BEGAN = 1_700_000_000_000


def offsets(scan: TopicScan) -> list[int]:
    return sorted(pa.table(scan)["offset"].to_pylist())


def test_bounds_and_filters_of_times_and_offsets(apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.address
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic("scanned", 3, 1, config={"retention.ms": -1})
        for number in range(3000):
            producer.send("scanned", b"%d" % number, partition=number % 3, timestamp=BEGAN + number)
        producer.flush()
        scan = read("scanned", servers, start="2023-11-14T22:13:21Z", end=900)
        assert scan.bounds == {0: (334, 900), 1: (333, 900), 2: (333, 900)}
        assert pa.table(scan).num_rows == scan.size
        frame = scan.to_polars().filter(
            pl.col("partition").is_in([0, 2]),
            pl.col("timestamp") >= pl.lit(BEGAN + 2400).cast(pl.Datetime("ms", "UTC")),
        )
        assert frame.select(pl.len()).collect().item() == 200
        admin.delete_records({("scanned", 1): 400})
        with pytest.raises(DataLoss, match=r"scanned-1: offset 333 is gone, the first .* is 400"):
            list(scan.batches())


def test_aborted_transactions_are_left_out(apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.address
    with Admin(servers) as admin:
        admin.create_topic("scanned-paid", 1, 1)
    with Producer(servers, transactional_id="scanned") as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send("scanned-paid", b"%d" % number).result()
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
    committed = read("scanned-paid", servers, isolation_level="read_committed")
    assert offsets(committed) == [0, 4]
    assert committed.to_polars().head(2).collect()["value"].to_list() == [b"0", b"2"]


@pytest.mark.timeout(300)
def test_a_compacted_topic_is_read_to_its_end(apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.address
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 1 << 20,
        "min.cleanable.dirty.ratio": 0.01,
        "delete.retention.ms": 0,
    }
    sent = 3000
    with Admin(servers) as admin, Producer(servers, linger_ms=0, batch_size=0) as producer:
        admin.alter_configs("broker", "", {"log.cleaner.backoff.ms": 100})
        admin.create_topic("scanned-keys", 1, 1, config=config)
        for number in range(sent):
            producer.send("scanned-keys", bytes(1000), key=b"%d" % (number % 10))
        producer.flush()
    scan = read("scanned-keys", servers, columns=["offset"])
    assert scan.bounds == {0: (0, sent)}
    found = offsets(scan)
    while len(found) == sent:  # until the cleaner has come
        found = offsets(scan)
    assert found[-1] == sent - 1
    assert scan.to_polars().head(5).collect()["offset"].to_list() == found[:5]
