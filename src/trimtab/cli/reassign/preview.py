"""The cost of a plan: the bytes that it copies, and the time that takes with a throttle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.balance.moves import Move, estimate_seconds
from trimtab.cli.table import show_bytes, show_count

_MOST_SHOWN = 20


def warn_of_lone_brokers(lone: Mapping[int, int], partitions: int) -> list[str]:
    """A sentence for each broker that is alone in its rack.

    Args:
        lone: by broker id, the partitions that must have a replica there.
        partitions: number of all partitions of the plan.
    """
    return [
        f"broker {broker} is alone in its rack, and so gets a replica of "
        f"{'each partition' if count == partitions else f'{count} of {partitions} partitions'}: "
        "add brokers to the rack, or use --disable-rack-aware"
        for broker, count in sorted(lone.items())
    ]


def describe_moves(moves: Sequence[Move], throttle: int | None) -> dict[str, Any]:
    """For JSON: each move with its reasons, all bytes to be copied, and the estimated seconds."""
    return {
        "moves": [
            {
                "topic": move.placed.partition.topic,
                "partition": move.placed.partition.partition,
                "from": list(move.placed.replicas),
                "to": list(move.replicas),
                "bytes": move.bytes,
                "reasons": list(move.reasons),
            }
            for move in moves
        ],
        "moved_replicas": sum(len(move.added) for move in moves),
        "moved_bytes": sum(move.bytes for move in moves),
        "throttle": throttle,
        "seconds": None if throttle is None else estimate_seconds(moves, throttle),
    }


def show_moves(moves: Sequence[Move], partitions: int, throttle: int | None) -> str:
    """A summary for people, with the largest moves."""
    if not moves:
        where = (
            "the only partition is where it should be"
            if partitions == 1
            else f"all {partitions} partitions are where they should be"
        )
        return f"\nNothing has to move: {where}."
    lines = [""]
    largest = sorted(moves, key=lambda move: -move.bytes)[:_MOST_SHOWN]
    for move in largest:
        partition = move.placed.partition
        what = show_bytes(move.bytes) if move.added else "order only"
        lines.append(
            f"{partition.topic}-{partition.partition}: "
            f"{','.join(map(str, move.placed.replicas))} -> {','.join(map(str, move.replicas))}  "
            f"{what}: {'; '.join(move.reasons)}"
        )
    if len(moves) > len(largest):
        lines.append(f"… and {len(moves) - len(largest)} smaller ones; --json has all")
    copies = sum(len(move.added) for move in moves)
    total = show_bytes(sum(move.bytes for move in moves))
    lines.append(
        f"{len(moves)} of {show_count(partitions, 'partition')} "
        f"{'changes' if len(moves) == 1 else 'change'}; {show_count(copies, 'replica')} "
        f"{'is' if copies == 1 else 'are'} copied, {total}."
    )
    if throttle is None:
        lines.append("Add --throttle BYTES to see how long that takes.")
    else:
        seconds = estimate_seconds(moves, throttle)
        lines.append(
            f"At {show_bytes(throttle)}/s for each broker, that takes {_show_time(seconds)}."
        )
    return "\n".join(lines)


def _show_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
