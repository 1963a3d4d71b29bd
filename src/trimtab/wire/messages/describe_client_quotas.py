"""DescribeClientQuotas (API 48): limits on users, clients and addresses (KIP-546)."""

from __future__ import annotations

from trimtab.wire.schema import field, message, struct
from trimtab.wire.types import float64, int8, int16, int32, string


@struct()
class ComponentData:
    """What one part of an entity has to be."""

    # "user", "client-id" or "ip".
    entity_type: string
    # 0: exactly `match`; 1: the default; 2: any that is named.
    match_type: int8
    match: string | None = field(nullable_versions="0+")


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Ask for quotas. v1 is flexible."""

    components: list[ComponentData]
    # Leave out entities that have more parts than those asked about.
    strict: bool


@struct()
class EntityData:
    """One part of an entity."""

    entity_type: string
    # Null for the default.
    entity_name: string | None = field(nullable_versions="0+")


@struct()
class ValueData:
    """One limit."""

    key: string
    value: float64


@struct()
class EntryData:
    """The limits of one entity."""

    entity: list[EntityData]
    values: list[ValueData]


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The quotas that match; null with an error."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    entries: list[EntryData] | None = field(nullable_versions="0+")
