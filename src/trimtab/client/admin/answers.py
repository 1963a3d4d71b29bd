"""The types of an admin client's arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from trimtab.client.network.connection import Node
from trimtab.config import OptionType
from trimtab.errors import BrokerError
from trimtab.records import TopicPartition
from trimtab.wire.sentinels import BROKER_DEFAULT

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
    """A cluster: its id, its brokers by id, and the broker that takes controller requests."""

    cluster_id: str | None
    controller_id: int
    nodes: list[Node]


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


class ReassignmentsRefused(BrokerError):
    """Some partitions cannot be moved as requested; the call's other moves have begun.

    Attributes:
        refusals: the error of each.
    """

    def __init__(self, refusals: dict[TopicPartition, BrokerError]) -> None:
        first = next(iter(refusals.values()))
        more = f"; and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        super().__init__(first.code, first.detail + more, first.subject)
        self.refusals = refusals


class TransactionListing(NamedTuple):
    """A transactional id that its coordinator knows, and the state of its last transaction.

    Attributes:
        state: one of Kafka's: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit,
            CompleteAbort, PrepareEpochFence.
    """

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """One transactional id, with its open transaction.

    Attributes:
        timeout_ms: the time after which the coordinator aborts it.
        started_at: in ms since the epoch; -1 if none is open.
        partitions: its partitions that have no marker yet.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    started_at: int
    partitions: tuple[TopicPartition, ...]


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
    """

    path: str
    error: BrokerError | None
    logs: dict[TopicPartition, ReplicaLog]
    total_bytes: int
    usable_bytes: int
