"""Who leads a partition, who is in its ISR, and who is eligible: one change of it, worked out.

    what is wanted ─▶ reassignment completed? ─▶ ELR ─▶ election ─▶ record, or None

Nothing is read but the arguments. The rules are those of Kafka's `PartitionChangeBuilder` with
eligible leader replicas (KIP-966) switched on, as Kafka 4.1 has it for new clusters:

- While the ISR has fewer members than `min.insync.replicas`, nothing can be committed without those
  that left it: they stay eligible (ELR), and one of them may lead once the ISR is empty.
- The last leader is noted when a partition loses its leader. If neither ISR nor ELR has anyone,
  it, and nobody else, leads again once it is back, as whatever it still has is the best there is.
- Whoever is elected from outside of ISR and ELR may have lost records: it is alone in the ISR and
  recovers (KIP-704).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

from trimtab.controller.completion import complete_reassignment
from trimtab.metadata.image import (
    NO_LEADER,
    RECOVERING,
    PartitionRegistration,
    partition_change_record,
)
from trimtab.wire.messages.metadata_records import PartitionChangeRecord


class Election(Enum):
    """Who may be elected.

    Attributes:
        ONLINE: a live member of the ISR, or of the ELR if the ISR is empty; the leader stays if it
            is one.
        PREFERRED: the same, but the first of the replicas, if it is one, comes before the leader.
        UNCLEAN: as `ONLINE`, and if there is none, any live replica, though records be lost.
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
    """The change that a partition goes through, or None if it stays as it is.

    Args:
        partition: as it is.
        wanted: the same with the ISR, replicas, adding and removing replicas, and leader recovery
            state that it is to have; its leader, epochs and eligible leaders do not matter.
        is_active: whether a broker may lead.
        min_isr: `min.insync.replicas`; more than there are replicas counts as all of them.
        lost: brokers whose logs may lack records after a crash: not eligible.
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
            # A minimum that was lowered meanwhile may let it commit alone: then the others lag.
            others = tuple(replica for replica in elr if replica != leader)
            isr, elr = (leader,), others if enough > 1 else ()

    # A leader that is chosen again hears of it by its epoch: replicas that were taken away must
    # no longer be heard.
    elects = leader != partition.leader or not _contains(replicas, partition.replicas)
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
    """The ELR beside an ISR: who was eligible or in sync before, and has not lost its records."""
    candidates = sorted({*partition.elr, *partition.isr})
    return tuple(
        each for each in candidates if each in replicas and each not in isr and each not in lost
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


def _contains(replicas: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(replica in replicas for replica in others)
