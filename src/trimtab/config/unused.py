"""Options of Apache Kafka that have no effect here."""

from __future__ import annotations

from trimtab.config.options import READ_ONLY, Option, OptionType, Range, UpdateMode, Value


def unused(
    name: str,
    kind: OptionType,
    default: Value,
    why: str,
    valid: Range | tuple[str, ...] | None = None,
    unit: str = "",
    dynamic: UpdateMode = READ_ONLY,
) -> Option:
    """An option of Apache Kafka that has no effect here; `why` is its documentation."""
    return Option(name, kind, default, why, valid, unit, honoured=False, dynamic=dynamic)
