"""Which offsets the next batch of a stream gets, within limits in bytes or in offsets.

Values in, decisions out: no clock, no cluster. Bytes are those of whole record batches as they lie
in the log, compressed, as KIP-74 counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple, TypeVar

from trimtab.records import TopicPartition
from trimtab.spark.read.ranges import OffsetRange

_ROUNDS = 8
"""How often what is left of the limit is shared out evenly. Each round leaves less than a batch
of each partition; then it goes by what fits."""

P = TypeVar("P")


class Piece(NamedTuple):
    """One record batch, or a few that follow one another.

    Attributes:
        next_offset: where the next one begins.
        size: bytes.
        time: the largest timestamp of its first record batch, ms since the epoch; -1 if unknown.
        error: by how many bytes `size` may be wrong.
    """

    next_offset: int
    size: int
    time: int = -1
    error: int = 0


class Admitted(NamedTuple):
    """What a batch gets.

    Attributes:
        counts: of each partition so many pieces, the first ones; a partition may be missing.
        size: bytes of all of them.
        owed: bytes of its turn that a partition could not use, as its next piece is larger. They
            are added to its next turn.
    """

    counts: dict[TopicPartition, int]
    size: int
    owed: dict[TopicPartition, int]


def admit(
    ahead: Mapping[TopicPartition, Sequence[Piece]],
    limit: int,
    turn: int,
    owed: Mapping[TopicPartition, int],
) -> Admitted:
    """Share a limit in bytes out among partitions, in turns (KIP-74).

    Every partition may take the same share. What some do not need goes to the others. The pieces
    together never exceed the limit, but for one case: a piece that is larger than the limit is a
    batch of its own, when its partition has saved enough turns for it, or when there is nothing
    smaller.

    Args:
        ahead: what lies before each partition, in order of offsets.
        limit: bytes, at least 1.
        turn: with which partition to begin; goes round. Another one each time: the first one has
            the advantage of what is left over.
        owed: of the batch before.
    """
    order = _rotate([each for each in sorted(ahead) if ahead[each]], turn)
    if not order:
        return Admitted({}, 0, {})
    shares = {each: limit // len(order) + owed.get(each, 0) for each in order}
    # Partitions that saved turns for a large piece go first: others would use up the room.
    order.sort(key=lambda each: each not in owed or shares[each] < ahead[each][0].size)
    counts = dict.fromkeys(order, 0)
    got = dict.fromkeys(order, 0)
    left = limit

    def serve(each: TopicPartition, room: int) -> int:
        nonlocal left
        count, size = _take(ahead[each], counts[each], min(room, left))
        counts[each] += count
        got[each] += size
        left -= size
        return count

    def serve_first() -> None:
        nonlocal left
        counts[order[0]], got[order[0]] = 1, ahead[order[0]][0].size
        left = limit - got[order[0]]

    if limit < ahead[order[0]][0].size <= shares[order[0]]:
        serve_first()
    active = [] if left < 0 else order
    credit = shares
    for _ in range(_ROUNDS):
        # A partition that could take nothing waits for the rest of the limit.
        active = [p for p in active if serve(p, credit[p]) and counts[p] < len(ahead[p])]
        if left < len(active) or not active:
            break
        credit = dict.fromkeys(active, left // len(active))
    if left > 0:
        for each in order:
            serve(each, left)
    if not any(counts.values()):
        serve_first()  # whatever its size: there is nothing that fits
    still_owed = {
        each: min(shares[each] - got[each], ahead[each][counts[each]].size)
        for each in order
        if counts[each] < len(ahead[each]) and got[each] < shares[each]
    }
    return Admitted({p: n for p, n in counts.items() if n}, limit - left, still_owed)


def _rotate(items: list[P], turn: int) -> list[P]:
    at = turn % len(items) if items else 0
    return items[at:] + items[:at]


def _take(pieces: Sequence[Piece], begin: int, room: int) -> tuple[int, int]:
    """How many pieces from `begin` on fit into `room` bytes, and their size."""
    size = 0
    at = begin
    while at < len(pieces) and size + pieces[at].size <= room:
        size += pieces[at].size
        at += 1
    return at - begin, size


def admit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Where a batch of about `limit` offsets ends: in proportion to each partition's lag.

    As Spark's Kafka source does it (`KafkaMicroBatchStream.rateLimit`): shares are rounded down,
    but to 1 where they are less, so that small partitions get on; with many of them the limit is
    exceeded.
    """
    sizes = {p: end - start[p] for p, end in latest.items() if p in start and end > start[p]}
    total = sum(sizes.values())
    ends = dict(latest)
    for partition, size in sizes.items():
        part = limit * (size / total)
        share = ceil(part) if part < 1 else int(part)
        ends[partition] = min(latest[partition], start[partition] + share)
    return ends


def split_by_bytes(
    ranges: Sequence[OffsetRange],
    pieces: Mapping[TopicPartition, Sequence[Piece]],
    max_bytes: int,
) -> list[tuple[OffsetRange, int]]:
    """Cut ranges where pieces end, so that none has more than `max_bytes`, a single piece excepted.

    Args:
        pieces: what the ranges consist of. A range without any stays whole, of unknown size (0).
        max_bytes: 0 leaves all ranges whole.

    Returns:
        The ranges with their sizes, largest first: so tasks that take long do not begin last.
    """
    cut: list[tuple[OffsetRange, int]] = []
    for each in ranges:
        start, at, size = each.start, each.start, 0
        for piece in pieces.get(TopicPartition(each.topic, each.partition), ()):
            if max_bytes and size and size + piece.size > max_bytes:
                cut.append((each._replace(start=start, end=at), size))
                start, size = at, 0
            size += piece.size
            at = min(piece.next_offset, each.end)
        cut.append((each._replace(start=start), size))
    return sorted(cut, key=lambda sized: -sized[1])
