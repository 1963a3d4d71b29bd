"""The controller of a cluster: a single one, without a quorum.

    request ─▶ decide ─▶ records ─▶ journal, image ─▶ on disk ─▶ brokers replay ─▶ answer

Decisions are plain functions of the image, in other modules. This module connects them with the
journal and with the state that is only in memory: the brokers' sessions, and the offset up to which
each broker has replayed the metadata log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from random import Random
from typing import Any, TypeAlias

from trimtab.balance.limits import Allowance, LimitUsage, PartitionLimits
from trimtab.cluster.config import resolve
from trimtab.cluster.controller.broker_states import (
    Progress,
    decide_heartbeat,
    decide_registration,
    decide_unregistration,
    fence,
    is_current,
)
from trimtab.cluster.controller.configs import (
    decide_alter_configs,
    decide_incremental_alter_configs,
)
from trimtab.cluster.controller.decision import Decision, WholeRequest
from trimtab.cluster.controller.features import decide_update_features
from trimtab.cluster.controller.isr_changes import decide_isr_changes
from trimtab.cluster.controller.journal import Journal
from trimtab.cluster.controller.leader_changes import (
    MAX_ELECTIONS,
    balance_leaders,
    decide_elections,
    elect_unclean_where_missing,
    review_eligible,
)
from trimtab.cluster.controller.metadata_feed import MetadataFeed
from trimtab.cluster.controller.new_partitions import decide_create_partitions
from trimtab.cluster.controller.partition_limits import is_ignored, read_goal, read_limits
from trimtab.cluster.controller.reassignments import decide_alter_reassignments, list_reassignments
from trimtab.cluster.controller.sessions import Probe, Sessions
from trimtab.cluster.controller.topic_rules import UNCLEAN, TopicRules
from trimtab.cluster.controller.topics import decide_create, decide_delete
from trimtab.cluster.metadata.features import SUPPORTED
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.server.repeat import repeat
from trimtab.cluster.server.turns import Steps
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import Value
from trimtab.kafka.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from trimtab.kafka.wire.messages.alter_configs import AlterConfigsRequest
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
)
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
)
from trimtab.kafka.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
)
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
)
from trimtab.kafka.wire.messages.create_topics import CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from trimtab.kafka.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
)
from trimtab.kafka.wire.messages.update_features import (
    UpdateFeaturesRequest,
)

Answer: TypeAlias = Coroutine[Any, Any, Any]
"""The coroutine of a response: the decision is made when the method returns; the response may be
sent when the coroutine returns it."""

PRODUCER_ID_BLOCK = 1000
"""Producer ids in one block for a broker (KIP-730)."""

MAX_REACH_S = 1.0
"""Time that a response waits for brokers to replay at most, so that a slow one delays it only so
long."""


_log = logging.getLogger(__name__)


class Controller:
    """Decides about brokers, topics, leaders and producer ids. Runs on the current loop.

    The constructor replays the journal and begins a new epoch; `start` starts the timers. Methods
    named like requests decide at once, and return a coroutine of the response.

    Args:
        storage: the directory with the journal.
        node_id: its node id.
        cluster_id: the cluster id that brokers must register with.
        given: the broker options (`trimtab.cluster.config.BROKER`) that were set.
        now_ms: wall time in milliseconds.
        random: for topic ids and placement.
        probe: see `trimtab.cluster.controller.sessions`.

    Attributes:
        journal: set `journal.on_failure` to a function that stops this controller.
        feed: serves the metadata log to brokers.
        rejections: by option, how often `max.broker.partitions` and `max.partitions` have refused a
            topic or a partition.

    Raises:
        CorruptData: the journal is damaged before its end.
        StorageError: the disk failed.
    """

    def __init__(
        self,
        storage: Storage,
        node_id: int,
        cluster_id: str,
        given: Mapping[str, Value],
        now_ms: Callable[[], int],
        random: Random,
        probe: Probe,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.rejections: Counter[str] = Counter()
        self._given = given
        self._config = resolve(given, {}, {})
        self._random = random
        self.journal = Journal(
            storage,
            node_id,
            now_ms,
            self._config.integer("metadata.log.max.record.bytes.between.snapshots"),
        )
        self.feed = MetadataFeed(self.journal, node_id, cluster_id, now_ms)
        self._rules = TopicRules(self.image, self._config)
        self._sessions = Sessions(
            self._config.seconds("broker.session.timeout.ms"),
            probe,
            self._address,
            self._end_session,
        )
        self._shutdown_offsets: dict[int, int] = {}
        self._upkeep: list[asyncio.Task[None]] = []

    @property
    def image(self) -> ClusterImage:
        """The image with all decisions, including those not on disk yet."""
        return self.journal.image

    # Life

    async def start(self) -> None:
        """Write the feature levels if they are missing, and start session and upkeep timers."""
        self._commit(
            [
                FeatureLevelRecord(name=name, feature_level=highest)
                for name, (_, highest) in SUPPORTED.items()
                if name not in self.image.features
            ]
        )
        self._commit(review_eligible(self.image, self._rules))
        for broker in self.image.brokers.values():
            if not broker.fenced:
                self._sessions.touch(broker.id, broker.epoch)
        if self._config["auto.leader.rebalance.enable"]:
            self._repeat(
                self._config.integer("leader.imbalance.check.interval.seconds"), self._balance
            )
        self._repeat(
            self._config.seconds("unclean.leader.election.interval.ms"), self._elect_unclean
        )
        await self.journal.reach(self.journal.next_offset)

    async def close(self) -> None:
        """Stop deciding, and wait until all decisions are on disk."""
        self._sessions.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await self.journal.close()

    def abort(self) -> None:
        """Stop at once, like a killed process."""
        self._sessions.close()
        for task in self._upkeep:
            task.cancel()
        self.journal.abort()

    # Brokers

    def register_broker(self, request: BrokerRegistrationRequest) -> Answer:
        """BrokerRegistration."""
        before = self.image.brokers.get(request.broker_id)
        decision = decide_registration(
            self.image,
            self._rules,
            request,
            self.cluster_id,
            self.journal.next_offset,
            before is not None and self._sessions.is_connected(before.id, before.epoch),
        )
        if decision.records and (
            before is None or before.fenced or before.epoch != decision.response.broker_epoch
        ):
            self._drop_incarnation(request.broker_id)
        return self._commit_and_answer(decision)

    def heartbeat(self, request: BrokerHeartbeatRequest, connection: object = None) -> Answer:
        """BrokerHeartbeat. Call `connection_lost` with the same `connection` when it is lost."""
        broker_id = request.broker_id
        if is_current(self.image, broker_id, request.broker_epoch):
            self._sessions.touch(broker_id, request.broker_epoch, connection)
            if request.current_metadata_offset + 1 > self.feed.position(broker_id):
                self.feed.note(broker_id, request.current_metadata_offset + 1)
        decision = decide_heartbeat(
            self.image,
            self._rules,
            request,
            Progress(self._shutdown_offsets.get(broker_id, 0), self._lowest_active()),
        )
        answer = self._commit_and_answer(decision)
        broker = self.image.brokers.get(broker_id)
        if broker is not None and broker.in_controlled_shutdown:
            self._shutdown_offsets.setdefault(broker_id, self.journal.next_offset)
        if decision.response.should_shut_down:
            self._drop_incarnation(broker_id)
        return answer

    def connection_lost(self, connection: object) -> None:
        """A connection that may have carried heartbeats is lost."""
        self._sessions.lost(connection)

    def unregister_broker(self, request: UnregisterBrokerRequest) -> Answer:
        """UnregisterBroker."""
        decision = decide_unregistration(self.image, self._rules, request)
        answer = self._commit_and_answer(decision)
        if decision.records:
            self._drop_incarnation(request.broker_id)
        return answer

    def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> Answer:
        """AllocateProducerIds: a block of ids that no other broker gets, even after restarts."""
        if not is_current(self.image, request.broker_id, request.broker_epoch):
            response = AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            return self._commit_and_answer(Decision([], response))
        first = self.image.next_producer_id
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK,
        )
        response = AllocateProducerIdsResponse(
            producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK
        )
        return self._commit_and_answer(Decision([record], response))

    # Partitions

    # For a request decided in parts, these methods decide one part and return its response. The
    # merged response may only be sent after `reach` (`large_requests.py`).

    def alter_partition(
        self, request: AlterPartitionRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """AlterPartition."""
        return self._commit_and_answer(
            decide_isr_changes(self.image, self._rules, request), 0, whole
        )

    def elect_leaders(
        self, request: ElectLeadersRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """ElectLeaders: brokers replay the new leaders before the response is sent."""
        decision = decide_elections(self.image, self._rules, request)
        return self._commit_and_answer(decision, request.timeout_ms, whole)

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """AlterPartitionReassignments: the response says that they have begun."""
        decision = decide_alter_reassignments(
            self.image, self._rules, self._allowance(), request, whole
        )
        return self._commit_and_answer(decision, 0, whole)

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> Steps[Answer]:
        """ListPartitionReassignments."""
        response = yield from list_reassignments(self.image, request)
        return self._commit_and_answer(Decision([], response))

    # Topics and options

    def create_topics(
        self, request: CreateTopicsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """CreateTopics: brokers open the new partitions before the response is sent."""
        allowance = self._allowance(request.validate_only, whole)
        decision = decide_create(self.image, request, self._given, allowance, self._random, whole)
        return self._commit_and_answer(decision, request.timeout_ms, whole)

    def delete_topics(
        self, request: DeleteTopicsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """DeleteTopics: brokers replay the deletion before the response is sent."""
        enabled = bool(self._config["delete.topic.enable"])
        decision = decide_delete(self.image, request, enabled, whole)
        return self._commit_and_answer(decision, request.timeout_ms, whole)

    def create_partitions(
        self, request: CreatePartitionsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """CreatePartitions: brokers open the new partitions before the response is sent."""
        allowance = self._allowance(request.validate_only, whole)
        decision = decide_create_partitions(self.image, request, allowance, self._random, whole)
        return self._commit_and_answer(decision, request.timeout_ms, whole)

    def update_features(self, request: UpdateFeaturesRequest, version: int) -> Answer:
        """UpdateFeatures: brokers replay the change before the response is sent."""
        decision = decide_update_features(self.image, request, self.node_id, version)
        return self._commit_and_answer(decision, request.timeout_ms)

    def alter_configs(
        self, request: AlterConfigsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """AlterConfigs: brokers replay the change before the response is sent."""
        return self._configure(
            decide_alter_configs(self.image, request, self._config, self.node_id, whole), whole
        )

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, whole: WholeRequest | None = None
    ) -> Answer:
        """IncrementalAlterConfigs: brokers replay the change before the response is sent."""
        return self._configure(
            decide_incremental_alter_configs(
                self.image, request, self._config, self.node_id, whole
            ),
            whole,
        )

    def limits(self) -> PartitionLimits:
        """The current limits on replicas."""
        return read_limits(self.image, self._config, self.node_id)

    def limit_usage(self) -> LimitUsage:
        """The current replica counts, beside the limits."""
        counts = self.image.counts
        brokers = {*self.image.brokers, *(broker for broker in counts.on if counts.on[broker])}
        return LimitUsage(
            self.limits(),
            {broker: counts.on[broker] for broker in brokers},
            counts.total,
            self.rejections.copy(),
        )

    def _allowance(
        self, validate_only: bool = False, whole: WholeRequest | None = None
    ) -> Allowance:
        """The allowance of a request, or what earlier parts of it have left."""
        if whole is None or not validate_only:  # replicas granted to earlier parts are in the image
            return self._new_allowance()
        if whole.allowance is None:
            whole.allowance = self._new_allowance()
        return whole.allowance

    def _new_allowance(self) -> Allowance:
        goal = read_goal(self.image, self._config, self.node_id)
        return Allowance(self.image.counts, self.limits(), self.rejections, goal=goal)

    def _configure(self, decision: Decision, whole: WholeRequest | None) -> Answer:
        self._commit(decision.records)
        for record in decision.records:
            if isinstance(record, ConfigRecord) and is_ignored(record, self.node_id):
                _log.warning(
                    "%s of broker=%s is kept but has no effect: set it for all brokers, or for the "
                    "controller node=%d, which decides",
                    record.name,
                    record.resource_name,
                    self.node_id,
                )
        if any(
            isinstance(record, ConfigRecord) and record.name == UNCLEAN
            for record in decision.records
        ):
            self._commit(elect_unclean_where_missing(self.image, self._rules))
        limit_s = MAX_REACH_S if decision.records else 0
        return self._respond(decision.response, limit_s, whole)

    # Committing decisions

    def _commit(self, records: list[Any]) -> None:
        if records:
            self.journal.append(records)
            self.feed.recheck_positions()

    def _commit_and_answer(
        self, decision: Decision, reach_ms: int = 0, whole: WholeRequest | None = None
    ) -> Answer:
        """Commit the records; returns the coroutine of the response. It waits for the disk even if
        there are no records, as the response may depend on decisions that are not on disk yet."""
        self._commit(decision.records)
        limit_s = min(reach_ms / 1000, MAX_REACH_S) if decision.records else 0
        return self._respond(decision.response, limit_s, whole)

    def _respond(self, response: Any, limit_s: float, whole: WholeRequest | None) -> Answer:
        if whole is None or not whole.is_in_parts:
            return self._answer(response, self.journal.next_offset, limit_s)
        whole.reach_s = max(whole.reach_s, limit_s)
        return response  # type: ignore[no-any-return]

    def reach(self, response: Any, whole: WholeRequest) -> Answer:
        """The response to a request decided in parts, once it may be sent."""
        return self._answer(response, self.journal.next_offset, whole.reach_s)

    async def _answer(self, response: Any, offset: int, limit_s: float) -> Any:
        await self.journal.reach(offset)
        if limit_s > 0:
            await self.feed.reach(offset, self._active, limit_s)
        return response

    def _active(self) -> list[int]:
        return [broker.id for broker in self.image.brokers.values() if broker.is_active]

    def _lowest_active(self) -> int:
        positions = [self.feed.position(broker_id) for broker_id in self._active()]
        return min(positions, default=self.journal.next_offset)

    def _address(self, broker_id: int) -> tuple[str, int] | None:
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else (broker.host, broker.port)

    def _drop_incarnation(self, broker_id: int) -> None:
        """Drop the state of an ended incarnation of a broker."""
        self._sessions.drop(broker_id)
        self._shutdown_offsets.pop(broker_id, None)
        self.feed.forget(broker_id)

    def _end_session(self, broker_id: int, reason: str) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced or self.journal.failure is not None:
            return
        _log.warning("fencing broker=%d epoch=%d: %s", broker_id, broker.epoch, reason)
        self._shutdown_offsets.pop(broker_id, None)
        self._commit(fence(self.image, self._rules, broker))

    # Periodic upkeep

    def _repeat(self, interval_s: float, upkeep: Callable[[], Awaitable[None]]) -> None:
        self._upkeep.append(
            asyncio.create_task(repeat(interval_s, upkeep, upkeep.__name__.strip("_")))
        )

    async def _balance(self) -> None:
        while True:
            records = balance_leaders(self.image, self._rules)
            self._commit(records)
            if len(records) < MAX_ELECTIONS:
                return
            await self.journal.reach(self.journal.next_offset)

    async def _elect_unclean(self) -> None:
        self._commit(elect_unclean_where_missing(self.image, self._rules))
