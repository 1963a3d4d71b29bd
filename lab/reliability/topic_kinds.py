"""The topics of a run, and the guarantees of each, which the checkers verify."""

from __future__ import annotations

from random import Random
from typing import Any, Final, NamedTuple

GUARDED: Final = "guarded"
PLAIN: Final = "plain"
LOOSE: Final = "loose"
COMPACTED: Final = "compacted"
SHORT: Final = "short"

NEVER_MS = 10**12


class TopicKind(NamedTuple):
    """The options of a topic and its senders, and what they guarantee.

    Attributes:
        keeps: committed records are never lost: `min.insync.replicas` is 2 or more, and there are
            no unclean elections. Otherwise an unclean election may lose committed records.
        config: the topic's options.
        compacts: the latest record of each key stays; others may be removed, and leave gaps.
        shortens: records may be deleted from the front, by retention or by DeleteRecords.
        retention_ms: records older than this may be deleted, the oldest first.
        retention_bytes: the oldest records may be deleted if this many bytes remain.
        delete_retention_ms: how long a tombstone stays, if it is the latest record of its key.
        is_idempotent: whether the senders are idempotent.
        acks: the senders' acks.
    """

    keeps: bool
    config: dict[str, Any]
    compacts: bool = False
    shortens: bool = False
    retention_ms: int = NEVER_MS
    retention_bytes: int = NEVER_MS
    delete_retention_ms: int = NEVER_MS
    is_idempotent: bool = True
    acks: str = "all"


def choose_kinds(random: Random) -> dict[str, TopicKind]:
    """The topics of one run, by name: `GUARDED` always, each other kind in some runs.

    - `GUARDED`: no record is lost, duplicated or out of order.
    - `PLAIN`: the same without idempotence: records may be duplicated.
    - `LOOSE`: `min.insync.replicas` 1, and perhaps unclean elections: these may lose the records
      that the new leader lacks, but no others; and the replicas agree.
    - `COMPACTED`: the latest record of each key stays.
    - `SHORT`: retention and DeleteRecords delete records, but only from the front.
    """
    segment_bytes = random.choice((500, 2_000, 20_000))
    guarded: dict[str, Any] = {"min.insync.replicas": 2, "segment.bytes": segment_bytes}
    if random.random() < 0.2:
        guarded["flush.messages"] = 1
    kinds = {GUARDED: TopicKind(True, guarded)}
    if random.random() < 0.6:
        kinds[PLAIN] = TopicKind(True, guarded, is_idempotent=False)
    if random.random() < 0.6:
        is_unclean = random.random() < 0.6
        acks = random.choice(("1", "all"))
        config: dict[str, Any] = {
            "min.insync.replicas": 1,
            "segment.bytes": segment_bytes,
            "unclean.leader.election.enable": is_unclean,
        }
        is_idempotent = acks == "all" and random.random() < 0.5
        kinds[LOOSE] = TopicKind(False, config, is_idempotent=is_idempotent, acks=acks)
    if random.random() < 0.6:
        delete_retention_ms = random.choice((0, 3_000, 20_000))
        config = {
            "cleanup.policy": "compact",
            "min.insync.replicas": 2,
            "segment.bytes": random.choice((1_000, 4_000)),
            "min.cleanable.dirty.ratio": random.choice((0.01, 0.5)),
            "delete.retention.ms": delete_retention_ms,
        }
        kinds[COMPACTED] = TopicKind(
            True, config, compacts=True, delete_retention_ms=delete_retention_ms
        )
    if random.random() < 0.6:
        retention_ms = random.choice((5_000, 20_000, NEVER_MS))
        retention_bytes = random.choice((10_000, NEVER_MS))
        config = {
            "min.insync.replicas": 2,
            "segment.bytes": random.choice((1_000, 4_000)),
            "retention.ms": retention_ms,
            "retention.bytes": retention_bytes,
        }
        kinds[SHORT] = TopicKind(
            True,
            config,
            shortens=True,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )
    return kinds


GROUPS: Final = TopicKind(True, {}, compacts=True)
"""The topic of the groups, which the first search for a coordinator creates."""

TRANSIENT: Final = TopicKind(False, {})
"""Topics that are created and deleted during the run; they have no senders."""
