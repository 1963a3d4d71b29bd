"""Features of the cluster, and the levels that this release supports (KIP-584)."""

from __future__ import annotations

from typing import Final

METADATA_VERSION: Final = "metadata.version"
METADATA_LEVEL: Final = 25
"""The feature that defines how records are encoded, at Kafka 4.0's level (IBP_4_0_IV3)."""

ELR_VERSION: Final = "eligible.leader.replicas.version"
"""The feature for eligible leader replicas: at level 1 they are tracked and may be elected."""

GROUP_VERSION: Final = "group.version"
"""The feature for consumer groups: at level 1 they may use the protocol of KIP-848."""

TRANSACTION_VERSION: Final = "transaction.version"
"""The feature for transactions: at level 2 producers have another epoch in each (KIP-890)."""

SUPPORTED: Final = {
    ELR_VERSION: (1, 1),
    GROUP_VERSION: (1, 1),
    METADATA_VERSION: (METADATA_LEVEL, METADATA_LEVEL),
    TRANSACTION_VERSION: (0, 2),
}
"""The lowest and the highest level of each feature; a new cluster begins with the highest."""
