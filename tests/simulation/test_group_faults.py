"""Groups of consumers under faults, in virtual time: the simulation finds bugs planted in them.

Each run of `lab.reliability.simulation` has a group, whose members (`lab.reliability.members`) use
the classic protocol, KIP-848's, or either. `lab.reliability.group_checker` has the rules.
`test_cluster_faults` runs the seeds; its text says how the numbers here were found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.planted import find_bug
from trimtab.client.group.committed import CommittedOffsets
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition
from trimtab.cluster.coordinator.classic_group import ClassicGroup
from trimtab.cluster.coordinator.consumer_group import ConsumerGroup
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.kafka.records import TopicPartition

_fetch = CommittedOffsets.fetch
_carry_out = CoordinatorPartition._carry_out
_replay_assignment = ConsumerGroup._replay_assignment


def _answer_early(groups: CoordinatorPartition[GroupShard], shard: GroupShard) -> None:
    """A coordinator that answers before its records are committed."""
    for request, response in shard.effects.responses:
        if not request.answer.done():
            request.answer.set_result(response)
    _carry_out(groups, shard)


def _forget_revoking(group: ConsumerGroup, member_id: str, value: Any) -> None:
    """A coordinator to which a partition is free as soon as its owner is asked to let go of it."""
    _replay_assignment(group, member_id, value)
    for key in () if value is None else group.members[member_id].revoking:
        group.owners.pop(key, None)


async def _begin_too_late(
    offsets: CommittedOffsets, *given: Any
) -> dict[TopicPartition, OffsetAndMetadata]:
    """A consumer that begins behind the record that was committed last."""
    found = await _fetch(offsets, *given)
    return {each: at._replace(offset=at.offset + 1) for each, at in found.items()}


def _miss_nobody(*_: Any) -> None:
    """A coordinator that waits for ever for a member that has died."""


PLANTED: dict[str, tuple[int, object, str, Callable[..., object]]] = {
    "answers before commitment": (7, CoordinatorPartition, "_carry_out", _answer_early),
    "partitions free too early": (152, ConsumerGroup, "_replay_assignment", _forget_revoking),
    "a record left out": (0, CommittedOffsets, "fetch", _begin_too_late),
    "dead classic members kept": (2, ClassicGroup, "look", _miss_nobody),
    "dead members kept": (0, ConsumerGroup, "look", _miss_nobody),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place, name, instead = PLANTED[bug]
    monkeypatch.setattr(place, name, instead)
    find_bug(bug, first)
