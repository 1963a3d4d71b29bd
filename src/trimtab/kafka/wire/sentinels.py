"""The values of Kafka's messages that stand for something else than a number: none, the end, all.

Each is named here once. `ZERO_UUID` in `types` is the id that stands for none.
"""

from __future__ import annotations

from typing import Final

from trimtab.kafka.records import NO_OFFSET, NO_TIMESTAMP

__all__ = [
    "ALL_IN_SYNC_REPLICAS",
    "BROKER_DEFAULT",
    "CONSUMER",
    "DEBUGGING_REPLICA",
    "EARLIEST",
    "EARLIEST_LOCAL",
    "EARLIEST_PENDING_UPLOAD",
    "FINAL_EPOCH",
    "HIGH_WATERMARK",
    "INITIAL_EPOCH",
    "LATEST",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "NO_BROKER",
    "NO_EPOCH",
    "NO_LEADER",
    "NO_LEADER_CHANGE",
    "NO_OFFSET",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_SESSION",
    "NO_TIMESTAMP",
    "UNKNOWN_AUTHORIZED_OPERATIONS",
]

NO_BROKER: Final = -1
"""A broker's id where there is no broker: no controller, coordinator or preferred replica."""
NO_LEADER: Final = -1
"""The leader of a partition that has none."""
NO_LEADER_CHANGE: Final = -2
"""The leader in a metadata record that changes neither leader nor leader epoch."""
CONSUMER: Final = -1
"""The replica id in a request of a client; a follower gives its own."""
DEBUGGING_REPLICA: Final = -2
"""The replica id in a ListOffsets request that any replica answers, for its own log."""
NO_EPOCH: Final = -1
"""An epoch of a leader, broker or group that is not known, or that is not to be checked."""

LATEST: Final = -1
"""In place of a timestamp in ListOffsets: the end of the partition."""
EARLIEST: Final = -2
"""In place of a timestamp: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""In place of a timestamp: the record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL: Final = -4
"""In place of a timestamp: the first offset on the broker's own disk (KIP-405)."""
LATEST_TIERED: Final = -5
"""In place of a timestamp: the last offset on tiered storage (KIP-1005)."""
EARLIEST_PENDING_UPLOAD: Final = -6
"""In place of a timestamp: the first offset not yet on tiered storage (KIP-1023)."""
HIGH_WATERMARK: Final = -1
"""In place of an offset in DeleteRecords: the high watermark."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
"""In the batches of a producer that is not idempotent."""

NO_SESSION: Final = 0
"""The id in a fetch that belongs to no session (KIP-227)."""
FINAL_EPOCH: Final = -1
"""The epoch of a full fetch that requests no session."""
INITIAL_EPOCH: Final = 0
"""The epoch of a full fetch that requests a new session."""

ALL_IN_SYNC_REPLICAS: Final = -1
"""`acks=all`."""
BROKER_DEFAULT: Final = -1
"""The number of partitions or replicas of a new topic: as the broker is configured (KIP-464)."""
UNKNOWN_AUTHORIZED_OPERATIONS: Final = -(2**31)
"""The authorized operations in a response to a request that did not ask for them."""
