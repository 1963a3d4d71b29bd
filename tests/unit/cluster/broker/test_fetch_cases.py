"""The acceptance cases of fetch: numbers from Kafka's own suites, as frames into a broker.

`FetchRequestTest`, `FetchRequestMaxBytesTest`, `FetchSessionTest`, `ReplicaManagerQuotasTest`. The
formats before v2 are not served, so what those suites ask of versions 0-3 is asked of version 4.
What takes followers is asked of partitions that are lists (`test_fetch_session.FakeBroker`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.steps import finish
from tests.unit.cluster.broker.test_fetch_session import (
    FOLLOWER,
    FakeBroker,
    names,
    request,
    told,
    virtual,
)
from trimtab.cluster.broker.fetch_slot import MAX_READ_BYTES
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.storage.storage import StorageError
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import read_headers, read_records
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

BIG = 1 << 20
INT_MAX = 2**31 - 1


def fetch(
    wanted: Sequence[tuple[str, int, int]],
    max_bytes: int = BIG,
    limit: int = BIG,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[str] = (),
    epoch: int = -1,
    **options: Any,
) -> FetchRequest:
    """A request for (topic, partition, offset), in this order."""
    return FetchRequest(
        max_wait_ms=options.pop("max_wait_ms", 0),
        min_bytes=options.pop("min_bytes", 1),
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=limit,
                        current_leader_epoch=epoch,
                    )
                ],
            )
            for topic, partition, offset in wanted
        ],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=[0]) for topic in forget],
        **options,
    )


def parts(response: Any) -> list[tuple[str, Any]]:
    return [(topic.topic, part) for topic in response.responses for part in topic.partitions]


def sizes(response: Any) -> list[int]:
    return [len(part.records) for _, part in parts(response)]


def topics(response: Any) -> list[str]:
    return [topic for topic, _ in parts(response)]


async def offsets(lab: Any, wanted: FetchRequest, version: int) -> list[int]:
    """The base offsets of the batches that a fetch of one partition returns."""
    ((_, part),) = parts(await lab.connect().ask(wanted, version))
    assert part.error_code == 0
    return [header.base_offset for header in read_headers(part.records)]


@pytest.mark.kip(74)
@pytest.mark.parametrize("seed", range(3))
async def test_cases_1_to_3_small_limits_over_thirty_partitions(lab: Any, seed: int) -> None:
    names = [f"t{number}" for number in range(5)]
    everything = [(name, index) for name in names for index in range(6)]
    for name in names:
        await lab.create_topic(name, 6)
    for name, index in everything:
        for _ in range(9):
            await lab.append(name, b"0123456789", partition=index)
    large, larger = everything[7], everything[20]
    await lab.append(large[0], b"x" * 191, partition=large[1])
    await lab.append(larger[0], b"x" * 801, partition=larger[1])
    small = [each for each in everything if each not in (large, larger)]
    Random(seed).shuffle(small)

    async def read(*wanted: tuple[str, int, int]) -> list[int]:
        response = await lab.connect().ask(fetch(wanted, max_bytes=800, limit=190), 12)
        listed = [(topic, part.partition_index) for topic, part in parts(response)]
        assert listed == [(topic, index) for topic, index, _ in wanted]
        assert {part.error_code for _, part in parts(response)} == {0}
        assert all(part.high_watermark > 0 for _, part in parts(response))
        return sizes(response)

    rest = [(*each, 0) for each in small]
    one = await read(*rest, (*large, 0), (*larger, 0))
    served = [size for size in one if size]
    assert one[: len(served)] == served
    assert all(size <= 190 for size in served)
    assert 800 - 190 < sum(served) <= 800
    two = await read((*large, 9), *rest, (*larger, 0))
    assert two[0] > 190
    assert sum(two) <= 800
    assert two[1]
    three = await read((*larger, 9), *rest, (*large, 0))
    assert three[0] > 800
    assert not any(three[1:])


@pytest.mark.kip(74)
@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.run(config={"fetch.max.bytes": 1024})
async def test_case_4_the_broker_bounds_the_response(lab: Any, version: int) -> None:
    await lab.create_topic("t")
    for size in (1, 500, 1040, 500, 50):
        await lab.append("t", b"x" * size)
    for offset, expected in ((0, [0, 1]), (2, [2]), (3, [3, 4])):
        wanted = fetch([("t", 0, offset)], max_bytes=INT_MAX, limit=INT_MAX)
        assert await offsets(lab, wanted, version) == expected


@pytest.mark.kip(74)
async def test_case_5_a_batch_beyond_the_limit_comes_whole(lab: Any) -> None:
    await lab.create_topic("t")
    size = await lab.append("t", b"x" * 201)
    ((_, part),) = parts(await lab.connect().ask(fetch([("t", 0, 0)], limit=200), 4))
    assert (part.error_code, len(part.records)) == (0, size)
    assert part.last_stable_offset > 0


async def test_case_6_batches_come_whole_from_the_one_with_the_offset(lab: Any) -> None:
    await lab.create_topic("t")
    await lab.append("t", *[b"a"] * 10)
    await lab.append("t", *[b"b"] * 15)
    assert await offsets(lab, fetch([("t", 0, 3)]), 4) == [0, 10]
    assert await offsets(lab, fetch([("t", 0, 15)]), 4) == [10]


@pytest.mark.kip(227)
async def test_case_8_an_incremental_fetch_returns_changed_partitions(lab: Any) -> None:
    for name in "abc":
        await lab.create_topic(name)
    client = lab.connect()
    full = await client.ask(fetch([(name, 0, 0) for name in "abc"], session=(0, 0)), 12)
    assert full.session_id > 0
    assert topics(full) == ["a", "b", "c"]

    async def go_on(epoch: int, *named: tuple[str, int, int]) -> Any:
        wanted = fetch(named, session=(full.session_id, epoch))
        response = await client.ask(wanted, 12)
        assert (response.error_code, response.session_id) == (0, full.session_id)
        return response

    assert topics(await go_on(1)) == []
    await lab.append("a", b"v")
    await lab.append("b", b"v")
    # The client has the first one's record already: only its high watermark is new.
    response = await go_on(2, ("a", 0, 1))
    assert (topics(response), [bool(size) for size in sizes(response)]) == (
        ["a", "b"],
        [False, True],
    )
    for name in "abc":
        await lab.append(name, b"v")
    assert topics(await go_on(3, ("b", 0, 1))) == ["a", "c", "b"]


@pytest.mark.kip(227)
async def test_case_9_errors_of_partitions_and_of_sessions(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    first = await client.ask(fetch([("t", 0, 0), ("u", 0, 0)], session=(0, 0)), 12)
    session = first.session_id

    async def go_on(epoch: int, forget: Sequence[str] = ()) -> tuple[int, int, Any]:
        wanted = fetch([], session=(session, epoch), forget=forget)
        response = await client.ask(wanted, 12)
        codes = [(topic, part.error_code) for topic, part in parts(response)]
        return response.error_code, response.session_id, codes

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for epoch in (1, 2):
        assert await go_on(epoch) == (0, session, [("u", unknown)])
    assert await go_on(2) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, [])
    await lab.create_topic("u")
    assert await go_on(3) == (0, session, [("u", 0)])
    assert await go_on(4) == (0, session, [])
    assert await go_on(5, forget="tu") == (0, 0, [])
    assert await go_on(6) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])


@pytest.mark.kip(110)
async def test_case_10_zstd_needs_a_version_that_supports_it(lab: Any) -> None:
    await lab.create_topic("t", config={"compression.type": "zstd"})
    batch = lab.batch(b"1", b"2", b"3", compression=4)
    await lab.connect().ask(lab.produce("t", batch), 9)
    ((_, part),) = parts(await lab.connect().ask(fetch([("t", 0, 0)]), 9))
    assert (part.error_code, part.high_watermark) == (
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        -1,
    )
    ((_, part),) = parts(await lab.connect().ask(fetch([("t", 0, 0)]), 10))
    assert [each.value for each in read_records("t", 0, part.records)] == [b"1", b"2", b"3"]


@pytest.mark.kip(320)
async def test_case_10_leader_epochs_and_replicas_are_checked(lab: Any) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"v")
    epoch = lab.controller.controller.image.topics["t"].partitions[0].leader_epoch

    async def code(**options: Any) -> int:
        ((_, part),) = parts(
            await lab.connect(is_node=True).ask(fetch([("t", 0, 0)], **options), 12)
        )
        return int(part.error_code)

    assert await code(epoch=epoch) == ErrorCode.NONE
    assert await code(epoch=epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert await code(replica_id=5) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.kip(74)
async def test_case_11_full_partitions_take_turns(lab: Any) -> None:
    """In the session's order, or without a session in the client's order."""
    names = list("abcd")
    for name in names:
        await lab.create_topic(name)
        for _ in range(4):
            await lab.append(name, b"x" * 100)
    client = lab.connect()
    position = dict.fromkeys(names, 0)

    async def serve(order: Sequence[str], session: tuple[int, int]) -> tuple[str, int]:
        wanted = [(name, 0, position[name]) for name in order]
        response = await client.ask(fetch(wanted, max_bytes=1, session=session), 12)
        (name,) = (topic for topic, part in parts(response) if part.records)
        return name, response.session_id

    name, session_id = await serve(names, (0, 0))
    served = [name]
    for epoch in range(1, 16):
        position[name] += 1
        name, _ = await serve([name], (session_id, epoch))
        served.append(name)
    assert served == names * 4
    position = dict.fromkeys(names, 0)
    assert [(await serve(names, (0, -1)))[0] for _ in range(4)] == ["a"] * 4
    turned = [names[at:] + names[:at] for at in range(4)]
    assert [(await serve(order, (0, -1)))[0] for order in turned] == names


@pytest.mark.kip(74)
@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"limit": 0}])
async def test_case_12_without_room_one_batch_is_returned(lab: Any, limits: dict[str, Any]) -> None:
    for name in "abcd":
        await lab.create_topic(name)
    size = 0
    for name in "bcd":
        size = await lab.append(name, b"v")
        await lab.append(name, b"v")
    wanted = [("a", 0, 0), ("b", 0, 9), ("c", 0, 0), ("d", 0, 0)]
    response = await lab.connect().ask(fetch(wanted, max_wait_ms=1000, **limits), 12)
    assert sizes(response) == [0, 0, size, 0]
    assert [part.error_code for _, part in parts(response)] == [
        0,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        0,
        0,
    ]


async def test_case_13_a_wide_fetch_stays_within_its_limit(lab: Any) -> None:
    await lab.create_topic("t", 200)
    for index in range(200):
        await lab.append("t", b"x" * 20_000, partition=index)
    wanted = fetch([("t", index, 0) for index in range(200)], max_bytes=BIG)
    client = lab.connect()
    response = await client.ask(wanted, 12)
    assert BIG - 21_000 < sum(sizes(response)) <= BIG
    assert len(client.responses[-1]) < BIG + 200 * 100


async def test_a_wide_fetch_leaves_most_records_on_disk(lab: Any) -> None:
    await lab.create_topic("t", 40)
    for index in range(40):
        await lab.append("t", b"x" * 30_000, partition=index)
    wanted = fetch([("t", index, 0) for index in range(40)], max_bytes=4 * BIG)
    header = RequestHeader(FetchRequest.api_key, 12, 1, "t", 0)
    response = finish(lab.brokers[0].listener.handlers[header.api_key](header, wanted))
    records = [part.records for _, part in parts(response)]
    assert sum(map(len, records)) > 1_200_000
    in_memory = [each for each in records if not isinstance(each, StoredRecords)]
    assert MAX_READ_BYTES - 31_000 < sum(map(len, in_memory)) <= MAX_READ_BYTES


async def test_small_records_behind_all_that_fits_into_memory_are_answered(lab: Any) -> None:
    """The codec copies records of up to 1 KiB, so they must be bytes."""
    await lab.create_topic("t", 320)
    for index in range(320):
        await lab.append("t", b"x" * (100 if index >= 20 else 30_000), partition=index)
    wanted = fetch([("t", index, 0) for index in range(320)], max_bytes=4 * BIG)
    found = sizes(await lab.connect().ask(wanted, 12))
    assert [size > 30_000 for size in found] == [True] * 20 + [False] * 300
    assert all(found)


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
async def test_case_14_appended_records_end_the_wait(lab: Any, session: tuple[int, int]) -> None:
    await lab.create_topic("t", 30)
    client = lab.connect()
    wanted = fetch([("t", index, 0) for index in range(30)], session=session, max_wait_ms=60_000)
    client.send(wanted, 12)
    await asyncio.sleep(1)
    assert not client.responses
    await lab.append("t", b"v", partition=29)
    await asyncio.sleep(0.01)
    response = client.read(wanted, 12)
    assert [bool(size) for size in sizes(response)] == [False] * 29 + [True]
    if session[1] == 0:
        later = fetch([("t", 29, 1)], session=(response.session_id, 1), max_wait_ms=60_000)
        client.send(later, 12)
        await lab.append("t", b"v", partition=3)
        await asyncio.sleep(0.01)
        assert [part.partition_index for _, part in parts(client.read(later, 12))] == [3]


# -- followers


@virtual
@pytest.mark.parametrize("version", [12, 13, 15, 18])
async def test_a_follower_reads_to_the_log_end_after_its_progress_is_recorded(version: int) -> None:
    fake = FakeBroker()
    fake.add(*"ab")
    for partition in fake.partitions.values():
        partition.append(commits=False)
    options: Any = {"version": version, "replica": FOLLOWER, "replica_epoch": 4}
    epoch = 4 if version >= 15 else -1
    if version < 15:
        options["replica_epoch"] = -1
    assert names(fake.ask({"a": 0, "b": 0}, **options)) == "AB"
    response = fake.ask({"a": 1}, **options)
    # The response has the high watermark as raised by this fetch.
    assert [(name, part.high_watermark) for name, part in told(response)] == [
        ("a", 1),
        ("b", 0),
    ]
    a, b = fake.partitions.values()
    assert (a.progress, b.progress) == ([(epoch, 0, 3), (epoch, 1, 3)], [(epoch, 0, 3)])
    assert names(fake.ask({"b": 1}, **options)) == "b"
    assert names(fake.ask(**options)) == ""
    assert len(a.progress) == len(b.progress) == 2


@virtual
@pytest.mark.parametrize("replica", [-1, FOLLOWER])
async def test_a_diverging_epoch_is_returned_before_progress_is_recorded(replica: int) -> None:
    fake = FakeBroker()
    fake.add("a", batches=2)
    a = fake.partitions["a"]
    a.diverging = (3, 1)
    for named in ({"a": 5}, {}):
        response = fake.ask(named, fetched_epoch=4, replica=replica, wait_ms=1000)
        ((_, part),) = told(response)
        assert (part.error_code, part.records) == (0, b"")
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (3, 1)
    assert not a.progress
    a.diverging = None
    assert names(fake.ask({"a": 1}, fetched_epoch=3, replica=replica)) == "A"
    assert [offset for _, offset, _ in a.progress] == [1] * (replica == FOLLOWER)


@virtual
async def test_a_refused_fetch_records_no_progress() -> None:
    fake = FakeBroker()
    fake.add(*"abc", batches=1)
    fake.partitions["b"].leader_epoch = 2
    fake.partitions["c"].is_leader = False
    response = fake.ask({"a": 2, "b": 1, "c": 1}, replica=FOLLOWER, leader_epoch=0, version=16)
    assert [part.error_code for _, part in told(response)] == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert [part.current_leader.leader_id for _, part in told(response)] == [-1, 9, 9]
    assert response.node_endpoints == []
    assert [each.progress for each in fake.partitions.values()] == [[], [], []]
    for epoch, code in (
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        response = fake.ask({"a": 0}, replica=8, leader_epoch=epoch, version=16)
        assert told(response)[0][1].error_code == code


@virtual
async def test_progress_is_recorded_again_after_a_leader_change() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.ask({"a": 1}, replica=FOLLOWER)
    fake.ask(replica=FOLLOWER)
    fake.partitions["a"].change()
    fake.ask(replica=FOLLOWER)
    assert [offset for _, offset, _ in fake.partitions["a"].progress] == [1, 1]
    # Another replica in its place, without a notification to the session.
    fake.partitions["a"].append()
    fake.add("a", batches=1)
    fake.ask(replica=FOLLOWER)
    assert [offset for _, offset, _ in fake.partitions["a"].progress] == [1]


@virtual
@pytest.mark.kip(73)
@pytest.mark.parametrize(
    ("replica", "is_slow", "exceeded_from", "expected"),
    [
        (FOLLOWER, True, 2, "Ab"),
        (FOLLOWER, True, 1, "ab"),
        (FOLLOWER, False, 1, "AB"),
        (-1, True, 1, "AB"),
    ],
)
async def test_case_7_a_throttled_follower_gets_no_records(
    replica: int, is_slow: bool, exceeded_from: int, expected: str
) -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    checks = iter(range(1, 9))
    fake.exceeded = lambda: next(checks) >= exceeded_from
    for partition in fake.partitions.values():
        partition.is_slow = is_slow
    assert names(fake.ask({"a": 0, "b": 0}, replica=replica)) == expected
    fake.exceeded = lambda: False
    assert names(fake.ask(replica=replica)).lower() in ("ab", "ba")


@virtual
async def test_a_throttled_partition_does_not_end_a_wait() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.ask({"a": 1}, replica=FOLLOWER)
    fake.partitions["a"].is_slow = True
    fake.exceeded = lambda: True
    answer = fake.ask(replica=FOLLOWER, wait_ms=500)
    fake.partitions["a"].append()
    await asyncio.sleep(0.4)
    assert not answer.done()
    assert names(await answer) == "a"
    fake.epoch += 1
    fake.exceeded = lambda: False
    assert names(fake.ask(replica=FOLLOWER)) == "A"


# -- consumers and replicas


@virtual
@pytest.mark.kip(392)
async def test_a_consumer_with_a_rack_is_sent_to_its_preferred_replica() -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    fake.partitions["b"].preferred = 2
    for version, rack, expected in ((11, "r", "Ab"), (11, "", "AB"), (10, "r", "AB")):
        wanted = request({"a": 0, "b": 0}, session_epoch=-1, wait_ms=1000, min_bytes=BIG)
        wanted.rack_id = rack
        wanted.max_wait_ms = 1000 if expected == "Ab" else 0
        response = fake.send(wanted, version)
        assert names(response) == expected
        assert [part.preferred_read_replica for _, part in told(response)] == [
            -1,
            2 if expected == "Ab" else -1,
        ]


@virtual
@pytest.mark.kip(392)
async def test_only_consumers_that_support_it_read_from_followers() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.partitions["a"].is_leader = False
    for version, replica in ((10, -1), (12, FOLLOWER)):
        response = fake.send(request({"a": 0}, (), 0, -1, replica=replica), version)
        assert told(response)[0][1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert names(fake.send(request({"a": 0}, (), 0, -1), 11)) == "A"


@virtual
async def test_a_session_with_another_reader_gets_all_partitions() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.partitions["a"].append(commits=False)
    fake.ask({"a": 1})
    assert names(fake.ask()) == ""
    assert names(fake.ask(replica=FOLLOWER)) == "A"


@virtual
@pytest.mark.parametrize(
    ("version", "compression", "code"),
    [
        (9, "zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (10, "zstd", ErrorCode.NONE),
        (9, "producer", ErrorCode.NONE),
    ],
)
async def test_zstd_needs_a_consumer_version_that_supports_it(
    version: int, compression: str, code: ErrorCode
) -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.partitions["a"].compression_type = compression
    ((_, part),) = told(fake.ask({"a": 0}, version=version))
    assert (part.error_code, bool(part.records)) == (code, not code)


@virtual
@pytest.mark.parametrize(
    ("fault", "version", "code"),
    [
        (StorageError("t-0", "read", errno.EIO), 6, ErrorCode.KAFKA_STORAGE_ERROR),
        (StorageError("t-0", "read", errno.EIO), 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Refused(ErrorCode.KAFKA_STORAGE_ERROR), 6, ErrorCode.KAFKA_STORAGE_ERROR),
        (Refused(ErrorCode.KAFKA_STORAGE_ERROR), 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (CorruptData("torn"), 12, ErrorCode.CORRUPT_MESSAGE),
    ],
)
async def test_an_unreadable_partition_is_answered_at_once_with_the_others(
    fault: Exception, version: int, code: ErrorCode
) -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    fake.partitions["a"].fault = fault
    response = fake.ask({"a": 0, "b": 0}, version=version, min_bytes=BIG, wait_ms=1000)
    assert [part.error_code for _, part in told(response)] == [code, 0]
    assert names(response) == "aB"
    assert fake.disk_failures == [fault] * isinstance(fault, StorageError)
