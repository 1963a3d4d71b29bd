"""Consumers of committed records: fetches and offsets, with transactions in the log (KIP-98)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import leading
from tests.unit.cluster.broker.test_fetch import BIG, fetch
from tests.unit.cluster.broker.test_offsets import offsets
from trimtab.cluster.broker.partition import Partition
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.end_markers import EndMarker, build_marker
from trimtab.kafka.wire.sentinels import LATEST

pytestmark = pytest.mark.kip(98)


def store(partition: Partition, data: Any) -> None:
    records = memoryview(bytearray(data))
    partition.log.append(records, partition.leader_epoch, read_headers(records))
    partition.raise_high_watermark()


def send(lab: Lab, producer_id: int, *values: bytes, topic: str = "t") -> None:
    partition = leading(lab, topic)
    known = {each.id: each.last_sequence for each in partition.log.producers.describe()}
    batch = lab.batch(
        *values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=known.get(producer_id, -1) + 1,
        is_transactional=True,
    )
    store(partition, batch)


def end(lab: Lab, producer_id: int, commit: bool, topic: str = "t") -> None:
    store(leading(lab, topic), build_marker(producer_id, 0, EndMarker(commit, 0), 1000))


async def read(
    lab: Lab, offset: int, limit: int = BIG, isolation: int = 1, **more: Any
) -> tuple[Any, list[int]]:
    """The partition's response, and the base offsets of the batches in it."""
    request = fetch([("t", 0, offset, limit)], isolation_level=isolation, **more)
    answer = await lab.connect().ask(request, 12)
    (found,) = answer.responses[0].partitions
    return found, [header.base_offset for header in read_headers(bytes(found.records or b""))]


async def test_an_open_transaction_ends_what_is_read(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"a")
    send(lab, 7, b"b")
    await lab.append("t", b"c")
    found, bases = await read(lab, 0)
    assert (bases, found.last_stable_offset, found.high_watermark) == ([0], 1, 3)
    assert found.aborted_transactions == []
    found, bases = await read(lab, 0, isolation=0)
    assert (bases, found.last_stable_offset, found.aborted_transactions) == ([0, 1, 2], 1, None)
    end(lab, 7, commit=True)
    found, bases = await read(lab, 0)
    assert (bases, found.last_stable_offset) == ([0, 1, 2, 3], 4)


async def test_aborted_transactions_are_named_where_they_are_read(lab: Lab) -> None:
    await lab.create_topic("t")
    for producer_id in (7, 8, 9):
        send(lab, producer_id, b"v" * 100)
        end(lab, producer_id, commit=producer_id == 8)
    found, bases = await read(lab, 0)
    assert bases == [0, 1, 2, 3, 4, 5]
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]
    assert aborted == [(7, 0), (9, 4)]
    found, bases = await read(lab, 0, limit=10)
    assert bases == [0]
    assert [each.producer_id for each in found.aborted_transactions or ()] == [7]
    found, bases = await read(lab, 2)
    assert [each.producer_id for each in found.aborted_transactions or ()] == [9]
    found, _ = await read(lab, 0, isolation=0)
    assert found.aborted_transactions is None


async def test_the_end_of_a_transaction_ends_the_wait(lab: Lab) -> None:
    await lab.create_topic("t")
    send(lab, 7, b"a")
    request = fetch([("t", 0, 0, BIG)], isolation_level=1, max_wait_ms=60_000, min_bytes=1)
    client = lab.connect()
    client.send(request, 12)
    await lab.append("t", b"b")
    await asyncio.sleep(1)
    assert not client.responses
    end(lab, 7, commit=False)
    await asyncio.sleep(0.001)
    (found,) = client.read(request, 12).responses[0].partitions
    assert found.last_stable_offset == 3
    assert [each.producer_id for each in found.aborted_transactions or ()] == [7]


async def test_a_session_tells_of_what_became_stable(lab: Lab) -> None:
    await lab.create_topic("t")
    send(lab, 7, b"a")
    client = lab.connect()
    first = await client.ask(fetch([("t", 0, 0, BIG)], isolation_level=1, session_epoch=0), 12)
    (found,) = first.responses[0].partitions
    assert (found.last_stable_offset, bytes(found.records or b"")) == (0, b"")
    following = fetch([], isolation_level=1, session_id=first.session_id, session_epoch=1)
    assert (await client.ask(following, 12)).responses == []
    end(lab, 7, commit=True)
    following = fetch([], isolation_level=1, session_id=first.session_id, session_epoch=2)
    (found,) = (await client.ask(following, 12)).responses[0].partitions
    assert found.last_stable_offset == 2
    assert found.records


async def test_the_latest_offset_is_the_last_stable_one(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"a")
    send(lab, 7, b"b")
    client = lab.connect()
    for isolation, expected in ((0, 2), (1, 1)):
        answer = await client.ask(offsets("t", LATEST, isolation_level=isolation), 7)
        assert answer.topics[0].partitions[0].offset == expected
    end(lab, 7, commit=False)
    answer = await client.ask(offsets("t", LATEST, isolation_level=1), 7)
    assert answer.topics[0].partitions[0].offset == 3
