"""The controller's records in the log `__cluster_metadata`.

    encode_record(record) ──▶ frame version 1, api key, version (unsigned varints), body
    decode_record(bytes)  ──▶ record

Source: Kafka's `common/metadata` definitions and its `MetadataRecordSerde`.
"""

from __future__ import annotations

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_LEADER, NO_LEADER_CHANGE
from trimtab.kafka.wire.types import (
    ZERO_UUID,
    BytesLike,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)
from trimtab.kafka.wire.varint import read_unsigned_varint, write_unsigned_varint

_FRAME_VERSION = 1


@struct()
class BrokerEndpoint:
    name: string
    host: string
    port: uint16
    # 0: plaintext; 1: SSL; 2: SASL over plaintext; 3: SASL over SSL.
    security_protocol: int16


@struct()
class BrokerFeature:
    """The levels of one feature that a broker supports."""

    name: string
    min_supported_version: int16
    max_supported_version: int16


@message(api_key=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord:
    """A broker joined. v1 adds controlled shutdown, v3 log directories, v4 cordoned ones."""

    broker_id: int32
    is_migrating_zk_broker: bool = field(versions="2+", default=False)
    # Generated at every process start.
    incarnation_id: uuid = ZERO_UUID
    broker_epoch: int64
    end_points: list[BrokerEndpoint]
    features: list[BrokerFeature] = field(default_factory=list)
    rack: string | None = field(nullable_versions="0+")
    fenced: bool = True
    in_controlled_shutdown: bool = field(versions="1+", default=False)
    log_dirs: list[uuid] = field(versions="3+", tag=0, tagged_versions="3+", default_factory=list)
    cordoned_log_dirs: list[uuid] | None = field(
        versions="4+", nullable_versions="4+", tag=1, tagged_versions="4+", default=None
    )


@message(api_key=1, versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker was unregistered."""

    broker_id: int32
    broker_epoch: int64


@message(api_key=2, versions="0", flexible="0+")
class TopicRecord:
    """A topic was created; its partitions follow."""

    name: string
    topic_id: uuid


@message(api_key=3, versions="0-2", flexible="0+")
class PartitionRecord:
    """A partition was created. v1 adds directories (KIP-858), v2 eligible leaders (KIP-966)."""

    partition_id: int32 = -1
    topic_id: uuid
    # The preferred leader first.
    replicas: list[int32]
    isr: list[int32]
    removing_replicas: list[int32] = field(default_factory=list)
    adding_replicas: list[int32] = field(default_factory=list)
    # -1 if there is none.
    leader: int32 = NO_LEADER
    # 1 while it recovers from an unclean election.
    leader_recovery_state: int8 = field(tag=0, tagged_versions="0+", default=0)
    leader_epoch: int32 = NO_EPOCH
    # Raised by every change of the partition.
    partition_epoch: int32 = NO_EPOCH
    # In the order of the replicas.
    directories: list[uuid] = field(versions="1+", default_factory=list)
    eligible_leader_replicas: list[int32] | None = field(
        versions="2+", nullable_versions="2+", tag=1, tagged_versions="2+", default=None
    )
    last_known_elr: list[int32] | None = field(
        versions="2+", nullable_versions="2+", tag=2, tagged_versions="2+", default=None
    )


@message(api_key=4, versions="0", flexible="0+")
class ConfigRecord:
    """An option was set; a null value unsets it."""

    # 2: a topic; 4: a broker.
    resource_type: int8
    resource_name: string
    name: string
    value: string | None = field(nullable_versions="0+")


@message(api_key=5, versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """A partition changed; a field that did not change is null, or -2 for the leader.

    v1 adds directories (KIP-858), v2 eligible leaders (KIP-966).
    """

    partition_id: int32 = -1
    topic_id: uuid
    isr: list[int32] | None = field(
        nullable_versions="0+", tag=0, tagged_versions="0+", default=None
    )
    # -1 if there is none now.
    leader: int32 = field(tag=1, tagged_versions="0+", default=NO_LEADER_CHANGE)
    replicas: list[int32] | None = field(
        nullable_versions="0+", tag=2, tagged_versions="0+", default=None
    )
    removing_replicas: list[int32] | None = field(
        nullable_versions="0+", tag=3, tagged_versions="0+", default=None
    )
    adding_replicas: list[int32] | None = field(
        nullable_versions="0+", tag=4, tagged_versions="0+", default=None
    )
    # -1: no change; 0: recovered; 1: recovering from an unclean election.
    leader_recovery_state: int8 = field(tag=5, tagged_versions="0+", default=-1)
    directories: list[uuid] | None = field(
        versions="1+", nullable_versions="1+", tag=8, tagged_versions="1+", default=None
    )
    eligible_leader_replicas: list[int32] | None = field(
        versions="2+", nullable_versions="2+", tag=6, tagged_versions="2+", default=None
    )
    last_known_elr: list[int32] | None = field(
        versions="2+", nullable_versions="2+", tag=7, tagged_versions="2+", default=None
    )


@message(api_key=9, versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic was deleted, with all its partitions."""

    topic_id: uuid


@message(api_key=12, versions="0", flexible="0+")
class FeatureLevelRecord:
    """The finalized level of a feature; 0 removes it.

    The first record of the log is the one of `metadata.version`, on which the others depend.
    """

    name: string
    feature_level: int16


@struct()
class EntityData:
    """One part of an entity that has quotas."""

    # "user", "client-id" or "ip".
    entity_type: string
    # Null for the default.
    entity_name: string | None = field(nullable_versions="0+")


@message(api_key=14, versions="0", flexible="0+")
class ClientQuotaRecord:
    """A limit on a user, client or address was set, or removed."""

    entity: list[EntityData]
    key: string
    # Ignored if it is removed.
    value: float64
    remove: bool = False


@message(api_key=15, versions="0", flexible="0+")
class ProducerIdsRecord:
    """A block of producer ids was allocated to a broker."""

    broker_id: int32
    broker_epoch: int64 = NO_EPOCH
    # The first id of the next block.
    next_producer_id: int64


@message(api_key=17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord:
    """A broker was fenced, unfenced or is shutting down.

    v1 adds controlled shutdown, v2 log directories, v3 cordoned ones.
    """

    broker_id: int32
    broker_epoch: int64
    # -1: unfenced; 0: no change; 1: fenced.
    fenced: int8 = field(tag=0, tagged_versions="0+", default=0)
    # 0: no change; 1: shutting down.
    in_controlled_shutdown: int8 = field(versions="1+", tag=1, tagged_versions="1+", default=0)
    log_dirs: list[uuid] = field(versions="2+", tag=2, tagged_versions="2+", default_factory=list)
    # Null for no change.
    cordoned_log_dirs: list[uuid] | None = field(
        versions="3+", nullable_versions="3+", tag=3, tagged_versions="3+", default=None
    )


@message(api_key=20, versions="0", flexible="0+")
class NoOpRecord:
    """No change: written when no other record is, so that the log keeps growing (KIP-835)."""


@message(api_key=23, versions="0", flexible="0+")
class BeginTransactionRecord:
    """The records up to the transaction's end are applied together, or not at all (KIP-868)."""

    name: string | None = field(nullable_versions="0+", tag=0, tagged_versions="0+", default=None)


@message(api_key=24, versions="0", flexible="0+")
class EndTransactionRecord:
    """Applies the records since the transaction's beginning."""


@message(api_key=25, versions="0", flexible="0+")
class AbortTransactionRecord:
    """Discards the records since the transaction's beginning."""

    reason: string | None = field(nullable_versions="0+", tag=0, tagged_versions="0+", default=None)


@struct()
class ControllerEndpoint:
    name: string
    host: string
    port: uint16
    # 0: plaintext; 1: SSL; 2: SASL over plaintext; 3: SASL over SSL.
    security_protocol: int16


@struct()
class ControllerFeature:
    """The levels of one feature that a controller supports."""

    name: string
    min_supported_version: int16
    max_supported_version: int16


@message(api_key=27, versions="0", flexible="0+")
class RegisterControllerRecord:
    """A controller joined (KIP-919)."""

    controller_id: int32
    # Generated at every process start.
    incarnation_id: uuid
    zk_migration_ready: bool = False
    end_points: list[ControllerEndpoint]
    features: list[ControllerFeature] = field(default_factory=list)


@message(api_key=28, versions="0", flexible="0+")
class ClearElrRecord:
    """Eligible leader replicas were cleared (KIP-966)."""

    # Empty for all topics.
    topic_name: string


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RegisterControllerRecord
    | ClearElrRecord
)

RECORDS: dict[int, type[MetadataRecord]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    9: RemoveTopicRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    20: NoOpRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
"""The records by their api key: all that Kafka 4.3 writes in a cluster without authorization."""


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """The value of a record in the metadata log, in the newest version unless one is given.

    Raises:
        UsageError: the record cannot be encoded in `version`.
    """
    kind = schema(type(record))
    chosen = kind.versions.high if version is None else version
    assert kind.api_key is not None
    frame = (_FRAME_VERSION, kind.api_key, chosen)
    return b"".join(map(write_unsigned_varint, frame)) + encode(record, chosen)


def decode_record(value: BytesLike) -> MetadataRecord:
    """The record in the value of one record of the metadata log.

    Raises:
        CorruptData: malformed, or of a type or version that is not known here.
    """
    try:
        frame_version, position = read_unsigned_varint(value, 0)
        api_key, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
    except IndexError as error:
        raise CorruptData(f"metadata record of {len(value)} bytes: cut short") from error
    if frame_version != _FRAME_VERSION:
        raise CorruptData(f"metadata record: frame version {frame_version}, not {_FRAME_VERSION}")
    cls = RECORDS.get(api_key)
    if cls is None or not schema(cls).versions.includes(version):
        raise CorruptData(f"metadata record: type {api_key} in version {version} is not known")
    return decode(cls, version, value, position)
