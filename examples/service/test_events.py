"""The service's tests: `python -m pytest`. The fixtures that begin with kafka are trimtab's."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from fastapi.testclient import TestClient

from events import make_app
from trimtab import Cluster
from trimtab.pytest.reading import AssertProduces, ReadRecords
from trimtab.pytest.virtual import VirtualKafka

LOGIN = {"user": "ann", "action": "login"}


def test_an_event_is_stored_under_its_user(
    kafka_cluster: Cluster, kafka_topic: str, kafka_records: ReadRecords
) -> None:
    with TestClient(make_app(kafka_cluster.bootstrap_servers, kafka_topic)) as client:
        answer = client.post("/events", json=LOGIN)
    assert (answer.status_code, answer.json()) == (201, {"partition": 0, "offset": 0})
    (record,) = kafka_records(kafka_topic)
    assert (record.key, json.loads(record.value or b"")) == (b"ann", LOGIN)


@pytest.mark.kafka_topic(config={"max.message.bytes": 1000})
def test_what_cannot_be_stored_is_refused(
    kafka_cluster: Cluster, kafka_topic: str, assert_produces: AssertProduces
) -> None:
    with (
        TestClient(make_app(kafka_cluster.bootstrap_servers, kafka_topic)) as client,
        assert_produces(kafka_topic, count=0),
    ):
        assert client.post("/events", json={"user": "ann"}).status_code == 422
        assert client.post("/events", json={**LOGIN, "action": "x" * 2000}).status_code == 413


@pytest.mark.virtual_time(brokers=1)  # the time-outs pass at once
async def test_without_kafka_the_answer_is_to_try_again(virtual_kafka: VirtualKafka) -> None:
    app = make_app(virtual_kafka.bootstrap_servers)
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        assert (await client.get("/health")).status_code == 200
        virtual_kafka.kill(broker=0)
        answer = await client.post("/events", json=LOGIN)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await client.get("/health")).status_code == 503
        await virtual_kafka.start(broker=0)
        assert (await client.get("/health")).status_code == 200


@pytest.mark.virtual_time(brokers=1)
async def test_more_events_than_there_is_room_for_are_refused(virtual_kafka: VirtualKafka) -> None:
    app = make_app(virtual_kafka.bootstrap_servers, room=64 << 10)
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        assert (await client.post("/events", json=LOGIN)).status_code == 201
        virtual_kafka.slow(broker=0, produce_ms=1500)
        large = {**LOGIN, "action": "x" * 10_000}
        answers = await asyncio.gather(*(client.post("/events", json=large) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {201, 503}
        virtual_kafka.slow(broker=0, produce_ms=0)
        assert (await client.post("/events", json=LOGIN)).status_code == 201
