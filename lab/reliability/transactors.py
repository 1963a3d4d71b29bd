"""Transactional producers during a simulation, and what readers of committed records must see.

    begin ─▶ records in some partitions, the offset of a group ─▶ commit or abort ─▶ begin …
        └─ killed, or replaced by another life with the same transactional id

Some prepare their transactions, store the decision, and then end them (KIP-939). The next life
carries out the last decision before it takes over the transactional id, or takes it over, keeps
what is prepared, and ends that as it was decided. They follow the older protocol, without an epoch
for each transaction, on a cluster of either `transaction.version`.

Each transaction has a number, and each of its records has the whole plan of the transaction. So
every record that is read tells which others must be there. The outcome of a transaction is unknown
if its producer was killed or fenced while it ended; then all of it is there, or nothing. That of a
prepared one is known as soon as it is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from lab.reliability.checkers import Violation
from lab.reliability.topic_kinds import TopicKind
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.client.sender.prepared import PreparedTransaction
from trimtab.kafka.errors import BrokerError, CorruptData, KafkaError, TransactionError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.sim.network import ANY
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

ATOMIC: Final = "atomic"
"""The topic to which transactional producers send."""
ATOMIC_KIND: Final = TopicKind(True, {"min.insync.replicas": 2, "segment.bytes": 2_000})
TRANSACTION_OPTIONS: Final[dict[str, Any]] = {
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.segment.bytes": 4_000,
    "transaction.state.log.min.isr": 2,
    "transaction.two.phase.commit.enable": True,
}
"""Options of the nodes, so that the log of transactions is compacted, and prepared transactions do
not time out."""

_TIMEOUT_MS: Final = 8_000
_LONG_TIMEOUT_MS: Final = 1_000_000
_SHORTEST_TIMEOUT_MS: Final = 500
_LONGEST_S: Final = 60.0
"""So that the last decision is carried out within the time in which a cluster must recover."""
_ENDLESS: Final[dict[str, Any]] = {"transaction_two_phase_commit_enable": True}
_DAMAGED_RETRY_S: Final = 1.0


class Outcome(Enum):
    """Of a transaction, as its producer knows it."""

    UNKNOWN = 0
    COMMITTED = 1
    ABORTED = 2


class RecordName(NamedTuple):
    """Which record of which transaction of which producer a record is, and what the transaction
    has sent by then."""

    producer: int
    transaction: int
    place: int


class Decision(NamedTuple):
    """How a prepared transaction is to end."""

    number: int
    prepared: PreparedTransaction
    is_commit: bool

    @property
    def outcome(self) -> Outcome:
        return Outcome.COMMITTED if self.is_commit else Outcome.ABORTED


@dataclass
class Ledger:
    """The transactions of one transactional id.

    Attributes:
        records: by transaction, how many records it has sent.
        outcomes: by transaction.
        committing: those that were asked to commit.
        offsets: the transactions that have committed the group's offset: their own number.
    """

    records: list[int] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    committing: set[int] = field(default_factory=set)
    offsets: set[int] = field(default_factory=set)

    def begin(self) -> int:
        self.records.append(0)
        self.outcomes.append(Outcome.UNKNOWN)
        return len(self.records) - 1


class Transactor:
    """Producers with one transactional id, one after the other; at times two at once.

    Attributes:
        group: the group whose offset is committed in transactions.
    """

    def __init__(self, world: World, number: int, bootstrap: str, partitions: int) -> None:
        self._world = world
        self._number = number
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._random = world.random(f"transactor {number}")
        self._stopping = asyncio.Event()
        self._lives = 0
        self._prepares = self._random.random() < 0.4
        # One that keeps fences those that do not, so they all do.
        self._keeps = self._prepares and self._random.random() < 0.5
        self._delays = self._random.choice((0, 0.1, 0.4))
        self._decision: Decision | None = None
        self._initializing: set[int] = set()
        self._living: dict[asyncio.Task[None], AsyncProducer] = {}
        self.host = f"transactor-{number}"
        self.group = f"atomic-{number}"
        self.ledger = Ledger()

    def stop(self) -> None:
        """Begin no more; `run` ends when no transaction is open."""
        self._stopping.set()

    async def run(self) -> None:
        random, loop = self._random, self._world.loop
        while not self._stopping.is_set():
            life = loop.create_task(self._live(), name=f"{self.host}/{self._lives}")
            # It takes a while until a late request meets an open transaction.
            end_s = random.expovariate(1) * (20 if self._delays else random.choice((1, 5, 20)))
            stopping = loop.create_task(self._stopping.wait())
            await asyncio.wait([life, stopping], timeout=end_s, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not life.done() and random.random() < 0.6:
                await self._kill()
            # Otherwise the next life fences this one, which goes on meanwhile.
            for task in [each for each in self._living if each.done()]:
                del self._living[task]
                if not task.cancelled():
                    task.result()
        while self._living:
            done, _ = await asyncio.wait(list(self._living))
            for task in done:
                del self._living[task]
                if not task.cancelled():
                    task.result()
        await self._end_last()

    async def _kill(self) -> None:
        """End the lives: they send nothing more, and their connections break."""
        self._world.trace.append(f"kill {self.host}")
        self._world.network.reset(self.host, ANY)
        for task, producer in list(self._living.items()):
            task.cancel()
            await asyncio.wait([task])
            await producer.close(0)
            del self._living[task]

    async def _end_last(self) -> None:
        """Fence what is left, so that it is aborted."""
        async with self._make_producer() as producer:
            await self._take_over(producer, self._lives)

    def _make_producer(self) -> AsyncProducer:
        self._lives += 1
        return AsyncProducer(
            self._bootstrap,
            wall_clock=self._world.wall_clock,
            random=self._world.random(f"{self.host}/{self._lives}"),
            transactional_id=self.host,
            **(_ENDLESS if self._prepares else {"transaction_timeout_ms": _TIMEOUT_MS}),
            max_block_ms=_LONG_TIMEOUT_MS,
            delivery_timeout_ms=_LONG_TIMEOUT_MS,
            request_timeout_ms=_SHORTEST_TIMEOUT_MS
            if self._delays
            else self._random.choice((_SHORTEST_TIMEOUT_MS, 2000, 5000)),
            linger_ms=self._random.choice((0, 5)),
            metadata_max_age_ms=10_000,
        )

    async def _live(self) -> None:
        producer = self._make_producer()
        task = asyncio.current_task()
        assert task is not None
        self._living[task] = producer
        life = self._lives
        try:
            goes_on = await self._take_over(producer, life)
            while goes_on and not self._stopping.is_set():
                await self._transact(producer, life)
                await asyncio.sleep(
                    self._random.expovariate(1)
                    * (0.02 if self._delays else self._random.choice((0.02, 0.2, 2)))
                )
        except KafkaError as error:
            self._world.trace.append(f"{task.get_name()} ends: {error}")
        await producer.close(5)

    async def _take_over(self, producer: AsyncProducer, life: int) -> bool:
        """Carry out what the life before has decided, and fence it; returns whether no other life
        has begun meanwhile."""
        decision = self._decision
        if decision is not None and not self._keeps:
            try:
                await self._carry_out(producer, decision)
            except BrokerError as error:
                # Otherwise another life did, and has gone on.
                if self._decision is decision and self._is_known(decision):
                    raise Violation(f"{self.host}: {decision} cannot be carried out") from error
        if life != self._lives:
            return False
        self._initializing.add(life)
        since_s = self._world.loop.time()
        await producer.init_transactions(keep_prepared=self._keeps)
        if self._world.loop.time() - since_s < _SHORTEST_TIMEOUT_MS / 1000:
            self._initializing.discard(life)  # otherwise an attempt that was given up may come late
        if self._keeps:
            await self._end_kept(producer, decision)
        return True

    async def _end_kept(self, producer: AsyncProducer, decision: Decision | None) -> None:
        """End what the life before has prepared, as it has decided, or else abort it."""
        kept = producer.prepared()
        if decision is not None and decision.prepared == kept:
            await self._carry_out(producer, decision)
            return
        if kept is not None:
            await producer.abort_transaction()
        if self._decision is decision:
            self._decision = None  # what is not kept was ended before

    def _is_known(self, decision: Decision) -> bool:
        return self.ledger.outcomes[decision.number] is not Outcome.UNKNOWN

    async def _carry_out(self, producer: AsyncProducer, decision: Decision) -> None:
        await producer.complete_transaction(decision.prepared, decision.is_commit)
        self.ledger.outcomes[decision.number] = decision.outcome
        if self._decision is decision:
            self._decision = None

    def _delay_requests(self) -> None:
        """Hold what is sent over the present connections, but not over those that replace them. So
        a request may arrive during the next transaction (KAFKA-17754)."""
        network = self._world.network
        ends = network.connections_from(self.host)

        def heal() -> None:
            for client, server in ends:
                network.heal(client, server)

        for client, server in ends:
            network.cut(client, server, one_way=True)
        delay_s = self._random.expovariate(1) * self._random.choice((1, 3, 8))
        self._world.loop.call_later(delay_s, heal)

    async def _end(self, producer: AsyncProducer, number: int, is_commit: bool) -> None:
        if is_commit:
            self.ledger.committing.add(number)
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        self.ledger.outcomes[number] = Outcome.COMMITTED if is_commit else Outcome.ABORTED

    async def _decide(
        self, producer: AsyncProducer, life: int, number: int, is_commit: bool
    ) -> None:
        """Prepare the transaction, and end it unless another life has begun."""
        prepared = await producer.prepare_transaction()
        if life != self._lives:
            return
        self._decision = decision = Decision(number, prepared, is_commit)
        # An InitProducerId may still come, of a killed life or given up, and abort the transaction.
        if not self._initializing:
            self.ledger.outcomes[number] = decision.outcome
        if is_commit:
            self.ledger.committing.add(number)
        if self._random.random() < 0.5:
            delay_s = self._random.expovariate(1) * self._random.choice((0.1, 1, 20))
            await asyncio.sleep(min(delay_s, _LONGEST_S))
        await self._carry_out(producer, decision)

    async def _transact(self, producer: AsyncProducer, life: int) -> None:
        random, ledger = self._random, self.ledger
        await producer.begin_transaction()
        number = ledger.begin()
        try:
            for _ in range(random.choice((1, 2, 5) if self._delays else (0, 1, 2, 5, 20))):
                index = ledger.records[number]
                ledger.records[number] += 1
                content = b"%d %d %d " % (self._number, number, index)
                await producer.send(
                    ATOMIC,
                    content + bytes(random.randrange(100)),
                    partition=random.randrange(self._partitions),
                )
                if random.random() < max(0.1, self._delays):
                    await asyncio.sleep(random.expovariate(1) * random.choice((0.1, 1, 4)))
            if random.random() < 0.5:
                ledger.offsets.add(number)
                await producer.send_offsets_to_transaction(
                    {TopicPartition(ATOMIC, 0): number}, self.group
                )
            is_commit = random.random() < 0.7
            if random.random() < self._delays:
                self._delay_requests()
            if self._prepares:
                await self._decide(producer, life, number, is_commit)
            else:
                await self._end(producer, number, is_commit)
        except TransactionError as error:
            if error.is_fatal:
                raise
            await producer.abort_transaction()
            assert ledger.outcomes[number] is Outcome.UNKNOWN
            ledger.outcomes[number] = Outcome.ABORTED


class CommittedReader:
    """A consumer of committed records that reads the topic from the beginning.

    Attributes:
        seen: what it has read, by partition and offset.
    """

    def __init__(
        self, world: World, bootstrap: str, partitions: int, ledgers: list[Ledger]
    ) -> None:
        self._world = world
        self._bootstrap = bootstrap
        self._ledgers = ledgers
        self.host = "committed-reader"
        self.seen: dict[TopicPartition, dict[int, RecordName]] = {
            TopicPartition(ATOMIC, index): {} for index in range(partitions)
        }

    async def run(self) -> None:
        async with self.make_consumer(self.host) as consumer:
            while True:
                await self.poll(consumer)

    def make_consumer(self, name: str) -> AsyncConsumer:
        consumer = AsyncConsumer(
            self._bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            random=self._world.random(name),
            fetch_max_wait_ms=2_000,
            request_timeout_ms=5_000,
            metadata_max_age_ms=10_000,
        )
        consumer.assign(list(self.seen))
        consumer.seek_to_beginning()
        return consumer

    async def poll(self, consumer: AsyncConsumer) -> None:
        try:
            records = await consumer.poll(timeout_ms=1_000, max_records=10_000)
        except CorruptData:
            await asyncio.sleep(_DAMAGED_RETRY_S)
            return
        for record in records:
            self._note(record)

    def _note(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        seen = self.seen[partition]
        if seen and record.offset <= next(reversed(seen)):
            raise Violation(
                f"{self.host} reads offset {record.offset} of {partition} after "
                f"{next(reversed(seen))}"
            )
        seen[record.offset] = read = read_name(record)
        if read.transaction not in self._ledgers[read.producer].committing:
            raise Violation(f"{self.host} reads {read}, which nobody has asked to commit")


def read_name(record: Record) -> RecordName:
    """
    Raises:
        Violation: no transactional producer has sent such a record.
    """
    parts = (record.value or b"").split(b" ", 3)
    if len(parts) != 4 or parts[3].strip(b"\0"):
        raise Violation(f"a record was read that nobody has sent: {record}")
    return RecordName(*map(int, parts[:3]))


def check_atomic(
    transactors: list[Transactor],
    stored: Mapping[TopicPartition, Mapping[int, RecordName]],
    offsets: Mapping[str, int],
) -> None:
    """Compare what is committed in the end with the ledgers.

    Args:
        stored: every committed record, by partition and offset.
        offsets: by group, its committed offset; -1 if it has none.

    Raises:
        Violation: a transaction is there in part, twice, out of order, or against its outcome.
    """
    for number, transactor in enumerate(transactors):
        ledger = transactor.ledger
        there: dict[int, list[int]] = {}
        for partition, records in stored.items():
            last = (-1, -1)
            for offset, read in sorted(records.items()):
                if read.producer != number:
                    continue
                if (read.transaction, read.place) <= last:
                    raise Violation(
                        f"{transactor.host}: {read} is at {offset} of {partition}, after {last}"
                    )
                last = read.transaction, read.place
                there.setdefault(read.transaction, []).append(read.place)
        for transaction, outcome in enumerate(ledger.outcomes):
            found = sorted(there.get(transaction, []))
            whole = list(range(ledger.records[transaction]))
            if outcome is not Outcome.COMMITTED and not found:
                continue
            if outcome is Outcome.ABORTED or found != whole or transaction not in ledger.committing:
                raise Violation(
                    f"{transactor.host}: transaction {transaction} with {len(whole)} records is "
                    f"{outcome.name}, and a reader of committed records sees {found}"
                )
        _check_offset(transactor, there, offsets[transactor.group])


def _check_offset(transactor: Transactor, there: Mapping[int, list[int]], offset: int) -> None:
    """The group's offset is of the last transaction that has committed one."""
    ledger = transactor.ledger
    certain = [
        each
        for each in ledger.offsets
        if ledger.outcomes[each] is Outcome.COMMITTED or there.get(each)
    ]
    least = max(certain, default=-1)
    # Of a transaction without records nothing else tells whether it was committed.
    allowed = {least} | {
        each
        for each in ledger.offsets
        if each > least
        and ledger.outcomes[each] is Outcome.UNKNOWN
        and each in ledger.committing
        and not ledger.records[each]
    }
    if offset not in allowed:
        raise Violation(
            f"{transactor.host}: the offset of {transactor.group} is {offset}, not "
            f"{sorted(allowed)}"
        )


class TransactionScene:
    """The transactional producers of a run, and the readers of what they commit.

    Attributes:
        partitions: of the topic.
        version: the level of `transaction.version`.
    """

    def __init__(self, world: World, bootstrap: str) -> None:
        random = world.random("transactions of the run")
        self._world = world
        self._bootstrap = bootstrap
        self.partitions: Final = random.choice((1, 2, 3))
        self._transactors = [
            Transactor(world, number, bootstrap, self.partitions)
            for number in range(random.choice((1, 2, 3)))
        ]
        ledgers = [each.ledger for each in self._transactors]
        self._reader, self._last = (
            CommittedReader(world, bootstrap, self.partitions, ledgers) for _ in range(2)
        )
        self._offsets: dict[str, int] = {}
        self.version: Final = random.choice((2, 2, 1))

    @property
    def hosts(self) -> list[str]:
        return [*(each.host for each in self._transactors), self._reader.host]

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to send."""
        tasks = []
        for each in self._transactors:
            with self._world.network.at(each.host):
                tasks.append(self._world.loop.create_task(each.run(), name=each.host))
        return tasks

    def read(self) -> asyncio.Task[None]:
        """Begin to read."""
        with self._world.network.at(self._reader.host):
            return self._world.loop.create_task(self._reader.run(), name=self._reader.host)

    def stop(self) -> None:
        """Begin no more transactions."""
        for each in self._transactors:
            each.stop()

    async def read_last(self) -> None:
        """Read everything, and the groups' offsets."""
        partitions = list(self._last.seen)
        async with AsyncAdmin(self._bootstrap, random=self._world.random("atomic admin")) as admin:
            ends = await admin.list_offsets(partitions, "latest")
            for each in self._transactors:
                found = await admin.list_group_offsets(each.group)
                offset = found.get(TopicPartition(ATOMIC, 0))
                self._offsets[each.group] = -1 if offset is None else offset.offset
        async with self._last.make_consumer("last committed reader") as consumer:
            while any([await consumer.position(each) < ends[each].offset for each in partitions]):
                await self._last.poll(consumer)

    def find_unread(self) -> str:
        """What the reader of the run has not read yet."""
        return ", ".join(
            f"{self._reader.host} has read {len(self._reader.seen[partition])} records of "
            f"{partition}, of {len(records)}"
            for partition, records in self._last.seen.items()
            if len(self._reader.seen[partition]) < len(records)
        )

    def check(self) -> None:
        """
        Raises:
            Violation: the readers differ, or transactions are not atomic.
        """
        if self._reader.seen != self._last.seen:
            raise Violation("readers of committed records have read different ones")
        check_atomic(self._transactors, self._last.seen, self._offsets)


def find_unstable(cluster: VirtualCluster) -> str:
    """A partition in which a transaction hangs."""
    for node in cluster.brokers:
        for key, partition in node.broker.partitions.items() if node.broker is not None else ():
            log = partition.log
            if partition.is_leader and log.last_stable_offset < log.high_watermark:
                return f"a transaction is open in {key[0]}-{key[1]} from {log.last_stable_offset}"
    return ""
