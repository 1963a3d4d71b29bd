"""Transactions that one process prepares and another ends, on our cluster and on Apache Kafka.

Each test runs with and without a transaction timeout (KIP-939, which Apache Kafka 4.3 marks as
unstable), and there with both protocols. Those tests are skipped without Java; the first run
fetches Apache Kafka's jars.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.benchmarks.exactly_once import TwoPhaseKafka, wait_for_markers
from tests.kafka import transaction_version
from trimtab import Admin, Cluster, Consumer, ErrorCode, Producer, TopicPartition
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, TransactionError


@pytest.fixture(
    scope="module", params=[None, 2, 1], ids=["trimtab", "kafka-version-2", "kafka-version-1"]
)
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param is None:
        with Cluster(config={"transaction.two.phase.commit.enable": True}) as cluster:
            yield cluster.bootstrap_servers
        return
    two_phase_kafka: TwoPhaseKafka = request.getfixturevalue("two_phase_kafka")
    with transaction_version(two_phase_kafka, request.param):
        yield two_phase_kafka.address


@pytest.fixture(params=[False, True], ids=["limited", "endless"])
def endless(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    """Also the prefix of the test's transactional ids."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    with Admin(servers) as admin:
        admin.create_topic(name, partitions=1)
    return name


def transactional(servers: str, name: str, endless: bool = False, **options: Any) -> Producer:
    return Producer(
        servers,
        transactional_id=name,
        transaction_two_phase_commit_enable=endless,
        **options,
    )


def prepare(producer: Producer, topic: str, *values: bytes) -> PreparedTransaction:
    producer.begin_transaction(two_phase=True)
    for value in values:
        producer.send(topic, value, partition=0)
    return producer.prepare_transaction()


def committed(servers: str, topic: str) -> list[bytes | None]:
    partition = TopicPartition(topic, 0)
    with (
        Admin(servers) as admin,
        Consumer(
            servers, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer,
    ):
        wait_for_markers(admin)
        end = admin.list_offsets([partition], isolation="read_committed")[partition].offset
        consumer.assign([partition])
        values: list[bytes | None] = []
        while consumer.position(partition) < end:
            values += [record.value for record in consumer.poll(1000)]
    return values


PREPARES = """
import json, sys
from trimtab import Producer
servers, topic, endless = json.loads(sys.argv[1])
producer = Producer(
    servers, transactional_id=topic + "/0", transaction_two_phase_commit_enable=endless
)
producer.init_transactions()
producer.begin_transaction(two_phase=True)
for number in range(100):
    producer.send(topic, b"%03d" % number, partition=0)
print(producer.prepare_transaction(), flush=True)
sys.stdin.read()
"""


@pytest.mark.kip(939)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_another_process_may_end_a_prepared_transaction_repeatedly(
    servers: str, topic: str, endless: bool, commit: bool
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", PREPARES, json.dumps([servers, topic, endless])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert killed.stdout is not None
        prepared = PreparedTransaction.parse(killed.stdout.readline().strip())
    finally:
        killed.kill()
        killed.communicate()
    assert committed(servers, topic) == []
    for _ in range(2):
        with Producer(servers) as other:
            for _ in range(2):
                other.complete_transaction(prepared, commit)
            with pytest.raises(BrokerError, match="the opposite decision") as refused:
                other.complete_transaction(prepared, not commit)
            assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    expected = [b"%03d" % number for number in range(100)] if commit else []
    assert committed(servers, topic) == expected


def test_a_producer_continues_after_its_prepared_transaction(
    servers: str, topic: str, endless: bool
) -> None:
    with transactional(servers, topic, endless) as producer:
        producer.init_transactions()
        for number in range(6):
            prepared = prepare(producer, topic, b"%d" % number)
            producer.complete_transaction(prepared, number % 3 != 1)
        if not endless:  # ordinary transactions may follow, with the cluster's own protocol
            with producer.transaction():
                producer.send(topic, b"6", partition=0)
    ordinary = [] if endless else [b"6"]
    assert committed(servers, topic) == [b"0", b"2", b"3", b"5", *ordinary]


@pytest.mark.kip(939)
def test_only_without_a_timeout_a_prepared_transaction_stays_open(servers: str, topic: str) -> None:
    with (
        transactional(servers, f"{topic}/limited", transaction_timeout_ms=300) as limited,
        transactional(servers, f"{topic}/endless", endless=True) as endless,
        Admin(servers) as admin,
        Producer(servers) as other,
    ):
        for producer in (endless, limited):
            producer.init_transactions()
        kept, lost = (prepare(each, topic, b"1") for each in (endless, limited))
        deadline = time.monotonic() + 60
        name = lost.transactional_id
        while admin.describe_transactions([name])[name].state != "CompleteAbort":
            assert time.monotonic() < deadline
        with pytest.raises(BrokerError, match=r"transaction\.timeout\.ms") as refused:
            other.complete_transaction(lost, True)
        assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        described = admin.describe_transactions([kept.transactional_id])[kept.transactional_id]
        assert (described.state, described.epoch) == ("Ongoing", kept.epoch)
        other.complete_transaction(kept, True)
    assert committed(servers, topic) == [b"1"]


@pytest.mark.kip(939)
def test_the_next_producer_keeps_what_is_prepared_or_is_told_that_brokers_do_not(
    servers: str, topic: str, endless: bool, request: pytest.FixtureRequest
) -> None:
    with transactional(servers, topic, endless) as old, transactional(servers, topic) as new:
        old.init_transactions()
        stored = str(prepare(old, topic, b"1"))
        if request.node.callspec.params["servers"] is not None:  # Apache Kafka 4.3
            with pytest.raises(BrokerError, match="without keep_prepared"):
                new.init_transactions(keep_prepared=True)
            new.complete_transaction(PreparedTransaction.parse(stored), True)
            new.init_transactions()
        else:
            new.init_transactions(keep_prepared=True)
            kept = new.prepared()
            assert str(kept) == stored
            new.commit_transaction()
        assert new.prepared() is None
        with pytest.raises((BrokerError, TransactionError)):
            old.complete_transaction(PreparedTransaction.parse(stored), False)
    assert committed(servers, topic) == [b"1"]


def test_orphans_are_found_by_their_prefix_and_aborted(
    servers: str, topic: str, endless: bool
) -> None:
    names = [f"{topic}/{number}" for number in range(3)]
    stranger = f"{topic}-other"
    left = {}
    for name in (*names, stranger):
        with transactional(servers, name, endless) as producer:
            producer.init_transactions()
            left[name] = prepare(producer, topic, name.encode())
    with Admin(servers) as admin, Producer(servers) as other:
        other.complete_transaction(left[names[2]], True)
        listed = admin.list_transactions(f"{topic}/", states=["Ongoing"])
        assert [each.transactional_id for each in listed] == names[:2]
        described = admin.describe_transactions([*names, "nobody's"])
        assert sorted(described) == names
        assert described[names[0]].partitions == (TopicPartition(topic, 0),)
        assert described[names[0]].epoch == left[names[0]].epoch
        fenced = admin.fence_producers(each.transactional_id for each in listed)
        assert fenced[names[0]] > ProducerIdentity(*left[names[0]][:3])
        assert admin.list_transactions(f"{topic}/", states=["Ongoing"]) == []
        with pytest.raises(BrokerError, match="is not open any more"):
            other.complete_transaction(left[names[0]], True)
        other.complete_transaction(left[stranger], True)
        admin.fence_producers(names)  # does not affect transactions that have ended
    assert committed(servers, topic) == [names[2].encode(), stranger.encode()]


def test_a_producer_that_resumes_an_id_is_fenced_by_a_later_one(
    servers: str, topic: str, endless: bool
) -> None:
    with transactional(servers, topic, endless) as first:
        old = first.init_transactions()
    with (
        transactional(servers, topic, endless) as same,
        transactional(servers, topic, endless) as zombie,
        transactional(servers, topic, endless) as newer,
        transactional(servers, topic, endless) as late,
    ):
        same.resume_transactions(old)
        same.complete_transaction(prepare(same, topic, b"1"), True)
        new = newer.init_transactions()
        prepared = prepare(newer, topic, b"2")
        zombie.resume_transactions(old)
        with pytest.raises(TransactionError, match="PRODUCER_FENCED"):
            prepare(zombie, topic, b"3")
        newer.complete_transaction(prepared, True)
        with pytest.raises(BrokerError, match="PRODUCER_FENCED"):
            late.init_transactions(after=old)
        assert late.init_transactions(after=new).epoch == new.epoch + 1
    assert committed(servers, topic) == [b"1", b"2"]


def test_of_two_producers_that_resume_an_id_one_stores_its_first_record(
    servers: str, topic: str
) -> None:
    """`trimtab.spark.write.exactly_once` uses this to claim a transactional id."""
    with transactional(servers, topic) as first:
        identity = first.init_transactions()
    with transactional(servers, topic) as one, transactional(servers, topic) as two:
        offsets = []
        for number, producer in enumerate((one, two)):
            producer.resume_transactions(identity)
            producer.begin_transaction(two_phase=True)
            claim = producer.send(topic, b"%d" % number, partition=0)
            offsets.append(claim.result(30).offset)
        assert offsets[0] == offsets[1]
        one.commit_transaction()
    assert committed(servers, topic) == [b"0"]
