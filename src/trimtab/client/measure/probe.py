"""Small records to every broker, to see how long each takes to store one.

    topic __trimtab_probe ─┬─ partition 0, only on broker 4 ◀─ a record every 0.25 s, acks=1
                           ├─ partition 1, only on broker 7 ◀─ …
                           └─ …

A probe passes this broker's network, queue, threads and log, and nobody else's: its partition has
one replica. Only one request to a broker is open at a time, so probes of a broker that hangs do not
pile up. A probe that is due meanwhile waits with it, and counts from when it was due.
"""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.slow import RECENT, ProbeTimes
from trimtab.client.network.connection import Connection
from trimtab.client.network.session import Session
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import checked_seconds, checked_topic
from trimtab.kafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    UsageError,
    error_code,
)
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from trimtab.threads.clock import wall_clock

logger = logging.getLogger("trimtab.client")

PROBE_TOPIC: Final = "__trimtab_probe"

_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1578",
    "retention.ms": "600578",
    "segment.bytes": "1048576",
}
"""Ten minutes of small records. The odd numbers are the mark of a topic that is a probe's."""
_MARKS: Final = ("cleanup.policy", "max.message.bytes", "retention.ms")
_LAST_VERSION_WITH_NAMES: Final = 12
_LEADER_ONLY: Final = 1
_VALUE: Final = b"how long does this take?"
_NEW_S: Final = 600.0
"""Times are usual once they are so old: a broker that becomes slow is not soon measured by that."""
_HISTORY_S: Final = 3600.0
_USUAL_FOR_S: Final = 60.0
"""What is usual is computed once in so many seconds."""
_LEAST_KNOWN: Final = 1000
"""Fewer earlier times have no 99th percentile worth the name."""


class ProbeLatencies:
    """The times of one broker's probes.

    Args:
        interval: seconds between probes.
    """

    def __init__(self, interval: float) -> None:
        self._answered: deque[float] = deque(maxlen=RECENT)
        self._due: deque[float] = deque(maxlen=RECENT)
        """When the probes that wait were due; the last eight, as no more are judged."""
        self._history = array("f")
        self._interval = interval
        self._new = max(1, int(_NEW_S / interval))
        self._kept = max(1, int(_HISTORY_S / interval))
        self._usual: float | None = None
        self._usual_until = -math.inf

    @property
    def is_waiting(self) -> bool:
        return bool(self._due)

    def due(self, now: float) -> None:
        """A probe is sent, or waits with the one before."""
        self._due.append(now)

    def answer(self, now: float) -> None:
        """The broker has answered: for all that wait."""
        for due in self._due:
            self._answered.append(now - due)
            self._history.append(now - due)
        self._due.clear()
        if len(self._history) > 2 * (self._new + self._kept):
            del self._history[: -self._new - self._kept]

    def give_up(self) -> None:
        """Nobody waits any longer, and how long the broker takes is not known."""
        self._due.clear()

    def worst_of(self, seconds: float) -> float | None:
        """The 99th percentile of so long a time until now; None if nothing was answered."""
        last = sorted(self._history[-max(1, int(seconds / self._interval)) :])
        return last[int(0.99 * len(last))] if last else None

    def times(self, now: float) -> ProbeTimes:
        """The last eight, and what was usual in the hour until ten minutes ago."""
        if now >= self._usual_until:
            earlier = sorted(self._history[-self._new - self._kept : -self._new])
            is_known = len(earlier) >= _LEAST_KNOWN
            self._usual = earlier[int(0.99 * len(earlier))] if is_known else None
            self._usual_until = now + _USUAL_FOR_S
        recent = [*self._answered, *(now - due for due in self._due)][-RECENT:]
        return ProbeTimes(recent, self._usual)


class BrokerProbe:
    """Probes all brokers from `start` until `stop`.

    Rights: Create, Describe, DescribeConfigs, Alter, Write and Delete on its topic.

    Args:
        admin: creates the topic, and says where to connect; probes have connections of their own,
            as answers come in the order of requests.
        topic: its name.
        interval_s: between probes of a broker, on average; seconds above 0.
        timeout_s: seconds until a probe that is not answered is given up, with its connection.
        wall: seconds since the epoch, for the records.

    Attributes:
        troubles: by broker, why its last probe failed; none for a broker that answers.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        topic: str = PROBE_TOPIC,
        interval_s: float = 0.25,
        timeout_s: float = 5.0,
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self.topic = checked_topic(topic)
        self._interval = _above_zero("interval_s", interval_s)
        self._timeout = _above_zero("timeout_s", timeout_s)
        self._admin = admin
        self._wall = wall
        self._session: Session | None = None
        self._partitions: dict[int, int] = {}
        self._latencies: dict[int, ProbeLatencies] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._clock: asyncio.Task[None] | None = None
        self.troubles: dict[int, KafkaError] = {}

    async def start(self) -> None:
        """Create the topic, or use the one of an earlier run, and begin to probe.

        Raises:
            UsageError: it has started already, or a topic of this name is not a probe's.
            BrokerError: the cluster refuses to create the topic.
        """
        if self._session is not None:
            raise UsageError(f"the probe of {self.topic} has started already: stop it first")
        await self.cover()
        admins = self._admin._session
        self._session = session = Session(admins.options, admins.random)
        session.connections.update(admins.metadata.nodes.values())
        # The first probes else would have to wait for it.
        await asyncio.gather(*map(self._connect, self._partitions), return_exceptions=True)
        self._clock = asyncio.get_running_loop().create_task(self._tick())

    async def cover(self) -> None:
        """Give each live broker that has none a partition, and forget brokers that are gone. Call
        it whenever brokers may have come.

        Raises:
            UsageError: the topic is not a probe's.
            BrokerError: the cluster refuses to create the topic or a partition.
        """
        view = await self._find()
        nodes = (await self._admin.cluster()).nodes
        homes = [] if view is None else [each.replicas[0] for each in view.partitions]
        new = [node.id for node in nodes if node.id not in homes]
        if view is None:
            assignment = {index: [broker] for index, broker in enumerate(new)}
            await self._admin.create_topic(self.topic, assignment=assignment, config=_CONFIG)
        elif new:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._admin.create_partitions(
                        self.topic, len(homes) + len(new), [[broker] for broker in new]
                    )
            except TimeoutError:  # it waits for leaders, which the partitions of dead brokers lack
                logger.debug("not all partitions of %s have leaders", self.topic)
        alive = {node.id for node in nodes}
        homes += new
        self._partitions = {broker: index for index, broker in enumerate(homes) if broker in alive}
        if self._session is not None:
            self._session.connections.update(nodes)
        for broker in self._latencies.keys() - alive:
            del self._latencies[broker]
            self.troubles.pop(broker, None)
            if request := self._requests.pop(broker, None):
                request.cancel()

    def times(self) -> dict[int, ProbeTimes]:
        """The times of every broker that has been probed."""
        now = asyncio.get_running_loop().time()
        return {
            broker: latencies.times(now) for broker, latencies in sorted(self._latencies.items())
        }

    def worst_of(self, seconds: float) -> dict[int, float]:
        """By broker the 99th percentile of so long a time until now."""
        return {
            broker: worst
            for broker, latencies in self._latencies.items()
            if (worst := latencies.worst_of(seconds)) is not None
        }

    async def stop(self) -> None:
        """End probing; the topic stays. Stopping again does nothing."""
        session, self._session = self._session, None
        if session is None:
            return
        tasks = [*self._requests.values(), *([self._clock] if self._clock else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._requests.clear()
        self._clock = None
        for latencies in self._latencies.values():
            latencies.give_up()
        await session.close()

    async def remove(self) -> None:
        """Stop, and delete the topic, also that of an earlier run; nothing if there is none.

        Raises:
            UsageError: the topic is not a probe's.
        """
        await self.stop()
        if await self._find() is not None:
            await self._admin.delete_topic(self.topic)
        self._partitions.clear()
        self._latencies.clear()

    async def _find(self) -> TopicView | None:
        """The topic, if there is one.

        Raises:
            UsageError: it is not a probe's.
        """
        try:
            view = (await self._admin.describe_topics([self.topic]))[self.topic]
            options = await self._admin.describe_configs("topic", self.topic)
        except BrokerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        values = {option.name: option.value for option in options}
        homes = [each.replicas for each in view.partitions]
        unlike = [
            f"{mark}={values.get(mark)}" for mark in _MARKS if values.get(mark) != _CONFIG[mark]
        ]
        if any(len(replicas) != 1 for replicas in homes):
            unlike.append("partitions with several replicas")
        elif len(set(homes)) < len(homes):
            unlike.append("several partitions on one broker")
        if unlike:
            raise UsageError(
                f"topic {self.topic} exists, and is not a probe's: it has {', '.join(unlike)}. "
                "Give the probe another topic, or delete this one if nobody needs it"
            )
        return view

    async def _tick(self) -> None:
        loop, random = asyncio.get_running_loop(), self._admin._session.random
        due = loop.time()
        while True:
            for broker, partition in self._partitions.items():
                self._probe(broker, partition, loop)
            # At irregular distances: a broker that pauses regularly could always pause in between.
            due = max(due + self._interval * random.uniform(0.5, 1.5), loop.time())
            await asyncio.sleep(due - loop.time())

    def _probe(self, broker: int, partition: int, loop: asyncio.AbstractEventLoop) -> None:
        latencies = self._latencies.get(broker)
        if latencies is None:
            latencies = self._latencies[broker] = ProbeLatencies(self._interval)
        latencies.due(loop.time())
        if broker not in self._requests:
            request = loop.create_task(self._send(broker, partition, latencies))
            self._requests[broker] = request
            request.add_done_callback(lambda done: self._sent(broker, done))

    def _sent(self, broker: int, done: asyncio.Task[None]) -> None:
        if self._requests.get(broker) is done:
            del self._requests[broker]

    async def _connect(self, broker: int) -> Connection:
        assert self._session is not None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._session.connections.connect(broker)
        except TimeoutError:
            raise Unavailable(
                f"broker {broker} accepts no connection within {self._timeout:g} s"
            ) from None

    async def _send(self, broker: int, partition: int, latencies: ProbeLatencies) -> None:
        """Send one probe. If no answer comes, it goes on waiting, with those that come later."""
        try:
            connection = await self._connect(broker)
            version = connection.version_of(ProduceRequest, _LAST_VERSION_WITH_NAMES)
            response = await connection.request(self._request(partition), version, self._timeout)
            for topic in response.responses:
                for answer in topic.partition_responses:
                    if answer.error_code != ErrorCode.NONE:
                        subject = f"broker {broker}, {self.topic}-{partition}"
                        raise BrokerError(error_code(answer.error_code), "a probe failed", subject)
        except BrokerError as error:
            self.troubles[broker] = error
            latencies.give_up()
        except KafkaError as error:
            self.troubles[broker] = error
        else:
            latencies.answer(asyncio.get_running_loop().time())
            self.troubles.pop(broker, None)

    def _request(self, partition: int) -> ProduceRequest:
        builder = BatchBuilder(len(_VALUE))
        builder.append(int(1000 * self._wall()), None, _VALUE, ())
        data = PartitionProduceData(index=partition, records=builder.build())
        return ProduceRequest(
            acks=_LEADER_ONLY,
            timeout_ms=int(1000 * self._timeout),
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )


def _above_zero(what: str, value: float) -> float:
    seconds = checked_seconds(what, value)
    if not seconds:
        raise UsageError(f"{what}={value}: give seconds above 0")
    return seconds
