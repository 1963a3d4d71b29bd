"""Chooses the offsets of a stream's next micro-batch, within limits in bytes or in offsets.

Pure functions: no clock, no cluster. Bytes are those of whole record batches in the log, as KIP-74
counts them: compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple, TypeVar

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.records import TopicPartition

_ROUNDS = 8
"""The remainder of the limit is divided evenly at most this often. Then each partition takes what
fits, in order."""

P = TypeVar("P")


class Piece(NamedTuple):
    """One record batch, or several that follow one another.

    Attributes:
        next_offset: the offset at which the next piece begins.
        size: bytes.
        time: the largest timestamp of its first record batch, ms since the epoch; -1 if unknown.
        error: `size` may be wrong by this many bytes.
    """

    next_offset: int
    size: int
    time: int = -1
    error: int = 0


class Admitted(NamedTuple):
    """The pieces that a micro-batch reads.

    Attributes:
        counts: by partition, how many of its first pieces; partitions without any are missing.
        size: bytes of these pieces.
        owed: by partition, the bytes of its share that it could not use because its next piece is
            larger. They are added to its next share.
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
    """Divide a limit in bytes among partitions, in turns (KIP-74).

    Every partition gets the same share; bytes that a partition does not need go to the others. The
    pieces together never exceed the limit, with one exception: a piece larger than the limit is
    read as a batch of its own, once its partition has saved up enough shares for it, or if no
    partition has a smaller one.

    Args:
        ahead: each partition's unread pieces, in order of offsets.
        limit: bytes, at least 1.
        turn: the index of the partition to begin with, modulo their number. Vary it from batch to
            batch, because the first partitions get the remainder of the limit.
        owed: `Admitted.owed` of the batch before.
    """
    order = _rotate([each for each in sorted(ahead) if ahead[each]], turn)
    if not order:
        return Admitted({}, 0, {})
    shares = {each: limit // len(order) + owed.get(each, 0) for each in order}
    # Partitions that saved shares for a large piece go first: others would use up the limit.
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
        # A partition whose next piece did not fit waits for the remainder of the limit.
        active = [p for p in active if serve(p, credit[p]) and counts[p] < len(ahead[p])]
        if left < len(active) or not active:
            break
        credit = dict.fromkeys(active, left // len(active))
    if left > 0:
        for each in order:
            serve(each, left)
    if not any(counts.values()):
        serve_first()  # whatever its size, because no piece fits
    still_owed = {
        partition: min(shares[partition] - got[partition], ahead[partition][counts[partition]].size)
        for partition in order
        if counts[partition] < len(ahead[partition]) and got[partition] < shares[partition]
    }
    return Admitted({p: n for p, n in counts.items() if n}, limit - left, still_owed)


def _rotate(items: list[P], turn: int) -> list[P]:
    at = turn % len(items) if items else 0
    return items[at:] + items[:at]


def _take(pieces: Sequence[Piece], begin: int, room: int) -> tuple[int, int]:
    """How many pieces, from index `begin`, fit into `room` bytes, and their size."""
    size = 0
    at = begin
    while at < len(pieces) and size + pieces[at].size <= room:
        size += pieces[at].size
        at += 1
    return at - begin, size


def admit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """The end offsets of a batch of about `limit` offsets, in proportion to each partition's lag.

    Like Spark's Kafka source (`KafkaMicroBatchStream.rateLimit`): shares are rounded down, but are
    at least 1, so that small partitions make progress; many small partitions exceed the limit.
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
    """Cut ranges between pieces, into parts of at most `max_bytes` or of a single larger piece.

    Args:
        pieces: the pieces of each partition. A range without pieces stays whole, with size 0.
        max_bytes: 0 leaves all ranges whole.

    Returns:
        The parts with their sizes, largest first, so that long tasks do not start last.
    """
    cut: list[tuple[OffsetRange, int]] = []
    for offset_range in ranges:
        start, at, size = offset_range.start, offset_range.start, 0
        for piece in pieces.get(TopicPartition(offset_range.topic, offset_range.partition), ()):
            if max_bytes and size and size + piece.size > max_bytes:
                cut.append((offset_range._replace(start=start, end=at), size))
                start, size = at, 0
            size += piece.size
            at = min(piece.next_offset, offset_range.end)
        cut.append((offset_range._replace(start=start), size))
    return sorted(cut, key=lambda sized: -sized[1])
