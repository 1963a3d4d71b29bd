"""The next step from a partition's replicas to those wanted, one replica at a time.

At most one replica more than wanted exists while it is copied. What Kafka asks of a reassignment
before it completes differs by version: all replicas of the target in the ISR (KAFKA-15665), or only
the added ones. A step whose kept replicas are all in the ISR completes with any.
"""

from __future__ import annotations

from trimtab.balance.observed import ShownPartition


class Blocked(Exception):
    """No step is safe now; the text says why."""


def next_replicas(shown: ShownPartition, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The replicas of the next reassignment, the preferred leader first: the wanted leader if it is
    among them. Replicas that are out of the ISR are replaced before any other.

    Args:
        shown: has another set of replicas than `wanted`, and is not being reassigned.

    Raises:
        Blocked: more than one replica is out of the ISR, or one that is wanted.
    """
    present = shown.replicas
    out = [each for each in present if each not in shown.in_sync]
    if shown.leader < 0:
        raise Blocked("it has no leader")
    if len(out) > 1 or (out and out[0] in wanted):
        raise Blocked(f"of its replicas {_name(out)} not in the ISR")
    added = [each for each in wanted if each not in present]
    removed = [each for each in present if each not in wanted]
    # The leader goes when the wanted one comes, which Kafka then elects; otherwise it goes last.
    leader_comes = bool(added) and added[0] == wanted[0]
    removed.sort(key=lambda each: (each not in out, (each == shown.leader) is not leader_comes))
    comes = added[:1]
    if out:
        goes = removed[:1]
    elif len(added) <= 1:
        goes = removed
    else:
        goes = removed[: len(removed) - len(added) + 1]
    left = {*present, *comes}.difference(goes)
    if left == set(wanted):
        return wanted
    # The wanted leader is there already, or comes before all others.
    return tuple(sorted(left, key=lambda each: (_place(each, wanted), _place(each, present))))


def _place(broker: int, replicas: tuple[int, ...]) -> int:
    return replicas.index(broker) if broker in replicas else len(replicas)


def _name(brokers: list[int]) -> str:
    return f"{', '.join(map(str, brokers))} {'is' if len(brokers) == 1 else 'are'}"
