"""Fetch sessions (KIP-227) by the rules of Kafka's `FetchSession`, on partitions that are lists.

The last tests hold sessions against a model: Kafka's own way, which reads every partition of the
session at each fetch; and against clients that must get every record once.

Long because the cases by Kafka's rules and the model share the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.steps import finish
from trimtab.cluster.broker.fetch_session_cache import EVICTABLE_AFTER_S, FetchSessionCache
from trimtab.cluster.broker.handlers.fetch import fetch
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.traffic import TopicTraffic, Traffic
from trimtab.cluster.server.turns import Steps, Turns
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import Config
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from trimtab.sim.world import World

BIG = 1 << 20
MAX_EPOCH = 2**31 - 1
SIZE = 100
FOLLOWER = 7


class Log:
    log_start_offset = 0
    log_end_offset = 0
    last_stable_offset = 0

    def __init__(self, batches: list[tuple[int, int, bytes]]) -> None:
        self._batches = batches

    def bytes_between(self, offset: int, end_offset: int) -> int:
        return sum(len(b) for _, end, b in self._batches if offset < end <= end_offset)


class Replica:
    """A fake partition for fetches. A batch is its first offset in decimal, padded."""

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = 0
        self.is_leader = True
        self.compression_type = "producer"
        self.batches: list[tuple[int, int, bytes]] = []
        self.log = Log(self.batches)
        self.high_watermark = 0
        self.watchers: dict[Any, None] = {}
        self.preferred = -1
        self.fault: Exception | None = None
        self.is_slow = False
        self.diverging: tuple[int, int] | None = None
        self.looks = 0
        self.progress: list[tuple[int, int, int]] = []
        self.traffic = TopicTraffic()

    def append(self, records: int = 1, size: int = SIZE, commits: bool = True) -> None:
        begin = self.log.log_end_offset
        self.batches.append((begin, begin + records, (b"%d" % begin).ljust(size, b"\0")))
        self.log.log_end_offset += records
        for watcher in tuple(self.watchers):
            watcher.appended(self)
        if commits:
            self.commit()

    def commit(self, offset: int | None = None) -> None:
        self.high_watermark = self.log.log_end_offset if offset is None else offset
        for watcher in tuple(self.watchers):
            watcher.committed(self)

    def change(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.changed(self)

    def check_epoch(self, epoch: int) -> None:
        if epoch >= 0 and epoch != self.leader_epoch:
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH
                if epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )

    def read(
        self, offset: int, max_bytes: int, min_one: bool, end_offset: int, max_read_bytes: int = 0
    ) -> bytes:
        if self.fault is not None:
            raise self.fault
        data = b""
        for _, end, batch in self.batches:
            if end <= offset:
                continue
            if end > end_offset or (len(data) + len(batch) > max_bytes and (data or not min_one)):
                break
            data += batch
        return data

    def diverging_epoch(self, epoch: int, offset: int) -> tuple[int, int] | None:
        return self.diverging

    def follower_fetched(self, replica: int, epoch: int, offset: int, start: int) -> None:
        if replica != FOLLOWER:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        self.progress.append((epoch, offset, start))
        if self.high_watermark < offset:
            self.commit(offset)

    def preferred_replica(self, rack: str, offset: int) -> int:
        return self.preferred

    def throttles(self, replica: int) -> bool:
        return self.is_slow


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"-")


class FakeBroker:
    """A broker with one partition to a topic, and a client of it."""

    def __init__(self, slots: int = 1000) -> None:
        self.traffic = Traffic()
        self.config = Config({"fetch.max.bytes": 57_671_680})
        self.fetch_sessions = FetchSessionCache(slots, Random(1))
        self.partitions: dict[str, Replica] = {}
        self.exceeded: Callable[[], bool] = lambda: False
        self.sent_throttled = 0
        self.disk_failures: list[StorageError] = []
        self.disk_failed = self.disk_failures.append
        self.view = self
        self.session_id = 0
        self.epoch = 0

    def add(self, *topics: str, batches: int = 0) -> None:
        for topic in topics:
            partition = self.partitions[topic] = Replica(topic, 0)
            for _ in range(batches):
                partition.append()

    # The interface of replicas and view to handlers

    @property
    def image(self) -> Any:
        return SimpleNamespace(
            topics_by_id={topic_id(name): SimpleNamespace(name=name) for name in self.partitions}
        )

    def find_replica(self, topic: str, index: int) -> Replica:
        if topic not in self.partitions:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.partitions[topic].looks += 1
        return self.partitions[topic]

    def find_partition(self, topic: str, index: int) -> Replica:
        partition = self.find_replica(topic, index)
        if not partition.is_leader:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def find_leader(self, topic: str, index: int) -> tuple[int, int, Any]:
        registration = SimpleNamespace(host="h", port=9092, rack=None)
        return 9, self.partitions[topic].leader_epoch, registration

    def is_leader_quota_exceeded(self) -> bool:
        return self.exceeded()

    def record_throttled_sent(self, size: int) -> None:
        self.sent_throttled += size

    def fetch(self, header: RequestHeader, request: FetchRequest) -> Steps[Any]:
        return fetch(cast(Any, self), self.fetch_sessions, Turns(), header, request)

    # The client's actions

    def send(self, request: FetchRequest, version: int = 12) -> Any:
        """The response, or the future of it."""
        header = RequestHeader(
            api_key=1, api_version=version, correlation_id=0, client_id="t", body=0, is_node=True
        )
        carried = decode(FetchRequest, version, encode(request, version))
        answer = finish(self.fetch(header, carried))
        if isinstance(answer, FetchResponse):
            encode(answer, version)
        return answer

    def ask(
        self,
        named: dict[str, int] | None = None,
        forget: Iterable[str] = (),
        version: int = 12,
        **options: Any,
    ) -> Any:
        """Fetch in the session, which goes on if there is one."""
        answer = self.send(
            request(named or {}, forget, self.session_id, self.epoch, version, **options), version
        )
        if isinstance(answer, FetchResponse) and not answer.error_code:
            self.session_id = answer.session_id
            self.epoch = self.epoch + 1 if answer.session_id else 0
        return answer


def request(
    named: dict[str, int],
    forget: Iterable[str] = (),
    session_id: int = 0,
    session_epoch: int = 0,
    version: int = 12,
    max_bytes: int = BIG,
    limit: int = BIG,
    min_bytes: int = 1,
    wait_ms: int = 0,
    replica: int = -1,
    replica_epoch: int = -1,
    leader_epoch: int = -1,
    fetched_epoch: int = -1,
    rack: str = "",
) -> FetchRequest:
    """Fetch the named topics from these offsets."""
    return FetchRequest(
        replica_id=replica if version < 15 else -1,
        replica_state=ReplicaState(
            replica_id=replica if version >= 15 else -1, replica_epoch=replica_epoch
        ),
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        rack_id=rack,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=topic_id(topic),
                partitions=[
                    FetchPartition(
                        partition=0,
                        fetch_offset=offset,
                        partition_max_bytes=limit,
                        current_leader_epoch=leader_epoch,
                        last_fetched_epoch=fetched_epoch,
                        log_start_offset=3,
                    )
                ],
            )
            for topic, offset in named.items()
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=topic, topic_id=topic_id(topic), partitions=[0])
            for topic in forget
        ],
    )


def told(response: Any) -> list[tuple[str, PartitionData]]:
    return [
        (topic.topic or topic.topic_id.decode().strip("-"), part)
        for topic in response.responses
        for part in topic.partitions
    ]


def names(response: Any) -> str:
    """The topics in a response, in order; topics with records in capitals."""
    return "".join(name.upper() if part.records else name for name, part in told(response))


def batch_offsets(records: bytes | bytearray | memoryview) -> list[int]:
    return [
        int(bytes(records[at : at + SIZE]).rstrip(b"\0")) for at in range(0, len(records), SIZE)
    ]


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test in virtual time."""

    @wraps(test)
    def wrapped(**arguments: Any) -> None:
        async def scenario() -> None:
            await test(**arguments)

        with World(seed=1) as world:
            world.run(scenario())

    return wrapped


# -- which session


@virtual
@pytest.mark.kip(227)
@pytest.mark.parametrize("version", [7, 12, 13, 18])
@pytest.mark.parametrize(
    ("session", "epoch", "code", "answered", "is_left"),
    [
        ("none", -1, ErrorCode.NONE, "none", True),
        ("none", 0, ErrorCode.NONE, "new", True),
        ("known", 0, ErrorCode.NONE, "new", False),
        ("known", -1, ErrorCode.NONE, "none", False),
        ("known", 5, ErrorCode.NONE, "known", True),
        ("known", 4, ErrorCode.INVALID_FETCH_SESSION_EPOCH, "none", True),
        ("known", 6, ErrorCode.INVALID_FETCH_SESSION_EPOCH, "none", True),
        ("known", -2, ErrorCode.INVALID_FETCH_SESSION_EPOCH, "none", True),
        ("other", 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "none", True),
        ("none", 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "none", True),
        ("other", 0, ErrorCode.NONE, "new", True),
        ("other", -1, ErrorCode.NONE, "none", True),
    ],
)
async def test_which_session_a_request_means(
    version: int, session: str, epoch: int, code: ErrorCode, answered: str, is_left: bool
) -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    known = fake.send(request({"a": 0}, session_epoch=0), version).session_id
    for next_epoch in range(1, 5):
        fake.send(request({}, session_id=known, session_epoch=next_epoch), version)
    ids = {"none": 0, "known": known, "other": known ^ 1}
    named = {} if epoch == 5 else {"a": 0}
    response = fake.send(request(named, (), ids[session], epoch), version)
    assert response.error_code == code
    assert names(response) == ("" if code else "A")
    if answered == "new":
        assert response.session_id not in (0, known)
    else:
        assert response.session_id == ids[answered]
    assert len(fake.fetch_sessions) == is_left + (answered == "new")
    again = fake.send(request({}, (), known, 6 if answered == "known" else 5), version)
    assert again.error_code == (0 if is_left else ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


@virtual
@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12), (16, 7)])
async def test_a_session_goes_by_names_or_by_ids(first: int, then: int) -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0}, version=first)
    response = fake.ask(version=then)
    assert (response.error_code, response.session_id) == (
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        0,
    )
    assert fake.ask(version=first).error_code == 0


@virtual
async def test_versions_before_7_have_no_session() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    assert names(fake.ask({"a": 0}, version=6)) == "A"
    assert len(fake.fetch_sessions) == 0


@virtual
async def test_the_epoch_after_the_last_one_is_1() -> None:
    fake = FakeBroker()
    fake.add("a")
    session_id = fake.ask({"a": 0}).session_id
    fake.fetch_sessions._sessions[session_id].epoch = MAX_EPOCH
    codes = [
        fake.send(request({}, (), session_id, epoch)).error_code
        for epoch in (MAX_EPOCH, 0x7FFFFFFF, 1, 2)
    ]
    assert codes == [0, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, 0]


@virtual
async def test_a_session_ends_with_its_last_partition() -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    fake.ask({"a": 0, "b": 1})
    assert names(fake.ask(forget="a")) == ""
    watched = fake.partitions["b"].watchers
    assert len(watched) == 1
    response = fake.ask(forget="b")
    assert (response.error_code, response.session_id, names(response)) == (0, 0, "")
    assert not watched
    assert len(fake.fetch_sessions) == 0


@virtual
async def test_a_partition_added_and_forgotten_in_one_request_is_read_without_a_session() -> None:
    fake = FakeBroker()
    fake.add("a", batches=1)
    fake.ask({"a": 0})
    response = fake.ask({"a": 0}, forget="a")
    assert (response.session_id, names(response)) == (0, "A")
    assert not fake.partitions["a"].watchers


@virtual
async def test_a_session_without_partitions_ends_with_the_next_request() -> None:
    fake = FakeBroker()
    assert fake.ask({}).session_id
    assert fake.ask({}).session_id == 0


# -- what is answered


@virtual
@pytest.mark.kip(227)
async def test_only_changed_partitions_are_answered() -> None:
    """Kafka's own test: the high watermark of one partition moves, another gets records."""
    fake = FakeBroker()
    fake.add(*"abc")
    assert names(fake.ask(dict.fromkeys("abc", 0))) == "abc"
    assert names(fake.ask()) == ""
    a, b, c = fake.partitions.values()
    a.append(commits=False)
    assert names(fake.ask({"a": 1})) == ""
    a.commit()
    b.append()
    response = fake.ask()
    assert names(response) == "aB"
    assert [part.high_watermark for _, part in told(response)] == [1, 1]
    for partition in (a, b, c):
        partition.append()
    assert names(fake.ask({"b": 1})) == "ACB"


@virtual
async def test_records_not_yet_consumed_are_returned_again() -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    for _ in range(3):
        assert names(fake.ask({} if fake.epoch else {"a": 0, "b": 0})) == "AB"
    assert names(fake.ask({"a": 1, "b": 1})) == ""


@virtual
async def test_a_new_log_start_offset_is_returned_once() -> None:
    fake = FakeBroker()
    fake.add("a", batches=2)
    fake.ask({"a": 2})
    fake.partitions["a"].log.log_start_offset = 1
    fake.partitions["a"].change()
    response = fake.ask()
    assert [part.log_start_offset for _, part in told(response)] == [1]
    assert names(fake.ask()) == ""


@virtual
@pytest.mark.parametrize("version", [12, 13])
async def test_an_unknown_partition_is_repeated_until_it_exists(version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    fake = FakeBroker()
    fake.add("a", batches=1)
    for named in ({"u": 0, "a": 1}, {}, {}):
        response = fake.ask(named, version=version)
        codes = [(name, part.error_code) for name, part in told(response)]
        assert codes == [("a", 0), ("u", unknown)][bool(fake.epoch - 1) :]
    fake.partitions["a"].append()
    assert names(fake.ask(version=version)) == "Au"  # the unknown ones last, whatever the order
    fake.add("u")
    response = fake.ask({"a": 2}, version=version)
    assert [(name, part.error_code) for name, part in told(response)] == [("u", 0)]
    assert names(fake.ask(version=version)) == ""
    fake.partitions["u"].append()
    assert names(fake.ask(version=version)) == "U"


@virtual
async def test_a_partition_that_is_removed_and_created_again_is_returned() -> None:
    fake = FakeBroker()
    fake.add("a")
    fake.ask({"a": 0})
    gone = fake.partitions.pop("a")
    gone.change()
    for _ in range(2):
        (part,) = (part for _, part in told(fake.ask()))
        assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not gone.watchers
    fake.add("a")
    assert names(fake.ask()) == "a"
    fake.partitions["a"].append()
    assert names(fake.ask()) == "A"


@virtual
async def test_errors_at_a_partition_are_repeated_in_their_place() -> None:
    fake = FakeBroker()
    fake.add(*"abc", batches=1)
    named = {"a": 0, "b": 9, "c": 0}
    for _ in range(2):
        response = fake.ask(named if not fake.epoch else {})
        assert names(response) in ("AbC", "bAC")  # a partition that sent records goes last
        assert [part.error_code for name, part in told(response) if name == "b"] == [
            ErrorCode.OFFSET_OUT_OF_RANGE
        ]
    response = fake.ask({"a": 1, "b": 1, "c": 1})
    assert [(name, part.high_watermark) for name, part in told(response)] == [("b", 1)]
    assert names(fake.ask()) == ""


# -- the order


@virtual
@pytest.mark.kip(74)
@pytest.mark.parametrize("count", [2, 4, 25])
async def test_each_of_n_full_partitions_is_served_within_n_fetches(count: int) -> None:
    """One batch to a response, from the request that begins the session on."""
    fake = FakeBroker()
    topics = [chr(ord("A") + number) for number in range(count)]
    fake.add(*topics, batches=5)
    named = dict.fromkeys(topics, 0)
    served: list[str] = []
    for _ in range(4 * count):
        (name,) = (name for name, part in told(fake.ask(named, max_bytes=1)) if part.records)
        served.append(name)
        named = {name: served.count(name)}
    assert served == topics * 4


@virtual
@pytest.mark.kip(227)
async def test_a_moved_high_watermark_does_not_change_the_order() -> None:
    """KAFKA-12330: otherwise a partition whose high watermark keeps moving is never served."""
    fake = FakeBroker()
    fake.add(*"abc", batches=1)
    fake.ask({"a": 1, "b": 1, "c": 1})
    a, b, c = fake.partitions.values()
    a.append(commits=False)
    fake.ask({"a": 2})
    a.commit()
    assert names(fake.ask()) == "a"
    for partition in (a, b, c):
        partition.append()
    assert names(fake.ask(max_bytes=SIZE)) == "Abc"


@virtual
async def test_new_partitions_go_to_the_tail_and_updated_ones_keep_their_place() -> None:
    fake = FakeBroker()
    fake.add(*"abcd", batches=2)
    fake.ask({"a": 2, "b": 2})
    assert names(fake.ask({"d": 0, "b": 0, "a": 1})) == "ABD"
    assert names(fake.ask({"c": 0}, forget="b")) == "ADC"


@virtual
async def test_a_partition_named_twice_has_the_first_place_and_the_last_values() -> None:
    fake = FakeBroker()
    fake.add(*"ab", batches=1)
    wanted = request({"a": 9, "b": 0}, session_epoch=0)
    wanted.topics.append(request({"a": 0}).topics[0])
    assert names(fake.send(wanted)) == "AB"


# -- the cost


@virtual
async def test_idle_partitions_are_not_read() -> None:
    fake = FakeBroker()
    topics = [f"t{number}" for number in range(1000)]
    fake.add(*topics, batches=1)
    fake.ask(dict.fromkeys(topics, 1))
    for partition in fake.partitions.values():
        partition.looks = 0
    fake.partitions["t500"].append()
    assert names(fake.ask()) == "T500"
    assert names(fake.ask({"t500": 2})) == ""
    assert names(fake.ask()) == ""
    assert sum(partition.looks for partition in fake.partitions.values()) == 2


@virtual
async def test_a_lost_client_costs_one_call_per_partition() -> None:
    fake = FakeBroker()
    fake.add(*"ab")
    fake.ask({"a": 0, "b": 0})
    a, b = fake.partitions.values()
    assert (len(a.watchers), len(b.watchers)) == (1, 1)
    a.append()
    assert (len(a.watchers), len(b.watchers)) == (0, 1)
    assert names(fake.ask()) == "A"
    assert names(fake.ask({"a": 1})) == ""
    assert (len(a.watchers), len(b.watchers)) == (1, 1)
    fake.ask(wait_ms=1000)
    b.append()
    await asyncio.sleep(0.01)
    b.append()
    assert not b.watchers


@virtual
async def test_without_a_session_partitions_are_watched_only_while_a_fetch_waits() -> None:
    fake = FakeBroker(slots=0)
    fake.add(*"ab")
    a, b = fake.partitions.values()
    assert fake.ask({"a": 0, "b": 0}).session_id == 0
    assert not a.watchers
    assert not b.watchers
    answer = fake.ask({"a": 0, "b": 0}, wait_ms=1000)
    assert (len(a.watchers), len(b.watchers)) == (1, 1)
    b.append()
    assert names(await answer) == "aB"
    assert not a.watchers
    assert not b.watchers
    answer = fake.ask({"a": 0, "b": 1}, wait_ms=1000)
    answer.cancel()
    await asyncio.sleep(0)
    assert not a.watchers
    assert not b.watchers


# -- the cache


@virtual
@pytest.mark.kip(227)
@pytest.mark.parametrize(
    ("sessions", "newcomer", "evicted"),
    [
        # (is a follower's, partitions, age, idle for)
        ([(False, 2, 10, 0)], (False, 9), None),
        ([(False, 2, 121, 0)], (False, 3), 0),
        ([(False, 2, 121, 0)], (False, 2), None),
        ([(False, 2, 121, 121)], (False, 1), 0),
        ([(True, 2, 300, 121)], (False, 1), 0),
        ([(True, 1, 300, 0)], (False, 9), None),
        ([(False, 9, 10, 0)], (True, 1), 0),
        ([(True, 1, 10, 0)], (True, 9), None),
        ([(True, 1, 121, 0)], (True, 9), 0),
        ([(False, 3, 130, 0), (False, 2, 130, 0), (True, 1, 130, 0)], (False, 4), 1),
        ([(False, 2, 130, 0), (False, 3, 130, 121)], (False, 1), 1),
        ([(True, 1, 130, 0), (False, 5, 10, 0)], (True, 1), 1),
    ],
)
async def test_which_session_is_evicted(
    sessions: list[tuple[bool, int, int, int]], newcomer: tuple[bool, int], evicted: int | None
) -> None:
    fake = FakeBroker(slots=len(sessions))
    topics = [chr(ord("a") + number) for number in range(9)]
    fake.add(*topics)
    loop = asyncio.get_running_loop()
    now = loop.time() + 1000
    ids: dict[int, int] = {}

    def begin(is_follower: bool, count: int) -> int:
        named = dict.fromkeys(topics[:count], 0)
        replica = FOLLOWER if is_follower else -1
        return cast(int, fake.send(request(named, replica=replica)).session_id)

    events = [(now - age, 0, number) for number, (_, _, age, _) in enumerate(sessions)]
    events += [(now - idle, 1, number) for number, (_, _, _, idle) in enumerate(sessions)]
    for at, is_use, number in sorted(events):
        await asyncio.sleep(at - loop.time())
        is_follower, count, _, _ = sessions[number]
        if is_use:
            replica = FOLLOWER if is_follower else -1
            assert fake.send(request({}, (), ids[number], 1, replica=replica)).error_code == 0
        else:
            ids[number] = begin(is_follower, count)
    await asyncio.sleep(now - loop.time())
    assert bool(begin(*newcomer)) == (evicted is not None)
    assert [number for number in ids if ids[number] not in fake.fetch_sessions._sessions] == (
        [] if evicted is None else [evicted]
    )


@virtual
async def test_without_a_cache_slot_every_fetch_is_full() -> None:
    fake = FakeBroker(slots=0)
    fake.add("a", batches=1)
    for _ in range(3):
        response = fake.ask({"a": 0})
        assert (response.session_id, names(response)) == (0, "A")


@virtual
async def test_an_evicted_session_stops_watching_and_its_client_begins_another() -> None:
    fake = FakeBroker(slots=1)
    fake.add(*"ab")
    fake.ask({"a": 0})
    await asyncio.sleep(EVICTABLE_AFTER_S + 1)
    assert fake.send(request({"b": 0})).session_id
    assert not fake.partitions["a"].watchers
    assert fake.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# -- against a model, and as a client sees it


class Walk:
    """A model of Kafka's sessions: every fetch reads all partitions and leaves the unchanged ones
    out of the response."""

    def __init__(self, fake: FakeBroker, is_follower: bool) -> None:
        self.fake = fake
        self.is_follower = is_follower
        self.known: dict[str, tuple[int, int, int, int, int]] = {}

    def fetch(
        self, named: dict[str, int], forget: Iterable[str], epoch: int, limit: int, max_bytes: int
    ) -> list[tuple[str, int, int, int, bytes]]:
        is_new = not self.known
        for name, offset in named.items():
            *_, high_watermark, start = self.known.get(name, (-1, -1))
            self.known[name] = offset, epoch, limit, high_watermark, start
        for name in forget:
            self.known.pop(name, None)
        left, min_one = max_bytes, True
        found, unknown = [], []
        for name, (offset, leader_epoch, room, *_) in self.known.items():
            partition = self.fake.partitions.get(name)
            if partition is None:
                unknown.append((name, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1, -1, b""))
                continue
            log = partition.log
            code = 0
            if leader_epoch < partition.leader_epoch:
                code = int(ErrorCode.FENCED_LEADER_EPOCH)
            elif not log.log_start_offset <= offset <= log.log_end_offset:
                code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            if code:
                found.append((name, code, -1, -1, b""))
                continue
            end = log.log_end_offset if self.is_follower else partition.high_watermark
            records = partition.read(offset, min(room, left), min_one, end)
            min_one = min_one and not records
            left = max(0, left - len(records))
            found.append((name, 0, partition.high_watermark, log.log_start_offset, records))
        said = []
        for answer in found + unknown:
            name, code, high_watermark, start, records = answer
            offset, leader_epoch, room, *before = self.known[name]
            if is_new or code or records or before != [high_watermark, start]:
                said.append(answer)
                if records:
                    del self.known[name]
                self.known[name] = offset, leader_epoch, room, high_watermark, start
        return said


@virtual
@pytest.mark.kip(227)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("replica", [-1, FOLLOWER])
async def test_a_session_answers_as_if_it_had_read_everything(seed: int, replica: int) -> None:
    random = Random(seed)
    fake = FakeBroker()
    walk = Walk(fake, replica == FOLLOWER)
    topics = list("abcdefgh")
    position = dict.fromkeys(topics, 0)
    fake.add(*topics[:5])
    named = {name: 0 for name in topics[:4]}
    forget: list[str] = []
    for step in range(400):
        here = list(fake.partitions.values())
        for _ in range(random.choice([0, 0, 1, 3])):
            partition = random.choice(here)
            partition.append(
                random.randint(1, 3), random.choice([20, 100, 250]), random.random() < 0.6
            )
        partition = random.choice(here)
        match random.randrange(30):
            case 0:
                partition.commit()
            case 1 if partition.high_watermark > partition.log.log_start_offset:
                partition.log.log_start_offset += 1
                partition.change()
            case 2:
                partition.leader_epoch += 1
                partition.change()
            case 3 if len(here) > 2:
                del fake.partitions[partition.topic]
                partition.change()
            case 4:
                name = random.choice(topics)
                before = fake.partitions.get(name)
                fake.add(name)
                if before is not None:  # another one of the same name takes its place
                    before.change()
        epoch = max(each.leader_epoch for each in fake.partitions.values())
        for each in fake.partitions.values():
            if each.leader_epoch < epoch:
                each.leader_epoch = epoch
                each.change()
        epoch -= random.random() < 0.1
        limit, max_bytes = random.choice([0, 100, 300, BIG]), random.choice([0, 120, 500, BIG])
        response = fake.ask(
            named,
            forget,
            replica=replica,
            leader_epoch=max(epoch, 0),
            limit=limit,
            max_bytes=max_bytes,
        )
        assert response.session_id
        got = [
            (
                name,
                int(part.error_code),
                part.high_watermark,
                part.log_start_offset,
                bytes(part.records or b""),
            )
            for name, part in told(response)
        ]
        assert got == walk.fetch(named, forget, max(epoch, 0), limit, max_bytes), step
        named, forget = {}, []
        for name, code, _, start, records in got:
            if records:
                ends = [end for _, end, batch in fake.partitions[name].batches if batch in records]
                position[name] = ends[-1]
            elif code:
                position[name] = max(start, random.randint(0, 3))
            if random.random() < 0.8:
                named[name] = position[name]
        for name in random.sample(topics, random.choice([0, 0, 0, 1])):
            if name in walk.known and len(walk.known) > 2 and name not in named:
                forget.append(name)
            else:
                named[name] = position[name]


@virtual
@pytest.mark.parametrize("seed", range(12))
async def test_a_client_gets_every_record_once_and_in_order(seed: int) -> None:
    """With waits, small limits, connections that are lost, and sessions that are evicted."""
    random = Random(seed)
    fake = FakeBroker(slots=2)
    topics = list("abcdef")
    fake.add(*topics)
    position = dict.fromkeys(topics, 0)
    got: dict[str, list[int]] = {name: [] for name in topics}
    named = dict(position)

    def append(share: float) -> None:
        for partition in fake.partitions.values():
            if random.random() < share:
                partition.append(commits=random.random() < 0.7)
            elif random.random() < share:
                partition.commit()

    def begin_anew() -> None:
        fake.session_id = fake.epoch = 0
        named.update(position)

    for _ in range(300):
        append(0.2)
        if random.random() < 0.1:
            # Somebody else's session, after a time in which ours may have become the stalest.
            await asyncio.sleep(random.choice([0, EVICTABLE_AFTER_S]))
            fake.send(request({"a": 0, "b": 0}))
        answer = fake.ask(
            named,
            max_bytes=random.choice([0, 150, 250, BIG]),
            limit=random.choice([0, 250, BIG]),
            min_bytes=random.choice([0, 1, 1, 250]),
            wait_ms=random.choice([0, 10]),
        )
        named = {}
        if not isinstance(answer, FetchResponse):
            append(0.1)
            if random.random() < 0.1:
                answer.cancel()
                begin_anew()
                continue
            answer = await answer
            fake.session_id = answer.session_id
            fake.epoch = fake.epoch + 1 if answer.session_id else 0
        if answer.error_code:
            begin_anew()
            continue
        for name, part in told(answer):
            for offset in batch_offsets(part.records or b""):
                got[name].append(offset)
                position[name] = named[name] = offset + 1
        if not fake.session_id:
            begin_anew()
    for name, partition in fake.partitions.items():
        partition.commit()
        rest = fake.send(request({name: position[name]}, session_epoch=-1))
        got[name] += [each for _, part in told(rest) for each in batch_offsets(part.records or b"")]
        assert got[name] == list(range(partition.log.log_end_offset))
        assert len(got[name]) > 20
