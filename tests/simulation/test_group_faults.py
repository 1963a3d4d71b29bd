"""Groups of consumers under faults, in virtual time: the simulation finds bugs planted in them.

Each run of `trimtab.sim.reliability` has a group, whose members (`trimtab.sim.members`) use the
classic protocol, KIP-848's, or either. `trimtab.sim.group_checker` has the rules.
`test_cluster_faults` runs the seeds; its text says how the numbers here were found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.planted import find_bug
from trimtab.broker.coordinator_partition import CoordinatorPartition
from trimtab.client.group.committed import CommittedOffsets
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.coordinator.classic_group import ClassicGroup
from trimtab.coordinator.consumer_group import ConsumerGroup
from trimtab.coordinator.effects import Effects
from trimtab.coordinator.group_shard import GroupShard
from trimtab.records import TopicPartition

_fetch = CommittedOffsets.fetch
_append = CoordinatorPartition._append
_replay_assignment = ConsumerGroup._replay_assignment


def _answer_early(groups: CoordinatorPartition[GroupShard], effects: Effects) -> None:
    """A coordinator that answers before its records are committed."""
    _append(groups, effects)
    groups._send(effects)
    effects.responses.clear()


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
    "answers before commitment": (5, CoordinatorPartition, "_append", _answer_early),
    "partitions free too early": (56, ConsumerGroup, "_replay_assignment", _forget_revoking),
    "a record left out": (0, CommittedOffsets, "fetch", _begin_too_late),
    "dead classic members kept": (2, ClassicGroup, "look", _miss_nobody),
    "dead members kept": (0, ConsumerGroup, "look", _miss_nobody),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place, name, instead = PLANTED[bug]
    monkeypatch.setattr(place, name, instead)
    find_bug(bug, first)
