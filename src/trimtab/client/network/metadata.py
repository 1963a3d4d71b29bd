"""A client's view of the cluster: its brokers and their racks, its topics, and their leaders.

`Metadata` keeps the views of topics fresh (`trimtab.client.topic_view`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random

from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connection import Node
from trimtab.client.network.connections import Connections
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    error_code,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_LEADER
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger("trimtab.client")

_PATIENCE = 1.0
"""Seconds for which a topic may be incomplete before the log says so: new ones have no leader."""


def view_topic(
    topic: MetadataResponseTopic,
    nodes: dict[int, Node],
    seen: dict[PartitionView, PartitionView] | None = None,
) -> TopicView:
    """The frozen view of one topic of a Metadata response.

    If a partition is left out, so are those with greater numbers: a view counts from 0.

    Args:
        seen: views of partitions, to be taken for equal ones: of 40,000 few differ.
    """
    if seen is None:
        seen = {}
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    by_index = [each for index, each in enumerate(ordered) if each.partition_index == index]
    leaders = tuple(p.leader_id if p.leader_id in nodes else NO_LEADER for p in by_index)
    views = [
        PartitionView(
            leader,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )
        for leader, p in zip(leaders, by_index, strict=True)
    ]
    return TopicView(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(seen.setdefault(view, view) for view in views),
        leaders=leaders,
        racks=tuple(nodes[leader].rack if leader in nodes else None for leader in leaders),
        available=tuple(index for index, leader in enumerate(leaders) if leader != NO_LEADER),
    )


class Metadata:
    """The views of the topics a client uses, refreshed when they are old, missing or wrong.

    Args:
        max_age: seconds until all views are requested again (`metadata.max.age.ms`).
        backoff: between attempts.
        create_topics: whether a request for an unknown topic may create it
            (`allow.auto.create.topics`).
    """

    def __init__(
        self,
        connections: Connections,
        *,
        max_age: float,
        backoff: Backoff,
        create_topics: bool,
        random: Random,
    ) -> None:
        self._connections = connections
        self._max_age = max_age
        self._backoff = backoff
        self._create_topics = create_topics
        self._random = random
        self._topics: dict[str, TopicView] = {}
        self._errors: dict[str, BrokerError] = {}
        self._wanted: dict[str, float] = {}
        """The topics to refresh, with the loop's time when `watch` last named them."""
        self._doubted: set[str] = set()
        """Topics with a leader that did not answer, or that answered that it does not lead."""
        self._awaited: Counter[tuple[str, int]] = Counter()
        """The number of callers that wait for a partition, by topic and partition."""
        self._on_update: list[Callable[[], None]] = []
        self._changed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._failure: KafkaError | None = None
        self._failing_since: float | None = None
        self._max_idle = math.inf
        self._last_used: Callable[[str], float] = lambda topic: math.inf
        self._on_forget: list[Callable[[str], None]] = []
        self._closed = False
        self._is_asking = False  # whether a broker was connected to and a request sent
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_BROKER
        self.updated_at = math.nan
        """The loop's time of the last Metadata response; NaN before the first one."""
        connections.on_loss(self._doubt)

    def on_update(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every refresh."""
        self._on_update.append(callback)

    def topic(self, name: str) -> TopicView | None:
        """The last view of a topic; None if there was none yet."""
        return self._topics.get(name)

    def topic_id(self, name: str) -> bytes:
        """The id of a topic in its last view; zero without a view, or if brokers have no ids."""
        view = self._topics.get(name)
        return ZERO_UUID if view is None else view.topic_id

    def views(self) -> list[TopicView]:
        """The last views of all topics that are known."""
        return list(self._topics.values())

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader; `NO_LEADER` if it has none, or is not known."""
        view = self._topics.get(topic)
        if view is None or partition >= len(view.leaders):
            return NO_LEADER
        return view.leaders[partition]

    def is_offline(self, partition: tuple[str, int], node: int) -> bool:
        """Whether a replica is known to be offline: its broker is down, or has lost its disk."""
        topic, index = partition
        view = self._topics.get(topic)
        return (
            view is not None
            and index < view.partition_count
            and node in view.partitions[index].offline_replicas
        )

    def doubt(self, topics: Iterable[str]) -> None:
        """Note that their leaders did not answer or no longer lead: `unsure` until refreshed.

        The note is kept after the call that failed ends, because the next call may have too little
        time to fail in the same way.
        """
        self._doubted.update(topics)

    def unsure(self, partitions: Iterable[tuple[str, int]]) -> list[str]:
        """The topics to refresh before requests are sent to the leaders of these partitions."""
        return sorted(
            {t for t, n in partitions if t in self._doubted or self.leader(t, n) == NO_LEADER}
        )

    def learn_leaders(self, topic: str, leaders: Mapping[int, tuple[int, int]]) -> bool:
        """Store the leaders that a broker named in its response (KIP-951).

        Args:
            leaders: by partition, the leader's node id and the leader epoch.

        Returns:
            Whether any leader is new: a known broker, in a later leader epoch than before.
        """
        view = self._topics.get(topic)
        if view is None:
            return False
        news = {
            partition: view.partitions[partition]._replace(leader=leader, leader_epoch=epoch)
            for partition, (leader, epoch) in leaders.items()
            if partition < len(view.partitions)
            and leader in self.nodes
            and epoch > view.partitions[partition].leader_epoch
        }
        if not news:
            return False
        self._topics[topic] = self._with_partitions(
            view, tuple(news.get(index, known) for index, known in enumerate(view.partitions))
        )
        return True

    def learn_nodes(self, nodes: Iterable[Node]) -> None:
        """Store the addresses that a broker named in its response (KIP-951)."""
        for node in nodes:
            self.nodes[node.id] = node
        self._connections.update(self.nodes.values())

    def error(self, name: str) -> BrokerError | None:
        """The error of the last response about a topic; None if there was no error."""
        return self._errors.get(name)

    @property
    def failure(self) -> KafkaError | None:
        """Why the last request for metadata failed; None if it succeeded."""
        return self._failure

    def watch(self, topics: Iterable[str]) -> None:
        """Refresh these topics' views from now on."""
        now = asyncio.get_running_loop().time()
        for topic in topics:
            self._wanted[topic] = now

    def doubt_id(self, name: str) -> None:
        """Forget a topic's view, which may be old: a caller knows another id. Ask for it again."""
        self._topics.pop(name, None)
        self.request_update()

    def drop(self, topics: Iterable[str]) -> None:
        """Refresh these topics no more, until `watch` names them again; what is known is kept."""
        for topic in topics:
            self._wanted.pop(topic, None)

    def forget_idle(
        self,
        max_idle: float,
        last_used: Callable[[str], float],
        on_forget: Callable[[str], None],
    ) -> None:
        """Forget topics that were not used for a time, at the next refresh after it.

        Args:
            max_idle: seconds (`metadata.max.idle.ms`, KIP-526).
            last_used: the loop's time when a topic was last used; infinite while it must be kept.
            on_forget: called with each topic that is forgotten; `watch` adds it again.
        """
        self._max_idle = max_idle
        self._last_used = last_used
        self._on_forget.append(on_forget)

    def request_update(self) -> None:
        """Refresh soon, because a view is wrong or missing."""
        if self._closed or (self._task is not None and not self._task.done()):
            return
        self._task = asyncio.get_running_loop().create_task(self._refresh_until_known())

    def _doubt(self) -> None:
        """A broker cannot be reached, so its partitions may have other leaders, or none."""
        if self._wanted:
            self.request_update()

    async def wait_for_topic(
        self,
        name: str,
        timeout: float,
        partition: int | None = None,
        patience: float = math.inf,
    ) -> TopicView:
        """The view of a topic, requested first if necessary.

        Args:
            partition: one that the view must have: it may have been added a moment ago.
            patience: seconds after which a response that has the topic without the partition is an
                error.

        Raises:
            BrokerError: the cluster refuses the topic for good.
            AuthenticationFailed: no broker accepts this client, so waiting longer is of no use.
            Unavailable: no usable response within `timeout` seconds; names the last error.

        Source: `KafkaProducer.waitOnMetadata`.
        """
        self.watch([name])
        needed = -1 if partition is None else partition
        impatient_at = asyncio.get_running_loop().time() + patience
        self._awaited[name, needed] += 1
        try:
            async with asyncio.timeout(timeout):
                while True:
                    view = self._topics.get(name)
                    if view is not None and needed < view.partition_count:
                        return view
                    error = self._errors.get(name)
                    if error is not None and not error.retriable:
                        del self._errors[name]
                        raise error
                    await self.wait_for_update()
                    if isinstance(self._failure, AuthenticationFailed):
                        raise self._failure
                    if self._lacks(name, needed) and self.updated_at >= impatient_at:
                        raise self._unknown(name, f"{patience:g} s", needed)
        except TimeoutError:
            raise self._unknown(name, f"{timeout:g} s (max.block.ms)", needed) from None
        finally:
            self._awaited[name, needed] -= 1
            if self._awaited[name, needed] == 0:
                del self._awaited[name, needed]

    async def wait_for_update(self) -> None:
        """Refresh now, and return once the refresh has ended."""
        self.request_update()
        await self._next_update()

    async def close(self) -> None:
        self._closed = True
        if self._age_timer is not None:
            self._age_timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def fetch(self, topics: list[str] | None, create: bool = False) -> MetadataResponse:
        """Request these topics (None: all) from any broker, and store the response."""
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()
        try:
            named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
            response = await self._ask(named, create)
        except BaseException as error:  # also if cancelled: no broker answered in time
            if isinstance(error, KafkaError):
                self._failure = error
            self._rebootstrap_if_late()
            raise
        self._failure = self._failing_since = None
        self.updated_at = asyncio.get_running_loop().time()
        self._store(response)
        return response

    async def fetch_ids(self, ids: Iterable[bytes]) -> None:
        """Request the topics with these ids, and announce their views (KIP-516, Kafka 3.1)."""
        wanted = [MetadataRequestTopic(name=None, topic_id=each) for each in ids]
        self._store(await self._ask(wanted, create=False))
        if self._age_timer is None:
            self._refresh_when_old()
        self._announce()

    async def _ask(
        self, topics: list[MetadataRequestTopic] | None, create: bool
    ) -> MetadataResponse:
        connection = await self._connections.connect_any()
        self._is_asking = True
        version = connection.version_of(MetadataRequest)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        if topics is None and version == 0:
            request.topics = []
        response = await connection.request(request, version)
        if response.error_code != ErrorCode.NONE:
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._rebootstrap()
                raise Unavailable(
                    f"{connection.node} requires clients to bootstrap again (KIP-1102)"
                )
            raise BrokerError(
                error_code(response.error_code), "asked for metadata", str(connection.node)
            )
        return response

    def _store(self, response: MetadataResponse) -> None:
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self._connections.update(self.nodes.values())
        seen: dict[PartitionView, PartitionView] = {}
        for topic in response.topics:
            name = topic.name or ""
            if not name:  # no topic has the id that was asked for
                continue
            self._doubted.discard(name)
            if topic.error_code == ErrorCode.NONE:
                self._errors.pop(name, None)
                known = self._topics.get(name)
                view = self._newest(view_topic(topic, self.nodes, seen))
                self._topics[name] = known if known == view else view  # one object while it is so
            else:
                self._errors[name] = BrokerError(error_code(topic.error_code), "", f"topic {name}")
                if topic.error_code in (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ErrorCode.UNKNOWN_TOPIC_ID,
                ):
                    self._topics.pop(name, None)

    def _newest(self, view: TopicView) -> TopicView:
        """The view, with the known state of each partition whose epoch is older in it (KIP-320)."""
        known = self._topics.get(view.name)
        if known is None or known.topic_id != view.topic_id:
            return view
        partitions = tuple(
            old if old is not None and 0 <= new.leader_epoch < old.leader_epoch else new
            for new, old in zip(
                view.partitions,
                known.partitions + (None,) * (len(view.partitions) - len(known.partitions)),
                strict=False,
            )
        )
        return view if partitions == view.partitions else self._with_partitions(view, partitions)

    def _with_partitions(self, view: TopicView, partitions: tuple[PartitionView, ...]) -> TopicView:
        leaders = tuple(p.leader if p.leader in self.nodes else NO_LEADER for p in partitions)
        return TopicView(
            view.name,
            view.topic_id,
            view.is_internal,
            partitions,
            leaders,
            tuple(self.nodes[n].rack if n in self.nodes else None for n in leaders),
            tuple(i for i, leader in enumerate(leaders) if leader != NO_LEADER),
        )

    async def _refresh_until_known(self) -> None:
        """Refresh; again, with back-off, as long as a topic, partition or leader is missing.

        After a refused authentication the next refresh is at the next `request_update`.
        """
        self._forget_idle_topics()
        outages, now = self._connections.outages, asyncio.get_running_loop().time
        attempt = 0
        while True:
            missing = ""
            self._is_asking = False
            try:
                await self.fetch(list(self._wanted), self._create_topics)
                complete = all(map(self._is_complete, self._wanted)) and not any(
                    name in self._topics and number >= self._topics[name].partition_count
                    for name, number in self._awaited
                )
                missing = "" if complete else self._missing()
            except KafkaError as error:
                logger.debug("metadata refresh failed: %s", error)
                complete = False
                if self._is_asking:  # otherwise `Connections` has logged the outage
                    missing = f"no metadata: {error}"
            wait = self._backoff.wait(attempt, self._random)
            if missing:
                outages.failed("the metadata", missing, wait, now(), _PATIENCE)
            elif complete:
                outages.reached("the metadata", now())
            if complete:
                self._refresh_when_old()
            self._announce()
            if complete or isinstance(self._failure, AuthenticationFailed):
                return
            await asyncio.sleep(wait)
            attempt += 1

    def _missing(self) -> str:
        """The first topic, partition or leader that is missing, in words for the log."""
        for name in self._wanted:
            if not self._is_complete(name):
                view, error = self._topics.get(name), self._errors.get(name)
                if error is not None:
                    return str(error)
                if view is None:
                    return f"topic {name}: the cluster says nothing about it"
                leaderless = view.partition_count - len(view.available)
                return f"topic {name}: {leaderless} of its partitions have no leader"
        return "; ".join(f"there is no partition {name}-{n}" for name, n in list(self._awaited)[:1])

    def _is_complete(self, name: str) -> bool:
        """Whether all leaders of a topic are known, or the cluster refuses the topic for good."""
        view, error = self._topics.get(name), self._errors.get(name)
        if view is not None and len(view.available) == view.partition_count:
            return True
        return error is not None and not error.retriable

    def _forget_idle_topics(self) -> None:
        now = asyncio.get_running_loop().time()
        idle = [
            topic
            for topic, asked_at in self._wanted.items()
            if now - max(asked_at, self._last_used(topic)) > self._max_idle
        ]
        for topic in idle:
            del self._wanted[topic]
            self._topics.pop(topic, None)
            self._errors.pop(topic, None)
            for callback in self._on_forget:
                callback(topic)

    def _rebootstrap_if_late(self) -> None:
        """Ask the bootstrap servers again if the known brokers did not answer for too long."""
        since, after = self._failing_since, self._connections.options.rebootstrap_after
        if since is None or after is None:
            return
        if asyncio.get_running_loop().time() - since >= after:
            self._rebootstrap()

    def _rebootstrap(self) -> None:
        if self._connections.options.rebootstrap_after is None:
            return
        self._failing_since = None
        self._connections.rebootstrap()

    def _announce(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
        for callback in self._on_update:
            callback()

    async def _next_update(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _refresh_when_old(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = asyncio.get_running_loop().call_later(self._max_age, self.request_update)

    def _lacks(self, name: str, partition: int) -> bool:
        """Whether the last response has the topic, but not the partition."""
        view = self._topics.get(name)
        return (
            view is not None
            and partition >= view.partition_count
            and name not in self._errors
            and self._failure is None
        )

    def _unknown(self, name: str, time: str, partition: int) -> KafkaError:
        error, view = self._errors.get(name), self._topics.get(name)
        waited = f"after {time}"
        if view is not None and error is None and self._failure is None:
            return Unavailable(
                f"partition {partition} of topic {name} is not there {waited}: the topic has"
                f" {view.partition_count} partitions, 0 to {view.partition_count - 1}; give one of"
                " these, or add partitions to the topic first"
            )
        if error is not None:
            why = {
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist and the cluster does not"
                " create topics by themselves; create it first",
                ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader yet",
            }.get(error.code, error.detail)
            return BrokerError(error.code, f"{why}; {waited}", error.subject)
        if self._failure is not None:
            what = f"topic {name}" if view is None else f"partition {partition} of topic {name}"
            return Unavailable(f"{what} is not known {waited}: {self._failure}")
        silence = self._connections.describe_silence()
        return Unavailable(f"topic {name} is not known {waited}: {silence}")
