"""A transactional producer's requests to the coordinators of its id and of consumer groups.

`transactions.py` decides when each of them is sent.

Source: KIP-98, KIP-360, KIP-447, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random

from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import Connections
from trimtab.client.network.coordinator import CoordinatorKind, CoordinatorLink, Verdict
from trimtab.client.sender.prepared import (
    OLDER_END_TXN,
    PreparedTransaction,
    ProducerIdentity,
    verdict_of,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from trimtab.kafka.wire.sentinels import NO_PRODUCER_ID

# The newest versions of the older protocol. Later ones belong to `transaction.version` 2; of
# AddPartitionsToTxn, to brokers.
_OLDER_ADD_PARTITIONS = 3
_OLDER_OFFSET_COMMIT = 4
_MEMBER_SINCE = 3
"""From this version TxnOffsetCommit names the group member that commits (KIP-447)."""
_EPOCH_BUMP_SINCE = 3
"""From this version InitProducerId raises an epoch without fencing newer producers (KIP-360)."""
_STABLE_INIT = 5
_TWO_PHASE_INIT = 6
"""In this version InitProducerId can request transactions without time limit (KIP-939)."""
_NO_TIMEOUT_MS = 2**31 - 1
_NO_TWO_PHASES = (
    "its broker does not support two-phase commit (KIP-939); set"
    " transaction.two.phase.commit.enable=true there, and on Apache Kafka 4.3"
    " unstable.api.versions.enable=true, or leave the producer's option out: then prepared"
    " transactions last transaction.timeout.ms"
)
_KEEPS_NONE = (
    "its broker does not keep prepared transactions (KIP-939); trimtab's brokers do with"
    " transaction.two.phase.commit.enable=true. End them with complete_transaction(), then call"
    " init_transactions() without keep_prepared"
)


class MemberUnsupported(BrokerError):
    """The group's coordinator is too old to check the member."""


class TransactionRequests:
    """The requests; each is repeated until the coordinator has carried it out (`CoordinatorLink`).

    Args:
        timeout: as in `TransactionOptions`.

    Attributes:
        in_version_2: whether the current transaction follows `transaction.version` 2.
    """

    def __init__(
        self,
        connections: Connections,
        transactional_id: str,
        timeout: float | None,
        backoff: Backoff,
        random: Random,
    ) -> None:
        self.in_version_2 = False
        self._connections = connections
        self._timeout = timeout
        self._backoff = backoff
        self._random = random
        self._groups: dict[str, CoordinatorLink] = {}
        self.change_id(transactional_id)

    def __str__(self) -> str:
        return str(self._coordinator)

    def change_id(self, transactional_id: str) -> None:
        """Send the next requests to the coordinator of this id."""
        self._coordinator = self._link(CoordinatorKind.TRANSACTION, transactional_id)

    def _link(self, kind: CoordinatorKind, key: str) -> CoordinatorLink:
        return CoordinatorLink(self._connections, kind, key, self._backoff, self._random)

    @property
    def supports_version_2(self) -> bool:
        """Whether the cluster's `transaction.version` is 2; False before the first request."""
        return self._coordinator.feature("transaction.version") >= 2

    @property
    def can_renew(self) -> bool:
        """Whether brokers can give the running producer another epoch."""
        return self._coordinator.version_of(InitProducerIdRequest) >= _EPOCH_BUMP_SINCE

    @property
    def may_be_late(self) -> bool:
        """Whether requests were sent in this epoch that nobody answered, so that they may still
        arrive."""
        return any(link.unanswered for link in self._links)

    @property
    def troubles(self) -> list[str]:
        """The last errors of the requests that are being repeated."""
        return [str(link.trouble) for link in self._links if link.trouble is not None]

    @property
    def _links(self) -> list[CoordinatorLink]:
        return [self._coordinator, *self._groups.values()]

    async def init(self, before: ProducerIdentity) -> tuple[int, int]:
        """A new producer id and epoch: with NO_PRODUCER_ID in any case, or only if `before` is the
        newest producer."""
        response = await self._init(before, keeps_prepared=False)
        return response.producer_id, response.producer_epoch

    async def take_over(
        self, before: ProducerIdentity
    ) -> tuple[tuple[int, int], PreparedTransaction | None]:
        """As `init`; and what the newest producer has prepared, which stays so (KIP-939)."""
        response = await self._init(before, keeps_prepared=True)
        kept = PreparedTransaction(
            before.transactional_id,
            response.ongoing_txn_producer_id,
            response.ongoing_txn_producer_epoch,
        )
        numbers = response.producer_id, response.producer_epoch
        return numbers, None if kept.producer_id == NO_PRODUCER_ID else kept

    async def _init(self, before: ProducerIdentity, keeps_prepared: bool) -> InitProducerIdResponse:
        def request(version: int) -> InitProducerIdRequest:
            if before.producer_id != NO_PRODUCER_ID and version < _EPOCH_BUMP_SINCE:
                raise BrokerError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "records were lost, and brokers before Kafka 2.5 cannot raise the epoch of a"
                    " running producer (KIP-360)",
                    str(self),
                )
            if is_two_phase and version < _TWO_PHASE_INIT:
                why = _KEEPS_NONE if keeps_prepared else _NO_TWO_PHASES
                raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, why, str(self))
            return InitProducerIdRequest(
                transactional_id=before.transactional_id,
                transaction_timeout_ms=_NO_TIMEOUT_MS if timeout is None else round(timeout * 1000),
                producer_id=before.producer_id,
                producer_epoch=before.epoch,
                enable2_pc=timeout is None,
                keep_prepared_txn=keeps_prepared,
            )

        def judge(response: InitProducerIdResponse) -> Verdict:
            code = error_code(response.error_code)
            if code is ErrorCode.UNSUPPORTED_VERSION and keeps_prepared:
                raise BrokerError(code, _KEEPS_NONE, str(self))
            return code, ""

        timeout = self._timeout
        is_two_phase = timeout is None or keeps_prepared
        response = await self._coordinator.ask(
            InitProducerIdRequest,
            request,
            judge,
            at_most=_TWO_PHASE_INIT if is_two_phase else _STABLE_INIT,
        )
        for link in self._links:
            link.unanswered = 0
        return response

    async def end_transaction(self, producer: ProducerIdentity, commits: bool) -> EndTxnResponse:
        """Commit or abort the transaction."""
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commits,
        )
        return await self._coordinator.ask(
            EndTxnRequest,
            lambda version: request,
            verdict_of,
            at_most=None if self.in_version_2 else OLDER_END_TXN,
        )

    async def add_partitions(
        self,
        producer: ProducerIdentity,
        partitions: Iterable[tuple[str, int]],
        check: Callable[[], None],
    ) -> None:
        """Add partitions to the transaction; `check` raises once it is no longer open."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=of)
                for name, of in by_topic(partitions).items()
            ],
        )
        await self._coordinator.ask(
            AddPartitionsToTxnRequest,
            lambda version: request,
            refusal_of_partitions,
            at_most=_OLDER_ADD_PARTITIONS,
            check=check,
        )

    async def add_group(
        self, producer: ProducerIdentity, group: ConsumerGroup, check: Callable[[], None]
    ) -> None:
        """Add a group's offsets to the transaction; `check` as for `add_partitions`."""
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group.group_id,
        )
        await self._coordinator.ask(
            AddOffsetsToTxnRequest, lambda version: request, verdict_of, check=check
        )

    async def commit_offsets(
        self,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroup,
        check: Callable[[], None],
    ) -> None:
        """Commit a group's offsets as part of the transaction; `check` as for `add_partitions`.

        Raises:
            MemberUnsupported: the group's coordinator cannot check the member.
        """

        def request(version: int) -> TxnOffsetCommitRequest:
            if version < _MEMBER_SINCE and group != ConsumerGroup(group.group_id):
                raise MemberUnsupported(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "brokers before Kafka 2.5 do not check the member that commits (KIP-447); give"
                    " the group's id alone, and a transactional.id to each partition that is read",
                    f"group {group.group_id}",
                )
            return _offset_commit(producer, offsets, group)

        link = self._groups.get(group.group_id)
        if link is None:
            link = self._groups[group.group_id] = self._link(CoordinatorKind.GROUP, group.group_id)
        await link.ask(
            TxnOffsetCommitRequest,
            request,
            refusal_of_offsets,
            at_most=None if self.in_version_2 else _OLDER_OFFSET_COMMIT,
            check=check,
        )


def _offset_commit(
    producer: ProducerIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroup,
) -> TxnOffsetCommitRequest:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for partition, position in offsets.items():
        topic = topics.setdefault(
            partition.topic, TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[])
        )
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )


def refusal_of_partitions(response: AddPartitionsToTxnResponse) -> Verdict:
    return _most_severe(
        [
            (error_code(result.partition_error_code), f"{topic.name}-{result.partition_index}")
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
    )


def refusal_of_offsets(response: TxnOffsetCommitResponse) -> Verdict:
    return _most_severe(
        [
            (error_code(result.error_code), f"the offset of {topic.name}-{result.partition_index}")
            for topic in response.topics
            for result in topic.partitions
        ]
    )


def _most_severe(results: Collection[Verdict]) -> Verdict:
    """The most severe result: an error that is not retriable, else a retriable one, else
    OPERATION_NOT_ATTEMPTED, which only says that another item was refused."""

    def rank(result: Verdict) -> int:
        code, _ = result
        if code is ErrorCode.NONE:
            return 0
        if code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            return 1
        return 2 if code.retriable else 3

    return max(results, key=rank, default=(ErrorCode.NONE, ""))
