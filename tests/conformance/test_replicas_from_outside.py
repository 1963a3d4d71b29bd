"""What the admin client sees of replicas from outside is the same on Apache Kafka and on trimtab's
cluster: a follower is stopped, and lags when it goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from lab.processes import Trimtab, nodes_of
from tests.kafka import needs_kafka, three_members
from trimtab import Admin, Producer, TopicPartition
from trimtab.client.admin import QuorumReplica
from trimtab.kafka.errors import BrokerError, ErrorCode

FOLLOWER = 2
PATIENCE_S = 60.0
LAGS = TopicPartition("lags", 0)
EVERYWHERE = {broker: [LAGS] for broker in range(3)}
LARGE = 900_000
"""Bytes of a value: a follower that is throttled gets one or two of them, and then none."""


class Side(NamedTuple):
    """A cluster, the process of its broker 2, and the ids in its quorum."""

    servers: str
    follower: int
    voters: list[int]
    observers: list[int]


@contextmanager
def apache_kafka() -> Iterator[Side]:
    with three_members(KafkaMember) as members:
        servers = f"{members[0].address},{members[1].address}"
        (follower,) = members[FOLLOWER].pids
        yield Side(servers, follower, [0], [1, 2])


@contextmanager
def trimtab() -> Iterator[Side]:
    with Trimtab(brokers=3) as cluster:
        follower = nodes_of(cluster.supervisor_pid)[f"broker-{FOLLOWER}"]
        servers = ",".join(cluster.address.split(",")[:FOLLOWER])
        yield Side(servers, follower, [3000], [0, 1, 2])


@pytest.fixture(
    scope="module",
    params=[pytest.param(apache_kafka, marks=needs_kafka), trimtab],
    ids=["kafka", "trimtab"],
)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    with request.param() as side:
        yield side


@pytest.fixture
def admin(side: Side) -> Iterator[Admin]:
    with Admin(side.servers) as admin:
        yield admin


def await_that(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end


def ends_of(admin: Admin, timeout_ms: float | None = None) -> list[int | str]:
    """Where the log ends at each broker, or the name of its error."""
    found = admin.list_replica_ends(EVERYWHERE, timeout_ms)
    assert list(found) == [0, 1, 2]
    ends = [each[LAGS] for each in found.values()]
    return [end.code.name if isinstance(end, BrokerError) else end for end in ends]


def observer(admin: Admin, broker: int) -> QuorumReplica:
    return next(each for each in admin.describe_quorum().observers if each.id == broker)


def fetched_ms(admin: Admin, broker: int) -> int:
    found = observer(admin, broker).last_fetch_ms
    assert found is not None
    return found


def test_a_follower_that_is_stopped_and_throttled_lags(side: Side, admin: Admin) -> None:
    admin.create_topic("lags", assignment={0: [0, 1, 2]})
    with Producer(side.servers, acks="all") as producer:
        producer.send("lags", b"first").result()
    await_that(lambda: ends_of(admin) == [1, 1, 1])

    os.kill(side.follower, signal.SIGSTOP)
    try:
        with Producer(side.servers, acks=1, max_request_size=2 * LARGE) as producer:
            for _ in range(6):
                producer.send("lags", bytes(LARGE), partition=0).result()
        await_that(lambda: ends_of(admin, 1000)[:2] == [7, 7])
        began = time.monotonic()
        assert ends_of(admin, 1000)[FOLLOWER] in ("REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE")
        assert time.monotonic() - began < 5
        # It fetches no metadata any more, which shows long before it is not alive or not in sync.
        await_that(lambda: fetched_ms(admin, 1) - fetched_ms(admin, FOLLOWER) > 3000)
        admin.alter_configs("topic", "lags", {"follower.replication.throttled.replicas": "*"})
        admin.alter_configs("broker", "", {"follower.replication.throttled.rate": 1})
    finally:
        os.kill(side.follower, signal.SIGCONT)

    await_that(lambda: isinstance(ends_of(admin, 1000)[FOLLOWER], int))
    ends = ends_of(admin)
    assert ends[:2] == [7, 7]
    assert ends[FOLLOWER] in range(1, 7)
    admin.alter_configs("broker", "", {"follower.replication.throttled.rate": None})
    await_that(lambda: ends_of(admin) == [7, 7, 7])
    await_that(lambda: abs(fetched_ms(admin, 1) - fetched_ms(admin, FOLLOWER)) < 3000)


def test_the_quorum_tells_how_far_its_nodes_are(side: Side, admin: Admin) -> None:
    began_ms = int(time.time() * 1000)
    before = admin.describe_quorum()
    assert before.leader_id in side.voters
    assert before.leader_epoch >= 1
    assert [each.id for each in before.voters] == side.voters
    assert sorted(each.id for each in before.observers) == side.observers
    (leader,) = (each for each in before.voters if each.id == before.leader_id)
    assert leader.log_end is not None
    assert leader.log_end >= before.high_watermark
    for told_ms in (leader.last_fetch_ms, leader.last_caught_up_ms):
        assert told_ms is not None
        assert abs(told_ms - began_ms) < 60_000
    admin.create_topic("noted", partitions=3)
    high_watermark = admin.describe_quorum().high_watermark
    assert high_watermark > before.high_watermark
    for broker in side.observers:
        await_that(lambda: (observer(admin, broker).log_end or 0) >= high_watermark)  # noqa: B023
        known = observer(admin, broker)
        assert known.last_fetch_ms is not None
        assert known.last_caught_up_ms is not None
        assert 0 <= known.last_fetch_ms - known.last_caught_up_ms < 10_000


def test_each_error_of_a_replica_has_the_same_code(side: Side, admin: Admin) -> None:
    admin.create_topic("elsewhere", assignment={0: [1]})
    elsewhere, nowhere = TopicPartition("elsewhere", 0), TopicPartition("elsewhere", 7)
    await_that(lambda: admin.list_replica_ends({1: [elsewhere]}) == {1: {elsewhere: 0}})
    found = admin.list_replica_ends({0: [elsewhere, nowhere], 9: [elsewhere]})
    codes = [
        end.code if isinstance(end, BrokerError) else end
        for ends in found.values()
        for end in ends.values()
    ]
    assert codes == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.BROKER_NOT_AVAILABLE,
    ]


def test_no_directory_is_cordoned_unless_it_is_told(side: Side, admin: Admin) -> None:
    ((directory,), _, _) = admin.describe_log_dirs([0, 1, 2]).values()
    assert not directory.is_cordoned
    if side.voters == [0]:  # Apache Kafka
        admin.alter_configs("broker", 0, {"cordoned.log.dirs": directory.path})
        await_that(lambda: admin.describe_log_dirs([0])[0][0].is_cordoned)
        assert not admin.describe_log_dirs([1])[1][0].is_cordoned
        admin.alter_configs("broker", 0, {"cordoned.log.dirs": None})
        await_that(lambda: not admin.describe_log_dirs([0])[0][0].is_cordoned)
