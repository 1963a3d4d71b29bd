"""The topics of coordinators: created once, with as many replicas as there are brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator_topic import (
    GROUPS_TOPIC,
    TRANSACTIONS_TOPIC,
    CoordinatorTopic,
)
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode


class Controller:
    """Answers CreateTopics with this code, or is lost."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.requests: list[Any] = []

    async def ask(self, request: Any, timeout_s: float) -> Any:
        self.requests.append(request)
        if self.code is None:
            raise PeerLost("the controller has gone")
        (topic,) = request.topics
        result = SimpleNamespace(name=topic.name, error_code=self.code, error_message="why")
        return SimpleNamespace(topics=[result])


def create(
    code: int | None, advances: int = 0, name: str = GROUPS_TOPIC, **options: Any
) -> tuple[Any, int]:
    """Create the topic, which is there after so many advances of the metadata; returns the request
    and how often the metadata were waited for."""
    controller = Controller(code)
    waits = 0

    async def advance() -> None:
        nonlocal waits
        waits += 1

    async def run() -> None:
        view = ClusterView(0, "c", options)
        topic = CoordinatorTopic(name, view, cast(Any, controller), advance)
        assert not topic.exists
        assert topic.find_leader("g") is None
        await topic.create(lambda: waits >= advances)

    asyncio.run(run())
    (request,) = controller.requests
    return request.topics[0], waits


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS])
def test_who_creates_it_waits_until_its_leaders_are_known(code: ErrorCode) -> None:
    topic, waits = create(code, 3, GROUPS_TOPIC, **{"offsets.topic.num.partitions": 7})
    assert (topic.name, topic.num_partitions, waits) == ("__consumer_offsets", 7, 3)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REPLICATION_FACTOR, None])
def test_nobody_waits_for_a_topic_that_is_not_created(
    code: ErrorCode | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, waits = create(code, advances=3)
    assert waits == 0
    assert "was not created" in caplog.text


def test_a_number_of_replicas_that_is_set_is_kept() -> None:
    replicas: dict[str, Any] = {"offsets.topic.replication.factor": 2}
    topic, _ = create(ErrorCode.NONE, **replicas)
    assert topic.replication_factor == 2


@pytest.mark.kip(98)
def test_the_topic_of_transactions_is_created_as_kafka_configures_it() -> None:
    options: dict[str, Any] = {
        "transaction.state.log.num.partitions": 7,
        "transaction.state.log.replication.factor": 5,
        "transaction.state.log.min.isr": 4,
    }
    topic, _ = create(ErrorCode.NONE, name=TRANSACTIONS_TOPIC, **options)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (
        "__transaction_state",
        7,
        5,
    )
    configs = {each.name: each.value for each in topic.configs}
    assert configs["min.insync.replicas"] == "4"
    assert (configs["cleanup.policy"], configs["unclean.leader.election.enable"]) == (
        "compact",
        "false",
    )
