"""What a consumer in a group does on the thread that polls: its subscription, the changes of its
partitions, and the offsets of the records that the application has processed.

What has to wait is written once, as generators of `Steps`. `AsyncConsumer` awaits each step;
`Consumer` has the loop thread carry it out, and waits for it on the thread of the application.

Source: KIP-429, KIP-848; Kafka's `KafkaConsumer`.
"""

from __future__ import annotations

import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
)
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, NamedTuple, TypeAlias, TypeVar

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.fetcher import Fetcher
from trimtab.client.fetcher.plan import COMMITTED, Assignment
from trimtab.client.fetcher.reader import Reader
from trimtab.client.fetcher.taken import Taken
from trimtab.client.group.group import Group
from trimtab.client.group.handover import Change, Kind
from trimtab.client.group.subscription import SubscriptionPattern, Topics, checked_topics
from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.network.session import Session
from trimtab.kafka.arguments import Partition, checked_callable, checked_partitions
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Deserializers, TopicPartition
from trimtab.kafka.wire.sentinels import NO_EPOCH

T = TypeVar("T")

Step: TypeAlias = Callable[[], Coroutine[Any, Any, object]] | Awaitable[object]
"""What to wait for: a function to run on the loop, or what a callback returned to be awaited."""

Steps: TypeAlias = Generator[Step, None, T]
"""Goes on when the step that it yielded is done, and gets the error if the step has failed."""

OnChange: TypeAlias = Callable[[list[TopicPartition]], object]
"""Called with the partitions that were assigned, revoked or lost, sorted."""


class _Callbacks(NamedTuple):
    assigned: OnChange | None
    revoked: OnChange | None
    lost: OnChange | None


class Subscriber(Reader):
    """A reader whose partitions a group may assign. Nothing here waits: see `Steps`.

    Args:
        group: None without `group.id`.
    """

    def __init__(
        self,
        session: Session,
        deserializers: Deserializers | None,
        fetcher: Fetcher,
        group: Group | None,
        metrics: ConsumerMetrics,
    ) -> None:
        super().__init__(session, deserializers, metrics)
        self._fetcher = fetcher
        self._group = group
        self._commits_by_itself = group is not None and session.options.flag("enable.auto.commit")
        if group is not None:
            self._begin = COMMITTED
        self._subscription: Topics | None = None
        self._has_subscribed = False
        self._callbacks = _Callbacks(None, None, None)
        self._is_calling_back = False
        self._call_fetcher: Callable[..., object] = call_at_once
        """Calls a function of the fetcher or of the group, on their thread."""

    def assign(self, partitions: Iterable[Partition]) -> None:
        if self._subscription is not None:
            raise UsageError("the consumer has subscribed to topics; unsubscribe() first")
        super().assign(partitions)

    assign.__doc__ = Reader.assign.__doc__

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | SubscriptionPattern,
        *,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        """Read the partitions of these topics that the consumer's group assigns to it.

        Returns at once; `poll` joins the group. The group spreads the partitions over its members,
        and assigns them differently when members come and go. A partition begins at the offset that
        the group has committed, or else by `auto.offset.reset`.

        Args:
            topics: names, or a compiled regular expression that the whole name must match. Or a
                `SubscriptionPattern`, which the coordinator evaluates (`group.protocol=consumer`).
                Replaces the last subscription.
            on_assigned: called from `poll` with partitions from which it will return records.
            on_revoked: called from `poll`, and from `close`, with partitions that the consumer
                ceases to read. Their offsets can still be committed.
            on_lost: the same, if another member may already read them; `on_revoked` if None.

        Raises:
            UsageError: there is no `group.id`, or partitions were assigned by `assign`, or the
                coordinator evaluates no expressions with this `group.protocol`.
        """
        wanted = checked_topics(topics)
        self._needed_group("subscribe")
        protocol = self._session.options.text("group.protocol")
        if isinstance(wanted, SubscriptionPattern) and protocol != "consumer":
            raise UsageError(
                f"{wanted}: coordinators evaluate expressions only with group.protocol=consumer,"
                f" and it is {protocol}; set it, or subscribe to re.compile({wanted.pattern!r}),"
                " which the client matches"
            )
        if self._subscription is None and self._assignments:
            raise UsageError("partitions were assigned; assign([]) before you subscribe()")
        for name, callback in (
            ("on_assigned", on_assigned),
            ("on_revoked", on_revoked),
            ("on_lost", on_lost),
        ):
            if callback is not None:
                checked_callable(name, callback, "the list of partitions")
        self._callbacks = _Callbacks(on_assigned, on_revoked, on_lost or on_revoked)
        self._subscription = wanted
        self._has_subscribed = self._may_be_empty = True

    def subscription(self) -> Topics:
        """The names, or the expression, of the last `subscribe`; empty without one."""
        return frozenset() if self._subscription is None else self._subscription

    def group_metadata(self) -> ConsumerGroup:
        """The consumer's membership, for `Producer.send_offsets_to_transaction` (KIP-447)."""
        return self._needed_group("group_metadata").metadata

    def _needed_group(self, what: str) -> Group:
        self._session.check_open()
        if self._group is None:
            raise UsageError(f"{what} needs a group; give the consumer a group_id")
        return self._group

    def lag(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """How many offsets lie between each position and the end of what the consumer may read.

        Asks no broker: the ends are those of the last fetch responses, which prefetching keeps
        recent. None where there was no response since the partition was assigned, or sought;
        `end_offsets` asks the brokers. With `isolation.level=read_committed` the end is
        the first offset of the first open transaction.

        Args:
            partitions: all that are assigned if None.
        """
        wanted = self._assignments if partitions is None else checked_partitions(partitions)
        return {
            partition: self._lag_at(
                partition, self._assignments[partition].epoch, self._known_position(partition)
            )
            for partition in [self._assigned(each) for each in wanted]
        }

    def _lags(self) -> dict[TopicPartition, int | None]:
        """The lags for metrics, which any thread may read: within an iteration a run of records, at
        most `max.poll.records`, counts as read as a whole."""
        return {
            partition: self._lag_at(partition, assignment.epoch, self._positions.get(partition))
            for partition, assignment in self._assignments.copy().items()
        }

    def _lag_at(self, partition: TopicPartition, epoch: int, position: int | None) -> int | None:
        if position is None:
            position = self._fetcher.origin(partition, epoch)
        end = self._fetcher.log_end(partition, epoch)
        return max(end - position, 0) if position >= 0 and end >= 0 else None

    def _start_over(self) -> None:
        """After Ctrl-C at whatever line of a call that reads: fetch once more what the application
        has not got, and tell the group and the fetcher everything again."""
        for partition, assignment in self._assignments.items():
            position = self._before.get(partition, self._known_position(partition))
            if position is None:
                position = self._fetcher.origin(partition, assignment.epoch)
            again = self._new_assignment(assignment.start if position < 0 else position)
            leader_epoch = assignment.leader_epoch
            if again.start != assignment.start:
                leader_epoch = self._leader_epoch(partition, position)
            self._assignments[partition] = assignment._replace(
                epoch=again.epoch, start=again.start, leader_epoch=leader_epoch
            )
        self._positions, self._before, self._run = {}, {}, None
        self._pending.clear()
        self._taken = Taken()
        self._has_changed = True
        self._has_subscribed = self._subscription is not None
        self._is_calling_back = False

    def _poll(self, read: Callable[[], T], timeout: float, now: Callable[[], float]) -> Steps[T]:
        """What `read` returns, as soon as that is something, or after `timeout` seconds."""
        deadline = now() + timeout
        self._metrics.poll_began()
        while True:
            while (change := self._due_change()) is not None:
                yield from self._carry_out(change)
            self._commit_if_due()
            self._submit(self._call_fetcher)
            found = read()
            if not found:
                has_more = self._take_ready()
                if not has_more:
                    yield partial(self._fetcher.wait, deadline - now(), self._is_woken)
                    has_more = self._take(self._fetcher.ready)
                if has_more:
                    found = read()
            if found or not self._is_woken() or now() >= deadline:
                self._metrics.poll_ended()
                return found

    # changes of the assignment

    def _due_change(self) -> Change | None:
        """The change that this poll has to carry out.

        Raises:
            KafkaError: the membership has ended.
        """
        if self._group is None:
            return None
        if self._is_calling_back:
            raise UsageError(
                "poll() in a callback of subscribe(), which poll() waits for: return from it first"
            )
        handover = self._group.handover
        handover.is_polled = True
        if handover.failure is not None:
            raise handover.failure
        return handover.change

    def _submit(self, call: Callable[..., object]) -> None:
        """Tell the group and the fetcher what has changed.

        Args:
            call: calls a function on their thread, which may be the present one.
        """
        subscription = self._subscription if self._has_subscribed else None
        self._has_subscribed = False
        assignments = self._take_changed_assignments()
        if subscription is not None or assignments is not None:
            call(self._pass_on, subscription, assignments)

    def _pass_on(
        self, subscription: Topics | None, assignments: dict[TopicPartition, Assignment] | None
    ) -> None:
        if self._group is not None:
            self._group.begin_committing()
            if subscription is not None:
                self._group.subscribe(subscription)
        if assignments is not None:
            self._fetcher.update(assignments)

    def _take_ready(self) -> bool:
        """Take what was fetched, before a wait for more; whether there was something."""
        if self._taken.is_due(is_waiting=True):
            self._refill()
        return self._take(self._fetcher.ready)

    def _refill(self) -> None:
        self._call_fetcher(self._fetcher.drained, self._taken.begun)

    def _is_woken(self) -> bool:
        """Whether there is something to do before more can be read."""
        return self._has_changed or (self._group is not None and self._group.handover.is_due)

    def _carry_out(self, change: Change) -> Steps[None]:
        """Have the application carry out a change; the next poll does if Ctrl-C interrupts it."""
        try:
            if change.kind is Kind.ASSIGNED:
                self._apply(change)
            elif change.kind is Kind.REVOKED and change.partitions:
                yield partial(self._commit_before, change.partitions)
            yield from self._call_back(change)
        except Exception:
            yield from self._acknowledge(change)
            raise
        yield from self._acknowledge(change)

    def _acknowledge(self, change: Change) -> Steps[None]:
        group = self._group
        if group is None or self._session.is_closed:  # by the callback
            return

        async def acknowledge() -> None:
            group.handover.carried_out(change)

        yield acknowledge

    def _let_go(self, has_failed: bool = False) -> Steps[None]:
        """Give up all partitions."""
        change = Change(Kind.REVOKED, frozenset(self._assignments))
        yield partial(self._commit_before, change.partitions, has_failed)
        yield from self._call_back(change)

    async def _commit_before(
        self, partitions: Collection[TopicPartition], has_failed: bool = False
    ) -> None:
        """Commit automatically before partitions are given up. A failure is logged: the records
        will be read again."""
        group = self._group
        if group is None or not self._commits_by_itself:
            return
        offsets = {
            partition: offset
            for partition, offset in self._processed(has_failed).items()
            if partition in partitions
        }
        await group.commit_automatically(offsets)

    def _call_back(self, change: Change) -> Steps[None]:
        """Call the listener. Then the consumer no longer reads what was taken away.

        After Ctrl-C all of it is to be done once more, also if the listener was called. A callback
        that closes the consumer is not called again for that.
        """
        is_nested, self._is_calling_back = self._is_calling_back, True
        try:
            result = None if is_nested else self._call_listener(change)
            if isawaitable(result):
                yield result
            self._take_away(change)
        except Exception:
            self._take_away(change)
            raise
        finally:
            self._is_calling_back = is_nested

    def _call_listener(self, change: Change) -> object:
        """Call the listener, which may seek in partitions that were assigned, and commit those
        that are revoked."""
        kind, partitions = change
        if kind is Kind.LOST:
            partitions = frozenset(self._assignments)
        if not partitions and kind is not Kind.ASSIGNED:
            return None
        callback = {
            Kind.ASSIGNED: self._callbacks.assigned,
            Kind.REVOKED: self._callbacks.revoked,
            Kind.LOST: self._callbacks.lost,
        }[kind]
        return None if callback is None else callback(sorted(partitions))

    def _take_away(self, change: Change) -> None:
        if change.kind is not Kind.ASSIGNED:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        if change.kind is Kind.ASSIGNED:
            self._replace([*self._assignments, *sorted(change.partitions)])
        elif change.kind is Kind.REVOKED:
            self._replace([p for p in self._assignments if p not in change.partitions])
        else:
            self._replace([])

    def _forget_subscription(self) -> None:
        self._subscription = None
        self._has_subscribed = self._may_be_empty = False
        self._callbacks = _Callbacks(None, None, None)

    # offsets to commit

    def _commit_if_due(self) -> None:
        """Have what was processed committed without being asked, if it is time."""
        group = self._group
        if self._commits_by_itself and group is not None and group.is_commit_due:
            group.is_commit_due = False
            self._call_fetcher(group.commit_soon, self._processed())

    def _processed(self, has_failed: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """The next offset of each partition that the application has not processed.

        Args:
            has_failed: whether the application ends with an error: then the record at which it is
                in an iteration, or all records of the last call, count as not processed.
        """
        positions: dict[TopicPartition, int] = {}
        for partition, assignment in self._assignments.items():
            position = self._known_position(partition)
            if position is None:
                position = self._fetcher.origin(partition, assignment.epoch)
            if position >= 0:
                positions[partition] = position
        if has_failed:
            for partition, offset in self._unprocessed().items():
                if partition in positions:
                    positions[partition] = offset
        return {
            partition: OffsetAndMetadata(at, leader_epoch=self._leader_epoch(partition, at))
            for partition, at in positions.items()
        }

    def _with_epochs(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Adds the leader epochs of what was read: with them the next member does not read from a
        broker that has not noticed that it leads no more, and finds that the log was truncated."""
        known = {}
        for partition, at in offsets.items():
            read_to = self._known_position(partition) if partition in self._assignments else None
            if at.leader_epoch == NO_EPOCH and read_to is not None and at.offset <= read_to:
                at = at._replace(leader_epoch=self._leader_epoch(partition, at.offset))
            known[partition] = at
        return known

    def _leader_epoch(self, partition: TopicPartition, position: int) -> int:
        """The leader epoch of the record before a position; -1 if it is not known (KIP-320)."""
        epoch = self._assignments[partition].epoch
        found = self._taken.leader_epoch(partition, epoch, position)
        if found != NO_EPOCH:
            return found
        return self._fetcher.origin_epoch(partition, epoch, position)


def call_at_once(function: Callable[..., object], *args: object) -> None:
    function(*args)


def refuse_awaitable(result: T | Awaitable[object]) -> T:
    """The result: a consumer for threads cannot await what a callback returns."""
    if isawaitable(result):
        if iscoroutine(result):
            result.close()
        raise UsageError("a callback of subscribe() is a coroutine function; use AsyncConsumer")
    return result
