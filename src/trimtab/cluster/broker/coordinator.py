"""What a broker coordinates: the partitions of a coordinator's topic that it leads."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition, Decide, S
from trimtab.cluster.broker.coordinator_topic import partition_of
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.room import Headroom
from trimtab.cluster.coordinator.effects import Caller, Ending, Now
from trimtab.cluster.coordinator.room import Usage
from trimtab.cluster.server.repeat import repeat
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from trimtab.kafka.wire.framing import RequestHeader


class Coordinator(ABC, Generic[S]):
    """The groups, or the transactional ids, that this broker coordinates.

    Args:
        topic: whose partitions hold them.
        view: the topics of the cluster, and the options.
        now_ms: wall time.
        disk_failed: told when a log cannot be written or read.
    """

    def __init__(
        self,
        topic: str,
        view: ClusterView,
        now_ms: Callable[[], int],
        disk_failed: Callable[[StorageError], None],
    ) -> None:
        self.topic = topic
        self.view = view
        self.now_ms = now_ms
        self._disk_failed = disk_failed
        self._led: dict[int, CoordinatorPartition[S]] = {}
        self._expiring: asyncio.Task[None] | None = None
        self.room = Headroom(self.measure, self._limits, self._limit_names)

    @abstractmethod
    def _make_shard(self, max_batch: Callable[[], int]) -> S:
        """An empty shard.

        Args:
            max_batch: bytes of the largest batch that its log takes now.
        """

    def _end(self, led: CoordinatorPartition[S], ending: Ending) -> None:
        """End a transaction whose outcome is certain."""

    def measure(self) -> Steps[Usage]:
        """What all partitions remember, counted in steps."""
        things = members = size = 0
        pace = Pace()
        shards = [led.shard for led in self._led.values() if led.shard is not None]
        for usage in chain.from_iterable(shard.measure() for shard in shards):
            things += usage.things
            members += usage.members
            size += usage.size
            if pace.spend():
                yield
        return Usage(things, members, size)

    _limit_names: ClassVar[Sequence[str]]
    """The options with the most groups or transactional ids, members, and bytes."""

    def _limits(self) -> Usage:
        return Usage(*(self.view.config.integer(name) for name in self._limit_names))

    _expiry_interval: ClassVar[str]
    """The option with the time between two looks for what is out of date, in ms."""

    def start(self) -> None:
        """Begin to delete what is out of date. The interval is read now."""
        interval_s = self.view.config.seconds(self._expiry_interval)
        self._expiring = asyncio.create_task(
            repeat(interval_s, self._expire_all, f"expiry in {self.topic}")
        )

    async def _expire_all(self) -> None:
        for led in list(self._led.values()):
            await led.work(lambda shard, now: shard.expire(now))

    def changed(self, partition: Partition) -> None:
        """A partition is led, followed or not hosted by this broker from now on."""
        if partition.topic != self.topic:
            return
        led = self._led.get(partition.index)
        if partition.is_leader and led is None:
            self._led[partition.index] = CoordinatorPartition(
                partition,
                self._make_shard,
                self.now_ms,
                self._disk_failed,
                self._end,
            )
        elif not partition.is_leader and led is not None:
            del self._led[partition.index]
            led.resign()

    def find(self, key: str) -> CoordinatorPartition[S] | None:
        """Where a group or a transactional id is; None if another broker coordinates it."""
        topic = self.view.image.topics.get(self.topic)
        return None if topic is None else self._led.get(partition_of(key, len(topic.partitions)))

    def ask_shard(
        self,
        header: RequestHeader,
        key: str,
        decide: Decide[S],
        refuse: Callable[[ErrorCode], Any],
    ) -> asyncio.Future[Any]:
        """Have a group or a transactional id decide; returns a future of the response.

        Args:
            refuse: makes a response of the error code, if this broker cannot decide.
        """
        found = self.find(key)
        if found is not None:
            return found.ask_shard(header, decide, refuse)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(refuse(ErrorCode.NOT_COORDINATOR))
        return answer

    def find_partition(self, index: int) -> CoordinatorPartition[S] | None:
        """One partition; None if this broker does not lead it."""
        return self._led.get(index)

    def __iter__(self) -> Iterator[CoordinatorPartition[S]]:
        return iter(self._led.values())

    def close(self) -> None:
        """Refuse what waits: this broker ends."""
        if self._expiring is not None:
            self._expiring.cancel()
        self.room.close()
        led, self._led = self._led, {}
        for each in led.values():
            each.resign()


def answering(decide: Callable[[S, Now], Any]) -> Decide[S]:
    """A decision whose result is the response."""

    def respond(shard: S, now: Now, caller: Caller) -> None:
        shard.effects.responses.append((caller.request, decide(shard, now)))

    return respond
