"""How a topic's records are spread now: the result of `Producer.partitioning`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trimtab.client.partitioner.key_spread import show_key
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.kafka.notebook import to_table

_MOST_HOT: Final = 10


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The producer's load on one partition now.

    Attributes:
        leader: the node id of its leader; -1 while there is none.
        rack: its leader's rack; None if unset or unknown.
        queued_batches: batches that wait to be sent.
        queued_bytes: their bytes, uncompressed.
        in_flight_batches: batches that were sent and are not acknowledged.
        in_flight_bytes: their bytes, uncompressed.
        weight: the probability that the partitioner chooses it next, 0 to 1; None for per-record
            partitioners (round robin, custom).
        excluded_because: why it cannot be chosen now; None if it can.
        expected_ms: milliseconds until records given to its leader now would be acknowledged; None
            unless `partitioner.balance` is set.
        behind_bytes: bytes by which it is behind its share, the same for all partitions of a
            leader; negative if it is ahead; None likewise.
        chosen_bytes: bytes that the partitioner assigned to it, in the expected compressed size;
            records with a key or a given partition are not counted.
        stored_bytes: bytes that were acknowledged, of all its records, uncompressed.
        turns: how often it was chosen.
    """

    leader: int
    rack: str | None
    queued_batches: int
    queued_bytes: int
    in_flight_batches: int
    in_flight_bytes: int
    weight: float | None
    excluded_because: str | None
    expected_ms: float | None
    behind_bytes: float | None
    chosen_bytes: int
    stored_bytes: int
    turns: int


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with more than its fair share: more than the mean of all partitions.

    Attributes:
        hash: its murmur2, 32 bits without a sign.
        key: its bytes; None unless `partitioner.keys.shown` is set, and for more than 1 KiB.
        share: of the bytes of records whose key decides the partition, 0 to 1; measured by one
            record in 32, those of the last minutes most.
        partition: where its hash puts it.
        partitions: where its records go: the same, the ones it is split among, or the one it was
            moved to (`partitioner.hot.keys`).
    """

    hash: int
    key: bytes | None
    share: float
    partition: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a topic's records are spread now (KIP-794, KIP-1123).

    Attributes:
        topic: its name.
        partitioner: the partitioner's class.
        current: the partition of the current turn; None before the first, or without turns.
        switches: how often a turn began in another partition than the last one.
        in_rack_share: share of the chosen bytes, 0 to 1, whose leader was in the client's rack when
            they were assigned; None without rack awareness or before the first byte.
        hot_keys: at most ten, the heaviest first.
        treated_keys: how many keys are split or moved.
        partitions: by number.
    """

    topic: str
    partitioner: str
    current: int | None
    switches: int
    in_rack_share: float | None
    hot_keys: tuple[HotKey, ...]
    treated_keys: int
    partitions: tuple[PartitionLoad, ...]

    def _repr_html_(self) -> str:
        """The partitions, those with most stored bytes first, and the hot keys, in a notebook."""
        loads = sorted(enumerate(self.partitions), key=lambda each: -each[1].stored_bytes)
        rows = [
            (
                number,
                load.leader,
                load.rack,
                f"{load.stored_bytes:,}",
                f"{load.queued_bytes + load.in_flight_bytes:,}",
                None if load.weight is None else f"{load.weight:.1%}",
                load.excluded_because,
            )
            for number, load in loads
        ]
        heads = ("partition", "leader", "rack", "stored bytes", "bytes on the way", "weight")
        shown = to_table(f"{self.topic}: {self.partitioner}", (*heads, "excluded because"), rows)
        if not self.hot_keys:
            return shown
        keys = [
            (
                f"hash {key.hash}" if key.key is None else show_key(key.key),
                f"{key.share:.1%}",
                ", ".join(map(str, key.partitions)),
            )
            for key in self.hot_keys
        ]
        return shown + to_table("hot keys", ("key", "share", "partitions"), keys)


def describe(topic_queues: Any, rack: str | None) -> Partitioning:
    """The `Partitioning` of one topic's `TopicQueues`; `rack` is the client's. Under the lock."""
    view, partitioner = topic_queues.view, topic_queues.partitioner
    weigh = getattr(partitioner, "weigh", None)
    weights = weigh(view, topic_queues) if weigh is not None else {}
    loads = []
    for queue, leader, leader_rack in zip(
        topic_queues.queues, view.leaders, view.racks, strict=False
    ):
        weight = weights.get(queue.partition)
        loads.append(
            PartitionLoad(
                leader=leader,
                rack=leader_rack,
                queued_batches=len(queue.batches),
                queued_bytes=queue.queued_bytes,
                in_flight_batches=len(queue.in_flight),
                in_flight_bytes=sum(batch.size for batch in queue.in_flight),
                weight=None if weight is None else weight.probability,
                excluded_because=None if weight is None else weight.excluded,
                expected_ms=None
                if weight is None or weight.expected is None
                else 1000 * weight.expected,
                behind_bytes=None if weight is None else weight.behind,
                chosen_bytes=queue.chosen_bytes,
                stored_bytes=queue.stored_bytes,
                turns=queue.turns,
            )
        )
    chosen = sum(load.chosen_bytes for load in loads)
    return Partitioning(
        topic=view.name,
        partitioner=type(partitioner).__name__,
        current=topic_queues.current if topic_queues.current >= 0 else None,
        switches=topic_queues.switches,
        in_rack_share=topic_queues.chosen_rack_bytes / chosen if rack and chosen else None,
        hot_keys=_find_hot(topic_queues, len(loads)),
        treated_keys=0 if topic_queues.hot is None else len(topic_queues.hot.treated),
        partitions=tuple(loads),
    )


def _find_hot(topic_queues: Any, partitions: int) -> tuple[HotKey, ...]:
    found = []
    for key, share, partition in topic_queues.keys.heaviest(_MOST_HOT):
        if share * partitions > 1:
            key_hash = murmur2(key) if isinstance(key, bytes) else key
            places = topic_queues.hot.places(key_hash) if topic_queues.hot is not None else ()
            shown = key if isinstance(key, bytes) else None
            found.append(HotKey(key_hash, shown, share, partition, places or (partition,)))
    return tuple(found)
