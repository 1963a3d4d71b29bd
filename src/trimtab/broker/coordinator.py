"""What a broker coordinates: the partitions of a coordinator's topic that it leads."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.coordinator_partition import CoordinatorPartition, Decide, Shard
from trimtab.broker.coordinator_topic import partition_of
from trimtab.broker.partition import Partition
from trimtab.coordinator.effects import Caller, Ending, Now
from trimtab.errors import ErrorCode
from trimtab.storage.storage import StorageError

if TYPE_CHECKING:
    from trimtab.wire.framing import RequestHeader

S = TypeVar("S", bound=Shard)


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

    @abstractmethod
    def _make_shard(self, max_batch: Callable[[], int]) -> S:
        """An empty shard.

        Args:
            max_batch: bytes of the largest batch that its log takes now.
        """

    @abstractmethod
    def _expire(self, shard: S, now: Callable[[], Now]) -> Iterator[None]:
        """Delete what is out of date, in turns."""

    def _end_transactions(self, led: CoordinatorPartition[S], endings: Sequence[Ending]) -> None:
        """End transactions whose outcome is certain."""

    def _begin_expiry(self, option: str) -> None:
        """Delete what is out of date, at intervals: the value of the option now, in ms."""
        interval_ms = cast(int, self.view.config[option])
        self._expiring = asyncio.create_task(self._expire_repeatedly(interval_ms / 1000))

    async def _expire_repeatedly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for led in list(self._led.values()):
                await led.work(self._expire)

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
                self._end_transactions,
            )
        elif not partition.is_leader and led is not None:
            del self._led[partition.index]
            led.end()

    def find(self, key: str) -> CoordinatorPartition[S] | None:
        """Where a group or a transactional id is; None if another broker coordinates it."""
        topic = self.view.image.topics.get(self.topic)
        return None if topic is None else self._led.get(partition_of(key, len(topic.partitions)))

    def ask(
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
            return found.ask(header, decide, refuse)
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
        led, self._led = self._led, {}
        for each in led.values():
            each.end()


def answering(decide: Callable[[S, Now], Any]) -> Decide[S]:
    """A decision whose result is the response."""

    def respond(shard: S, now: Now, caller: Caller) -> None:
        shard.effects.responses.append((caller.request, decide(shard, now)))

    return respond
