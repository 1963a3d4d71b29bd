"""`trimtab transactions` on trimtab's cluster; `tests/conformance` has Kafka's tool beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab import Admin, Cluster, Producer, TopicPartition
from trimtab.cli import main
from trimtab.cli.transactions import hangs
from trimtab.kafka.errors import TransactionError

pytestmark = pytest.mark.kip(664)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def servers(data: Path) -> Iterator[str]:
    with Cluster(brokers=2, data=data) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 2)
        yield cluster.bootstrap_servers


def ask(capsys: pytest.CaptureFixture[str], servers: str, *words: str) -> list[dict[str, Any]]:
    assert main(["transactions", *words, "--json", "--bootstrap-server", servers]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_transaction_is_found_described_and_ended(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(servers, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        offset = producer.send("t", b"v", partition=1).result(30).offset
        (listed,) = ask(capsys, servers, "list")
        assert (listed["TransactionalId"], listed["TransactionState"]) == ("x", "Ongoing")
        assert ask(capsys, servers, "list", "--transactional-id-pattern", "y.*") == []
        assert ask(capsys, servers, "list", "--duration-filter", "60000") == []
        (described,) = ask(capsys, servers, "describe", "--transactional-id", "x")
        assert described["CoordinatorId"] == listed["Coordinator"]
        assert described["TopicPartitions"] == "t-1"
        where = ("--topic", "t", "--partition", "1")
        (remembered,) = ask(capsys, servers, "describe-producers", *where)
        assert remembered["CurrentTransactionStartOffset"] == offset
        # Its coordinator will end it.
        old = ("find-hanging", "--topic", "t", "--max-transaction-timeout", "0")
        assert ask(capsys, servers, *old) == []
        force = ("forceTerminateTransaction", "--transactionalId", "x")
        assert ask(capsys, servers, *force) == [{"transactionalId": "x", "result": "terminated"}]
        (described,) = ask(capsys, servers, "describe", "--transactional-id", "x")
        assert described["TransactionState"] in ("CompleteAbort", "Empty")
        with pytest.raises(TransactionError):
            producer.commit_transaction()


def test_one_that_hangs_is_found_and_aborted(
    servers: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its producer's transaction is aborted by force in one partition, and so is over there."""
    with Producer(servers, transactional_id="y") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        offset = producer.send("t", b"v", partition=0).result(30).offset
        where = ("--topic", "t", "--partition", "0")
        words = ("abort", *where, "--start-offset", str(offset))
        assert main(["transactions", *words, "--bootstrap-server", servers]) == 1
        assert "t-0: CLUSTER_AUTHORIZATION_FAILED (31): log in" in capsys.readouterr().err
        secret = str(data / "controller" / "cluster.secret")
        told = ask(capsys, servers, *words, "--command-config", secret)
        assert told == [{"topic": "t", "partition": 0, "result": "aborted"}]
        (remembered,) = ask(capsys, servers, "describe-producers", *where)
        assert remembered["CurrentTransactionStartOffset"] is None
        assert main(["transactions", *words, "--bootstrap-server", servers]) == 1
        assert "no transaction in t-0 is open since there" in capsys.readouterr().err
        producer.abort_transaction()


def test_what_hangs_is_what_the_coordinator_will_not_end() -> None:
    from trimtab.cli.transactions import _Open
    from trimtab.client.admin import ProducerDescription, TransactionDescription

    partition = TopicPartition("t", 0)
    found = _Open(partition, ProducerDescription(7, 0, 0, 0, 0, 5))

    def described(state: str, *partitions: TopicPartition) -> TransactionDescription:
        return TransactionDescription("x", 7, 0, state, 1000, 0, partitions, 0)

    assert hangs(found, None)
    assert hangs(found, described("CompleteCommit"))
    assert hangs(found, described("Ongoing", TopicPartition("t", 1)))
    assert not hangs(found, described("Ongoing", partition))
    assert not hangs(found, described("PrepareAbort", partition))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("describe", "describe needs --transactional-id"),
        ("list --topic t", "--topic goes with"),
        ("find-hanging", "needs --topic or --broker-id"),
        ("find-hanging --broker-id 0 --partition 1", "--partition needs --topic"),
        ("abort --topic t --partition 0", "abort needs --start-offset"),
        ("abort --topic t --partition 0 --producer-id 1", "--producer-epoch"),
        ("forceTerminateTransaction", "needs --transactionalId"),
    ],
)
def test_what_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], words: str, error: str
) -> None:
    assert main(["transactions", *words.split(), "--bootstrap-server", "localhost:1"]) == 1
    assert error in capsys.readouterr().err
