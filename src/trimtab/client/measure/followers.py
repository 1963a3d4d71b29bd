"""How far followers are behind their leaders, seen from outside, and which broker is to blame.

Any replica tells the end of its own log to the replica id -2 of ListOffsets, so a follower's lag is
the leader's end minus its own. `OffsetLag` of DescribeLogDirs is no such lag: it tells how far a
replica is behind its own high watermark.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trimtab.balance.cluster_load import PartitionLoad
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import Partition
from trimtab.kafka.errors import BrokerError, KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_LEADER

_BEHIND_S: Final = 0.5
"""Seconds of the leader's traffic that a follower is behind, from which on it counts as behind.
One that follows is some milliseconds behind."""


class ReplicaEndLister(Protocol):
    """What is needed of an admin client."""

    async def list_replica_ends(
        self, replicas: Mapping[int, Iterable[Partition]]
    ) -> dict[int, dict[TopicPartition, int | BrokerError]]:
        """The ends of these replicas' logs, by broker, or a replica's error."""


class EndsRound(NamedTuple):
    """The ends of replicas' logs in one round.

    Attributes:
        ends: by broker; a replica with an error is missing.
        at: by broker, the loop's time when it answered.
        round_trips: by broker, the seconds until it answered, or for which it has not.
        silent: the brokers that have told no end, and why.
    """

    ends: Mapping[int, Mapping[TopicPartition, int]]
    at: Mapping[int, float]
    round_trips: Mapping[int, float]
    silent: Mapping[int, str]


class PairLag(NamedTuple):
    """A follower behind a leader, over the partitions that they share.

    Attributes:
        lag: records.
        growth: records/s by which the lag has grown between two rounds; negative if it has fallen.
        traffic: records/s that the leader got meanwhile.
    """

    lag: int
    growth: float
    traffic: float

    @property
    def seconds(self) -> float:
        """The lag as seconds of the traffic; infinite without traffic."""
        if not self.lag:
            return 0.0
        return self.lag / self.traffic if self.traffic else math.inf

    @property
    def is_behind(self) -> bool:
        """Whether the follower is half a second behind, and does not catch up: after a restart it
        fetches at more than twice the traffic."""
        return self.seconds >= _BEHIND_S and self.growth >= -self.traffic


class Blame(NamedTuple):
    """Which brokers make followers fall behind: as leaders, and as followers."""

    leaders: frozenset[int]
    followers: frozenset[int]


def choose_replicas(
    partitions: Iterable[PartitionLoad], each_pair: int = 4
) -> dict[int, list[TopicPartition]]:
    """The replicas to watch, by broker: for each pair of leader and follower those of the
    partitions that get the most bytes.

    Args:
        each_pair: partitions, at most.
    """
    pairs: dict[tuple[int, int], int] = {}
    chosen: dict[int, list[TopicPartition]] = {}
    for load in sorted(partitions, key=lambda each: (-each.bytes_in, each.partition)):
        if load.leader == NO_LEADER:
            continue
        followers = [
            broker
            for broker in load.replicas
            if broker != load.leader and pairs.get((load.leader, broker), 0) < each_pair
        ]
        for follower in followers:
            pairs[load.leader, follower] = pairs.get((load.leader, follower), 0) + 1
            chosen.setdefault(follower, []).append(load.partition)
        if followers:
            chosen.setdefault(load.leader, []).append(load.partition)
    return chosen


async def poll_ends(
    admin: ReplicaEndLister,
    replicas: Mapping[int, Sequence[TopicPartition]],
    timeout_s: float = 1.0,
) -> EndsRound:
    """Ask each broker for the ends of its replicas, all at once; one that hangs delays no other.

    Args:
        replicas: the partitions to ask for, by broker, as `choose_replicas` returns them.
        timeout_s: for each broker; seconds.
    """
    loop = asyncio.get_running_loop()
    ends: dict[int, Mapping[TopicPartition, int]] = {}
    at: dict[int, float] = {}
    round_trips: dict[int, float] = {}
    silent: dict[int, str] = {}

    async def ask(broker: int, partitions: Sequence[TopicPartition]) -> None:
        began = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                told = (await admin.list_replica_ends({broker: partitions}))[broker]
        except TimeoutError:
            silent[broker] = f"no answer within {timeout_s:g} s"
        except KafkaError as error:
            silent[broker] = str(error)
        else:
            known = {each: end for each, end in told.items() if isinstance(end, int)}
            if told and not known:  # such as all with BROKER_NOT_AVAILABLE
                silent[broker] = str(next(iter(told.values())))
            else:
                ends[broker] = known
                at[broker] = loop.time()
        round_trips[broker] = loop.time() - began

    await asyncio.gather(*(ask(*each) for each in replicas.items()))
    return EndsRound(ends, at, round_trips, silent)


def find_lags(
    topics: Mapping[str, TopicView], before: EndsRound, now: EndsRound
) -> dict[tuple[int, int], PairLag]:
    """By leader and follower, the lag over the partitions of which both rounds know both ends.

    Args:
        topics: leaders and replicas, as a sample has them.
    """
    lags: dict[tuple[int, int], int] = {}
    lags_before: dict[tuple[int, int], int] = {}
    written: dict[tuple[int, int], int] = {}
    for leader, ends in now.ends.items():
        ends_before = before.ends.get(leader, {})
        for partition, end in ends.items():
            view = topics.get(partition.topic)
            if view is None or partition.partition >= view.partition_count:
                continue
            if view.leaders[partition.partition] != leader:
                continue
            end_before = ends_before.get(partition)
            if end_before is None or end < end_before:  # unknown, or created again
                continue
            for follower in view.partitions[partition.partition].replicas:
                own = now.ends.get(follower, {}).get(partition)
                own_before = before.ends.get(follower, {}).get(partition)
                if follower == leader or own is None or own_before is None:
                    continue
                pair = leader, follower
                lags[pair] = lags.get(pair, 0) + max(0, end - own)
                lags_before[pair] = lags_before.get(pair, 0) + max(0, end_before - own_before)
                written[pair] = written.get(pair, 0) + end - end_before
    found: dict[tuple[int, int], PairLag] = {}
    for pair, lag in lags.items():
        seconds = now.at[pair[0]] - before.at[pair[0]]
        growth = (lag - lags_before[pair]) / seconds
        found[pair] = PairLag(lag, growth, written[pair] / seconds)
    return found


def find_blame(lags: Mapping[tuple[int, int], PairLag]) -> Blame:
    """One leader that all its followers are behind is slow; so is one follower that is behind all
    its leaders. A pair alone cannot tell, so both are named then, unless one of them explains more
    pairs than the other."""
    followers_of: dict[int, dict[int, bool]] = {}
    leaders_of: dict[int, dict[int, bool]] = {}
    for (leader, follower), lag in lags.items():
        followers_of.setdefault(leader, {})[follower] = lag.is_behind
        leaders_of.setdefault(follower, {})[leader] = lag.is_behind
    leaders = {broker: set(pairs) for broker, pairs in followers_of.items() if all(pairs.values())}
    followers = {broker: set(pairs) for broker, pairs in leaders_of.items() if all(pairs.values())}
    return Blame(_unexplained(leaders, followers), _unexplained(followers, leaders))


def _unexplained(
    suspects: Mapping[int, set[int]], others: Mapping[int, set[int]]
) -> frozenset[int]:
    """The suspects but those whose pairs are all explained by another one that has more pairs."""
    return frozenset(
        broker
        for broker, partners in suspects.items()
        if not all(len(others.get(partner, ())) > len(partners) for partner in partners)
    )
