"""When the reassignment of a partition is complete, and its replicas and ISR afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trimtab.metadata.image import PartitionRegistration


class Completion(NamedTuple):
    """Replicas and ISR of a partition after its reassignment."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def complete_reassignment(
    partition: PartitionRegistration, isr: Sequence[int]
) -> Completion | None:
    """Replicas and ISR without the removed replicas, if enough of the others are in sync; None if
    not, or if the partition is not being reassigned.

    All added replicas must be in sync. If the reassignment removes more replicas than it adds, all
    remaining replicas must be; otherwise the old ones among them need not be.
    The rules are those of Kafka 4.3's `PartitionReassignmentReplicas.maybeCompleteReassignment`.
    """
    if not partition.is_reassigning:
        return None
    adding, removing = partition.adding_replicas, partition.removing_replicas
    in_sync = tuple(broker for broker in isr if broker not in removing)
    replicas = tuple(broker for broker in partition.replicas if broker not in removing)
    needed = replicas if len(adding) < len(removing) else adding
    if not in_sync or not replicas or not set(needed) <= set(in_sync):
        return None
    return Completion(replicas, in_sync)
