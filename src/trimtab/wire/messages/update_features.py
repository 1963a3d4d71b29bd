"""UpdateFeatures (API 57): raise or lower the levels of the cluster's features (KIP-584)."""

from __future__ import annotations

from trimtab.wire.schema import field, message, struct
from trimtab.wire.types import int8, int16, int32, string


@struct()
class FeatureUpdateKey:
    """The level that one feature is to have."""

    feature: string
    # Below 1 to drop the feature.
    max_version_level: int16
    allow_downgrade: bool = field(versions="0", default=False)
    # 1: only up; 2: also down if nothing is lost; 3: down in any case.
    upgrade_type: int8 = field(versions="1+", default=1)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Change levels. v1 adds the kinds of downgrade and `validate_only` (KIP-778)."""

    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: bool = field(versions="1+", default=False)


@struct()
class UpdatableFeatureResult:
    """What became of one feature."""

    feature: string
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """Whether levels changed. v2 has no result for each any more: all did or none (KIP-1022)."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    results: list[UpdatableFeatureResult] = field(
        versions="0-1", default_factory=list, ignorable=True
    )
