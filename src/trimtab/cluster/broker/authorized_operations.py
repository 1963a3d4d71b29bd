"""Authorized operations, one bit each: all operations of the resource type.

There is no authorizer; the bits are those of Apache Kafka without one (`AuthHelper`, `AclEntry`).
"""

from __future__ import annotations

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << each for each in operations)


ON_TOPIC = _bits(
    *(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)

ON_GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)

ON_CLUSTER = _bits(
    *(_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION),
    *(_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE),
)
