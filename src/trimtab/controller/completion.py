"""When the reassignment of a partition is done, and what is left of the partition then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trimtab.metadata.image import PartitionRegistration


class Completion(NamedTuple):
    """A partition whose reassignment is done: nothing is added or removed any more."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def complete_reassignment(
    partition: PartitionRegistration, isr: Sequence[int]
) -> Completion | None:
    """The partition without the replicas to remove, if enough of the others are in sync; None if
    they are not, or nothing is being reassigned.

    Those that are added must all be in sync. Of those that stay some may be behind, as they were
    before; but not where the reassignment leaves fewer replicas: whom it takes away may be needed.
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
