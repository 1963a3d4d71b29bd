"""A whole cluster under faults, in virtual time: no acknowledged record is lost.

Each seed is another run of `lab.reliability.simulation` (`lab.reliability.runs` runs many). It has
a `trimtab.sim.virtual_cluster`, the senders and readers of `lab.reliability.workload`, a group of
`lab.reliability.members` (`test_group_faults`), the topics of `lab.reliability.topic_kinds`, the
faults of `lab.reliability.faults` and `lab.reliability.fault_chains` within the limits of
`lab.reliability.losses`, and the checks of `lab.reliability.checkers`, which use
`lab.reliability.histories`. `make sim SEEDS=10000 JOBS=2` runs more seeds, and `make sim SEED=n`
repeats one with its trace. `CLUSTER_SEEDS` (environment; default 16) is the number of seeds here.

Planted bugs test the simulation: it must find each within 200 seeds. The first seed tried is one
that found the bug. After a change of the code it may no longer find it; the search then continues
from 0. Replace the number here by the seed that is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import trimtab.cluster.broker.partition
from lab.reliability.simulation import run_seed
from tests.simulation.planted import find_bug
from trimtab.cluster.broker.leadership import Leadership
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.controller import election
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.storage.producer_state import ACCEPTED, ProducerState
from trimtab.kafka.wire.batch_cy import BatchHeader, read_header, verify
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.disk import Mount

SEEDS = int(os.environ.get("CLUSTER_SEEDS", "16"))


@pytest.mark.kip(966)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_acknowledged_record_is_lost_under_faults(seed: int) -> None:
    run = run_seed(seed)
    assert run.acknowledged > 100
    assert run.checks > 100


def _ignore_the_slowest(leadership: Leadership, now_s: float, lag_limit_s: float) -> int:
    """A leader whose high watermark is ahead of a follower in sync."""
    log = leadership._log
    if leadership.is_under_min_isr:
        return log.high_watermark
    ends = sorted(
        follower.end_offset
        for broker_id, follower in leadership.followers.items()
        if broker_id in leadership.maximal_isr
    )
    return max(log.high_watermark, min(ends[1:], default=log.log_end_offset))


def _never_part(partition: Partition, last_fetched_epoch: int, offset: int) -> None:
    """A leader that does not tell a follower where their logs diverge, so it does not truncate."""


def _elect_anybody(
    partition: Any,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    is_active: Callable[[int], bool],
    how: election.Election,
) -> int:
    """A controller that elects any live replica, in sync or not."""
    candidates = (partition.leader, *replicas)
    return next((each for each in candidates if each in replicas and is_active(each)), NO_LEADER)


def _join_early(leadership: Leadership, broker_id: int) -> bool:
    """A leader that takes a follower into the ISR before it has caught up."""
    epoch = leadership.followers[broker_id].broker_epoch
    return (
        leadership.proposal is None
        and broker_id not in leadership.isr
        and leadership._is_eligible(broker_id, epoch)
    )


def _cut_where_the_leader_says(partition: Partition, epoch: int, end_offset: int) -> int:
    """A follower that ignores where its own epochs end (KIP-279)."""
    log = partition.log
    log.truncate(max(0, min(end_offset, log.log_end_offset)))
    partition.notify_changed()
    return log.log_end_offset


def _complete_early(
    partition: PartitionRegistration, isr: Sequence[int]
) -> election.Completion | None:
    """A reassignment that completes before the new replicas are in sync."""
    removing = partition.removing_replicas
    in_sync = tuple(each for each in isr if each not in removing)
    replicas = tuple(each for each in partition.replicas if each not in removing)
    if not partition.is_reassigning or not in_sync:
        return None
    return election.Completion(replicas, in_sync)


def _trust(records: memoryview, position: int = 0, is_client_batch: bool = False) -> BatchHeader:
    """A follower that does not check CRCs."""
    if is_client_batch:
        return verify(records, position, is_client_batch=True)
    return read_header(records, position)


PLANTED: dict[str, tuple[int, object, str, object]] = {
    "high watermark ahead": (0, Leadership, "committed_offset", _ignore_the_slowest),
    "no truncation": (1, Partition, "diverging_epoch", _never_part),
    "election of anybody": (5, election, "_elect", _elect_anybody),
    "early join": (1, Leadership, "can_join", _join_early),
    "no sequences": (0, ProducerState, "check_batch", lambda *_: ACCEPTED),
    "cut without own epochs": (43, Partition, "truncate_to_leader", _cut_where_the_leader_says),
    "early completion": (30, election, "complete_reassignment", _complete_early),
    "no CRC check": (23, trimtab.cluster.broker.partition, "verify", _trust),
    "power loss taken for a kill": (158, Mount, "boot_id", lambda _: "the same"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place, name, instead = PLANTED[bug]
    monkeypatch.setattr(place, name, instead)
    find_bug(bug, first)


@pytest.mark.parametrize("seed", [1, 42380])
def test_a_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    script = f"from lab.reliability.simulation import run_seed; print(run_seed({seed}))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "3")
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith("Run(")
