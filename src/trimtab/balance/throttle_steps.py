"""The next changes of throttles: to what the moves in progress need, and no more.

A rate with our mark is ours. Throttled replicas are ours if their partition is wanted, or if their
broker has such a rate from a run that was killed: rates are set before lists, and removed after.
Those of others stay and are named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from trimtab.balance.observed import Observed
from trimtab.balance.throttles import (
    ALL_REPLICAS,
    CopyEnds,
    ThrottledLists,
    is_marked,
    list_pairs,
    mark_rate,
    read_pair,
)
from trimtab.kafka.records import TopicPartition

_NONE = ThrottledLists()


class ThrottleSteps:
    """The throttles that a cluster shows, beside those that our moves need.

    Args:
        wanted: the partitions whose throttled replicas are ours.
        copies: our moves, those in progress and those that begin now.
        foreign: the partitions in reassignments of others.
        rated, inherited: as they were found last.

    Attributes:
        rated: the brokers whose rates are ours. One that is not alive may return with its rate.
        inherited: those whose rates an earlier run has left.
        notes: for people: what of others was found.
    """

    def __init__(
        self,
        wanted: Collection[TopicPartition],
        observed: Observed,
        copies: Mapping[TopicPartition, CopyEnds],
        foreign: Collection[TopicPartition],
        rated: Set[int] = frozenset(),
        inherited: Set[int] = frozenset(),
    ) -> None:
        self._wanted = wanted
        self._seen = observed
        self._needed = list_pairs(copies)
        self._foreign = foreign
        marked = frozenset(each for each, rates in observed.rates.items() if is_marked(rates))
        self.rated = marked.union(rated - observed.alive)
        self.inherited = (marked - rated).union(inherited)
        self.notes: list[str] = []

    def find_stale(self) -> dict[str, ThrottledLists]:
        """By topic what is to be subtracted, since it does not move, or no longer. Empty lists stay
        set: who removes the option may remove what others have added meanwhile."""
        moving = {each.topic for each in self._foreign}
        found = {}
        for topic, lists in self._seen.lists.items():
            stale: list[tuple[int, str]] = []
            others: list[tuple[int, str]] = []
            for side, entries in enumerate(lists):
                needed = frozenset(self._needed.get(topic, _NONE)[side])
                for entry in entries:
                    pair = read_pair(entry)
                    if pair is None:
                        if topic not in moving:
                            others.append((side, entry))
                        continue
                    partition = TopicPartition(topic, pair[0])
                    if entry not in needed and partition not in self._foreign:
                        is_ours = partition in self._wanted or pair[1] in self.inherited
                        (stale if is_ours else others).append((side, entry))
            if others:
                names = name_some({entry for _, entry in others})
                self.notes.append(f"topic {topic} has throttled replicas of others: {names}")
            if stale:
                found[topic] = _gather(stale)
        return found

    def find_reverted(self, listed: Iterable[TopicPartition]) -> frozenset[str]:
        """The topics whose lists someone has shortened, as operators of topics do.

        Args:
            listed: partitions whose throttled replicas were listed a while ago.
        """
        due = frozenset(listed)
        found = set()
        for topic, lists in self._needed.items():
            pairs = [read_pair(entry) for _, entry in self._missing(topic, lists)]
            if any(pair and TopicPartition(topic, pair[0]) in due for pair in pairs):
                found.add(topic)
                self.notes.append(
                    f"topic {topic}: someone has removed its throttled replicas, so only the bytes "
                    "in flight limit its moves"
                )
        return frozenset(found)

    def find_missing(self, reverted: Set[str]) -> dict[str, ThrottledLists]:
        """By topic what is to be appended; nothing where it would be removed again."""
        return {
            topic: _gather(missing)
            for topic, lists in self._needed.items()
            if topic not in reverted and (missing := self._missing(topic, lists))
        }

    def change_rates(self, limits: Mapping[int, int]) -> dict[int, int]:
        """The rates to be set; those of others stay, and hold for our moves, too.

        Args:
            limits: by broker the bytes/s that our moves need.
        """
        changes = {}
        for broker, limit in sorted(limits.items()):
            present = self._seen.rates.get(broker)
            if broker not in self._seen.alive:
                self.notes.append(f"broker {broker} is not alive, and so gets no throttle")
            elif present is not None and broker not in self.rated:
                self._note_rate(broker)
            elif present != mark_rate(limit):
                changes[broker] = limit
        return changes

    def find_needless(self) -> tuple[int, ...]:
        """The brokers whose rates are ours, and that no throttled move of others needs."""
        needed = {
            pair[1]
            for topic, lists in self._seen.lists.items()
            for entries in lists
            for pair in map(read_pair, entries)
            if pair is not None and TopicPartition(topic, pair[0]) in self._foreign
        }
        needless = self.rated & self._seen.rates.keys() - needed
        for broker in sorted(self._seen.rates.keys() - needless):
            self._note_rate(broker)
        return tuple(sorted(needless))

    def _missing(self, topic: str, needed: ThrottledLists) -> list[tuple[int, str]]:
        """By side the entries that are not listed."""
        found = []
        lists = self._seen.lists.get(topic, _NONE)
        for side, (entries, listed) in enumerate(zip(needed, lists, strict=True)):
            known = frozenset(listed)
            if ALL_REPLICAS not in known:
                found += [(side, entry) for entry in entries if entry not in known]
        return found

    def _note_rate(self, broker: int) -> None:
        sends, receives = self._seen.rates[broker]
        self.notes.append(
            f"broker {broker} keeps a throttle of others: {sends} bytes/s as leader, {receives} as "
            "follower"
        )


def _gather(entries: Iterable[tuple[int, str]]) -> ThrottledLists:
    sides: tuple[list[str], list[str]] = ([], [])
    for side, entry in entries:
        sides[side].append(entry)
    return ThrottledLists(tuple(sides[0]), tuple(sides[1]))


def name_some(things: Iterable[object]) -> str:
    """The first three in order, and how many more there are."""
    names = sorted(map(str, things))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
