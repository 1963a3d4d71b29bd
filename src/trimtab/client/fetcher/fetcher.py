"""Fetches records ahead of the consumer: decides what to fetch from which broker, and does it.

    consumer ──assignments──▶ FetchPlan ──fetches──▶ Fetcher ──Fetch──▶ leader (or nearer replica)
       ▲                          ▲                     │
       └───drained─▶──────────────┘◀───────ready◀───────┘

`FetchPlan` decides (`plan.py`). `Fetcher` sends the requests, and looks up the offsets to begin at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from random import Random
from typing import Final, TypeAlias

from trimtab.client.fetcher.offsets import Offsets
from trimtab.client.fetcher.plan import (
    COMMITTED,
    Assignment,
    Batches,
    Fetched,
    FetchOptions,
    FetchPlan,
    PartitionFetch,
)
from trimtab.client.fetcher.rates import WriteRates
from trimtab.client.network.connection import Connection
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import ZERO_UUID, Metadata
from trimtab.errors import BrokerError, KafkaError, Unavailable, UsageError
from trimtab.records import TopicPartition
from trimtab.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from trimtab.wire.sentinels import CONSUMER, FINAL_EPOCH, NO_EPOCH, NO_LEADER, NO_SESSION

logger = logging.getLogger("trimtab.client")

_LAST_VERSION_WITH_NAMES: Final = 12
Committed: TypeAlias = Callable[
    [Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]
]
"""Returns the offsets that a group has committed; a partition without one is missing."""


class Fetcher:
    """Sends the plan's fetches. Belongs to one event loop.

    Attributes:
        ready: results for the consumer, oldest first. It may take them on another thread, and then
            passes them to `drained`.
        write_rates: of the partitions that were fetched.

    Args:
        committed: the offsets at which a consumer with a group begins.
    """

    def __init__(
        self,
        connections: Connections,
        metadata: Metadata,
        offsets: Offsets,
        options: FetchOptions,
        random: Random,
        committed: Committed | None = None,
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._offsets = offsets
        self._options = options
        self._committed = committed
        self.write_rates = WriteRates()
        self._plan = FetchPlan(options, random)
        self.ready: deque[Fetched] = deque()
        self._busy: set[int] = set()
        self._lookups: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        connections.on_change(self._act_soon)
        metadata.on_update(self._act_soon)

    def update(self, assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Read these partitions from now on, and no others."""
        self._plan.update(assignments)
        self._metadata.add(dict.fromkeys(partition.topic for partition in assignments))
        self._act_soon()

    def drained(self, fetched: Iterable[Fetched]) -> None:
        """The consumer took these from `ready`: fetch their partitions again."""
        self._plan.drain(fetched)
        self._act_soon()

    async def wait(self, timeout: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Return when a result is ready, when `wake` is called and it is enough, or after
        `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self._is_something_ready() and not is_enough():
                    await self._next_arrival()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Have a waiting consumer look whether it has waited enough."""
        self._arrive(())

    def origin(self, partition: TopicPartition, epoch: int) -> int:
        """The first offset of a partition's epoch; -1 while it is not looked up."""
        return self._plan.origin(partition, epoch)

    def log_end(self, partition: TopicPartition, epoch: int) -> int:
        """The end of what may be read, by the last response of this epoch; -1 without one."""
        return self._plan.log_end(partition, epoch)

    async def locate(self, partition: TopicPartition, timeout: float) -> int:
        """The first offset of a partition's epoch; waits until it is looked up.

        Raises:
            KafkaError: the lookup failed, or did not succeed within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while (origin := self._plan.origin(partition)) < 0:
                    for fetched in tuple(self.ready):
                        if (
                            fetched.partition == partition
                            and isinstance(fetched.result, KafkaError)
                            and self._plan.is_current(fetched)
                        ):
                            raise fetched.result
                    await self._next_arrival()
        except TimeoutError:
            why = self.problem(partition) or "its leader did not answer"
            waited = f"within {timeout:g} s"
            if isinstance(why, BrokerError):
                raise BrokerError(why.code, f"{why.detail}; {waited}", why.subject) from None
            raise Unavailable(f"no position of {partition} {waited}: {why}") from None
        return origin

    def problem(self, partition: TopicPartition) -> KafkaError | None:
        """Why no records can arrive from a partition now; None if its leader can be asked."""
        leader = self._leader(partition)
        if leader == NO_LEADER:
            return self._offsets.why_no_leader(partition)
        if self._connections.ready(leader) is None:
            return self._connections.last_error(leader)
        return None

    async def close(self) -> None:
        self._closed = True
        for handle in (self._scheduled, self._retry):
            if handle is not None:
                handle.cancel()
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        self._arrive(())

    def _is_something_ready(self) -> bool:
        # A copy: the consumer may be taking results on its own thread.
        return self._closed or any(map(self._plan.is_current, tuple(self.ready)))

    async def _next_arrival(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)

    def _arrive(self, fetched: Iterable[Fetched]) -> None:
        self.ready.extend(fetched)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _act_soon(self) -> None:
        if self._scheduled is None and not self._closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._scheduled = None
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._plan.begin_lookups(now)
        if due:
            lookup = loop.create_task(self._look_up(due))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)
        searched = self._plan.begin_searches(now, self._leader)
        is_stale = bool(searched)
        for partition in searched:
            error = self._metadata.error(partition.topic)
            if error is not None and not error.retriable:
                self._arrive(self._plan.fail(partition, error, now))
        for node, fetches in self._plan.due_fetches(now, self._leader, self._busy).items():
            connection = self._connections.ready(node)
            if connection is not None:
                self._fetch(node, connection, fetches)
            else:
                self._connections.open_soon(node)
        if is_stale:
            self._metadata.request_update()
        retry = self._plan.next_retry(now)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None if retry is None else loop.call_at(retry, self._act_soon)

    def _leader(self, partition: TopicPartition) -> int:
        return self._metadata.leader(*partition)

    def _fetch(self, node: int, connection: Connection, fetches: list[PartitionFetch]) -> None:
        options = self._options
        ids: dict[str, bytes] = {}
        epochs: dict[TopicPartition, int] = {}
        for fetch in fetches:
            view = self._metadata.topic(fetch.partition.topic)
            if view is not None:
                ids[view.name] = view.topic_id
                epochs[fetch.partition] = view.partitions[fetch.partition.partition].leader_epoch
        has_ids = all(ids.get(fetch.partition.topic, ZERO_UUID) != ZERO_UUID for fetch in fetches)
        try:
            version = connection.version_of(
                FetchRequest, None if has_ids else _LAST_VERSION_WITH_NAMES
            )
        except BrokerError as error:
            self._report([fetch.partition for fetch in fetches], error)
            return
        limits = options.limits
        topics: list[FetchTopic] = []
        last = None
        for fetch in fetches:
            topic, index = fetch.partition
            if topic != last:  # the order of partitions counts, so a topic may occur twice
                last = topic
                topics.append(
                    FetchTopic(topic=topic, topic_id=ids.get(topic, ZERO_UUID), partitions=[])
                )
            topics[-1].partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=epochs.get(fetch.partition, NO_EPOCH),
                    fetch_offset=fetch.offset,
                    partition_max_bytes=limits.partition_max_bytes,
                )
            )
        request = FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=int(options.max_wait * 1000),
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=options.isolation,
            session_id=NO_SESSION,
            session_epoch=FINAL_EPOCH,
            topics=topics,
            rack_id=options.rack,
        )
        names = {topic_id: name for name, topic_id in ids.items()}

        def receive(response: FetchResponse | None, error: KafkaError | None) -> None:
            self._busy.discard(node)
            if self._closed:
                return
            if response is None:
                logger.info("fetch failed, trying again: %s", error)
                self._metadata.request_update()
            else:
                now = asyncio.get_running_loop().time()
                fetched, is_stale = self._plan.receive(fetches, response, names, now)
                for each in fetched:
                    if isinstance(each.result, Batches):
                        self.write_rates.note(each.result, now)
                if fetched:
                    self._arrive(fetched)
                if is_stale:
                    self._metadata.request_update()
            self._act_soon()

        self._busy.add(node)
        connection.send(
            request,
            version,
            receive,
            options.request_timeout + options.max_wait,
        )

    def _report(self, partitions: Iterable[TopicPartition], error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        for partition in partitions:
            self._arrive(self._plan.fail(partition, error, now))

    async def _look_up(self, due: Mapping[PartitionFetch, int]) -> None:
        wanted = {fetch.partition: at for fetch, at in due.items()}
        try:
            begin = await self._begin_at_committed(wanted)
            found = await self._offsets.find(
                wanted, self._options.lookup_timeout, self._options.isolation
            )
        except KafkaError as error:
            self._report([fetch.partition for fetch in due if self._plan.is_open(fetch)], error)
        else:
            begin.update((partition, offset.offset) for partition, offset in found.items())
            for fetch in due:
                if fetch.partition in begin:
                    self._plan.locate(fetch, begin[fetch.partition])
            self._arrive(())
        self._act_soon()

    async def _begin_at_committed(
        self, wanted: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The committed offsets of those in `wanted` that begin there.

        They are taken out of `wanted`; those without one get the time of `auto.offset.reset`.
        """
        of_group = [partition for partition, at in wanted.items() if at == COMMITTED]
        if not of_group or self._committed is None:
            return {}
        begin = dict(await self._committed(of_group))
        for partition in of_group:
            if partition in begin or self._options.reset is None:
                del wanted[partition]
            else:
                wanted[partition] = self._options.reset
        if self._options.reset is None:
            missing = [partition for partition in of_group if partition not in begin]
            for partition in missing:
                self._report(
                    [partition],
                    UsageError(
                        f"the group has committed no offset of {partition}, and"
                        " auto.offset.reset=none; commit one, seek() to one, or set another reset"
                    ),
                )
        return begin
