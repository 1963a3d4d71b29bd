"""A model of Spark and of Kafka's transactions, in which anything may die between any two steps.

`Coordinator` keeps the rules of Kafka's (`TransactionCoordinator`, the older protocol) for ids,
epochs and time limits, and a leader's for sequence numbers. `Spark` runs micro-batches: a driver,
tasks with further and speculative attempts, a commit log; it replays what that lacks, and rows fall
to other tasks then. The driver runs the code under test; the tasks' producers go from task to task.
A `Schedule` from one seed picks who goes on, who dies, who is taken for dead and lives on, whose
answer is lost, and how time passes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError
from trimtab.spark.write import exactly_once as protocol
from trimtab.spark.write.exactly_once import (
    BatchAttempt,
    BatchLost,
    CommitDecision,
    Plan,
    Receipt,
    Remedy,
    TaskRun,
)

ROWS = 12
"""Of each batch."""
ROWS_LOG = "rows"


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    state: str = "Empty"
    began_at: float = 0.0
    rows: list[int] = field(default_factory=list)
    decisions: list[CommitDecision] = field(default_factory=list)


class Coordinator:
    """Kafka's rules; every method is one request.

    Attributes:
        committed: how often each row is seen by a reader of committed records.
        decisions: those that are committed, in order.
        expired: ids whose transaction was aborted by time.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.now = 0.0
        self.transactions: dict[str, Transaction] = {}
        self.committed: Counter[int] = Counter()
        self.decisions: list[CommitDecision] = []
        self.expired: set[tuple[str, int, int]] = set()
        self.stored: dict[tuple[int, int, str], list[object]] = {}

    def init(self, name: str, after: ProducerIdentity | None = None) -> ProducerIdentity:
        known = self.transactions.setdefault(name, Transaction(1000 + len(self.transactions)))
        if after is not None and after.producer_id != known.producer_id:
            raise fenced(name)
        if known.state == "Ongoing":
            # As Kafka: it does not look at the epoch that is expected, aborts, and has the client
            # ask again; who expects an epoch is refused then.
            self._fence(known)
        if after is None:
            known.last_epoch = -1
            known.epoch += 1
        elif after.epoch == known.epoch:
            known.last_epoch = known.epoch
            known.epoch += 1
        elif after.epoch != known.last_epoch:
            raise fenced(name)
        known.state = "Empty"
        return ProducerIdentity(name, known.producer_id, known.epoch)

    def _fence(self, known: Transaction) -> None:
        self._close(known, commit=False)
        known.epoch += 1
        known.last_epoch = -1

    def open(self, identity: ProducerIdentity) -> Transaction:
        known = self.transactions[identity.transactional_id]
        if known.producer_id != identity.producer_id or known.epoch != identity.epoch:
            raise fenced(identity.transactional_id)
        if known.state != "Ongoing":
            known.state = "Ongoing"
            known.began_at = self.now
        return known

    def end(self, prepared: PreparedTransaction, commit: bool) -> None:
        known = self.transactions.get(prepared.transactional_id)
        if known is None or known.producer_id != prepared.producer_id:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "", prepared.transactional_id)
        if known.epoch != prepared.epoch:
            raise fenced(prepared.transactional_id)
        done = "CompleteCommit" if commit else "CompleteAbort"
        if known.state == "Ongoing":
            self._close(known, commit)
        elif known.state != done:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, "", prepared.transactional_id)

    def _close(self, known: Transaction, commit: bool) -> None:
        if commit:
            self.committed.update(known.rows)
            self.decisions += known.decisions
        known.rows, known.decisions = [], []
        known.state = "CompleteCommit" if commit else "CompleteAbort"

    def store(self, identity: ProducerIdentity, log: str, sequence: int, what: object) -> object:
        """What is stored under that number: this, or what came first."""
        self.open(identity)
        kept = self.stored.setdefault((identity.producer_id, identity.epoch, log), [])
        assert sequence <= len(kept), "a gap in the sequence numbers"
        if sequence == len(kept):
            kept.append(what)
            known = self.transactions[identity.transactional_id]
            if isinstance(what, CommitDecision):
                known.decisions.append(what)
            elif log == ROWS_LOG:
                assert isinstance(what, int)
                known.rows.append(what)
        return kept[sequence]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, known in self.transactions.items():
            if (
                self.timeout is not None
                and known.state == "Ongoing"
                and self.now - known.began_at > self.timeout
            ):
                self.expired.add((name, known.producer_id, known.epoch))
                self._fence(known)


def fenced(name: str) -> BrokerError:
    return BrokerError(ErrorCode.PRODUCER_FENCED, "", name)


class ModelProducer:
    """A task's, as the client is: once it has prepared it serves another task, under its id."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._name = ""
        self._identity: ProducerIdentity | None = None
        self._sequences: Counter[str] = Counter()

    def change_id(self, name: str) -> None:
        self._name = name
        self._identity = None
        self._sequences.clear()

    def init(self) -> None:
        self._identity = self._coordinator.init(self._name)

    def resume(self, identity: ProducerIdentity) -> None:
        assert identity.transactional_id == self._name
        self._identity = identity

    def send(self, log: str, what: object) -> object:
        assert self._identity is not None
        sequence, self._sequences[log] = self._sequences[log], self._sequences[log] + 1
        return self._coordinator.store(self._identity, log, sequence, what)

    def prepare(self) -> PreparedTransaction:
        assert self._identity is not None
        return PreparedTransaction(*self._identity)


class ModelLedger:
    """A `Ledger` on the coordinator; each request may be the last thing that its driver does."""

    def __init__(
        self, coordinator: Coordinator, plan: Plan, request: Callable[..., object]
    ) -> None:
        self._coordinator = coordinator
        self._plan = plan
        self._request = request

    def take_over(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        if after is not None:
            try:
                self._request(self._coordinator.end, PreparedTransaction(*after), False)
            except BrokerError as error:
                if error.code is not ErrorCode.INVALID_TXN_STATE:
                    raise
        taken = self._request(self._coordinator.init, self._plan.driver_id, after)
        assert isinstance(taken, ProducerIdentity)
        return taken

    def last_decision(self) -> CommitDecision | None:
        found = self._request(lambda: self._coordinator.decisions[-1:])
        assert isinstance(found, list)
        return CommitDecision.from_json(found[0].to_json()) if found else None

    def complete(
        self, prepared: Sequence[PreparedTransaction], commit: bool
    ) -> list[BrokerError | None]:
        outcomes: list[BrokerError | None] = []
        for each in prepared:
            try:
                self._request(self._coordinator.end, each, commit)
            except BrokerError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def gone(self, prepared: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        def look() -> list[PreparedTransaction]:
            known = self._coordinator.transactions
            return [
                each
                for each in prepared
                if known[each.transactional_id].state != "Ongoing"
                or known[each.transactional_id].epoch != each.epoch
            ]

        found = self._request(look)
        assert isinstance(found, list)
        return found

    def open_ids(self) -> Sequence[str]:
        known = self._coordinator.transactions
        found = self._request(
            lambda: [
                name
                for name, each in known.items()
                if each.state == "Ongoing" and name.startswith(self._plan.prefix)
            ]
        )
        assert isinstance(found, list)
        return found

    def fence(self, transactional_ids: Sequence[str]) -> None:
        for name in transactional_ids:
            self._request(self._coordinator.init, name)

    @contextmanager
    def deciding(self, identity: ProducerIdentity) -> Iterator[_Decider]:
        yield _Decider(self._coordinator, self._request, identity)


class _Decider:
    def __init__(
        self, coordinator: Coordinator, request: Callable[..., object], identity: ProducerIdentity
    ) -> None:
        self._coordinator = coordinator
        self._request = request
        self.identity = identity
        self._sequence = 0

    def write(self, decision: CommitDecision) -> None:
        self._request(self._coordinator.store, self.identity, "decisions", self._sequence, decision)
        self._sequence += 1
        self._request(self._coordinator.end, PreparedTransaction(*self.identity), True)


class Driver:
    """One driver process: a thread that runs only while the schedule waits for it."""

    def __init__(self, spark: Spark) -> None:
        self.spark = spark
        self.is_over = False
        self.is_killed = False
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def step(self) -> None:
        self._go.release()
        self._stopped.acquire()

    def end(self) -> None:
        """Kill it, if it has not ended."""
        self.is_killed = True
        while not self.is_over:
            self.step()
        self._thread.join()

    def pause(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self.is_killed:
            raise Killed

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self.is_killed:
                self.spark.run_query(self)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._stopped.release()

    def request(self, ask: Callable[..., object], *arguments: object) -> object:
        """Ask the coordinator; the driver may die before and after, and the answer be lost."""
        self.pause()
        if self.spark.chance(self.spark.losing):
            raise Unavailable("the request was lost")
        answer = ask(*arguments)
        self.pause()
        if self.spark.chance(self.spark.losing):
            raise Unavailable("the answer was lost")
        return answer


@dataclass
class Slot:
    """One task of a try: its rows, and its runs."""

    number: int
    rows: list[int]
    attempts: int = 0
    receipt: Receipt | None = None


class Spark:
    """Micro-batches of one query, in a world that a seed decides."""

    def __init__(
        self,
        seed: int,
        timeout: float | None,
        batches: int = 4,
        *,
        killing: float = 0.02,
        losing: float = 0.01,
        stage_retries: bool = False,
        remedy: str = "",
        most_slots: int = 4,
        speculating: float = 0.03,
    ) -> None:
        self.random = Random(seed)
        self.coordinator = Coordinator(timeout)
        self.timeout = timeout
        self.batches = batches
        self.killing = killing
        self.losing = losing
        self.stage_retries = stage_retries
        self.remedy = remedy
        self.most_slots = most_slots
        self.speculating = speculating
        self.commits: set[int] = set()
        self.drivers: list[Driver] = []
        self.tasks: list[Generator[None, None, None]] = []
        self.idle: list[ModelProducer] = []
        self.reuses = 0
        self.kills = 0
        self.replays = 0
        self.failures: list[str] = []
        self.lost: list[BatchLost] = []
        self.ids: set[str] = set()
        self.is_calm = False
        self._next_task = 0
        self._remedy: Remedy | None = None

    def chance(self, share: float) -> bool:
        return not self.is_calm and self.random.random() < share

    # the schedule

    def run(self) -> None:
        """Until all batches are in the commit log, and nobody is left who could do anything."""
        try:
            for step in range(20_000):
                self.is_calm = self.is_calm or step > 600
                if not self._go_on():
                    break
            else:
                raise AssertionError("it never ends")
            self._check()
        finally:
            for driver in self.drivers:
                driver.end()

    def _go_on(self) -> bool:
        current = self.drivers[-1] if self.drivers else None
        if current is None or current.is_over:
            if current is not None:
                self._judge(current)
                is_alone = all(driver.is_over for driver in self.drivers)
                is_last = self._decided() == max(self.commits, default=-2)
                if is_alone and is_last and self.chance(0.3):
                    self.commits.remove(max(self.commits))  # by hand
            if not self._has_ended():
                if self.timeout is not None and self.chance(0.3):
                    self.coordinator.pass_time(self.timeout * 1.5)  # without a driver
                self.drivers.append(Driver(self))
                return True
        self._inject()
        alive = [driver for driver in self.drivers if not driver.is_over]
        if not alive and not self.tasks:
            return self.drivers[-1].error is not None or not self._has_ended()
        chosen = self.random.randrange(len(alive) + len(self.tasks))
        if chosen < len(alive):
            # Drivers wait for tasks most of the time; a zombie continues now and then.
            alive[chosen].step()
        else:
            task = self.tasks[chosen - len(alive)]
            try:
                next(task)
            except StopIteration:
                self.tasks.remove(task)
        return True

    def _has_ended(self) -> bool:
        return len(self.commits) == self.batches or bool(self.lost and not self.remedy)

    def _decided(self) -> int:
        return self.coordinator.decisions[-1].batch_id if self.coordinator.decisions else -1

    def _inject(self) -> None:
        if self.chance(0.05):
            self.coordinator.pass_time(self.random.choice((0.1, 1.0, 5.0)))
        if self.chance(0.003) and self.timeout is not None:
            self.coordinator.pass_time(self.timeout * 1.5)
        current = self.drivers[-1]
        if not current.is_over and self.chance(self.killing):
            self.kills += 1
            if self.random.random() < 0.6:
                current.end()
            else:
                # It is taken for dead, and another one starts beside it.
                self.drivers.append(Driver(self))
        if self.tasks and self.chance(self.killing):
            self.kills += 1
            self.tasks.remove(self.random.choice(self.tasks))

    def _judge(self, driver: Driver) -> None:
        error, driver.error = driver.error, None
        if isinstance(error, BatchLost):
            self.lost.append(error)
            if self.remedy:
                batch = self.coordinator.decisions[-1].batch_id
                self._remedy = Remedy(self.remedy, batch)
        elif isinstance(error, KafkaError) and not isinstance(error, UsageError):
            self.failures.append(str(error))
        elif error is not None:
            raise error

    def _check(self) -> None:
        open_ones = [
            name for name, t in self.coordinator.transactions.items() if t.state == "Ongoing"
        ]
        self.left_open = open_ones
        self.ids = set(self.coordinator.transactions)

    def rows_of(self, batch: int) -> list[int]:
        return [batch * ROWS + number for number in range(ROWS)]

    @property
    def missing(self) -> list[int]:
        expected = [row for batch in range(self.batches) for row in self.rows_of(batch)]
        return [row for row in expected if not self.coordinator.committed[row]]

    @property
    def doubled(self) -> list[int]:
        return [row for row, times in self.coordinator.committed.items() if times > 1]

    # what Spark does

    def run_query(self, driver: Driver) -> None:
        while len(self.commits) < self.batches:
            batch = max(self.commits, default=-1) + 1
            plan = Plan("sink", self.timeout, self._remedy)
            ledger = ModelLedger(self.coordinator, plan, driver.request)
            attempted = protocol.begin(ledger, plan, self.coordinator.now)
            if attempted.decided is not None and attempted.decided[1] >= batch:
                self.replays += 1
            slots = self._divide(batch)
            for slot in slots:
                self._launch(driver, attempted, batch, slot)
            while any(slot.receipt is None for slot in slots):
                driver.pause()
                self._retry(driver, attempted, batch, slots)
            receipts = [slot.receipt for slot in slots if slot.receipt is not None]
            try:
                protocol.commit(ledger, receipts, self.coordinator.now)
            except KafkaError:
                protocol.abort(ledger, receipts)
                raise
            driver.pause()
            if driver is self.drivers[-1]:
                self.commits.add(batch)
            driver.pause()

    def _divide(self, batch: int) -> list[Slot]:
        """The rows of a batch, on as many tasks as it happens to be."""
        slots = [Slot(number, []) for number in range(self.random.randint(1, self.most_slots))]
        for row in self.rows_of(batch):
            self.random.choice(slots).rows.append(row)
        return slots

    def _launch(self, driver: Driver, attempted: BatchAttempt, batch: int, slot: Slot) -> None:
        attempt, slot.attempts = slot.attempts, slot.attempts + 1
        if attempt > 0 and self.stage_retries and self.random.random() < 0.5:
            attempt = 0  # attempts are counted from the start when a stage is repeated
        self._next_task += 1
        run = TaskRun("query", batch, slot.number, attempt, self._next_task)
        self.tasks.append(self._write(driver, attempted, run, slot))

    def _retry(
        self, driver: Driver, attempted: BatchAttempt, batch: int, slots: Sequence[Slot]
    ) -> None:
        """A further attempt: of a task that was slow, or failed, or died."""
        waiting = [slot for slot in slots if slot.receipt is None]
        if waiting and self.random.random() < (0.2 if not self.tasks else self.speculating):
            self._launch(driver, attempted, batch, self.random.choice(waiting))

    def _borrow(self) -> ModelProducer:
        """One that stayed open in a worker, or a new one: its worker has ended, or was not free."""
        if self.idle and self.random.random() < 0.8:
            self.reuses += 1
            return self.idle.pop(self.random.randrange(len(self.idle)))
        return ModelProducer(self.coordinator)

    def _write(
        self, driver: Driver, attempted: BatchAttempt, run: TaskRun, slot: Slot
    ) -> Generator[None, None, None]:
        """A task, as `exact_sink` does it; a refused request is its end."""
        for _ in range(self.random.choice((1,) * 9 + (60,))):  # some stand still at first
            yield
        try:
            identity = protocol.assign(attempted, run)
            if identity is None:
                receipt = protocol.receipt(attempted, run, None, is_repeated=True)
            elif not slot.rows:
                receipt = protocol.receipt(attempted, run, None)
            else:
                producer, is_claimed = self._borrow(), False
                if identity.claims is not None:
                    producer.change_id(identity.claims.transactional_id)
                    producer.resume(identity.claims)
                    yield
                    is_claimed = producer.send("claims", run.task_attempt_id) == run.task_attempt_id
                    yield
                if not is_claimed:
                    producer = producer if identity.claims is None else self._borrow()
                    producer.change_id(identity.transactional_id)
                    producer.init()
                    yield
                for row in slot.rows:
                    producer.send(ROWS_LOG, row)
                    yield
                receipt = protocol.receipt(attempted, run, producer.prepare())
                # Whether the driver has ended that by then or not.
                self.idle.append(producer)
        except BrokerError:
            return
        except UsageError:
            # A driver that was taken for dead has come back with a batch long written.
            assert driver is not self.drivers[-1]
            driver.end()
            return
        if self.chance(0.1):
            return  # it dies before anybody hears of it
        if slot.receipt is None:
            slot.receipt = receipt
