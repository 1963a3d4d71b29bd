"""The topics of a run, and what each promises: what the checkers hold it to."""

from __future__ import annotations

from random import Random
from typing import Any, Final, NamedTuple

GUARDED: Final = "guarded"
PLAIN: Final = "plain"
LOOSE: Final = "loose"
COMPACTED: Final = "compacted"
SHORT: Final = "short"

_NEVER_MS = 10**12


class TopicKind(NamedTuple):
    """What a topic promises.

    Attributes:
        keeps: what is committed stays, whatever fails: `min.insync.replicas` is 2 or more, and no
            election is unclean. Otherwise it stays until an election is unclean.
        compacts: of each key the latest record stays; the others may go, and leave gaps.
        retention_ms: records older than this may be deleted, the oldest first.
        retention_bytes: so may those before so many bytes.
        shortens: operators delete records from its front.
        delete_retention_ms: for how long a record without a value stays, if it is the latest.
        is_idempotent: whether its senders are.
        acks: of its senders.
        config: its options.
    """

    keeps: bool
    config: dict[str, Any]
    compacts: bool = False
    shortens: bool = False
    retention_ms: int = _NEVER_MS
    retention_bytes: int = _NEVER_MS
    delete_retention_ms: int = _NEVER_MS
    is_idempotent: bool = True
    acks: str = "all"


def choose_kinds(random: Random) -> dict[str, TopicKind]:
    """The topics of one run, by name: guarded ones always, each other kind in some runs.

    - `GUARDED`: nothing is lost, twice or out of order.
    - `PLAIN`: the same without idempotence: records may be there twice.
    - `LOOSE`: `min.insync.replicas` 1, and unclean elections may be allowed: what one of them has
      cut off is lost, nothing else; and replicas agree.
    - `COMPACTED`: the latest record of each key stays.
    - `SHORT`: retention and DeleteRecords take from the front, and only there.
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
        retention_ms = random.choice((5_000, 20_000, _NEVER_MS))
        retention_bytes = random.choice((10_000, _NEVER_MS))
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


PASSING: Final = TopicKind(False, {})
"""Of topics that come and go: nobody sends anything."""
