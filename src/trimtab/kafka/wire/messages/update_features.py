"""UpdateFeatures (API 57): change the cluster's levels of features (KIP-584)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class FeatureUpdateKey:
    feature: string
    # Below 1: remove the feature.
    max_version_level: int16
    allow_downgrade: bool = field(versions="0", default=False)
    # 1: upgrade; 2: downgrade that loses nothing; 3: downgrade that may lose metadata.
    upgrade_type: int8 = field(versions="1+", default=1)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Change levels. v1 can validate only, and tells two kinds of downgrade apart."""

    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: bool = field(versions="1+", default=False)


@struct()
class UpdatableFeatureResult:
    feature: string
    error_code: int16
    error_message: string | None = field(nullable_versions="0+", default="")


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """All updates succeed or all fail; from v2 on there are no results (KIP-1022)."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: string | None = field(nullable_versions="0+")
    results: list[UpdatableFeatureResult] = field(
        versions="0-1", default_factory=list, ignorable=True
    )
