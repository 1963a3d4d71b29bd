"""The log while a cluster cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import socket
from itertools import pairwise

import pytest

from trimtab.client.network.outages import OutageLog
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, Unavailable


def test_lines_come_at_once_then_ever_more_rarely_and_once_more_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trimtab.client")
    outages = OutageLog("me")
    for tenth in range(6001):  # ten attempts a second for ten minutes
        outages.failed("broker 1 (a:1)", "broker 1 (a:1): refused", 0.1, 50 + tenth / 10)
    assert caplog.messages[0] == (
        "me: broker 1 (a:1): refused; attempt 1, for 0.0 s, the next in 0.1 s at the earliest"
    )
    assert "attempt 11, for 1.0 s" in caplog.messages[1]
    times = [float(line.split(" for ")[1].split(" s")[0]) for line in caplog.messages]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    count = len(caplog.messages)
    outages.reached("broker 1 (a:1)", 650.1)
    outages.reached("broker 1 (a:1)", 650.1)
    assert caplog.messages[count:] == [
        "me: broker 1 (a:1) is reached again after 6001 failed attempts in 600.1 s"
    ]
    outages.failed("broker 1 (a:1)", "again", 0.1, 700)
    assert "attempt 1, for 0.0 s" in caplog.messages[-1]


def test_what_passes_soon_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trimtab.client")
    outages = OutageLog("me")
    outages.failed("metadata", "no leader", 0.1, 5.0, patience=1.0)
    outages.failed("metadata", "no leader", 0.1, 5.9, patience=1.0)
    outages.reached("metadata", 5.95)
    assert caplog.messages == []
    outages.failed("metadata", "no leader", 0.1, 6.0, patience=1.0)
    outages.failed("metadata", "no leader", 0.1, 7.0, patience=1.0)
    assert len(caplog.messages) == 1


def test_a_producer_says_who_cannot_be_reached_and_when_he_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trimtab.client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def scenario() -> None:
        async with AsyncProducer(f"127.0.0.1:{port}", client_id="me", max_block_ms=20_000) as made:
            sending = asyncio.create_task(made.send("t", b"v"))
            while not caplog.messages:  # noqa: ASYNC110
                await asyncio.sleep(0)
            async with Cluster(ports=port):
                await (await sending)

    asyncio.run(scenario())
    first, *others = [line for line in caplog.messages if line.startswith("me: broker -1")]
    assert f"broker -1 (127.0.0.1:{port}) cannot be reached: " in first
    assert "attempt 1, for 0.0 s, the next in 0.0" in first
    reached = f"me: broker -1 (127.0.0.1:{port}) is reached again after"
    assert any(line.startswith(reached) for line in others)


def test_a_topic_that_does_not_come_is_named_while_send_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trimtab.client")

    async def scenario() -> None:
        async with (
            Cluster(config={"auto.create.topics.enable": False}) as cluster,
            AsyncProducer(cluster.bootstrap_servers, max_block_ms=3000) as producer,
        ):
            with pytest.raises((BrokerError, Unavailable)):
                await producer.send("nowhere", b"v")

    asyncio.run(scenario())
    line = next(line for line in caplog.messages if "nowhere" in line)
    assert "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION" in line


def test_an_outage_is_a_warning_from_its_third_second_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trimtab.client")
    outages = OutageLog("me")
    for tenth in range(6001):
        outages.failed("metadata", "no leader", 0.1, 50 + tenth / 10, patience=1.0)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.INFO, *[logging.WARNING] * (len(levels) - 2)]
    assert "for 3.0 s" in caplog.messages[2]
    assert len(levels) < 13, "seldom"


def test_the_time_of_the_first_attempt_counts(caplog: pytest.LogCaptureFixture) -> None:
    OutageLog("me").failed("broker 1", "it did not accept a connection", 0.1, 20.0, since=10.0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "for 10.0 s" in caplog.text


def test_what_nobody_tries_to_reach_any_more_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages = OutageLog("me")
    outages.failed("the coordinator", "it is loading", 0.1, 10.0)
    outages.forget("the coordinator")
    outages.failed("the coordinator", "it is loading", 0.1, 900.0)
    assert caplog.records == []
