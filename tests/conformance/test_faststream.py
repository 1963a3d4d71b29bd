"""FastStream's tutorial on trimtab's cluster: services that consume in groups and publish.

FastStream runs on aiokafka, and on confluent-kafka; both are driven here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab import Admin, Cluster, TopicPartition

pytest.importorskip("faststream", reason="FastStream is not installed: see CONTRIBUTING.md")

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker as AiokafkaBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

USERS = 200
PARTITIONS = 4
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(params=[AiokafkaBroker, ConfluentBroker], ids=["aiokafka", "confluent"])
def make_broker(request: pytest.FixtureRequest, cluster: Cluster) -> Any:
    return lambda: request.param(cluster.bootstrap_servers.split(","))


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    with Admin(cluster.bootstrap_servers) as admin:
        for each in (name, f"{name}-out"):
            admin.create_topic(each, PARTITIONS, replication_factor=3)
    return name


async def run_until(application: FastStream, is_over: asyncio.Event, publish: Any) -> None:
    """Run the application, publish once it has started, and have it end once it has all."""
    application.after_startup(publish)
    running = asyncio.create_task(application.run())
    waiting = asyncio.create_task(is_over.wait())
    await asyncio.wait((running, waiting), timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
    application.exit()
    await running
    assert waiting.done(), "not all was read"


def test_a_service_reads_what_is_published_and_publishes_answers(
    make_broker: Any, topic: str
) -> None:
    """The tutorial's first service: a subscriber whose result goes to another topic."""

    async def scenario() -> None:
        broker = make_broker()
        answers: Counter[str] = Counter()
        is_over = asyncio.Event()

        async def register(user: str, user_id: int) -> str:
            return f"User: {user} - {user_id} registered"

        async def collect(answer: str) -> None:
            answers[answer] += 1
            if len(answers) == USERS:
                is_over.set()

        # The tutorial writes these calls as decorators.
        publishing = broker.publisher(f"{topic}-out")(register)
        for name, reader in ((f"{topic}-in", publishing), (f"{topic}-out", collect)):
            broker.subscriber(
                name.removesuffix("-in"), group_id=name, auto_offset_reset="earliest"
            )(reader)

        async def publish() -> None:
            for number in range(USERS):
                await broker.publish(
                    {"user": f"user{number}", "user_id": number}, topic, key=b"%d" % number
                )

        await run_until(FastStream(broker), is_over, publish)
        assert answers == {f"User: user{each} - {each} registered": 1 for each in range(USERS)}

    asyncio.run(scenario())


def test_two_services_of_a_group_share_batches_and_commit_each(
    make_broker: Any, cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        read: Counter[int] = Counter()
        is_over = asyncio.Event()
        brokers = [make_broker(), make_broker()]

        def subscribe(broker: Any) -> None:
            async def collect(numbers: list[int]) -> None:
                read.update(numbers)
                if len(read) == USERS:
                    is_over.set()

            broker.subscriber(
                topic,
                group_id=topic,
                batch=True,
                auto_offset_reset="earliest",
                ack_policy=AckPolicy.ACK,
            )(collect)

        async def publish() -> None:
            for number in range(USERS):
                await brokers[0].publish(number, topic, partition=number % PARTITIONS)

        for broker in brokers:
            subscribe(broker)
        await run_until(FastStream(*brokers), is_over, publish)
        assert set(read) == set(range(USERS))

    asyncio.run(scenario())
    with Admin(cluster.bootstrap_servers) as admin:
        committed = admin.list_group_offsets(topic)
        assert {each: at.offset for each, at in committed.items()} == {
            TopicPartition(topic, index): USERS // PARTITIONS for index in range(PARTITIONS)
        }
