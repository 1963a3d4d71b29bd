"""Levels of features: what brokers support, and what is in force (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from trimtab.client.admin.answers import Features, PartlyRefused
from trimtab.client.admin.calls import Family, FinalError, may_be_sent_again, read_error
from trimtab.kafka.arguments import (
    checked_flag,
    checked_integer,
    checked_mapping,
    checked_text,
    shown,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from trimtab.kafka.wire.types import MAX_INT16

Change: TypeAlias = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
"""How a level may change; an unsafe downgrade may lose metadata."""

CHANGES: Final[Mapping[Change, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


_TELLS_DOWNGRADES_APART: Final = 1


class FeatureAdmin(Family):
    """Describes and changes levels of features."""

    async def describe_features(self, broker: int | None = None) -> Features:
        """The levels of features that a broker supports, and those in force (KIP-584).

        trimtab's own cluster has none.

        Args:
            broker: the one to ask; any if None.
        """
        node = None if broker is None else checked_integer("broker", broker, 0)

        async def ask() -> Features:
            connection = await (
                self._calls.connect_any() if node is None else self._calls.connect_to_broker(node)
            )
            response = await connection.ask_versions()
            epoch = response.finalized_features_epoch
            return Features(
                {
                    feature.name: (feature.min_version, feature.max_version)
                    for feature in sorted(response.supported_features, key=lambda each: each.name)
                },
                {each.name: each.max_version_level for each in response.finalized_features},
                None if epoch < 0 else epoch,
            )

        return await self._calls.retry("describe features", ask)

    async def update_features(
        self,
        levels: Mapping[str, int],
        change: Change = "upgrade",
        validate_only: bool = False,
    ) -> None:
        """Change the cluster's levels of features, such as `{"metadata.version": 25}`; 0 disables
        one.

        Args:
            change: which changes are meant; an "unsafe_downgrade" may lose metadata.
            validate_only: check the request without changing levels.

        Raises:
            PartlyRefused: with the error of each refused feature. From Kafka 4.0 on all of them are
                refused together.
            BrokerError: UNSUPPORTED_VERSION, if the cluster has no levels that can be changed.
        """
        if not isinstance(change, str) or change not in CHANGES:
            raise UsageError(f"change={shown(change)}: must be one of {', '.join(CHANGES)}")
        wanted = {
            checked_text("the name of a feature", name): checked_integer(
                f"the level of {name}", level, 0, MAX_INT16
            )
            for name, level in checked_mapping("levels", levels, "{'metadata.version': 25}").items()
        }
        checked_flag("validate_only", validate_only)

        async def update() -> None:
            connection = await self._calls.connect_to_controller()
            served = connection.serves(UpdateFeaturesRequest)
            if not served or connection.version_of(UpdateFeaturesRequest) < _TELLS_DOWNGRADES_APART:
                raise BrokerError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.node} has no levels of features that can be changed",
                    "features",
                )
            request = UpdateFeaturesRequest(
                timeout_ms=self._calls.timeout_ms,
                feature_updates=[
                    FeatureUpdateKey(
                        feature=name, max_version_level=level, upgrade_type=CHANGES[change]
                    )
                    for name, level in wanted.items()
                ],
                validate_only=validate_only,
            )
            response = await self._calls.send_once(connection, request, "describe_features()")
            refusals: dict[str, BrokerError] = {}
            results = {each.feature: each for each in response.results}
            for name in wanted:
                whole = response if response.error_code or name not in results else results[name]
                error = read_error(whole.error_code, whole.error_message, f"feature {name}")
                if error is not None:
                    refusals[name] = error
            again = [error for error in refusals.values() if may_be_sent_again(error)]
            if again:
                raise again[0]
            if refusals:
                raise FinalError(
                    PartlyRefused(refusals, [name for name in wanted if name not in refusals])
                )

        await self._calls.retry("update features", update)
