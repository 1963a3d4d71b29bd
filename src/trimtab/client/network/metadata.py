"""What a client knows of the cluster: brokers, racks, and who leads which partition.

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
from trimtab.client.network.connections import ApiKey, Connections, Node
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.errors import (
    AuthenticationFailed,
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    error_code,
)
from trimtab.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

logger = logging.getLogger("trimtab.client")

NO_LEADER = -1
_PATIENCE = 1.0
"""Seconds for which a topic may be incomplete before the log says so: new ones have no leader."""
ZERO_UUID = bytes(16)


def view_topic(topic: MetadataResponseTopic, nodes: dict[int, Node]) -> TopicView:
    """The frozen view of one topic of a Metadata response."""
    by_index = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    leaders = tuple(p.leader_id if p.leader_id in nodes else NO_LEADER for p in by_index)
    return TopicView(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionView(
                leader,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                tuple(p.offline_replicas),
            )
            for leader, p in zip(leaders, by_index, strict=True)
        ),
        leaders=leaders,
        racks=tuple(nodes[leader].rack if leader in nodes else None for leader in leaders),
        available=tuple(index for index, leader in enumerate(leaders) if leader != NO_LEADER),
    )


class Metadata:
    """The views of the topics a client uses, refreshed when they are old, missing or wrong.

    Args:
        max_age: seconds until everything is asked for again (`metadata.max.age.ms`).
        backoff: between attempts.
        create_topics: whether asking for an unknown topic may create it
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
        """The topics to keep fresh, with the loop's time when they were last asked for."""
        self._doubted: set[str] = set()
        """Topics whose leaders did not answer, or said that they are none."""
        self._awaited: Counter[tuple[str, int]] = Counter()
        """Partitions that somebody waits for, by topic and number."""
        self._on_update: list[Callable[[], None]] = []
        self._changed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ageing: asyncio.TimerHandle | None = None
        self._failure: KafkaError | None = None
        self._failing_since: float | None = None
        self._max_idle = math.inf
        self._last_used: Callable[[str], float] = lambda topic: math.inf
        self._on_forget: list[Callable[[str], None]] = []
        self._closed = False
        self._is_asking = False  # whether a broker was reached and asked
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.updated_at = math.nan
        """The loop's time when a broker last told the metadata; NaN before the first time."""
        connections.on_loss(self._doubt)

    def on_update(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after every refresh."""
        self._on_update.append(callback)

    def topic(self, name: str) -> TopicView | None:
        """The last view of a topic; None if it was never seen."""
        return self._topics.get(name)

    def views(self) -> list[TopicView]:
        """The last views of all topics that are known."""
        return list(self._topics.values())

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader; -1 if there is none or it is not known."""
        view = self._topics.get(topic)
        if view is None or partition >= len(view.leaders):
            return NO_LEADER
        return view.leaders[partition]

    def doubt(self, topics: Iterable[str]) -> None:
        """Note that their leaders did not answer or no longer lead: `unsure` until refreshed.

        It outlives the call that has found out: the next one may have too little time to find out
        again.
        """
        self._doubted.update(topics)

    def unsure(self, partitions: Iterable[tuple[str, int]]) -> list[str]:
        """The topics to ask about before the leaders of these partitions are asked."""
        return sorted(
            {t for t, n in partitions if t in self._doubted or self.leader(t, n) == NO_LEADER}
        )

    def learn_leaders(self, topic: str, leaders: Mapping[int, tuple[int, int]]) -> bool:
        """Take over leaders that a broker named in its answer (KIP-951).

        Args:
            leaders: by partition, the leader's node id and the leader epoch.

        Returns:
            Whether any of it is news: a known broker, in a later epoch than was known.
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
        """Take over addresses that a broker named in its answer (KIP-951)."""
        for node in nodes:
            self.nodes[node.id] = node
        self._connections.update(self.nodes.values())

    def error(self, name: str) -> BrokerError | None:
        """Why the cluster last refused to describe a topic; None if it did not."""
        return self._errors.get(name)

    @property
    def failure(self) -> KafkaError | None:
        """Why no broker told the metadata when last asked; None if one did."""
        return self._failure

    def add(self, topics: Iterable[str]) -> None:
        """Keep these topics' views fresh from now on."""
        now = asyncio.get_running_loop().time()
        for topic in topics:
            self._wanted[topic] = now

    def forget_idle(
        self,
        max_idle: float,
        last_used: Callable[[str], float],
        on_forget: Callable[[str], None],
    ) -> None:
        """Forget topics that were not used for long, at the next refresh after that.

        Args:
            max_idle: seconds (`metadata.max.idle.ms`, KIP-526).
            last_used: the loop's time when a topic was last used; infinite while it must be kept.
            on_forget: called with each topic that is forgotten; `add` takes it up again.
        """
        self._max_idle = max_idle
        self._last_used = last_used
        self._on_forget.append(on_forget)

    def request_update(self) -> None:
        """Refresh soon: something showed that the views are wrong or missing."""
        if self._closed or (self._task is not None and not self._task.done()):
            return
        self._task = asyncio.get_running_loop().create_task(self._refresh_until_known())

    def _doubt(self) -> None:
        """A broker is out of reach: what it led may have another leader by now, or none."""
        if self._wanted:
            self.request_update()

    async def wait_for_topic(
        self, name: str, timeout: float, partition: int | None = None
    ) -> TopicView:
        """The view of a topic, asked for first if need be.

        Args:
            partition: one that the view must have: it may have been added a moment ago.

        Raises:
            BrokerError: the cluster refuses the topic for good.
            AuthenticationFailed: no broker lets us in, so that waiting longer is of no use.
            Unavailable: no usable answer within `timeout` seconds; says what was the matter.

        Source: `KafkaProducer.waitOnMetadata`.
        """
        self.add([name])
        needed = -1 if partition is None else partition
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
        except TimeoutError:
            raise self._unknown(name, timeout, needed) from None
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
        if self._ageing is not None:
            self._ageing.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def fetch(self, topics: list[str] | None, create: bool = False) -> MetadataResponse:
        """Ask any broker for these topics (None: all of them) and take over what it says."""
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()
        try:
            response = await self._ask(topics, create)
        except BaseException as error:  # a cancelled one has failed, too: nobody answered in time
            if isinstance(error, KafkaError):
                self._failure = error
            self._rebootstrap_if_late()
            raise
        self._failure = self._failing_since = None
        self.updated_at = asyncio.get_running_loop().time()
        self._take_over(response)
        return response

    async def _ask(self, topics: list[str] | None, create: bool) -> MetadataResponse:
        connection = await self._connections.connect_any()
        self._is_asking = True
        version = connection.version_of(ApiKey.METADATA)
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=create,
        )
        if topics is None and version == 0:
            request.topics = []
        response: MetadataResponse = await connection.request(request, ApiKey.METADATA, version)
        if response.error_code != ErrorCode.NONE:
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._rebootstrap()
                raise Unavailable(f"{connection.node} tells its clients to begin anew elsewhere")
            raise BrokerError(
                error_code(response.error_code), "asked for metadata", str(connection.node)
            )
        return response

    def _take_over(self, response: MetadataResponse) -> None:
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self._connections.update(self.nodes.values())
        for topic in response.topics:
            name = topic.name or ""
            self._doubted.discard(name)
            if topic.error_code == ErrorCode.NONE:
                self._errors.pop(name, None)
                self._topics[name] = self._newest(view_topic(topic, self.nodes))
            else:
                self._errors[name] = BrokerError(error_code(topic.error_code), "", f"topic {name}")
                if topic.error_code in (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ErrorCode.UNKNOWN_TOPIC_ID,
                ):
                    self._topics.pop(name, None)

    def _newest(self, view: TopicView) -> TopicView:
        """Keep what we know of a partition if this answer is of an older leader epoch (KIP-320)."""
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

        Nobody is asked again who refused us, until somebody wants an update again.
        """
        self._forget_idle_topics()
        outages, now = self._connections.outages, asyncio.get_running_loop().time
        attempt = 0
        while True:
            missing = ""
            self._is_asking = False
            try:
                await self.fetch(list(self._wanted), self._create_topics)
                complete = all(map(self._is_told, self._wanted)) and not any(
                    name in self._topics and number >= self._topics[name].partition_count
                    for name, number in self._awaited
                )
                missing = "" if complete else self._missing()
            except KafkaError as error:
                logger.debug("metadata refresh failed: %s", error)
                complete = False
                if self._is_asking:  # else connections have said so
                    missing = f"no metadata: {error}"
            wait = self._backoff.wait(attempt, self._random)
            if missing:
                outages.failed("the metadata", missing, wait, now(), _PATIENCE)
            elif complete:
                outages.reached("the metadata", now())
            if complete:
                self._age()
            self._announce()
            if complete or isinstance(self._failure, AuthenticationFailed):
                return
            await asyncio.sleep(wait)
            attempt += 1

    def _missing(self) -> str:
        """The first thing that is not known, as the log says it."""
        for name in self._wanted:
            if not self._is_told(name):
                view, error = self._topics.get(name), self._errors.get(name)
                if error is not None:
                    return str(error)
                if view is None:
                    return f"topic {name}: the cluster says nothing about it"
                leaderless = view.partition_count - len(view.available)
                return f"topic {name}: {leaderless} of its partitions have no leader"
        return "; ".join(f"there is no partition {name}-{n}" for name, n in list(self._awaited)[:1])

    def _is_told(self, name: str) -> bool:
        """Whether all is known of a topic, or that there is nothing to know."""
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
        """Begin again at the bootstrap servers if the known brokers told nothing for too long."""
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

    def _age(self) -> None:
        if self._ageing is not None:
            self._ageing.cancel()
        self._ageing = asyncio.get_running_loop().call_later(self._max_age, self.request_update)

    def _unknown(self, name: str, timeout: float, partition: int) -> KafkaError:
        error, view = self._errors.get(name), self._topics.get(name)
        waited = f"after {timeout:g} s (max.block.ms)"
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
        return Unavailable(f"topic {name} is not known {waited}: the cluster did not answer")
