"""Every order of events around one transactional id: no torn transaction, no write of a fenced
producer, no dead end.

Two producers with the same transactional id write to two partitions; requests to leaders and to the
coordinator may be late, also overtaken by later ones of other connections; responses are lost;
producers restart; time passes; another coordinator takes over, while markers of the one before are
still on their way. The search goes through all states that differ, breadth first, up to
`TRANSACTION_STATES` (environment; default 1,000) of them. From each it also checks that no
transaction hangs once nothing disturbs it any more.

Version 2 of transactions (KIP-890) keeps all rules. Version 1 keeps them only if requests are not
late: with late ones Apache Kafka itself loses writes and tears transactions.

Planted bugs test the search: it must find each. Claims that are false must be refuted, so that it
is known to come to where they are.

Long because model, events, invariants and planted bugs are read together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.property.exploring import Settling, Violation, explore
from trimtab.cluster.coordinator import transaction_shard
from trimtab.cluster.coordinator.effects import Caller, Ending, Now
from trimtab.cluster.coordinator.transaction import NOBODY, ProducerIdAndEpoch, Transaction
from trimtab.cluster.coordinator.transaction_shard import TransactionRules, TransactionShard
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus, decode_transaction

pytestmark = pytest.mark.kip(890)

STATES = int(os.environ.get("TRANSACTION_STATES", "1000"))
NAME = "id"
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
TIMEOUT_MS = 60_000
IN_FLIGHT = 2
"""Requests of producers that may be late at the same time."""
TRANSACTIONS = 2
"""That a producer begins in its life, at most."""
STEPS = 12

BY_PRODUCER = -2
"""The token of a batch of version 1: the producer itself has added the partition."""

Tag = tuple[int, int, int]
"""A transaction as its producer knows it: the producer, its life, and a number."""


class Write(NamedTuple):
    """A batch on its way to a leader. Its token is that of the leader's verification, 0 before."""

    partition: int
    producer: ProducerIdAndEpoch
    tag: Tag
    token: int = 0


class End(NamedTuple):
    """EndTxn on its way to the coordinator; nobody waits for the response."""

    producer: ProducerIdAndEpoch
    commit: bool


class Marker(NamedTuple):
    """A marker on its way to a leader."""

    ending: Ending
    partition: int
    coordinator_epoch: int


class Token(NamedTuple):
    """A leader's verification: its number, and the epoch of the producer that it asked about."""

    number: int
    epoch: int


class Leader:
    """A partition: for each producer id its epoch, the epoch of the last coordinator, and the tags
    of the records in its open transaction.

    Attributes:
        outcomes: whether each transaction with records here was committed.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.coordinators: dict[int, int] = {}
        self.open: dict[int, frozenset[Tag]] = {}
        self.tokens: dict[int, Token] = {}
        self.written: frozenset[Tag] = frozenset()
        self.outcomes: dict[Tag, bool] = {}

    def append(self, write: Write) -> bool:
        """Store a batch, if its producer is not fenced, and its transaction open or verified."""
        producer_id, epoch = write.producer
        if epoch < self.epochs.get(producer_id, -1):
            return False
        token = Token(write.token, epoch)
        is_verified = self.has_begun(write.producer) or self.tokens.get(producer_id) == token
        if not is_verified and write.token != BY_PRODUCER:
            return False
        self.epochs[producer_id] = epoch
        self.tokens.pop(producer_id, None)
        tags = self.open.get(producer_id, frozenset()) | {write.tag}
        if len(tags) > 1:
            raise Violation(f"records of {sorted(tags)} are in one transaction")
        self.open[producer_id] = tags
        self.written |= {write.tag}
        return True

    def has_begun(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether a transaction of the producer's present epoch is open here."""
        producer_id, epoch = producer
        return producer_id in self.open and self.epochs.get(producer_id) == epoch

    def end(self, marker: Marker) -> bool:
        """Store a marker, as `ProducerState.check_marker` says."""
        producer_id, epoch = marker.ending.producer_id, marker.ending.producer_epoch
        known = self.epochs.get(producer_id, -1)
        is_late = epoch < known
        if marker.ending.version >= 2 and epoch == known:
            is_late = producer_id in self.open
        if is_late or marker.coordinator_epoch < self.coordinators.get(producer_id, -1):
            return False
        self.epochs[producer_id] = epoch
        self.coordinators[producer_id] = marker.coordinator_epoch
        token = self.tokens.get(producer_id)
        if token is not None and token.epoch < epoch:  # otherwise the transaction before has ended
            del self.tokens[producer_id]
        for tag in self.open.pop(producer_id, ()):
            self.outcomes[tag] = marker.ending.is_commit
        return True

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            tuple(sorted(self.epochs.items())),
            tuple(sorted(self.coordinators.items())),
            tuple(sorted((each, tuple(tags)) for each, tags in self.open.items())),
            tuple(sorted(self.tokens.items())),
            tuple(sorted(self.outcomes.items())),
        )


class Producer:
    """A producer that keeps to its protocol."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.begin()

    def begin(self) -> None:
        self.state = "out"
        self.identity = NOBODY
        self.transaction = 0
        self.waiting: frozenset[int] = frozenset()
        """Partitions whose acknowledgement it waits for."""
        self.sent: frozenset[int] = frozenset()
        self.acknowledged: frozenset[int] = frozenset()
        self.commits = False

    @property
    def tag(self) -> Tag:
        return self.number, self.life, self.transaction

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            self.state,
            self.identity,
            self.tag,
            tuple(sorted(self.waiting)),
            tuple(sorted(self.sent)),
            tuple(sorted(self.acknowledged)),
            self.commits,
        )


class World:
    """A coordinator, two leaders and two producers.

    Args:
        version: of transactions.
        is_late: whether requests of producers may be late.
        producers: how many there are.
    """

    def __init__(self, version: int = 2, is_late: bool = True, producers: int = 2) -> None:
        self.version = version
        self.is_late = is_late
        self.now_ms = 1_000_000
        self.last_id = 0
        self.log: list[Any] = []
        self.coordinator_epoch = 0
        self.shard = self.make_shard()
        self.leaders = [Leader() for _ in PARTITIONS]
        self.producers = [Producer(number) for number in range(producers)]
        self.flying: list[Write | End] = []
        self.markers: list[Marker] = []
        self.tokens = 0
        self.promised: dict[Tag, bool] = {}
        self.kept: dict[Tag, frozenset[int]] = {}
        """By committed transaction, the partitions with acknowledged records."""
        self.fenced_below = NOBODY
        self.asked: frozenset[Tag] = frozenset()
        """Transactions that their producers wanted committed."""

    def make_shard(self) -> TransactionShard:
        rules = TransactionRules(900_000, True, 10**9)
        return TransactionShard(rules, self.level, self.next_id, self.most, lambda _: None)

    def level(self) -> int:
        return self.version

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def most(self) -> int:
        return 1 << 20

    @property
    def now(self) -> Now:
        return Now(self.now_ms / 1000, self.now_ms)

    @property
    def known(self) -> Transaction | None:
        return self.shard.transactions.get(NAME)

    # What may happen

    def actions(self) -> Iterator[tuple[str, int]]:
        has_room = len(self.flying) < IN_FLIGHT
        for number, producer in enumerate(self.producers):
            state = producer.state
            if state == "out":
                yield "init", number
                continue
            yield "restart", number
            if state == "ready" and producer.transaction < TRANSACTIONS:
                for partition in range(len(PARTITIONS)):
                    if partition not in producer.sent and (has_room or not self.is_late):
                        yield f"send {partition}", number
                if producer.sent and not producer.waiting:
                    yield "commit", number
                if producer.sent or self.version == 2:
                    yield "abort", number
            elif state == "failed":
                yield "abort", number
            elif state == "ending":
                yield "ask", number
                yield "ask deaf", number
                if self.is_late and has_room:
                    yield "ask late", number
        for place in range(len(self.flying)):
            yield "arrive", place
        for place in range(len(self.markers)):
            yield "mark", place
        if self.shard.next_due is not None:
            yield "time", 0
        if self.coordinator_epoch < 2:
            yield "move", 0

    def act(self, what: str, number: int) -> None:
        what, _, more = what.partition(" ")
        if what == "arrive":
            self.arrive(number)
        elif what == "mark":
            self.mark(self.markers.pop(number))
        elif what == "time":
            self.pass_time()
        elif what == "move":
            self.move()
        else:
            producer = self.producers[number]
            if what == "init":
                self.init(producer)
            elif what == "restart":
                producer.life += 1
                producer.begin()
            elif what == "send":
                self.send(producer, int(more))
            elif what == "ask":
                self.ask(producer, more)
            else:
                producer.state, producer.commits = "ending", what == "commit"
                if producer.commits:
                    self.asked |= {producer.tag}
                producer.waiting = frozenset()
        self.check()

    # Producers

    def init(self, producer: Producer) -> None:
        request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS)
        self.shard.init(self.now, Caller(None, 5, "c", "/h"), request)
        (response,) = self.take()
        if response.error_code == ErrorCode.NONE:
            producer.identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            producer.state = "ready"
            self.fenced_below = producer.identity
        elif response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            raise Violation(f"a producer gets no id: {response}")

    def send(self, producer: Producer, partition: int) -> None:
        producer.sent |= {partition}
        producer.waiting |= {partition}
        write = Write(partition, producer.identity, producer.tag)
        self.flying.append(write)
        if not self.is_late:
            while write in self.flying or any(
                isinstance(each, Write) and each.tag == write.tag for each in self.flying
            ):
                self.arrive(len(self.flying) - 1)
                if self.known is not None and self.known.is_ending:
                    break

    def arrive(self, place: int) -> None:
        """A request comes to where it was sent."""
        request = self.flying.pop(place)
        if isinstance(request, End):
            self.end(request.producer, request.commit)
            return
        leader = self.leaders[request.partition]
        asks = self.version == 1 or not leader.has_begun(request.producer)
        if asks and not request.token:
            code = self.shard.add_partitions(
                self.now, NAME, request.producer, [PARTITIONS[request.partition]], self.version
            )
            self.take()
            if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                self.flying.append(request)  # it is tried again
            elif code is ErrorCode.NONE:
                token = BY_PRODUCER
                if self.version == 2:
                    self.tokens = token = self.tokens + 1
                    leader.tokens[request.producer.producer_id] = Token(
                        token, request.producer.epoch
                    )
                self.flying.append(request._replace(token=token))
            else:
                self.hear(request, False)
            return
        is_stored = leader.append(request)
        if is_stored and request.producer.epoch < self.fenced_below.epoch:
            raise Violation(f"{request} was written, but {self.fenced_below} had begun")
        self.hear(request, is_stored)

    def hear(self, write: Write, is_stored: bool) -> None:
        """The producer hears what became of a batch, if it still waits for that."""
        producer = self.producers[write.tag[0]]
        if producer.tag != write.tag or write.partition not in producer.waiting:
            return
        producer.waiting -= {write.partition}
        if is_stored:
            producer.acknowledged |= {write.partition}
        else:
            producer.state = "failed"
            producer.waiting = frozenset()

    def ask(self, producer: Producer, how: str) -> None:
        if how == "late":
            self.flying.append(End(producer.identity, producer.commits))
            return
        response = self.end(producer.identity, producer.commits)
        if how == "deaf" or response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return
        if response.error_code != ErrorCode.NONE:
            producer.life += 1
            producer.begin()  # a fatal error
            return
        self.promised[producer.tag] = producer.commits
        if producer.commits:
            self.kept[producer.tag] = producer.acknowledged
        if self.version == 2:
            producer.identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        producer.transaction += 1
        producer.sent = producer.acknowledged = frozenset()
        producer.state = "ready"

    # The coordinator

    def end(self, producer: ProducerIdAndEpoch, commit: bool) -> Any:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        version = 5 if self.version == 2 else 4
        self.shard.commit_or_abort(self.now, Caller(None, version, "c", "/h"), request)
        (response,) = self.take()
        return response

    def take(self) -> list[Any]:
        effects = self.shard.effects.take()
        self.log += [(each.encoded_key, each.encoded_value) for each in effects.records]
        for ending in effects.endings:
            self.markers += [
                Marker(ending, PARTITIONS.index(each), self.coordinator_epoch)
                for each in sorted(ending.partitions)
            ]
            if not ending.partitions:
                self.shard.complete(self.now, ending)
                self.take()
        return [response for _, response in effects.responses]

    def mark(self, marker: Marker) -> None:
        stored = self.leaders[marker.partition].end(marker)
        is_last = not any(
            each.ending == marker.ending and each.coordinator_epoch == marker.coordinator_epoch
            for each in self.markers
        )
        if stored and is_last and marker.coordinator_epoch == self.coordinator_epoch:
            self.shard.complete(self.now, marker.ending)
            self.take()

    def move(self) -> None:
        """Another broker coordinates; the markers of this one are still on their way."""
        self.coordinator_epoch += 1
        self.shard = self.make_shard()
        for key, value in self.log:
            decoded = decode_transaction(key, value)
            assert decoded is not None
            self.shard.replay(*decoded)
        self.shard.resume(self.now)
        self.take()

    def pass_time(self) -> None:
        due = self.shard.next_due
        assert due is not None
        self.now_ms = max(self.now_ms, round(due * 1000))
        self.shard.look(self.now)
        self.take()

    # Rules

    def check(self) -> None:
        outcomes: dict[Tag, bool] = {}
        for leader in self.leaders:
            for tag, is_commit in leader.outcomes.items():
                if outcomes.setdefault(tag, is_commit) != is_commit:
                    raise Violation(f"transaction {tag} is torn")
                if is_commit and tag not in self.asked:
                    raise Violation(f"transaction {tag} is committed, but nobody has asked for it")
        for tag, is_commit in self.promised.items():
            if outcomes.get(tag, is_commit) != is_commit:
                raise Violation(f"transaction {tag} has ended otherwise than its producer was told")
        for tag, partitions in self.kept.items():
            for partition in partitions:
                if tag not in self.leaders[partition].written:
                    raise Violation(f"an acknowledged record of {tag} is lost")

    def is_settled(self) -> bool:
        known = self.known
        is_over = known is None or known.status in (
            TransactionStatus.EMPTY,
            TransactionStatus.COMPLETE_COMMIT,
            TransactionStatus.COMPLETE_ABORT,
        )
        return is_over and not self.markers and not any(leader.open for leader in self.leaders)

    def proceed(self) -> None:
        """Requests and markers arrive, producers do nothing more, and time passes."""
        for _ in range(2 * len(self.flying)):
            if self.flying:
                self.arrive(0)
        while self.markers:
            self.mark(self.markers.pop(0))
        if self.shard.next_due is not None:
            self.pass_time()
        self.check()

    @property
    def key(self) -> tuple[Any, ...]:
        known = self.known
        state = None
        if known is not None:
            state = (
                known.producer,
                known.last_epoch,
                known.previous_id,
                known.next,
                known.status,
                tuple(sorted(known.partitions)),
                known.version,
            )
        tags = {each.tag for each in self.producers}
        tags |= {each.tag for each in self.flying if isinstance(each, Write)}
        return (
            state,
            self.shard.next_due is None,
            self.coordinator_epoch,
            tuple(leader.key for leader in self.leaders),
            tuple(producer.key for producer in self.producers),
            tuple(sorted(map(repr, self.flying))),
            tuple(sorted(map(repr, self.markers))),
            tuple(sorted(self.promised.items())),
            tuple(sorted(self.asked)),
            self.fenced_below,
        )


def search(
    states: int,
    claim: Callable[[World], bool] = lambda world: True,
    version: int = 2,
    is_late: bool = True,
    producers: int = 2,
    start: Sequence[str] = (),
) -> int:
    """Go through the states that differ, from no transactional id, from a producer that has begun,
    and from one that is about to commit; returns how many there are, `states` at most.

    Args:
        start: actions after that; then only what follows is searched.
    """
    nothing, begun, committing = (World(version, is_late, producers) for _ in range(3))
    begun.act("init", 0)
    for what in ("init", "send 0"):
        committing.act(what, 0)
    while committing.flying:
        committing.act("arrive", 0)
    for what in ("commit", *start):
        committing.act(what, 0)
    roots = [committing] if start else [nothing, begun, committing]
    return explore(roots, states, Settling(STEPS), claim)


@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize(("version", "is_late"), [(2, True), (2, False), (1, False)])
def test_no_order_of_events_breaks_a_rule(version: int, is_late: bool, producers: int) -> None:
    found = search(STATES, version=version, is_late=is_late, producers=producers)
    assert found >= min(STATES, 1000)


_prepare = TransactionShard._prepare
_resume = TransactionShard.resume


def _keep_the_epoch(
    shard: TransactionShard, now: Now, known: Transaction, *more: Any, **named: Any
) -> ProducerIdAndEpoch:
    """Version 2 without its raised epoch."""
    after = _prepare(shard, now, known, *more, **named)
    changed = shard.transactions[known.id]
    changed.producer = known.producer
    shard.effects.endings[-1] = shard.effects.endings[-1]._replace(
        producer_epoch=known.producer.epoch
    )
    return after if after is NOBODY else known.producer


def _forget_what_ends(shard: TransactionShard, now: Now) -> None:
    _resume(shard, now)
    shard.effects.endings.clear()


def _accept(*_: Any) -> None:
    """A coordinator that takes any producer for the present one."""


def _complete_early(shard: TransactionShard, known: Transaction) -> None:
    """The markers are forgotten."""
    partitions: frozenset[TopicPartition] = frozenset()
    shard.effects.endings.append(
        Ending(
            known.id,
            known.producer.producer_id,
            known.producer.epoch,
            known.status is TransactionStatus.PREPARE_COMMIT,
            partitions,
            known.version,
        )
    )


def _say_yes(leader: Leader, producer: ProducerIdAndEpoch) -> bool:
    """A leader that does not ask whether the transaction is open."""
    return True


def _trust_markers(leader: Leader, marker: Marker) -> bool:
    """A leader that stores every marker."""
    producer_id = marker.ending.producer_id
    leader.tokens.pop(producer_id, None)
    for tag in leader.open.pop(producer_id, ()):
        leader.outcomes[tag] = marker.ending.is_commit
    return True


PLANTED: dict[str, tuple[tuple[str, ...], Any, str, Any]] = {
    "an end keeps the epoch": ((), TransactionShard, "_prepare", _keep_the_epoch),
    "a new coordinator forgets what was ending": (
        (),
        TransactionShard,
        "resume",
        _forget_what_ends,
    ),
    "an end of before is taken for one that is asked for again": (
        ("ask late", "ask"),
        transaction_shard,
        "_ENDED",
        tuple(TransactionStatus),
    ),
    "markers are not sent": ((), TransactionShard, "_end_later", _complete_early),
    "a leader writes what is not in a transaction": ((), Leader, "has_begun", _say_yes),
    "a leader writes markers of older epochs": (("ask",), Leader, "end", _trust_markers),
    "a fenced producer adds partitions": ((), transaction_shard, "_check_caller", _accept),
    "an open transaction has no timeout": ((), TransactionShard, "_watch", lambda *_: None),
}
"""Each with how the search starts."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, kind, name, instead = PLANTED[bug]
    monkeypatch.setattr(kind, name, instead)
    with pytest.raises(Violation):
        search(STATES, producers=1, start=start)


def test_version_1_is_torn_by_late_requests() -> None:
    with pytest.raises(Violation):
        search(4 * STATES, version=1)


def _is_fenced(world: World) -> bool:
    return world.fenced_below.epoch >= 2


def _has_two_outcomes(world: World) -> bool:
    return len(set(world.leaders[0].outcomes.values())) == 2


def _is_retried(world: World) -> bool:
    """A producer asks once more for an end that was carried out."""
    known = world.known
    return known is not None and any(
        each.state == "ending"
        and known.producer == each.identity._replace(epoch=each.identity.epoch + 1)
        and known.status in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
        for each in world.producers
    )


def _has_late_markers(world: World) -> bool:
    return len({each.coordinator_epoch for each in world.markers}) == 2


@pytest.mark.parametrize(
    ("state", "start"),
    [
        (_is_fenced, ()),
        (_has_two_outcomes, ("ask", "mark")),
        (_is_retried, ()),
        (_has_late_markers, ()),
    ],
)
def test_the_search_comes_to(state: Callable[[World], bool], start: tuple[str, ...]) -> None:
    with pytest.raises(Violation, match="claim"):
        search(2 * STATES, lambda world: not state(world), producers=1, start=start)
