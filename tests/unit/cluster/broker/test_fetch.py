"""Fetch: limits, order, long polls and errors, as in KIP-74 and Kafka's brokers.

Long polls wait in `trimtab.cluster.broker.purgatory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.cluster.broker.test_fetch_session import (
    FOLLOWER,
    SIZE,
    FakeBroker,
    names,
    request,
    told,
    virtual,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.batch_cy import read_headers, read_records
from trimtab.kafka.wire.messages import APIS_BY_REQUEST
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

BIG = 1 << 20


def fetch(
    wanted: Sequence[tuple[str, int, int, int]],
    max_bytes: int = BIG,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    topic_ids: dict[str, bytes] | None = None,
    epoch: int = -1,
    **options: Any,
) -> FetchRequest:
    """A request for (topic, partition, offset, partition max bytes), each a topic entry."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=(topic_ids or {}).get(topic, bytes(16)),
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=limit,
                        current_leader_epoch=epoch,
                    )
                ],
            )
            for topic, partition, offset, limit in wanted
        ],
        **options,
    )


def parts(response: Any) -> list[Any]:
    return [partition for topic in response.responses for partition in topic.partitions]


def sizes(response: Any) -> list[int]:
    return [len(part.records) for part in parts(response)]


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_returns_what_was_produced(lab: Any, version: int) -> None:
    topic_id = await lab.create_topic("t")
    await lab.append("t", b"a", b"b")
    await lab.append("t", b"c")
    request = fetch([("t", 0, 1, BIG)], topic_ids={"t": topic_id}, isolation_level=1)
    response = await lab.connect().ask(request, version)
    (part,) = parts(response)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
    assert part.aborted_transactions == []
    # The whole batch that holds offset 1, and the next one.
    assert [header.base_offset for header in read_headers(part.records)] == [0, 2]
    assert [each.value for each in read_records("t", 0, part.records, 1)] == [b"b", b"c"]
    topic = response.responses[0]
    assert (topic.topic, topic.topic_id) == (("t", bytes(16)) if version < 13 else ("", topic_id))


@pytest.mark.kip(74)
async def test_byte_limits(lab: Any) -> None:
    """The table of edge cases: batches of 200 bytes or so, in three topics."""
    size = 0
    for topic in "abc":
        await lab.create_topic(topic)
        for _ in range(3):
            size = await lab.append(topic, b"x" * 100)
    await lab.create_topic("empty")
    client = lab.connect()

    async def read(max_bytes: int, *limits: tuple[str, int], offset: int = 0) -> list[int]:
        wanted = [(topic, 0, offset, limit) for topic, limit in limits]
        counts = sizes(await client.ask(fetch(wanted, max_bytes=max_bytes), 12))
        assert all(count % size == 0 for count in counts)  # whole batches only
        return [count // size for count in counts]

    everything = ("a", BIG), ("b", BIG), ("c", BIG)
    assert await read(BIG, *everything) == [3, 3, 3]
    # The response's limit is used up in the order of the request.
    assert await read(4 * size, *everything) == [3, 1, 0]
    assert await read(4 * size, *reversed(everything)) == [3, 1, 0]
    # A later partition with smaller batches could use the rest; here none has any.
    assert await read(4 * size + size // 2, *everything) == [3, 1, 0]
    assert await read(BIG, ("a", 2 * size), ("b", size), ("c", size - 1)) == [2, 1, 0]
    # At least one batch, from the first partition that has one, however small the limits.
    assert await read(1, *everything) == [1, 0, 0]
    assert await read(0, *everything) == [1, 0, 0]
    assert await read(BIG, ("a", 0), ("b", 0), ("c", size)) == [1, 0, 1]
    assert await read(1, ("empty", BIG), *everything, offset=0) == [0, 1, 0, 0]
    assert await read(size, ("a", 1), ("b", BIG)) == [1, 0]
    # A partition without records does not use up the exemption.
    assert sizes(await client.ask(fetch([("a", 0, 3, BIG), ("b", 0, 0, 1)], max_bytes=1), 12)) == [
        0,
        size,
    ]


@pytest.mark.run(config={"fetch.max.bytes": 1024})
async def test_the_broker_bounds_what_requests_ask_for(lab: Any) -> None:
    await lab.create_topic("t")
    size = 0
    for _ in range(4):
        size = await lab.append("t", b"x" * 500)
    response = await lab.connect().ask(fetch([("t", 0, 0, BIG)]), 12)
    assert sizes(response) == [1024 // size * size]


async def test_errors_come_per_partition_and_the_unknown_ones_last(lab: Any) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"v")
    request = fetch(
        [
            ("nowhere", 0, 0, BIG),
            ("t", 0, 2, BIG),
            ("t", 5, 0, BIG),
            ("t", 0, -1, BIG),
        ]
    )
    response = await lab.connect().ask(request, 12)
    assert [(part.partition_index, part.error_code) for part in parts(response)] == [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert {part.high_watermark for part in parts(response)} == {-1}
    assert sizes(response) == [0, 0, 0]
    unknown = await lab.connect().ask(fetch([("t", 0, 0, BIG)]), 13)
    assert parts(unknown)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_partition_listed_twice_counts_once(lab: Any) -> None:
    for topic in "ab":
        await lab.create_topic(topic)
        await lab.append(topic, b"v", b"w")
    request = fetch([("a", 0, 9, 1), ("b", 0, 0, BIG), ("a", 0, 0, BIG)], max_bytes=1)
    response = await lab.connect().ask(request, 12)
    assert [topic.topic for topic in response.responses if topic.partitions] == ["a", "b"]
    assert [bool(size) for size in sizes(response)] == [True, False]


@pytest.mark.kip(320)
async def test_leader_epochs_are_checked(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    codes = [
        parts(await client.ask(fetch([("t", 0, 0, BIG)], epoch=epoch), 12))[0].error_code
        for epoch in (-1, 0, 1)
    ]
    assert codes == [0, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]
    lab.brokers[0].partitions["t", 0].registration = (
        lab.brokers[0].partitions["t", 0].registration._replace(leader_epoch=2)
    )
    fenced = await client.ask(fetch([("t", 0, 0, BIG)], epoch=1), 12)
    assert parts(fenced)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.kip(951)
@pytest.mark.run(brokers=2)
async def test_a_broker_that_does_not_lead_names_the_leader(lab: Any) -> None:
    topic_id = await lab.create_topic("t")
    leader = lab.controller.controller.image.topics["t"].partitions[0].leader
    client = lab.connect(1 - leader)
    request = fetch([("t", 0, 0, BIG)], topic_ids={"t": topic_id}, max_wait_ms=1000)
    for version in (12, 16):
        response = await client.ask(request, version)
        assert parts(response)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        endpoints = [(each.node_id, each.port) for each in response.node_endpoints]
        assert endpoints == ([(leader, 9092 + leader)] if version >= 16 else [])
    assert parts(response)[0].current_leader.leader_id == leader


async def test_an_empty_fetch_waits_until_its_time_is_up(lab: Any) -> None:
    await lab.create_topic("t")
    loop = asyncio.get_running_loop()
    for max_wait_ms, min_bytes, expected in ((500, 1, 0.5), (0, 1, 0.0), (500, 0, 0.0)):
        began = loop.time()
        request = fetch([("t", 0, 0, BIG)], max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        assert sizes(await lab.connect().ask(request, 12)) == [0]
        assert loop.time() - began == pytest.approx(expected, abs=0.005)
    assert not lab.brokers[0].partitions["t", 0].watchers


async def test_a_waiting_fetch_is_answered_when_min_bytes_are_available(lab: Any) -> None:
    for topic in "ab":
        await lab.create_topic(topic)
    size = await lab.append("a", b"x" * 100)
    client = lab.connect()
    request = fetch(
        [("a", 0, 0, BIG), ("b", 0, 0, BIG)], min_bytes=2 * size + 1, max_wait_ms=60_000
    )
    client.send(request, 12)
    await lab.append("b", b"x" * 100)
    await asyncio.sleep(1)
    assert not client.responses
    await lab.append("a", b"x" * 100)
    await asyncio.sleep(0.001)
    assert sizes(client.read(request, 12)) == [2 * size, size]


async def test_a_full_partition_does_not_end_the_wait_of_others(lab: Any) -> None:
    """Bytes beyond `partition_max_bytes` do not count towards `min_bytes`."""
    for topic in "ab":
        await lab.create_topic(topic)
    client = lab.connect()
    size = await lab.append("a", b"x" * 100)
    request = fetch([("a", 0, 0, size), ("b", 0, 0, BIG)], min_bytes=2 * size, max_wait_ms=60_000)
    client.send(request, 12)
    for _ in range(5):
        await lab.append("a", b"x" * 100)
    await asyncio.sleep(1)
    assert not client.responses
    await lab.append("b", b"x" * 100)
    await asyncio.sleep(0.001)
    assert sizes(client.read(request, 12)) == [size, size]


async def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(lab: Any) -> None:
    topic_id = await lab.create_topic("t")
    client = lab.connect()
    request = fetch([("t", 0, 0, BIG)], min_bytes=1, max_wait_ms=60_000, topic_ids={"t": topic_id})
    client.send(request, 13)
    deletion = DeleteTopicsRequest(
        topics=[DeleteTopicState(name="t", topic_id=bytes(16))], topic_names=[], timeout_ms=1000
    )
    response = await lab.connect().ask(deletion, 6)
    assert response.responses[0].error_code == 0
    await asyncio.sleep(0.001)
    assert parts(client.read(request, 13))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_lost_connection_cancels_its_waiting_fetch(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    client.send(fetch([("t", 0, 0, BIG)], min_bytes=1, max_wait_ms=60_000), 12)
    watchers = lab.brokers[0].partitions["t", 0].watchers
    assert len(watchers) == 1
    client.transport.close()
    await asyncio.sleep(0.001)
    assert not watchers
    await lab.append("t", b"v")
    assert not client.responses


# -- of a session, on partitions that are lists


@virtual
async def test_a_session_begins_when_its_first_fetch_has_waited() -> None:
    fake = FakeBroker()
    fake.add("a")
    answer = fake.ask({"a": 0}, wait_ms=1000)
    assert len(fake.fetch_sessions) == 0
    fake.partitions["a"].append()
    assert not answer.done()
    response = await answer
    assert names(response) == "A"
    assert len(fake.fetch_sessions) == 1
    again = fake.send(request({"a": 1}, (), response.session_id, 1))
    assert (again.error_code, names(again)) == (0, "")


@virtual
@pytest.mark.parametrize(("min_bytes", "appends"), [(1, 1), (SIZE, 1), (SIZE + 1, 2), (300, 3)])
async def test_a_wait_ends_when_min_bytes_are_available(min_bytes: int, appends: int) -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    fake.ask({"a": 1, "b": 1})
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = fake.ask(wait_ms=60_000, min_bytes=min_bytes)
    for number in range(appends):
        await asyncio.sleep(1)
        assert not answer.done()
        fake.partitions["ab"[number % 2]].append()
    response = await answer
    assert loop.time() - began == appends
    assert sum(len(part.records or b"") for _, part in told(response)) == appends * SIZE


@virtual
async def test_a_wait_without_min_bytes_ends_in_time_with_the_available_records() -> None:
    fake = FakeBroker()
    fake.add(*"ab")
    fake.ask({"a": 0, "b": 0})
    began = asyncio.get_running_loop().time()
    answer = fake.ask(wait_ms=500, min_bytes=SIZE + 1)
    fake.partitions["b"].append()
    fake.partitions["a"].append(commits=False)
    fake.partitions["a"].commit(0)
    assert names(await answer) == "B"
    assert asyncio.get_running_loop().time() - began == 0.5


@virtual
async def test_records_beyond_the_limits_of_the_response_end_the_wait() -> None:
    """Only one of two batches fits, so waiting would not help."""
    fake = FakeBroker()
    fake.add("a", batches=2)
    for min_bytes in (101, 150, BIG):
        wanted = request({"a": 0}, (), 0, -1, max_bytes=150, min_bytes=min_bytes, wait_ms=1000)
        assert names(fake.send(wanted)) == "A"


@virtual
async def test_bytes_beyond_partition_max_bytes_do_not_count_towards_min_bytes() -> None:
    fake = FakeBroker()
    fake.add(*"ab")
    fake.ask({"a": 0, "b": 0}, limit=SIZE)
    answer = fake.ask(wait_ms=60_000, min_bytes=2 * SIZE)
    for _ in range(3):
        fake.partitions["a"].append()
    await asyncio.sleep(1)
    assert not answer.done()
    fake.partitions["b"].append()
    assert names(await answer) == "AB"


@virtual
async def test_a_moved_high_watermark_alone_does_not_end_a_wait() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.partitions["a"].append(commits=False)
    fake.ask({"a": 2}, replica=FOLLOWER)
    fake.partitions["a"].append(commits=False)
    fake.ask({"a": 3}, replica=FOLLOWER)
    answer = fake.ask(wait_ms=500, replica=FOLLOWER)
    fake.partitions["a"].append(0)
    await asyncio.sleep(0.4)
    assert not answer.done()
    assert names(await answer) == ""


@virtual
@pytest.mark.parametrize("what", ["deleted", "replaced", "epoch", "start"])
async def test_a_change_ends_a_wait(what: str) -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    fake.ask({"a": 1, "b": 1}, leader_epoch=0)
    answer = fake.ask(wait_ms=60_000)
    a = fake.partitions["a"]
    if what == "deleted":
        del fake.partitions["a"]
    elif what == "replaced":
        fake.add("a")
    elif what == "epoch":
        a.leader_epoch = 1
    else:
        a.log.log_start_offset = 1
    a.change()
    response = await answer
    assert names(response) == "a"
    assert asyncio.get_running_loop().time() < 1
    codes = {
        "deleted": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "replaced": ErrorCode.OFFSET_OUT_OF_RANGE,
        "epoch": ErrorCode.FENCED_LEADER_EPOCH,
        "start": ErrorCode.NONE,
    }
    assert told(response)[0][1].error_code == codes[what]
    if fake.partitions.get("a") is not a:
        assert not a.watchers


@virtual
async def test_an_unknown_partition_does_not_end_the_wait_of_others() -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0, "u": 0})
    answer = fake.ask(wait_ms=500)
    assert not isinstance(answer, FetchResponse)
    assert names(await answer) == "u"
    fake.epoch += 1
    assert names(fake.ask(forget="a", wait_ms=500)) == "u"


@virtual
async def test_a_session_outlives_the_connection_of_a_fetch_that_waits() -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0})
    fake.ask(wait_ms=1000).cancel()
    await asyncio.sleep(0)
    fake.epoch += 1
    fake.partitions["a"].append()
    assert names(fake.ask()) == "A"


@virtual
async def test_a_waiting_fetch_is_refused_when_the_next_one_of_its_session_arrives() -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0})
    earlier = fake.ask(wait_ms=60_000)
    fake.epoch += 1
    later = fake.ask(wait_ms=60_000)
    response = await earlier
    assert (response.error_code, response.session_id, response.responses) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        fake.session_id,
        [],
    )
    fake.partitions["a"].append()
    assert names(await later) == "A"
    assert asyncio.get_running_loop().time() < 1


@virtual
async def test_a_fetch_that_waits_is_answered_when_its_session_is_closed() -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0})
    answer = fake.ask(wait_ms=60_000)
    fake.send(request({"a": 0}, (), fake.session_id, -1))
    response = await answer
    assert (response.error_code, names(response)) == (0, "")
    assert asyncio.get_running_loop().time() < 1
    assert not fake.partitions["a"].watchers


@pytest.mark.parametrize("level", [2, -1])
async def test_an_isolation_level_that_does_not_exist_fails_the_whole_request(
    lab: Any, level: int
) -> None:
    topic_id = await lab.create_topic("t")
    await lab.append("t", b"v")
    client = lab.connect()
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    for version, offset in ((4, 0), (7, 1), (12, 0)):
        for epoch in (-1, 0) if version >= 7 else (-1,):
            asked = fetch([("t", 0, offset, BIG)], isolation_level=level, session_epoch=epoch)
            response = await client.ask(asked, version)
            (part,) = response.responses[0].partitions
            assert (part.error_code, part.high_watermark) == (code, -1)
            assert (response.error_code, response.session_id) == (
                code if version >= 7 else 0,
                0,
            )
    asked = fetch([("t", 0, 0, BIG)], topic_ids={"t": topic_id}, isolation_level=level)
    response = await client.ask(asked, 13)
    assert (response.error_code, response.responses) == (code, [])


@pytest.mark.parametrize("version", [4, 7, 12, 13])
async def test_a_negative_limit_is_an_error_where_there_is_something_to_read(
    lab: Any, version: int
) -> None:
    topic_id = await lab.create_topic("t")
    await lab.append("t", b"v")
    client = lab.connect()

    async def ask(offset: int, partition_bytes: int, **more: Any) -> tuple[int, int, int]:
        named = {"t": topic_id}
        request = fetch([("t", 0, offset, partition_bytes)], topic_ids=named, **more)
        if version >= 13:
            request.topics[0].topic = ""
        response = await client.ask(request, version)
        (part,) = response.responses[0].partitions
        return response.error_code, part.error_code, part.high_watermark

    for partition_bytes, max_bytes in ((-1, BIG), (BIG, -1), (-1, -1)):
        assert await ask(0, partition_bytes, max_bytes=max_bytes) == (0, -1, -1)
        assert await ask(1, partition_bytes, max_bytes=max_bytes) == (0, 0, 1)
    # At the log end a negative `max_bytes` ends the wait; a negative partition limit does not.
    loop = asyncio.get_running_loop()
    for partition_bytes, max_bytes, waits in ((BIG, -1, False), (-1, BIG, True)):
        begun = loop.time()
        await ask(1, partition_bytes, max_bytes=max_bytes, max_wait_ms=3000, min_bytes=1)
        assert (loop.time() - begun > 2) is waits


def test_read_versions_are_those_advertised() -> None:
    api = APIS_BY_REQUEST[FetchRequest]
    assert (api.min_version, api.max_version) == (4, 18)
