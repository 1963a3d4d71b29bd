"""Levels of features, asked of brokers that answer by script."""

from __future__ import annotations

import pytest

from tests.unit.client.scripted_broker import HANG_UP, ScriptedBroker, ScriptedCluster
from trimtab.client.admin.answers import Features, PartlyRefused
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.wire.messages.api_versions import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from trimtab.kafka.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from trimtab.sim.world import World


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Broker 1 takes the controller's requests."""
    cluster = ScriptedCluster(world, controller=1)
    for node_id in range(2):
        cluster.broker(node_id)
    return cluster


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


def answer(code: ErrorCode, **results: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_code=code,
        error_message=None if code is ErrorCode.NONE else f"all: {code.name}",
        results=[
            UpdatableFeatureResult(feature=name, error_code=each, error_message=f"said {each.name}")
            for name, each in results.items()
        ],
    )


async def test_features_are_those_that_the_asked_broker_advertises(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ScriptedBroker.answer_api_versions

    def advertise(broker: ScriptedBroker, version: int) -> tuple[ApiVersionsResponse, int]:
        response, version = plain(broker, version)
        if broker.id == 1:
            response.supported_features = [
                SupportedFeatureKey(name="b", min_version=1, max_version=2),
                SupportedFeatureKey(name="a", min_version=0, max_version=1),
            ]
            response.finalized_features = [
                FinalizedFeatureKey(name="b", max_version_level=2, min_version_level=1)
            ]
            response.finalized_features_epoch = 7
        return response, version

    monkeypatch.setattr(ScriptedBroker, "answer_api_versions", advertise)
    async with await admin_of(cluster) as admin:
        found = await admin.describe_features(1)
        assert found == Features({"a": (0, 1), "b": (1, 2)}, {"b": 2}, 7)
        assert list(found.supported) == ["a", "b"]
        assert await admin.describe_features(0) == Features({}, {}, None)
        with pytest.raises(UsageError, match="broker 5 is not alive; alive are 0, 1"):
            await admin.describe_features(5)


async def test_the_controller_changes_levels(cluster: ScriptedCluster) -> None:
    asked = cluster.brokers[1]
    asked.answers[UpdateFeaturesRequest] = lambda request: answer(ErrorCode.NONE)
    async with await admin_of(cluster) as admin:
        await admin.update_features({"a": 2, "b": 0}, "unsafe_downgrade", validate_only=True)
        await admin.update_features({"a": 1})
    first, second = asked.requests(UpdateFeaturesRequest)
    assert [
        (each.feature, each.max_version_level, each.upgrade_type) for each in first.feature_updates
    ] == [("a", 2, 3), ("b", 0, 3)]
    assert (first.validate_only, second.validate_only) == (True, False)
    assert second.feature_updates[0].upgrade_type == 1


async def test_who_is_no_longer_the_controller_is_not_asked_again(cluster: ScriptedCluster) -> None:
    def moved(request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        cluster.controller = 0
        return answer(ErrorCode.NOT_CONTROLLER)

    cluster.brokers[1].answers[UpdateFeaturesRequest] = moved
    cluster.brokers[0].answers[UpdateFeaturesRequest] = lambda request: answer(ErrorCode.NONE)
    async with await admin_of(cluster) as admin:
        await admin.update_features({"a": 2})
    assert len(cluster.brokers[0].requests(UpdateFeaturesRequest)) == 1


async def test_refused_levels_are_named(world: World) -> None:
    """Up to version 1 each on its own, then all of them."""
    for newest, refused, done in ((1, ["b"], ["a"]), (2, ["a", "b"], [])):
        cluster = ScriptedCluster(world)
        broker = cluster.broker(0, {UpdateFeaturesRequest: (0, newest)})
        broker.answers[UpdateFeaturesRequest] = (
            (lambda request: answer(ErrorCode.NONE, a=ErrorCode.NONE, b=ErrorCode.INVALID_REQUEST))
            if newest == 1
            else lambda request: answer(ErrorCode.INVALID_UPDATE_VERSION)
        )
        async with await admin_of(cluster) as admin:
            with pytest.raises(PartlyRefused, match=f"feature {refused[0]}: INVALID_") as raised:
                await admin.update_features({"a": 1, "b": 9})
        assert (list(raised.value.refusals), raised.value.done) == (refused, done)
        broker.stop()


async def test_a_change_that_may_have_happened_is_not_sent_again(cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[UpdateFeaturesRequest] = lambda request: HANG_UP
    async with await admin_of(cluster) as admin:
        with pytest.raises(Unavailable, match=r"check with describe_features\(\)"):
            await admin.update_features({"a": 2})
    assert len(cluster.brokers[1].requests(UpdateFeaturesRequest)) == 1


async def test_what_cannot_be_asked_is_refused(world: World) -> None:
    cluster = ScriptedCluster(world)
    cluster.broker(0, {UpdateFeaturesRequest: (0, 0)})
    async with await admin_of(cluster) as admin:
        with pytest.raises(UsageError, match="change='up': must be one of upgrade, safe_downgrade"):
            await admin.update_features({"a": 1}, "up")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the level of a"):
            await admin.update_features({"a": 1 << 15})
        with pytest.raises(BrokerError, match="has no levels of features that can be changed"):
            await admin.update_features({"a": 1})
