"""Topics created by Metadata requests (`trimtab.cluster.broker.auto_creation`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trimtab.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


def wanted(*names: str) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )


@pytest.mark.kip(578)
@pytest.mark.parametrize(
    ("config", "code", "reason"),
    [
        ({"max.broker.partitions": 0}, ErrorCode.POLICY_VIOLATION, "max.broker.partitions=0"),
        ({"default.replication.factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker"),
    ],
)
def test_a_refused_creation_is_answered_with_its_code_and_logged_once_a_minute(
    lab: Any,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, int],
    code: ErrorCode,
    reason: str,
) -> None:
    async def scenario() -> None:
        client = lab.connect()
        for _ in range(3):
            answer = await client.ask(wanted("t", "u"), 9)
            assert [topic.error_code for topic in answer.topics] == [code, code]
        assert [each.partition(" error=")[0] for each in refusals()] == [
            f"a topic that a client asked for was not created topic={name}" for name in "tu"
        ]
        assert all(f"error={code.name} reason=" in each for each in refusals())
        assert all(reason in each for each in refusals())
        await asyncio.sleep(61)
        await client.ask(wanted("u"), 9)
        assert len(refusals()) == 3

    def refusals() -> list[str]:
        return [each.getMessage() for each in caplog.records if "asked for" in each.getMessage()]

    lab.run(scenario, config=config)


@pytest.mark.run(config={"max.partitions": 0})
async def test_a_storm_of_refused_creations_does_not_fill_the_log(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = lab.connect()
    for batch in range(3):
        await client.ask(wanted(*(f"t-{batch}-{n}" for n in range(60))), 9)
    lines = [each for each in caplog.records if "asked for" in each.getMessage()]
    assert len(lines) == 100


@pytest.mark.run(brokers=3)
@pytest.mark.parametrize("version", [0, 4, 9, 13])
async def test_the_first_answer_is_that_the_topic_is_unknown(lab: Any, version: int) -> None:
    """As Apache Kafka's, on which kafka-go relies."""
    client = lab.connect(1)
    (first,) = (await client.ask(wanted("t"), version)).topics
    assert first.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (first.name, first.partitions) == ("t", [])
    (second,) = (await client.ask(wanted("t"), version)).topics
    assert (second.error_code, len(second.partitions)) == (ErrorCode.NONE, 1)
    assert second.partitions[0].leader_id >= 0


@pytest.mark.run(brokers=3)
async def test_concurrent_requests_for_a_missing_topic_never_get_topic_already_exists(
    lab: Any,
) -> None:
    clients = [lab.connect(number % 3) for number in range(12)]
    answers = await asyncio.gather(*(client.ask(wanted("t"), 9) for client in clients))
    codes = {answer.topics[0].error_code for answer in answers}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(lab.brokers[0].image.topics) == 1


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT])
async def test_a_topic_not_yet_in_the_image_is_unknown(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    async def ask(request: CreateTopicsRequest, timeout_s: float) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=each.name, error_code=code) for each in request.topics
            ]
        )

    monkeypatch.setattr(lab.brokers[0].services.controller, "ask", ask)
    (topic,) = (await lab.connect().ask(wanted("t"), 9)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "not created" not in caplog.text


@pytest.mark.kip(578)
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.run(config={"max.partitions": 0})
async def test_an_internal_topic_is_created_automatically(lab: Any, name: str) -> None:
    (topic,) = (await lab.connect().ask(wanted(name), 9)).topics
    assert topic.is_internal
    assert name in lab.brokers[0].image.topics


@pytest.mark.run(config={"num.partitions": 50})
async def test_a_request_for_too_many_topics_creates_none_of_them(lab: Any) -> None:
    """As CreateTopics: 10,000 partitions are created at a time."""
    names = [f"t-{number}" for number in range(201)]
    answer = await lab.connect().ask(wanted(*names), 9)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    assert not lab.brokers[0].image.topics
