"""BrokerRegistration (API 62): a started broker registers with the controller (KIP-631)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import int16, int32, int64, string, uint16, uuid


@struct()
class Listener:
    """One address of the broker."""

    name: string
    host: string
    port: uint16
    # 0: plaintext; 1: SSL; 2: SASL over plaintext; 3: SASL over SSL.
    security_protocol: int16


@struct()
class Feature:
    """The levels of one feature that the broker supports."""

    name: string
    min_supported_version: int16
    max_supported_version: int16


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest(Request["BrokerRegistrationResponse"]):
    """Join the cluster, fenced; heartbeats unfence the broker.

    v1 was for the migration from ZooKeeper. v2 adds log directories (KIP-858); v3 the epoch before
    a clean shutdown (KIP-966). v4 no longer leaves out features whose lowest level is 0.
    """

    broker_id: int32
    cluster_id: string
    # Generated at every process start.
    incarnation_id: uuid
    listeners: list[Listener]
    features: list[Feature] = field(default_factory=list)
    rack: string | None = field(nullable_versions="0+")
    is_migrating_zk_broker: bool = field(versions="1+", default=False)
    log_dirs: list[uuid] = field(versions="2+", default_factory=list, ignorable=True)
    # -1 if the last shutdown was not clean, or if there was none.
    previous_broker_epoch: int64 = field(versions="3+", default=NO_EPOCH, ignorable=True)


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    """The broker's epoch, valid until it registers again."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    broker_epoch: int64 = NO_EPOCH
