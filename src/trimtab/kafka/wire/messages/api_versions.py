"""ApiVersions (API 18): the APIs and versions that the broker serves."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """Ask which versions of which APIs the broker serves: the first request on a connection.

    v3 is flexible and adds the client software (KIP-511). From v4 on features may have the lowest
    version 0.
    """

    client_software_name: string = field(versions="3+", default="", ignorable=True)
    client_software_version: string = field(versions="3+", default="", ignorable=True)


@struct()
class ApiVersion:
    """The versions of one API, both ends included."""

    api_key: int16
    min_version: int16
    max_version: int16


@struct(versions="3+")
class SupportedFeatureKey:
    """The levels of one feature that the broker supports."""

    name: string
    min_version: int16
    max_version: int16


@struct(versions="3+")
class FinalizedFeatureKey:
    """The finalized levels of one feature in the cluster."""

    name: string
    max_version_level: int16
    min_version_level: int16


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse:
    """The APIs served. Its header is that of version 0 in every version.

    A request of an unknown version is answered in v0, with UNSUPPORTED_VERSION and the versions of
    this API (KIP-511). v1 adds the throttle time. v3 is flexible and adds features (KIP-584).
    """

    error_code: int16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    # Up to v3, features whose lowest version is 0 must be left out (KAFKA-17011).
    supported_features: list[SupportedFeatureKey] = field(
        versions="3+", tag=0, tagged_versions="3+", default_factory=list, ignorable=True
    )
    # -1 if unknown.
    finalized_features_epoch: int64 = field(
        versions="3+", tag=1, tagged_versions="3+", default=NO_EPOCH, ignorable=True
    )
    finalized_features: list[FinalizedFeatureKey] = field(
        versions="3+", tag=2, tagged_versions="3+", default_factory=list, ignorable=True
    )
    zk_migration_ready: bool = field(
        versions="3+", tag=3, tagged_versions="3+", default=False, ignorable=True
    )
