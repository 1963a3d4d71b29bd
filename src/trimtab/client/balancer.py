"""Keeps the load of a cluster level: measures, decides, moves, and measures again.

    samples, probes, ends of replicas ─▶ balance/level_plan.py decides ─▶ moves ─▶ samples …

No plan is made from what was measured before the last move ended. What has moved rests for a while,
so that nothing goes back and forth.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from trimtab.balance.cluster_load import OUT, ClusterLoad
from trimtab.balance.level_plan import Goal, LevelPlan, find_level_plan, find_levels
from trimtab.balance.observed import Observed
from trimtab.balance.steps import Decided, MoveRules
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.probe import BrokerProbe
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.slow import SlowBrokers, SlowRests
from trimtab.client.measure.watch import NOBODY_SLOW, LoadWatch
from trimtab.client.moves.executor import MoveExecutor, MoveReport
from trimtab.client.moves.observer import ProbeReading
from trimtab.kafka.errors import BrokerError, KafkaError, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.threads.clock import wall_clock

T = TypeVar("T")

_TICK_S: Final = 1.0
_IN_A_ROW: Final = 3
"""So often the cluster must be out of level before anything moves."""
_FAR: Final = 1.5
"""Leaders leave a broker with so many times the mean after one window, a third of a topic's at a
time."""
_LEADER_RESTS_S: Final = 300.0
_LEAVE_AGAIN_S: Final = 30.0
"""After a plan that takes no leader from a slow broker, the next is made so much later."""
_REPLICA_RESTS_S: Final = 6 * 3600.0
_BEFORE_S: Final = 120.0
"""So long before a move the probes tell how well brokers answer without it."""
_PART_S: Final = 600.0
_USUAL_RATE: Final = 100_000_000
"""Bytes/s that a broker copies without a throttle, about."""
_REMOVE_S: Final = 5.0
"""Seconds for the removal of the probes' topic."""


class BalancerStopped(Unavailable):
    """`stop` was called before there was a result."""


class Measured(NamedTuple):
    """What was measured over a window.

    Attributes:
        slow: as the probes say; empty without probes.
    """

    metered: MeteredLoad
    slow: SlowBrokers


Event: TypeAlias = Measured | LevelPlan | MoveReport | SlowBrokers | str
"""What `Balancer.watch` tells."""


class Balancer:
    """Measures and levels one cluster: an asynchronous context manager.

    Args:
        admin: stays open.
        goal: what plans are for.
        window_s: seconds over which load is measured; at least 2.
        probes: whether to find slow brokers with small records to a topic of their own, which is
            removed at the end.
        wall: seconds since the epoch.

    Attributes:
        load_watch: what is known of the cluster.

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
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self._admin = admin
        self._goal = goal
        if not 2 <= window_s < math.inf:
            raise UsageError(f"window_s={window_s}: must be 2 seconds or more")
        self._probe = BrokerProbe(admin) if probes else None
        self._has_probed = False
        self.load_watch = LoadWatch(admin, window_s, self._probe, wall)
        self._leaders_rest: dict[TopicPartition, float] = {}
        self._leave_again_s = 0.0
        self._replicas_rest: dict[TopicPartition, float] = {}
        self._slow_rests = SlowRests()
        self._stopped = asyncio.Event()
        self._executor: MoveExecutor | None = None

    async def __aenter__(self) -> Self:
        """Begin to probe.

        Raises:
            UsageError: a broker of the goal does not exist, or the goal drains all; or the topic
                for probes is not a probe's.
            KafkaError: the cluster does not answer, or refuses to create that topic; or `stop` was
                called.
        """
        try:
            await self._unless_stopped(self._start())
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the topic for probes, within 5 s.

        Raises:
            Unavailable: it could not be removed; after an error this becomes a note of the error.
        """
        if self._probe is None or not self._has_probed:
            return
        await self._probe.stop()
        try:
            async with asyncio.timeout(_REMOVE_S):
                await self._probe.remove()
        except UsageError:
            return  # the topic is somebody's, and the start has raised the same
        except (KafkaError, TimeoutError) as reason:
            topic = self._probe.topic
            left = (
                f"topic {topic} may be left: {str(reason) or f'no answer within {_REMOVE_S:g} s'}; "
                f"run `trimtab topics --delete --topic {topic}`"
            )
            if error is None:
                raise Unavailable(left) from None
            error.add_note(left)

    async def _start(self) -> None:
        alive = {node.id for node in (await self._admin.cluster()).nodes}
        if self._goal.drain or self._goal.relieve:
            views = (await self._admin.describe_topics()).values()
            held = {id for view in views for each in view.partitions for id in each.replicas}
            for name in ("drain", "relieve"):
                for broker in sorted(getattr(self._goal, name) - alive - held):
                    raise UsageError(
                        f"{name}: there is no broker {broker}; alive are "
                        f"{', '.join(map(str, sorted(alive)))}"
                    )
        if self._goal.drain >= alive:
            raise UsageError("drain: these are all brokers that are alive; leave one out")
        if self._probe is not None:
            self._has_probed = True
            await self._probe.start()

    def stop_moves(self, cancels: bool) -> None:
        """Have `move` end within 10 s, if it runs; the balancer can go on.

        Args:
            cancels: as in `MoveExecutor.stop`.
        """
        if self._executor is not None:
            self._executor.stop(cancels)

    def stop(self) -> None:
        """End `measure` or `watch`; cancel the moves in progress, within 10 s."""
        self._stopped.set()
        if self._executor is not None:
            self._executor.stop()

    async def measure(self) -> Measured:
        """The load over the next window.

        Raises:
            KafkaError: the cluster does not answer.
            BalancerStopped: `stop` was called before the window ended.
        """
        self.load_watch.start_over()
        while not self.load_watch.is_measured:
            await self._tick()
            if self._stopped.is_set():
                raise BalancerStopped("it was stopped before the load was measured")
        return Measured(self.load_watch.measure(), self._find_slow())

    def plan(self, measured: Measured) -> LevelPlan:
        """The changes that level what was measured."""
        return self.prepare_plan(measured)()

    def prepare_plan(self, measured: Measured) -> Callable[[], LevelPlan]:
        """A function that finds this plan, on any thread."""
        return self._prepare_plan(measured.metered.load, self._goal, measured.slow)

    async def move(
        self,
        plan: LevelPlan,
        rules: MoveRules | None = None,
        show: Callable[[Observed, Decided], object] | None = None,
    ) -> MoveReport:
        """Carry out a plan.

        Args:
            show: is given what was seen and decided, each second.

        Raises:
            KafkaError: as `MoveExecutor.run`.
        """
        before = {change.before.partition: change.before.replicas for change in plan.changes}
        report = await self._execute(plan.assignment, before, rules, show)
        self.load_watch.start_over()
        now = asyncio.get_running_loop().time()
        self._leaders_rest |= dict.fromkeys(plan.assignment, now + _LEADER_RESTS_S)
        self._replicas_rest |= dict.fromkeys(report.moved, now + _REPLICA_RESTS_S)
        return report

    async def clean(self) -> MoveReport:
        """Remove the throttles that a killed run has left, but for what still moves.

        Raises:
            KafkaError: as `MoveExecutor.run`.
        """
        return await self._execute({}, {})

    async def _execute(
        self,
        wanted: Mapping[TopicPartition, Sequence[int]],
        before: Mapping[TopicPartition, Sequence[int]],
        rules: MoveRules | None = None,
        show: Callable[[Observed, Decided], object] | None = None,
    ) -> MoveReport:
        quiet = {} if self._probe is None else self._probe.worst_of(_BEFORE_S)
        self._executor = MoveExecutor(
            self._admin,
            wanted,
            rules,
            before=before,
            probe=lambda: self._read_probe(quiet),
            watch=show,
        )
        if self._stopped.is_set():
            self._executor.stop()
        try:
            return await self._executor.run()
        finally:
            self._executor = None

    async def watch(
        self,
        rules: MoveRules | None = None,
        tell: Callable[[Event], object] = lambda _: None,
    ) -> None:
        """Level the cluster until `stop` is called.

        First the throttles that a killed run has left are removed. Leaders leave a slow broker at
        once, and replicas leave one that is to be drained. Leaders leave a broker with 1.5 times
        the mean after one window; anything else moves after three windows out of level. A plan is
        carried out for about ten minutes. Then the load is measured again for a new plan, because
        leaders may need to change before all copies are done. While the
        cluster does not answer, it is asked again each second.

        Args:
            tell: is given each window's load; each plan before it is carried out, and the first of
                several that change nothing; each report; what the probes say whenever that changes;
                and a sentence when the cluster stops answering, when it answers again, and when too
                many partitions could not be measured.

        Raises:
            KafkaError: the cluster refuses, such as for lack of a right.
        """
        told, bad, is_stuck, trouble = NOBODY_SLOW, 0, False, False
        is_clean = was_partial = False
        while not self._stopped.is_set():
            try:
                if not is_clean:
                    is_clean = not (await self.clean()).left
                await self._tick()
                if trouble:
                    trouble = False
                    tell("The cluster answers again.")
                slow = self._find_slow()
                if _names(slow) != _names(told):
                    tell(slow)
                    told = slow
                plan: LevelPlan | None = None
                now_rules = rules or MoveRules()
                if self._must_leave(slow):
                    # Each second that it leads costs more than many changes at a time.
                    now_rules = now_rules._replace(share=1.0)
                    goal = Goal(
                        act_above=math.inf, leaders_only=True, without_leaders=self._goal.drain
                    )
                    plan = self._plan(self.load_watch.measure().load, goal, slow)
                    if not plan.changes:
                        plan = None
                        self._leave_again_s = asyncio.get_running_loop().time() + _LEAVE_AGAIN_S
                if plan is None and self.load_watch.is_measured:
                    metered = self.load_watch.measure()
                    load = metered.load
                    tell(Measured(metered, slow))
                    self.load_watch.start_over()
                    is_bad = not metered.is_partial and self._is_out_of_level(load)
                    bad = bad + 1 if is_bad else 0
                    is_far = is_bad and self._is_out_of_level(load, _FAR)
                    if metered.is_partial and not was_partial:
                        count = len(metered.left_out)
                        tell(f"{count} partitions could not be measured: nothing moves.")
                    was_partial = metered.is_partial
                    if not was_partial and (bad >= _IN_A_ROW or self._must_drain(load)):
                        bad = 0
                        plan = self._plan(load, self._goal, slow)
                        if not plan.changes and plan.reasons and not is_stuck:
                            tell(plan)
                        is_stuck = not plan.changes
                    elif is_far:
                        now_rules = now_rules._replace(share=max(now_rules.share, 1 / 3))
                        plan = self._plan(load, self._goal._replace(leaders_only=True), slow)
                if plan is not None and plan.changes and not self._stopped.is_set():
                    tell(plan)
                    part = take_part(plan, now_rules)
                    report = await self.move(part, now_rules)
                    tell(report)
                    if len(part.changes) < len(plan.changes):
                        bad = _IN_A_ROW - 1
                    is_clean = not report.left
            except (Unavailable, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                bad = 0
                self.load_watch.start_over()
                if not trouble:
                    trouble = True
                    tell(f"The cluster does not answer: {error}. It is asked again each second.")
                await self._wait(_TICK_S)

    def _must_leave(self, slow: SlowBrokers) -> bool:
        """Whether a slow broker leads what may move."""
        if not slow.slow or not self.load_watch.is_ready:
            return False
        now = asyncio.get_running_loop().time()
        if now < self._leave_again_s:
            return False
        load = self.load_watch.measure().load
        return any(
            each.leader in slow.slow
            and len(each.in_sync) > 1
            and each.partition not in load.moving
            and self._leaders_rest.get(each.partition, 0.0) <= now
            for each in load.partitions
        )

    def _must_drain(self, load: ClusterLoad) -> bool:
        return any(not self._goal.drain.isdisjoint(each.replicas) for each in load.partitions)

    def _is_out_of_level(self, load: ClusterLoad, least: float = 0.0) -> bool:
        """Whether a broker has more than the goal's, or `least`, times the mean."""
        without = self._goal.without_leaders | self._resting(load)
        goal = self._goal._replace(without_leaders=without)
        for name, level in find_levels(load, goal).items():
            if goal.leaders_only and name != OUT:
                continue
            judged = (goal.relieve or level.loads.keys() - goal.drain) & level.loads.keys()
            most = max(goal.act_above, least) * level.mean
            if any(level.loads[each] > most for each in judged):
                return True
        return False

    def _plan(self, load: ClusterLoad, goal: Goal, slow: SlowBrokers) -> LevelPlan:
        return self._prepare_plan(load, goal, slow)()

    def _prepare_plan(
        self, load: ClusterLoad, goal: Goal, slow: SlowBrokers
    ) -> Callable[[], LevelPlan]:
        """A plan that leaves alone what rests. One for leaders only may change the leader of what
        was copied some minutes ago."""
        now = asyncio.get_running_loop().time()
        for rest in (self._leaders_rest, self._replicas_rest):
            for partition in [each for each, end in rest.items() if end <= now]:
                del rest[partition]
        resting = {*self._leaders_rest}
        if not goal.leaders_only:
            resting |= self._replicas_rest.keys()
        # A broker that was drained and has been unregistered is not known any more.
        goal = goal._replace(drain=goal.drain & load.brokers.keys())
        if goal.relieve:
            there = goal.relieve & load.brokers.keys()
            # None of them is left: nothing is to be levelled.
            goal = goal._replace(relieve=there, act_above=goal.act_above if there else math.inf)
        return partial(
            find_level_plan,
            load._replace(moving=load.moving.union(resting)),
            goal._replace(
                without_leaders=goal.without_leaders.union(slow.slow, self._resting(load))
            ),
        )

    def _resting(self, load: ClusterLoad) -> frozenset[int]:
        """The brokers that get no leaders, since they are slow or were so."""
        resting = self._slow_rests.resting(asyncio.get_running_loop().time())
        return resting & load.brokers.keys()

    async def _tick(self) -> None:
        """Take a sample if it is time, look at the followers, and wait for the next tick. `stop`
        ends it early."""
        begin = asyncio.get_running_loop().time()
        try:
            await self._unless_stopped(self.load_watch.look())
        except BalancerStopped:
            return
        # At irregular distances, as a broker may pause regularly.
        tick = _TICK_S * self._admin._session.random.uniform(0.8, 1.2)
        await self._wait(tick - (asyncio.get_running_loop().time() - begin))

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or for `stop`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work, which `stop` ends.

        Raises:
            BalancerStopped: it was stopped.
        """
        stopped = asyncio.ensure_future(self._stopped.wait())
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = working.done()
            stopped.cancel()
            working.cancel()
            await asyncio.wait((working, stopped))
        if not is_done:
            raise BalancerStopped("it was stopped")
        return working.result()

    def _read_probe(self, before: Mapping[int, float]) -> ProbeReading:
        times = {} if self._probe is None else self._probe.times()
        return ProbeReading(
            {broker: max(each.recent) for broker, each in times.items() if each.recent},
            {broker: "is slow" for broker in self._find_slow().slow},
            before,
        )

    def _find_slow(self) -> SlowBrokers:
        found = self.load_watch.find_slow()
        self._slow_rests.note(found.slow, asyncio.get_running_loop().time())
        return found


def _names(slow: SlowBrokers) -> tuple[set[int], set[int]]:
    return {*slow.slow}, {*slow.alarm}


def take_part(plan: LevelPlan, rules: MoveRules) -> LevelPlan:
    """The changes of a plan that are carried out within about ten minutes: all that copy nothing,
    and of the others those that pay soonest, one at least."""
    most = (rules.rate or _USUAL_RATE) * _PART_S
    copied: Counter[int] = Counter()
    taken = [change for change in plan.changes if not change.copied]
    others = [change for change in plan.changes if change.copied]
    others.sort(key=lambda each: math.inf if each.payback_s is None else each.payback_s)
    for change in others:
        ends = {*change.replicas} ^ {*change.before.replicas}
        size = change.before.size
        if not copied or all(copied[broker] + size <= most for broker in ends):
            copied.update(dict.fromkeys(ends, size))
            taken.append(change)
    return plan._replace(changes=taken)
