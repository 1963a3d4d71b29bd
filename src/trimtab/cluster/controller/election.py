"""Computes one change of a partition: its leader, its ISR, and its eligible leader replicas (ELR).

    wanted change ─▶ reassignment complete? ─▶ ELR ─▶ election ─▶ record, or None

The functions depend only on their arguments. The rules are those of Kafka's
`PartitionChangeBuilder` with eligible leader replicas (KIP-966), as in new clusters of Kafka 4.1:

- While the ISR has fewer members than `min.insync.replicas`, nothing is committed. So the replicas
  that left it still have all committed records: they are in the ELR, and one of them may be elected
  if the ISR is empty.
- When a partition loses its leader, the last leader is recorded. If ISR and ELR are both empty,
  only the last leader may be elected when it is back, as no other log is more complete.
- A replica elected from outside ISR and ELR may have lost records: it becomes the only member of
  the ISR, in state RECOVERING (KIP-704).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from trimtab.cluster.metadata.image import (
    RECOVERING,
    PartitionRegistration,
    partition_change_record,
)
from trimtab.kafka.wire.messages.metadata_records import PartitionChangeRecord
from trimtab.kafka.wire.sentinels import NO_LEADER


class Election(Enum):
    """Which replicas may be elected.

    Attributes:
        ONLINE: a live member of the ISR, or of the ELR if the ISR is empty; the current leader
            stays if it is one.
        PREFERRED: the same, but the preferred leader, if it is one, replaces the current leader.
        UNCLEAN: as `ONLINE`; if there is none, any live replica, although records may be lost.
    """

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def change_partition(
    topic_id: bytes,
    partition: PartitionRegistration,
    wanted: PartitionRegistration,
    is_active: Callable[[int], bool],
    min_isr: int,
    election: Election = Election.ONLINE,
    lost: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The record that changes a partition as wanted, with the election that follows; None if
    nothing changes.

    Args:
        partition: the current state.
        wanted: the partition with the wanted ISR, replicas, adding and removing replicas, and
            leader recovery state; its leader, epochs and ELR are ignored.
        is_active: whether a broker may lead.
        min_isr: `min.insync.replicas`; capped at the number of replicas.
        lost: brokers whose logs may have lost records in a crash: not eligible.
    """
    replicas, isr = wanted.replicas, wanted.isr
    adding, removing = wanted.adding_replicas, wanted.removing_replicas
    completion = complete_reassignment(wanted, isr)
    if completion is not None:
        replicas, isr = completion
        adding = removing = ()
    enough = min(min_isr, len(replicas))
    elr: tuple[int, ...] = ()
    if len(isr) < enough:
        elr = _eligible(partition, replicas, isr, lost)

    leader = _elect(partition, replicas, isr, elr, is_active, election)
    is_unclean = False
    state = wanted.leader_recovery_state
    if leader != partition.leader and leader != NO_LEADER:
        is_unclean = leader not in isr and not (leader in elr and not isr)
        if is_unclean:
            isr, elr = (leader,), ()
            state = RECOVERING
        elif leader in elr:
            # If `min_isr` was lowered to 1, the new leader commits alone, and the others may lag.
            others = tuple(replica for replica in elr if replica != leader)
            isr, elr = (leader,), others if enough > 1 else ()

    # Also elect the same leader again if replicas were removed: the new leader epoch makes it drop
    # the removed followers.
    elects = leader != partition.leader or not set(partition.replicas) <= set(replicas)
    last_known_elr = partition.last_known_elr
    if elects and leader != NO_LEADER:
        last_known_elr = ()
    elif leader == NO_LEADER != partition.leader and not last_known_elr:
        last_known_elr = (partition.leader,)

    return partition_change_record(
        topic_id,
        partition,
        PartitionRegistration(
            partition.id,
            leader,
            partition.leader_epoch + 1 if elects else partition.leader_epoch,
            partition.partition_epoch,
            replicas,
            isr,
            adding,
            removing,
            elr,
            last_known_elr,
            state,
        ),
    )


def _eligible(
    partition: PartitionRegistration,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    lost: Collection[int],
) -> tuple[int, ...]:
    """The ELR for an ISR: replicas outside it that were in the ELR or the ISR before and have not
    lost records."""
    candidates = sorted({*partition.elr, *partition.isr})
    return tuple(
        candidate
        for candidate in candidates
        if candidate in replicas and candidate not in isr and candidate not in lost
    )


def _elect(
    partition: PartitionRegistration,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    is_active: Callable[[int], bool],
    election: Election,
) -> int:
    eligible = isr or elr
    if election is Election.PREFERRED and replicas[0] in eligible and is_active(replicas[0]):
        return replicas[0]
    if partition.leader in eligible and is_active(partition.leader):
        return partition.leader
    for replica in replicas:
        if replica in eligible and is_active(replica):
            return replica
    if not eligible and len(partition.last_known_elr) == 1:
        last_leader = partition.last_known_elr[0]
        if is_active(last_leader):
            return last_leader
    if election is Election.UNCLEAN:
        for replica in replicas:
            if is_active(replica):
                return replica
    return NO_LEADER


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
