"""Collects the load of a cluster for any number of readers: they read snapshots, and ask no broker.

    balancer looks ─▶ Snapshot (the last one), LoadHistory (an hour) ─▶ page, terminal, recording …

It can also carry out the plan that a snapshot shows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from trimtab.balance.level_plan import Goal, Level, LevelPlan, find_levels
from trimtab.balance.limits import PartitionLimits
from trimtab.balance.observed import Observed
from trimtab.balance.steps import Decided, MoveRules
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.balancer import Balancer, Measured
from trimtab.client.measure.history import HISTORY_S, LoadHistory
from trimtab.client.measure.lag import Look, PartitionLag, measure_lag
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.sample import Timed
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.tails import TAIL_BYTES, Tail, read_tails
from trimtab.client.measure.watch import Answers
from trimtab.client.moves.executor import MoveReport
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.threads.clock import wall_clock

T = TypeVar("T")

_TICK_S: Final = 1.0
_LOOKS: Final = 8
"""Samples from which the rates of groups are made."""
_TAILS_S: Final = 30.0
_TAILS: Final = 8
"""Partitions whose newest records are read, at most, each half minute."""
_PLAN_S: Final = 30.0
_PLAN_SHARE: Final = 20
"""A plan is made again after so many times the seconds that it took."""


class Stage(Enum):
    """How far a plan is carried out."""

    MOVING = "moving"
    PAUSING = "pausing"
    CANCELLING = "cancelling"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_moving(self) -> bool:
        return self in (Stage.MOVING, Stage.PAUSING, Stage.CANCELLING)


class Progress(NamedTuple):
    """A plan that is, or was, carried out.

    Attributes:
        changes: of the plan.
        unfinished: partitions that are not yet as the plan wants them.
        report: what was done; None until it has ended.
        error: why it failed; "" if it did not.
    """

    stage: Stage
    changes: int
    unfinished: int
    report: MoveReport | None = None
    error: str = ""


class PlanView(NamedTuple):
    """A plan and its number.

    Attributes:
        number: another one if its changes are others.
        measured_s: when the load that it levels was measured; seconds since the epoch.
    """

    number: int
    measured_s: float
    plan: LevelPlan


class Snapshot(NamedTuple):
    """What is known of a cluster at one time.

    Attributes:
        number: rises with each snapshot.
        taken_s: seconds since the epoch.
        cluster_id: None if the brokers do not tell it.
        metered: brokers and partitions with their rates, and what could not be measured.
        levels: how each resource is spread over the brokers.
        topics: all of them, also those whose rates are unknown.
        volumes: bytes of each broker's volumes in all, and free, as far as they are told.
        limits: on replicas (KIP-578); None if they are not told.
        slow: the slow brokers; empty without probes.
        answers: how quickly brokers answer.
        lags: of all groups.
        tails: of some partitions with most bytes: who has written their newest records.
        plan: the last one; None before the first.
        progress: None if no plan was carried out.
    """

    number: int
    taken_s: float
    cluster_id: str | None
    metered: MeteredLoad
    levels: Mapping[str, Level]
    topics: Mapping[str, TopicView]
    volumes: Mapping[int, tuple[int | None, int | None]]
    limits: PartitionLimits | None
    slow: SlowBrokers
    answers: Mapping[int, Answers]
    lags: Sequence[PartitionLag] = ()
    tails: Mapping[TopicPartition, Tail] = {}
    plan: PlanView | None = None
    progress: Progress | None = None


def _wanted(plan: LevelPlan) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that it wants."""
    return {each.before.partition: each.replicas for each in plan.changes}


async def _compute_here(function: Callable[[], T]) -> T:
    return function()


class Collector:
    """Looks at a cluster each few seconds, until `stop`: `await run()`.

    The attributes are replaced as a whole, so other threads may read them; all methods are for the
    loop's thread. Memory grows with partitions, not with time.

    Args:
        admin: stays open.
        goal: what plans are for.
        window_s: seconds that rates are means over; at least 2.
        probes: as `Balancer`.
        show_key: makes text of a key; None to read no records.
        compute: runs a function that may take seconds; in another thread, say.
        history_s: how long rates are kept.
        wall: seconds since the epoch.

    Attributes:
        snapshot: the last one; None until there are rates.
        history: the rates of the last hour.
        trouble: why the last look failed; "" if it did not.

    Raises:
        UsageError: the window is shorter.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        goal: Goal = Goal(),  # noqa: B008
        *,
        window_s: float = 30.0,
        probes: bool = False,
        show_key: Callable[[bytes], str] | None = None,
        compute: Callable[[Callable[[], LevelPlan]], Awaitable[LevelPlan]] = _compute_here,
        history_s: float = HISTORY_S,
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self._admin = admin
        self._goal = goal
        self._balancer = Balancer(admin, goal, window_s=window_s, probes=probes, wall=wall)
        self._show_key = show_key
        self._compute = compute
        self._cluster_id: str | None = None
        self._looks: deque[Look] = deque(maxlen=_LOOKS)
        self._tails: dict[TopicPartition, Tail] = {}
        self._tails_due_s = 0.0
        self._plan: PlanView | None = None
        self._plan_due_s = 0.0
        self._planning: asyncio.Task[None] | None = None
        self._progress: Progress | None = None
        self._moving: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._count = 0
        self.snapshot: Snapshot | None = None
        self.history = LoadHistory(history_s)
        self.trouble = ""

    async def run(self, changed: Callable[[], object] = lambda: None) -> None:
        """Look, until `stop` is called; then moves in progress are cancelled, within 10 s.

        Args:
            changed: called when there is a new snapshot, or other trouble.

        Raises:
            KafkaError: the cluster refuses the topic for probes, or could not be asked at first, or
                that topic could not be removed.
        """
        async with self._balancer:
            self._cluster_id = (await self._admin.cluster()).cluster_id
            try:
                while not self._stopped.is_set():
                    begin = asyncio.get_running_loop().time()
                    if self._planning is not None and self._planning.done():
                        self._planning.result()
                    trouble, has_changed = "", False
                    try:
                        is_new = await self._balancer.load_watch.look()
                        if is_new and self._balancer.load_watch.is_ready:
                            await self._read_tails(begin)
                            self._take_snapshot()
                            has_changed = True
                    except KafkaError as error:
                        trouble = str(error)
                    has_changed |= trouble != self.trouble
                    self.trouble = trouble
                    if has_changed:
                        changed()
                    await self._wait(begin + _TICK_S - asyncio.get_running_loop().time())
            finally:
                self._balancer.stop_moves(cancels=True)
                tasks = [task for task in (self._planning, self._moving) if task is not None]
                if tasks:
                    await asyncio.wait(tasks)

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    # Plans

    def carry_out(self, number: int, rules: MoveRules | None = None) -> None:
        """Begin to carry out the plan of this number.

        Raises:
            UsageError: there is a newer plan, or none with changes, or one is being carried out.
        """
        plan = self._plan
        if self._progress is not None and self._progress.stage.is_moving:
            raise UsageError("a plan is being carried out: wait for its end, or cancel it")
        if plan is None or plan.number != number:
            raise UsageError(f"plan {number} is not the newest any more: look at the new one first")
        if not plan.plan.changes:
            raise UsageError(f"plan {number} has no changes")
        changes = len(plan.plan.changes)
        self._progress = Progress(Stage.MOVING, changes, changes)
        self._moving = asyncio.get_running_loop().create_task(self._move(plan.plan, rules))

    def pause(self) -> None:
        """Begin no more changes; those in progress go on to their end, without a throttle.

        Raises:
            UsageError: no plan is being carried out.
        """
        self._end_moves(Stage.PAUSING)

    def cancel(self) -> None:
        """Begin no more changes, and cancel those in progress.

        Raises:
            UsageError: no plan is being carried out.
        """
        self._end_moves(Stage.CANCELLING)

    def _end_moves(self, stage: Stage) -> None:
        if self._progress is None or not self._progress.stage.is_moving:
            raise UsageError("no plan is being carried out")
        self._progress = self._progress._replace(stage=stage)
        self._balancer.stop_moves(cancels=stage is Stage.CANCELLING)

    async def _move(self, plan: LevelPlan, rules: MoveRules | None) -> None:
        def show(_: Observed, decided: Decided) -> None:
            if self._progress is not None:
                self._progress = self._progress._replace(unfinished=decided.unfinished)

        ends = {Stage.PAUSING: Stage.PAUSED, Stage.CANCELLING: Stage.CANCELLED}
        try:
            report = await self._balancer.move(plan, rules, show)
        except KafkaError as error:
            if self._progress is not None:
                self._progress = self._progress._replace(stage=Stage.FAILED, error=str(error))
        else:
            if self._progress is not None:
                stage = ends.get(self._progress.stage, Stage.DONE)
                self._progress = self._progress._replace(stage=stage, report=report)
        self._looks.clear()
        self._plan_due_s = 0.0

    async def _find_plan(self, measured: Measured) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        plan = await self._compute(self._balancer.prepare_plan(measured))
        known = self._plan
        number = 1 if known is None else known.number + (_wanted(plan) != _wanted(known.plan))
        self._plan = PlanView(number, measured.metered.load.measured_s, plan)
        took = loop.time() - began
        self._plan_due_s = loop.time() + max(_PLAN_S, _PLAN_SHARE * took)

    # Snapshots

    def _take_snapshot(self) -> None:
        watch = self._balancer.load_watch
        sample, metered, slow = watch.sample, watch.measure(), watch.find_slow()
        if sample is None:
            return
        load = metered.load
        read = {each for answer in sample.groups.values() for each in answer.value}
        ends = {
            broker: Timed[Mapping[TopicPartition, int]](
                answer.at, {each: answer.value[each] for each in read & answer.value.keys()}
            )
            for broker, answer in sample.ends.items()
        }
        self._looks.append(Look(sample.groups, ends))
        levels = find_levels(load, self._goal)
        self.history.add(sample.measured_s, sample.topics.value, load, levels)
        is_moving = self._progress is not None and self._progress.stage.is_moving
        now = asyncio.get_running_loop().time()
        is_planning = self._planning is not None and not self._planning.done()
        if now >= self._plan_due_s and not is_moving and not is_planning:
            planning = self._find_plan(Measured(metered, slow))
            self._planning = asyncio.get_running_loop().create_task(planning)
        self._count += 1
        self.snapshot = Snapshot(
            self._count,
            sample.measured_s,
            self._cluster_id,
            metered,
            levels,
            sample.topics.value,
            {id: (logs.value.total, logs.value.usable) for id, logs in sample.logs.items()},
            sample.limits,
            slow,
            watch.answers(),
            measure_lag([*self._looks]),
            self._tails,
            self._plan,
            self._progress,
        )

    async def _read_tails(self, now: float) -> None:
        """Read who writes the partitions with most bytes, of each topic the largest."""
        if self._show_key is None or now < self._tails_due_s:
            return
        self._tails_due_s = now + _TAILS_S
        watch = self._balancer.load_watch
        largest: dict[str, tuple[float, TopicPartition, int]] = {}
        topics = {} if watch.sample is None else watch.sample.topics.value
        for each in watch.measure().load.partitions:
            name = each.partition.topic
            known = largest.get(name)
            if each.bytes_in > (0.0 if known is None else known[0]) and each.leader >= 0:
                is_internal = name in topics and topics[name].is_internal
                if not is_internal:
                    largest[name] = each.bytes_in, each.partition, each.leader
        starts: dict[int, dict[TopicPartition, int]] = {}
        for _, partition, leader in sorted(largest.values(), reverse=True)[:_TAILS]:
            start = watch.tail_start(partition, TAIL_BYTES)
            if start is not None:
                starts.setdefault(leader, {})[partition] = start
        connections = self._admin._session.connections
        self._tails, _ = await read_tails(connections, starts, self._show_key)

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or for `stop`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopped.wait()
        except TimeoutError:
            return
