"""Changes of levels of features (`trimtab.cluster.controller.features`)."""

from __future__ import annotations

import pytest

from trimtab.cluster.controller.features import MOST_UPDATES, decide_update_features
from trimtab.cluster.metadata.features import GROUP_VERSION, TRANSACTION_VERSION
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.metadata_records import FeatureLevelRecord
from trimtab.kafka.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

pytestmark = pytest.mark.kip(584)

UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture
def image() -> ClusterImage:
    made = ClusterImage()
    made.replay(FeatureLevelRecord(name=TRANSACTION_VERSION, feature_level=1))
    made.replay(FeatureLevelRecord(name=GROUP_VERSION, feature_level=1))
    return made


def update(
    image: ClusterImage,
    *levels: tuple[str, int, int],
    version: int = 2,
    validate: bool = False,
) -> tuple[list[tuple[str, int]], ErrorCode, str]:
    """The records, the code, and the message."""
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in levels
        ],
        validate_only=validate,
    )
    records, response = decide_update_features(image, request, 3000, version)
    results = [(each.feature, each.error_code, each.error_message) for each in response.results]
    told = version < 2 and not response.error_code
    assert results == ([(name, 0, None) for name, _, _ in levels] if told else [])
    return (
        [(each.name, each.feature_level) for each in records],
        ErrorCode(response.error_code),
        response.error_message or "",
    )


@pytest.mark.parametrize(
    ("level", "kind", "records"),
    [(2, UPGRADE, [2]), (0, SAFE, [0]), (0, UNSAFE, [0]), (1, UPGRADE, []), (1, SAFE, [])],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_level_is_changed(
    image: ClusterImage, level: int, kind: int, records: list[int], version: int
) -> None:
    found = update(image, (TRANSACTION_VERSION, level, kind), version=version)
    assert found == ([(TRANSACTION_VERSION, each) for each in records], ErrorCode.NONE, "")
    checked = update(image, (TRANSACTION_VERSION, level, kind), version=version, validate=True)
    assert checked == ([], ErrorCode.NONE, "")


@pytest.mark.parametrize(
    ("name", "level", "kind", "why"),
    [
        (TRANSACTION_VERSION, 0, UPGRADE, "without setting the upgrade type"),
        (TRANSACTION_VERSION, 2, SAFE, "set the upgrade type to upgrade"),
        (TRANSACTION_VERSION, 2, 9, "no upgrade type 9"),
        (TRANSACTION_VERSION, 3, UPGRADE, "controller 3000 only supports versions 0-2"),
        (TRANSACTION_VERSION, -1, UNSAFE, "cannot be less than 0"),
        (GROUP_VERSION, 0, UNSAFE, "only supports versions 1-1"),
        ("cold.fusion", 1, UPGRADE, "controller 3000 does not support this feature"),
    ],
)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_what_cannot_be_is_refused_with_the_reason(
    image: ClusterImage, name: str, level: int, kind: int, why: str, version: int
) -> None:
    if version == 0 and "upgrade type" in why:
        pytest.skip("it has no upgrade types")
    records, code, message = update(image, (name, level, kind), version=version)
    assert (records, code) == ([], ErrorCode.INVALID_UPDATE_VERSION)
    assert f"had an error: Invalid update version {level} for feature {name}. " in message
    assert why in message


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_are_changed_or_none(image: ClusterImage, version: int) -> None:
    """Clients of the older versions, such as Sarama, look at the code of the whole first."""
    levels = ((TRANSACTION_VERSION, 2, UPGRADE), ("cold.fusion", 1, UPGRADE))
    records, code, message = update(image, *levels, version=version)
    assert (records, code) == ([], ErrorCode.INVALID_UPDATE_VERSION)
    assert message.startswith("The update failed for all features since")


def test_the_oldest_version_only_allows_downgrades(image: ClusterImage) -> None:
    for allows, code in ((False, ErrorCode.INVALID_UPDATE_VERSION), (True, ErrorCode.NONE)):
        key = FeatureUpdateKey(
            feature=TRANSACTION_VERSION, max_version_level=0, allow_downgrade=allows
        )
        request = UpdateFeaturesRequest(feature_updates=[key])
        _, response = decide_update_features(image, request, 3000, 0)
        assert response.error_code == code


def test_too_many_updates_are_refused(image: ClusterImage) -> None:
    one = (TRANSACTION_VERSION, 2, UPGRADE)
    assert update(image, *[one] * MOST_UPDATES)[1] is ErrorCode.NONE
    records, code, message = update(image, *[one] * (MOST_UPDATES + 1))
    assert (records, code) == ([], ErrorCode.INVALID_REQUEST)
    assert str(MOST_UPDATES) in message
