"""Moves that bring a partition into its member's rack, and leave all numbers of partitions as they
are: along rings of members, or chains from one member to another that has one less.

Members with the same topics and the same rack are a *group*: they can swap any partitions. Topics
with the same subscribers and partitions with replicas in the same racks are of one *kind*: which of
them moves makes no difference. So the search for racks goes from group to group by kinds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from trimtab.balance.members import Group, Partition, TopicKey


class Kind(NamedTuple):
    """What partitions have alike that may take each other's place.

    Attributes:
        classes: those of the members that subscribe to it.
        racks: those of its replicas.
    """

    classes: frozenset[int]
    racks: frozenset[str]


Step: TypeAlias = tuple[Group, Kind | None]
"""A group through which partitions move, and the kind that it gives on; None at the end."""


class _Pool:
    """Partitions of one kind in one group; first those that are not with their owner."""

    def __init__(self) -> None:
        self._away: dict[Partition, None] = {}
        self._home: dict[Partition, None] = {}

    def __bool__(self) -> bool:
        return bool(self._away or self._home)

    def __iter__(self) -> Iterator[Partition]:
        """Of a copy: the pool may change meanwhile."""
        return iter([*self._away, *self._home])

    def add(self, partition: Partition, is_home: bool) -> None:
        (self._home if is_home else self._away)[partition] = None

    def discard(self, partition: Partition) -> None:
        self._away.pop(partition, None)
        self._home.pop(partition, None)

    def first(self) -> Partition:
        return next(iter(self._away or self._home))


class Groups:
    """The partitions of each group by their kind, and its members by their number of partitions.

    Attributes:
        group_of: by place the member's group.
        pools: by group and kind the partitions.
    """

    def __init__(
        self,
        group_of: Sequence[Group],
        topic_classes: Mapping[TopicKey, list[int]],
        racks_of: Callable[[Partition], Collection[str]],
    ) -> None:
        self._racks_of = racks_of
        self._topics_of = {name: frozenset(numbers) for name, numbers in topic_classes.items()}
        self.group_of = group_of
        self.pools: dict[Group, dict[Kind, _Pool]] = {group: {} for group in self.group_of}
        self._by_class: dict[int, list[Group]] = {}
        for group in self.pools:
            self._by_class.setdefault(group.topics, []).append(group)
        self._of_kind: dict[frozenset[int], list[Group]] = {}
        self._by_load: dict[Group, dict[int, dict[int, None]]] = {group: {} for group in self.pools}
        self._load: dict[int, int] = {}

    def set_load(self, place: int, load: int) -> None:
        by_load = self._by_load[self.group_of[place]]
        if place in self._load:
            del by_load[self._load[place]][place]
        self._load[place] = load
        by_load.setdefault(load, {})[place] = None

    def find_pair(self, group: Group, member: int) -> tuple[int, int]:
        """A member of this group, and one of the other member's group that has one partition more:
        the other member itself, if that is possible.

        Raises:
            LookupError: there is no such pair.
        """
        fewer, load = self._by_load[group], self._load[member]
        if fewer.get(load - 1):
            return next(iter(fewer[load - 1])), member
        for other_load, members in sorted(self._by_load[self.group_of[member]].items()):
            if members and fewer.get(other_load - 1):
                return next(iter(fewer[other_load - 1])), next(iter(members))
        raise LookupError(f"no member of {group} has one partition less than one of the others")

    def add_to_pool(self, partition: Partition, place: int, is_home: bool) -> None:
        pools = self.pools[self.group_of[place]]
        pools.setdefault(self._kind(partition), _Pool()).add(partition, is_home)

    def discard_from_pool(self, partition: Partition, place: int) -> None:
        self.pools[self.group_of[place]][self._kind(partition)].discard(partition)

    def far(self) -> list[tuple[Group, Kind]]:
        """The groups with the kinds that they read from other racks."""
        return [
            (group, kind)
            for group, pools in self.pools.items()
            for kind, pool in pools.items()
            if pool and _is_far(kind, group)
        ]

    def find_ring(self, start: Group, kind: Kind) -> tuple[list[Step], int]:
        """The groups through which partitions move so that one of this kind comes near and no other
        one gets far, each with the kind that it gives on; empty if there are none.

        The path is a ring that ends where it began, or a chain that ends in a group with a member
        that has one partition less than one of the first group. A ring may also be of two chains:
        where one ends, None is given on, and the next begins in the group behind it.

        Returns:
            The path, and the number of steps that the search took.
        """
        came_from: dict[Group, tuple[Group, Kind | None]] = {}
        queue = deque([start])
        ended: set[int] = set()
        steps = 0

        def reach(each: Group, group: Group, by: Kind | None) -> Group | None:
            """The group where the path ends, if it can end behind this one."""
            nonlocal steps
            came_from[each] = (group, by)
            if by is not None and self._has_fewer(each, start):
                return each
            for last in self._gives(each, by):
                steps += 1
                if start.topics in last.classes and _is_far(last, start) <= _is_far(last, each):
                    came_from[start] = (each, last)
                    return start
            queue.append(each)
            return None

        while queue:
            group = queue.popleft()
            for by in [kind] if group == start else self._gives(group, came_from[group][1]):
                is_far = group != start and _is_far(by, group)
                for next_group in self._groups_of(by):
                    steps += 1
                    if (
                        next_group == start
                        or next_group in came_from
                        or _is_far(by, next_group) > is_far
                    ):
                        continue
                    if (end := reach(next_group, group, by)) is not None:
                        return self._follow(came_from, start, end), steps
            if group == start or came_from[group][1] is None:
                continue
            for load, members in self._by_load[group].items():
                if not members or load in ended:
                    continue
                ended.add(load)
                for next_group, by_load in self._by_load.items():
                    steps += 1
                    if next_group == start or next_group in came_from or not by_load.get(load + 1):
                        continue
                    if (end := reach(next_group, group, None)) is not None:
                        return self._follow(came_from, start, end), steps
        return [], steps

    def _has_fewer(self, group: Group, start: Group) -> bool:
        """Whether a member of the group has one partition less than one of the first group."""
        fewer = self._by_load[group]
        return any(
            members and fewer.get(load - 1) for load, members in self._by_load[start].items()
        )

    def _gives(self, group: Group, gets: Kind | None) -> list[Kind]:
        """The kinds that the group can give on for one of this kind."""
        return [kind for kind, pool in self.pools[group].items() if pool and kind != gets]

    def _follow(
        self, came_from: Mapping[Group, tuple[Group, Kind | None]], start: Group, end: Group
    ) -> list[Step]:
        path: list[Step] = [(end, None)]
        group, by = came_from[end]
        while group != start:
            path.append((group, by))
            group, by = came_from[group]
        return path[::-1]

    def _groups_of(self, kind: Kind) -> list[Group]:
        """The groups that may have partitions of this kind."""
        found = self._of_kind.get(kind.classes)
        if found is None:
            found = self._of_kind[kind.classes] = [
                group for number in sorted(kind.classes) for group in self._by_class[number]
            ]
        return found

    def _kind(self, partition: Partition) -> Kind:
        return Kind(self._topics_of[partition[0]], frozenset(self._racks_of(partition)))


def _is_far(kind: Kind, group: Group) -> bool:
    return group.rack is not None and bool(kind.racks) and group.rack not in kind.racks
