"""The types of an admin client's arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError
from trimtab.kafka.options import OptionType
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import BROKER_DEFAULT

K = TypeVar("K")
D = TypeVar("D")

GroupType: TypeAlias = Literal["classic", "consumer"]
"""The protocol of a group, or of a member (KIP-848)."""

ConfigKind: TypeAlias = Literal["topic", "broker"]
"""A resource with options. A broker's name is its id, "" stands for all brokers."""


class NewTopic(NamedTuple):
    """A topic to create.

    Attributes:
        partitions: their number; -1 for the cluster's default, or if `assignment` is given.
        replication_factor: replicas of each; -1 likewise.
        assignment: the brokers of each partition, the preferred leader first.
        config: topic options, such as `{"retention.ms": 3600000}`.
    """

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignment: Mapping[int, Sequence[int]] | None = None
    config: Mapping[str, object] | None = None


class ConfigSource(IntEnum):
    """Where a configured value comes from, numbered as in DescribeConfigs (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """A source that could set an option's value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One option of a topic or broker. `value` is None if it is not set, or secret.

    `type` and `documentation` are None if the broker does not send them; `synonyms` lists all
    sources of the value, the effective one first.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: OptionType | None
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class ClusterDescription(NamedTuple):
    """A cluster: its id, its brokers by id, and the broker that takes controller requests.

    Attributes:
        fenced: the ids of the brokers that the controller has fenced, if they were asked for.
    """

    cluster_id: str | None
    controller_id: int
    nodes: list[Node]
    fenced: frozenset[int] = frozenset()


class Features(NamedTuple):
    """Levels of features, by name (KIP-584).

    Attributes:
        supported: the lowest and the highest level that the broker supports.
        finalized: the level in force; features without one are at level 0.
        epoch: rises when levels change; None if the broker does not know it.
    """

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int | None


class EligibleLeaders(NamedTuple):
    """The replicas that may lead a partition if no in-sync replica can (KIP-966).

    Attributes:
        eligible: the ELR: replicas that left the ISR and have all committed records.
        last_known: the last leader, if ISR and ELR are empty.

    None if the broker does not send them.
    """

    eligible: tuple[int, ...] | None
    last_known: tuple[int, ...] | None


class Reassignment(NamedTuple):
    """The unfinished move of a partition to other brokers (KIP-455).

    Attributes:
        replicas: all present replicas, including those in `adding` and `removing`.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartlyRefused(BrokerError, Generic[K, D]):
    """Parts of a request are refused; the others are carried out.

    Attributes:
        refusals: the error of each refused part: of a partition, or of a group.
        done: what the call would have returned for the others.
    """

    def __init__(self, refusals: dict[K, BrokerError], done: D) -> None:
        first = next(iter(refusals.values()))
        more = f"; and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        super().__init__(first.code, first.detail + more, first.subject)
        self.refusals = refusals
        self.done = done


class TransactionListing(NamedTuple):
    """A transactional id that its coordinator knows, and the state of its last transaction.

    Attributes:
        state: one of Kafka's: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit,
            CompleteAbort, PrepareEpochFence.
        coordinator: the broker that coordinates it.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """One transactional id, with its open transaction.

    Attributes:
        timeout_ms: the time after which the coordinator aborts it.
        started_at: in ms since the epoch; -1 if none is open.
        partitions: its partitions that have no marker yet.
        coordinator: the broker that coordinates it.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    started_at: int
    partitions: tuple[TopicPartition, ...]
    coordinator: int


class ProducerDescription(NamedTuple):
    """What a partition remembers of an idempotent or transactional producer.

    Attributes:
        last_sequence: of its last record; -1 if none is remembered.
        last_timestamp: of its last record, ms since the epoch; -1 if none is remembered.
        coordinator_epoch: of the coordinator that ended its last transaction here; -1 if none has.
        open_since_offset: the first offset of its transaction that is open here; -1 if none is.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_since_offset: int


class ReplicaLog(NamedTuple):
    """One replica on disk.

    Attributes:
        size: bytes.
        offset_lag: offsets from its end to the high watermark; for a future log, to the end of the
            log that it will replace.
        is_future: whether it is a copy in progress, for a move into this directory.
    """

    size: int
    offset_lag: int
    is_future: bool


class LogDirectory(NamedTuple):
    """A directory with a broker's logs.

    Attributes:
        error: why it cannot be read; None if it can.
        total_bytes, usable_bytes: of its volume; -1 if unknown.
        is_cordoned: whether it takes no new replicas (KIP-1066); False from brokers before
            Kafka 4.3.
    """

    path: str
    error: BrokerError | None
    logs: dict[TopicPartition, ReplicaLog]
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool = False


class QuorumReplica(NamedTuple):
    """A node that has the cluster's metadata log: a controller or a broker.

    Times are ms since the epoch, by the leader's clock. None if unknown, as from brokers before
    Kafka 3.3.

    Attributes:
        log_end: the offset after its last record.
        last_fetch_ms: when it last fetched from the leader; for the leader the present.
        last_caught_up_ms: when it last had the leader's whole log; for the leader the present.
    """

    id: int
    log_end: int | None
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


class Quorum(NamedTuple):
    """The controllers, and the brokers that follow their log (KIP-836).

    Attributes:
        leader_id: the active controller's.
        high_watermark: records of the metadata log before this offset are committed.
        observers: the nodes that follow without a vote: brokers, and controllers that are none yet.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class GroupListing(NamedTuple):
    """A group that its coordinator knows.

    Attributes:
        protocol_type: "consumer" for consumers' groups; "" if it has stored offsets only.
        state: one of Kafka's, such as Empty or Stable; "" from brokers before Kafka 2.6.
        type: classic, consumer, share or streams; "" from brokers before Kafka 3.8.
    """

    group_id: str
    protocol_type: str
    state: str
    type: str


class GroupMember(NamedTuple):
    """A member of a group.

    Attributes:
        instance_id: of a static member (`group.instance.id`).
        host: its address as the coordinator sees it, such as `/127.0.0.1`.
        partitions: what it reads.
        target: what it is to read; None for members of classic groups.
        epoch: of what it reads; None likewise.
        protocol: which it uses; None likewise, and from brokers before Kafka 4.0.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None
    protocol: GroupType | None = None


class GroupDescription(NamedTuple):
    """A group, with its members.

    Attributes:
        protocol_type: "consumer" for consumers' groups; "" if it has stored offsets only.
        state: one of Kafka's: Empty, Stable; of classic groups PreparingRebalance,
            CompletingRebalance; of consumer groups Assigning, Reconciling.
        assignor: the name of the one that the members have agreed on; "" without members.
        epoch: rises when the group changes; None for classic groups.
        target_epoch: the epoch to which the members' targets belong; None likewise.
    """

    group_id: str
    type: GroupType
    protocol_type: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    target_epoch: int | None = None
