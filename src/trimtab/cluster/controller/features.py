"""UpdateFeatures (57): changes of the cluster's levels of features (KIP-584).

The rules and the messages are those of Kafka's `FeatureControlManager`.
"""

from __future__ import annotations

from trimtab.cluster.controller.decision import Decision
from trimtab.cluster.metadata.features import SUPPORTED
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.metadata_records import FeatureLevelRecord
from trimtab.kafka.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

MOST_UPDATES = 100
"""In one request; there are fewer features."""

_UPGRADE = 1
_TYPES = (_UPGRADE, 2, 3)
_TYPES_SINCE = 1
_LAST_WITH_RESULTS = 1
_FAILED = "The update failed for all features since the following feature had an error"


def decide_update_features(
    image: ClusterImage, request: UpdateFeaturesRequest, node_id: int, version: int
) -> Decision:
    """Change all levels or none, in every version of the request, as Kafka does."""
    if len(request.feature_updates) > MOST_UPDATES:
        why = f"There are more than {MOST_UPDATES} updates: send fewer."
        return Decision([], _respond(ErrorCode.INVALID_REQUEST, why))
    records = []
    for update in request.feature_updates:
        problem = _find_problem(image, update, node_id, version)
        if problem is not None:
            why = (
                f"{_FAILED}: Invalid update version {update.max_version_level} for feature "
                f"{update.feature}. {problem}"
            )
            return Decision([], _respond(ErrorCode.INVALID_UPDATE_VERSION, why))
        if image.features.get(update.feature, 0) != update.max_version_level:
            records.append(
                FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level)
            )
    response = _respond(ErrorCode.NONE, None)
    if version <= _LAST_WITH_RESULTS:
        response.results = [
            UpdatableFeatureResult(
                feature=each.feature, error_code=ErrorCode.NONE, error_message=None
            )
            for each in request.feature_updates
        ]
    return Decision([] if request.validate_only else records, response)


def _find_problem(
    image: ClusterImage, update: FeatureUpdateKey, node_id: int, version: int
) -> str | None:
    """Why a level cannot be set; None if it can."""
    level = update.max_version_level
    if level < 0:
        return "A feature version cannot be less than 0."
    supported = SUPPORTED.get(update.feature)
    if supported is None:
        return f"Local controller {node_id} does not support this feature."
    lowest, highest = supported
    if not lowest <= level <= highest:
        return f"Local controller {node_id} only supports versions {lowest}-{highest}"
    current = image.features.get(update.feature, 0)
    is_upgrade = (
        update.upgrade_type == _UPGRADE if version >= _TYPES_SINCE else not update.allow_downgrade
    )
    if version >= _TYPES_SINCE and update.upgrade_type not in _TYPES:
        return f"There is no upgrade type {update.upgrade_type}."
    if level < current and is_upgrade:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > current and not is_upgrade:
        return "Can't downgrade to a newer version: set the upgrade type to upgrade."
    return None


def _respond(code: ErrorCode, message: str | None) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=message)
