"""Levels of features: what brokers support, and what is in force (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from trimtab.client.admin.answers import Features, PartlyRefused
from trimtab.client.admin.calls import (
    Calls,
    FinalError,
    may_be_sent_again,
    read_error,
)
from trimtab.errors import BrokerError, ErrorCode
from trimtab.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

Change: TypeAlias = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
"""How a level may change; an unsafe downgrade may lose metadata."""

CHANGES: Final[Mapping[Change, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


_TELLS_DOWNGRADES_APART: Final = 1


async def describe_features(calls: Calls, broker: int | None) -> Features:
    async def ask() -> Features:
        connection = await (
            calls.connect_any() if broker is None else calls.connect_to_broker(broker)
        )
        response = await connection.ask_versions()
        epoch = response.finalized_features_epoch
        return Features(
            {
                each.name: (each.min_version, each.max_version)
                for each in sorted(response.supported_features, key=lambda each: each.name)
            },
            {each.name: each.max_version_level for each in response.finalized_features},
            None if epoch < 0 else epoch,
        )

    return await calls.retry("describe features", ask)


async def update_features(
    calls: Calls, levels: Mapping[str, int], change: Change, validate_only: bool
) -> None:
    async def update() -> None:
        connection = await calls.connect_to_controller()
        served = connection.serves(UpdateFeaturesRequest)
        if not served or connection.version_of(UpdateFeaturesRequest) < _TELLS_DOWNGRADES_APART:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.node} has no levels of features that can be changed",
                "features",
            )
        request = UpdateFeaturesRequest(
            timeout_ms=calls.timeout_ms,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name, max_version_level=level, upgrade_type=CHANGES[change]
                )
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )
        response = await calls.send_once(connection, request, "describe_features()")
        refusals: dict[str, BrokerError] = {}
        results = {each.feature: each for each in response.results}
        for name in levels:
            whole = response if response.error_code or name not in results else results[name]
            error = read_error(whole.error_code, whole.error_message, f"feature {name}")
            if error is not None:
                refusals[name] = error
        again = [error for error in refusals.values() if may_be_sent_again(error)]
        if again:
            raise again[0]
        if refusals:
            raise FinalError(
                PartlyRefused(refusals, [name for name in levels if name not in refusals])
            )

    await calls.retry("update features", update)
