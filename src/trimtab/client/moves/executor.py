"""Moves partitions to the replicas that are wanted, on any Kafka cluster.

    observe ─▶ balance/steps.py decides ─▶ act ─▶ wait a second ─▶ observe …

It keeps no files: a killed process that is started again with the same wanted replicas goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from trimtab.balance.actions import (
    Action,
    AppendPairs,
    CancelMoves,
    DeleteRates,
    ElectLeaders,
    GiveUp,
    SetRates,
    StartMoves,
    SubtractPairs,
    Wait,
)
from trimtab.balance.observed import Observed
from trimtab.balance.steps import (
    Decided,
    GivenUp,
    MoveRules,
    Remembered,
    Stopping,
    decide_steps,
)
from trimtab.balance.throttles import RATES, ThrottledLists, mark_rate
from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.moves.observer import MoveObserver, Probe
from trimtab.kafka.arguments import checked_brokers, checked_partition
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

STOP_S: Final = 10.0
"""Seconds within which a stopped executor has ended."""
_LEAVE_S: Final = 5.0
_CALL_S: Final = 3.0
_LOOK_S: Final = 30.0
_STOPPED_TURN_S: Final = 0.2
_BLIND_S: Final = 120.0
_CLEAN_S: Final = 60.0
_AT_ONCE: Final = 16
_PARTITIONS_A_REQUEST: Final = 5000
"""Kafka and trimtab reject more than 10,000 changes in one request."""
_RIGHTS: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


class MoveReport(NamedTuple):
    """What was done.

    Attributes:
        moved: partitions whose replicas were copied, and are as wanted now.
        elected: partitions that have got the wanted leader by an election.
        given_up: the others that are not as wanted, each with the reason.
        bytes: copied, by the sizes of the replicas.
        notes: what of others was found, and what was refused.
        left: throttles that could not be removed, for people; empty if none are left.
    """

    moved: tuple[TopicPartition, ...]
    elected: tuple[TopicPartition, ...]
    given_up: Mapping[TopicPartition, str]
    bytes: int
    notes: tuple[str, ...]
    left: tuple[str, ...]


class MoveExecutor:
    """Moves partitions, once: `await run()`.

    Args:
        admin: stays open.
        wanted: replicas by partition, the preferred leader first; the same ones in another order
            change the leader only.
        before: the replicas from which this was planned; a partition that somebody else has given
            other ones since is left alone. Not checked if None.
        probe: reads how well brokers answer; without it only bytes limit the pace.
        watch: called after each look with what was seen and decided, to show progress.
        turn_s: seconds between two looks; longer if a look takes long.

    Raises:
        UsageError: a partition is to have no replicas, or one twice; or the rate is not above 0.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        wanted: Mapping[TopicPartition, Sequence[int]],
        rules: MoveRules | None = None,
        *,
        before: Mapping[TopicPartition, Sequence[int]] | None = None,
        probe: Probe | None = None,
        watch: Callable[[Observed, Decided], object] | None = None,
        turn_s: float = 1.0,
    ) -> None:
        self._admin = admin
        self._wanted = {
            checked_partition(each): _checked_replicas(each, replicas)
            for each, replicas in wanted.items()
        }
        self._before = before
        self._rules = rules or MoveRules()
        if self._rules.rate is not None and self._rules.rate <= 0:
            raise UsageError(f"rate={self._rules.rate}: must be bytes/s above 0, or None")
        self._watch = watch
        self._turn_s = turn_s
        self._observer = MoveObserver(admin, self._wanted, probe)
        self._memory = Remembered()
        self._stopping = Stopping.NOT
        self._stop_s = 0.0
        self._stopped = asyncio.Event()
        self._looking: asyncio.Future[Observed] | None = None
        self._fatal: KafkaError | None = None
        self._copying: dict[TopicPartition, tuple[set[int], int]] = {}
        self._copied: set[TopicPartition] = set()
        self._bytes = 0
        self._elected: dict[TopicPartition, None] = {}
        self._held: dict[TopicPartition, float] = {}
        self._unrated: set[int] = set()
        self._notes: dict[str, None] = {}

    def stop(self, cancels: bool = True) -> None:
        """Have `run` end within 10 s, and leave no throttle.

        Args:
            cancels: cancel the moves in progress; otherwise begin none, wait some seconds for those
                in progress, and leave the rest to the cluster, without a throttle.
        """
        if self._stopping is Stopping.NOT:
            self._stopping = Stopping.CANCELS if cancels else Stopping.FINISHES
            self._stop_s = asyncio.get_running_loop().time()
            self._stopped.set()
            if self._looking is not None:
                self._looking.cancel()

    async def run(self) -> MoveReport:
        """Move, until all partitions are as wanted, or given up, or `stop` is called.

        Raises:
            KafkaError: the cluster could not be observed at first, or it allows this user no
                throttles, moves or elections; what had begun by then is cancelled.
        """
        loop = asyncio.get_running_loop()
        observed: Observed | None = None
        decided: Decided | None = None
        seen_s = moved_s = loop.time()
        while self._left(_BLIND_S) > _CALL_S:
            begin_s = loop.time()
            if self._stopping is Stopping.FINISHES and begin_s - self._stop_s >= _LEAVE_S:
                self._stopping = Stopping.LEAVES
            stopping = self._stopping
            try:
                observed = await self._look()
            except KafkaError as error:
                if self._stopping is stopping:
                    if observed is None and stopping is Stopping.NOT:
                        raise
                    self._note(f"the cluster could not be observed: {error}")
                if begin_s - seen_s >= _BLIND_S:
                    break
            else:
                seen_s = loop.time()
                decided = await self._turn(observed)
                if decided.unfinished:
                    moved_s = seen_s
                if decided.is_done or seen_s - moved_s >= _CLEAN_S:
                    break
            await self._rest(loop.time() - begin_s)
        if self._fatal is not None:
            raise self._fatal
        return self._report(observed, decided)

    async def _look(self) -> Observed:
        """One look, which `stop` ends early.

        Raises:
            KafkaError: the cluster does not answer in time, or refuses.
        """
        self._looking = asyncio.ensure_future(self._observer.observe(self._memory.given_up))
        try:
            await asyncio.wait([self._looking], timeout=self._left(_LOOK_S))
        finally:
            self._looking.cancel()
        await asyncio.wait([self._looking])
        if self._looking.cancelled():
            raise Unavailable("no answer in time")
        for note in self._observer.notes:
            self._note(note)
        return self._looking.result()

    def _left(self, limit_s: float) -> float:
        """What is left of a time limit, if the executor is being stopped."""
        if self._stopping is Stopping.NOT:
            return limit_s
        end_s = self._stop_s + STOP_S - _STOPPED_TURN_S
        return max(0.0, min(limit_s, end_s - asyncio.get_running_loop().time()))

    async def _rest(self, used_s: float) -> None:
        """Wait for the next turn, or for `stop`: no more than half of the time goes to looks."""
        wait_s = max(self._turn_s, used_s)
        if self._stopping is not Stopping.NOT:
            await asyncio.sleep(self._left(_STOPPED_TURN_S))
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def _turn(self, observed: Observed) -> Decided:
        self._count(observed)
        self._leave_alone(observed)
        decided = decide_steps(self._wanted, observed, self._rules, self._memory, self._stopping)
        self._memory = decided.memory
        for note in decided.notes:
            self._note(note)
        if self._watch is not None:
            self._watch(observed, decided)
        await self._act(decided.actions, observed)
        return decided

    def _leave_alone(self, observed: Observed) -> None:
        """Give up the partitions whose replicas are others than the plan began with."""
        given_up: dict[TopicPartition, GivenUp] = {}
        for partition, before in (self._before or {}).items():
            shown = observed.partitions.get(partition)
            if shown is None or shown.is_moving or partition in self._memory.given_up:
                continue
            wanted = self._wanted[partition]
            expected = {*before, *wanted}
            if len(shown.replicas) != len(wanted) or not expected.issuperset(shown.replicas):
                names = ", ".join(map(str, shown.replicas))
                given_up[partition] = GivenUp(f"somebody else has changed its replicas to {names}")
        if given_up:
            known = {**self._memory.given_up, **given_up}
            self._memory = self._memory._replace(given_up=known)

    def _count(self, observed: Observed) -> None:
        """Count the bytes of moves that have ended since the last look."""
        for partition, (added, size) in [*self._copying.items()]:
            shown = observed.partitions.get(partition)
            if shown is None or not shown.is_moving:
                del self._copying[partition]
                if shown is not None and added.issubset(shown.replicas):
                    self._bytes += size * len(added)
                    self._copied.add(partition)
        for partition, shown in observed.partitions.items():
            if shown.adding and partition in self._wanted:
                self._copying[partition] = {*shown.adding}, shown.size

    # Actions

    async def _act(self, actions: Sequence[Action], observed: Observed) -> None:
        """Carry out actions in their order. What could not be throttled is not moved now."""
        unthrottled: set[int | str] = set()
        for action in actions:
            if self._stopping is not Stopping.NOT and isinstance(
                action, AppendPairs | StartMoves | ElectLeaders
            ):
                continue  # decided before the stop
            match action:
                case CancelMoves(partitions):
                    await self._reassign(dict.fromkeys(partitions))
                case SubtractPairs(pairs):
                    await self._change_lists("subtract", pairs)
                case SetRates(rates):
                    unthrottled |= await self._set_rates(rates)
                case AppendPairs(pairs):
                    unthrottled |= await self._append(pairs)
                case StartMoves(targets):
                    await self._start(targets, unthrottled, observed)
                case ElectLeaders(partitions):
                    await self._elect(partitions)
                case DeleteRates(brokers):
                    await self._each(brokers, lambda broker: self._rate(broker, None))
                    self._observer.forget_rates(brokers)
                case GiveUp() | Wait():
                    pass

    async def _set_rates(self, rates: Mapping[int, int]) -> set[int | str]:
        """Throttle brokers; returns those that could not be. If one refuses twice, only the bytes
        in flight limit its moves from now on. Once may be a broker that has just died: the others
        refuse its options."""
        failed = await self._each(rates, lambda broker: self._rate(broker, rates[broker]))
        for broker, rate in rates.items():
            if broker not in failed:
                self._observer.note_rate(broker, rate)
        self._observer.forget_rates(failed)  # one that was not answered may have been set
        before, self._unrated = self._unrated, _find_refused(failed)
        for broker in sorted(before & self._unrated):
            if self._fatal is None:
                rateless = self._memory.rateless | {broker}
                self._memory = self._memory._replace(rateless=rateless)
                self._note(
                    f"broker {broker} takes no throttle, so only the bytes in flight limit its "
                    f"moves: {failed[broker]}"
                )
        return {*failed}

    async def _rate(self, broker: int, rate: int | None) -> None:
        rates = (None, None) if rate is None else mark_rate(rate)
        await self._admin.alter_configs("broker", broker, dict(zip(RATES, rates, strict=True)))

    async def _append(self, pairs: Mapping[str, ThrottledLists]) -> set[int | str]:
        """Lengthen topics' lists; returns the topics where that failed. If a list is refused, only
        the bytes in flight limit the topic's moves from now on."""
        failed = await self._change_lists("append", pairs)
        reverted = self._memory.reverted | _find_refused(failed)
        self._memory = self._memory._replace(reverted=reverted)
        return {*failed}

    async def _change_lists(
        self, how: Literal["append", "subtract"], pairs: Mapping[str, ThrottledLists]
    ) -> dict[str, KafkaError]:
        """Lengthen or shorten topics' lists; returns the errors by topic."""

        async def change(topic: str) -> None:
            self._observer.note_lists(topic)
            options = pairs[topic].options()
            if how == "append":
                await self._admin.alter_configs("topic", topic, append=options)
            else:
                await self._admin.alter_configs("topic", topic, subtract=options)

        return await self._each(pairs, change)

    async def _start(
        self,
        targets: Mapping[TopicPartition, tuple[int, ...]],
        unthrottled: set[int | str],
        observed: Observed,
    ) -> None:
        begun: dict[TopicPartition, tuple[int, ...]] = {}
        given_up: dict[TopicPartition, GivenUp] = {}
        for partition, replicas in targets.items():
            shown = observed.partitions[partition]
            added = {*replicas} - {*shown.replicas}
            held = unthrottled.intersection((partition.topic, *replicas, *shown.replicas))
            if added and held:
                since_s = self._held.setdefault(partition, observed.now_s)
                if observed.now_s - since_s >= self._rules.death_s:
                    names = ", ".join(sorted(map(str, held)))
                    given_up[partition] = GivenUp(f"it could not be throttled: {names}")
                continue
            self._held.pop(partition, None)
            begun[partition] = replicas
            if added:
                self._copying[partition] = added, shown.size
        refused = await self._reassign(begun)
        given_up |= {each: GivenUp(f"refused: {error}") for each, error in refused.items()}
        self._memory = self._memory._replace(given_up={**self._memory.given_up, **given_up})
        for partition in refused:
            self._copying.pop(partition, None)

    async def _reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, BrokerError]:
        """Begin or, for None, cancel moves; returns the errors of those that are refused."""
        refusals: dict[TopicPartition, BrokerError] = {}
        partitions = [*targets]
        for begin in range(0, len(partitions), _PARTITIONS_A_REQUEST):
            some = {each: targets[each] for each in partitions[begin:][:_PARTITIONS_A_REQUEST]}
            try:
                await self._within(self._admin.alter_reassignments(some), "reassign partitions")
            except PartlyRefused as refused:
                refusals.update(refused.refusals)
            except KafkaError as error:
                self._refuse(error)
        for refusal in refusals.values():
            self._refuse(refusal)
        return refusals

    async def _elect(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            call = self._admin.elect_leaders(partitions)
            elected = await self._within(call, "elect leaders")
        except PartlyRefused as refused:
            elected = refused.done
            self._refuse(refused)
        except KafkaError as error:
            elected = []
            self._refuse(error)
        self._elected |= dict.fromkeys(elected)

    async def _each(
        self, things: Iterable[K], call: Callable[[K], Awaitable[object]]
    ) -> dict[K, KafkaError]:
        """Call for each of these, some at a time; returns the errors, which are noted."""
        errors: dict[K, KafkaError] = {}
        free = asyncio.Semaphore(_AT_ONCE)

        async def attempt(thing: K) -> None:
            async with free:
                try:
                    await self._within(call(thing), f"throttle {thing}")
                except KafkaError as error:
                    errors[thing] = error
                    self._refuse(error)

        await asyncio.gather(*(attempt(each) for each in things))
        return errors

    async def _within(self, call: Awaitable[T], what: str) -> T:
        """The result of a call.

        Raises:
            Unavailable: it takes too long.
        """
        seconds = self._left(_CALL_S)
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            raise Unavailable(f"cannot {what} within {seconds:g} s") from None

    def _refuse(self, error: KafkaError) -> None:
        """Note what was refused; without the rights nothing can go on."""
        self._note(str(error))
        if isinstance(error, BrokerError) and error.code in _RIGHTS and self._fatal is None:
            self._fatal = error
            self.stop()

    def _note(self, note: str) -> None:
        self._notes[note] = None

    # The end

    def _report(self, observed: Observed | None, decided: Decided | None) -> MoveReport:
        memory = self._memory
        given_up = {each: given.reason for each, given in memory.given_up.items()}
        partitions = {} if observed is None else observed.partitions
        for partition, replicas in self._wanted.items():
            shown = partitions.get(partition)
            if partition not in given_up and (
                shown is None or shown.replicas != replicas or shown.leader != replicas[0]
            ):
                given_up[partition] = "the executor ended before it was done"
        alive = frozenset() if observed is None else observed.alive
        left = [
            f"broker {broker} is not alive: its throttle stays, without effect"
            for broker in sorted(memory.rated - alive)
        ]
        if decided is None or not decided.is_done:
            rated = sorted(memory.rated & self._observer.rates.keys())
            left += [f"broker {broker} may still have a throttle" for broker in rated]
            topics = {each.topic for each in self._wanted}
            left += [
                f"topic {topic} may still have throttled replicas"
                for topic, lists in sorted(self._observer.lists.items())
                if topic in topics and any(lists)
            ]
        return MoveReport(
            tuple(
                sorted(
                    each
                    for each in self._copied
                    if each in partitions and {*partitions[each].replicas} == {*self._wanted[each]}
                )
            ),
            tuple(self._elected),
            given_up,
            self._bytes,
            tuple(self._notes),
            tuple(left),
        )


def _find_refused(errors: Mapping[K, KafkaError]) -> set[K]:
    """What was refused for good."""
    return {
        thing
        for thing, error in errors.items()
        if isinstance(error, BrokerError) and not error.retriable
    }


def _checked_replicas(partition: Any, replicas: Any) -> tuple[int, ...]:
    brokers = tuple(checked_brokers(f"the replicas of {partition}", replicas))
    if not brokers or len({*brokers}) < len(brokers):
        raise UsageError(f"partition {partition} has replicas {brokers}: name each broker once")
    return brokers
