"""Asks a cluster for what decisions about moves need: little each time, the rest now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Final, NamedTuple, TypeAlias

from trimtab.balance.observed import Observed, Replica, ShownPartition
from trimtab.balance.throttles import LISTS, RATES, ThrottledLists, mark_rate, read_lists
from trimtab.client.admin.answers import ConfigSource, LogDirectory, Reassignment
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError
from trimtab.kafka.records import TopicPartition

_MIN_ISR: Final = "min.insync.replicas"
_SIZES_S: Final = 5.0
"""Brokers sum their segments for each answer about sizes."""
_OPTIONS_S: Final = 300.0
_LEADERS_ASKED: Final = 2000


class ProbeReading(NamedTuple):
    """How well brokers answer, as something else measures it.

    Attributes:
        p99: by broker the 99th percentile of a probe's seconds.
        slow: brokers that get no leaders, and why: "is slow", say.
        before: the same percentile without moves; if missing it is that of the first reading.
    """

    p99: Mapping[int, float]
    slow: Mapping[int, str] = {}
    before: Mapping[int, float] = {}


Probe: TypeAlias = Callable[[], ProbeReading]


class MoveObserver:
    """Observes the partitions that are moved, and the rest of their cluster.

    Args:
        wanted: replicas by partition, the preferred leader first.
        probe: reads how well brokers answer.

    Attributes:
        notes: for people: what could not be observed.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        wanted: Mapping[TopicPartition, tuple[int, ...]],
        probe: Probe | None = None,
    ) -> None:
        self._admin = admin
        self._wanted = wanted
        self._probe = probe
        self._p99_before: dict[int, float] = {}
        self._rates: dict[int, tuple[int | None, int | None]] = {}
        self._rates_read: set[int] = set()
        self._lists: dict[str, ThrottledLists] = {}
        self._min_isr: dict[str, int] = {}
        self._options_s = 0.0
        self._sizes: dict[Replica, int] = {}
        self._sized: set[int] = set()
        self._room: dict[int, int] = {}
        self._sizes_s = 0.0
        self._ends: dict[TopicPartition, int] = {}
        self._changed: set[str] = set()
        self.notes: dict[str, None] = {}

    @property
    def rates(self) -> Mapping[int, tuple[int | None, int | None]]:
        """The throttles of live brokers that have any, as last read or changed."""
        return self._rates

    @property
    def lists(self) -> Mapping[str, ThrottledLists]:
        """The throttled replicas by topic, as last read."""
        return self._lists

    def note_rate(self, broker: int, rate: int) -> None:
        """A broker's throttle has been set."""
        self._rates[broker] = mark_rate(rate)

    def note_lists(self, topic: str) -> None:
        """A topic's lists have been changed."""
        self._changed.add(topic)

    def forget_rates(self, brokers: Iterable[int]) -> None:
        """Ask these brokers for their throttles again."""
        self._rates_read.difference_update(brokers)

    async def observe(self, given_up: Collection[TopicPartition] = ()) -> Observed:
        """One look at the cluster.

        Args:
            given_up: wanted partitions whose leaders are not to be elected any more.

        Raises:
            KafkaError: the cluster does not answer, or refuses.
        """
        admin, now_s = self._admin, asyncio.get_running_loop().time()
        # First what moves: if a move ends in between, the next look sees it.
        moving = await admin.list_reassignments()
        views = await admin.describe_topics()
        alive = frozenset(node.id for node in (await admin.cluster()).nodes)
        await self._read_options(views, moving, now_s)
        await self._read_rates(alive)
        shown = {
            each: _show(view, moving.get(each))
            for each in self._wanted.keys() | moving.keys()
            if (view := _find(views, each)) is not None
        }
        await self._read_sizes(shown, alive, now_s)
        under, behind = self._survey(views, moving, alive)
        probed = ProbeReading({}) if self._probe is None else self._probe()
        for broker, p99 in probed.p99.items():
            self._p99_before.setdefault(broker, probed.before.get(broker, p99))
        recovering = {
            broker: f"recovers: {count} of its replicas {'is' if count == 1 else 'are'} not in the"
            " ISR"
            for broker, count in behind.items()
        }
        return Observed(
            now_s=now_s,
            partitions={
                each: state._replace(size=self._size(each, state)) for each, state in shown.items()
            },
            counts={topic: view.partition_count for topic, view in views.items()},
            alive=alive,
            rates=dict(self._rates),
            lists={topic: lists for topic, lists in self._lists.items() if any(lists)},
            copied={
                (each, broker): self._sizes.get((each, broker), 0)
                for each, state in shown.items()
                for broker in state.adding
                if broker in self._sized
            },
            room=dict(self._room),
            lag=await self._ask_lag(shown, alive, given_up),
            p99={broker: (self._p99_before[broker], p99) for broker, p99 in probed.p99.items()},
            unwell=recovering | dict(probed.slow),
            under_min_isr=under,
        )

    def _size(self, partition: TopicPartition, shown: ShownPartition) -> int:
        size = self._sizes.get((partition, shown.leader))
        if size is None:
            size = max(
                (self._sizes.get((partition, each), 0) for each in shown.replicas), default=0
            )
        return size

    def _survey(
        self,
        views: Mapping[str, TopicView],
        moving: Mapping[TopicPartition, Reassignment],
        alive: frozenset[int],
    ) -> tuple[frozenset[TopicPartition], dict[int, int]]:
        """The partitions below min.insync.replicas, and by live broker how many of its replicas are
        not in the ISR, without those that are being added."""
        under = []
        behind: dict[int, int] = {}
        for topic, view in views.items():
            least = self._min_isr.get(topic, 1)
            for index, each in enumerate(view.partitions):
                in_sync = each.in_sync_replicas
                if len(in_sync) >= len(each.replicas):
                    continue
                partition = TopicPartition(topic, index)
                move = moving.get(partition)
                adding = move.adding if move is not None else ()
                if len(in_sync) < min(least, len(each.replicas) - len(adding)):
                    under.append(partition)
                for broker in alive.intersection(each.replicas) - {*in_sync, *adding}:
                    behind[broker] = behind.get(broker, 0) + 1
        return frozenset(under), behind

    # Options

    async def _read_options(
        self,
        views: Mapping[str, TopicView],
        moving: Collection[TopicPartition],
        now_s: float,
    ) -> None:
        """The lists of topics that move or have changed; of all topics if they are new, or every
        few minutes."""
        if now_s - self._options_s >= _OPTIONS_S or not self._min_isr:
            self._options_s = now_s
            topics = {*views}
        else:
            listed = {topic for topic, lists in self._lists.items() if any(lists)}
            new = views.keys() - self._min_isr.keys()
            topics = self._changed | listed | new | {each.topic for each in moving}
        asked = sorted(topics & views.keys())
        found = await self._admin.describe_topic_configs(asked, (*LISTS, _MIN_ISR))
        self._changed.clear()
        for topic, entries in found.items():
            options = {each.name: each.value for each in entries}
            self._lists[topic] = read_lists(options)
            self._min_isr[topic] = int(options.get(_MIN_ISR) or 1)

    async def _read_rates(self, alive: Set[int]) -> None:
        """The throttles of brokers that are new, or were not alive."""
        for gone in self._rates_read - alive:
            self._rates_read.discard(gone)
            self._rates.pop(gone, None)
        asked = sorted(alive - self._rates_read)
        answers = await asyncio.gather(
            *(self._admin.describe_configs("broker", broker) for broker in asked),
            return_exceptions=True,
        )
        for broker, entries in zip(asked, answers, strict=True):
            if isinstance(entries, BaseException):
                if not isinstance(entries, KafkaError):
                    raise entries
                # It is asked again with the next look.
                self.notes[f"broker {broker} does not tell its throttle: {entries}"] = None
                continue
            own = {
                each.name: int(each.value)
                for each in entries
                if each.source is ConfigSource.DYNAMIC_BROKER_CONFIG
                and each.name in RATES
                and each.value is not None
            }
            self._rates_read.add(broker)
            self._rates.pop(broker, None)
            if own:
                self._rates[broker] = own.get(RATES[0]), own.get(RATES[1])

    # Sizes and ends

    async def _read_sizes(
        self, shown: Mapping[TopicPartition, ShownPartition], alive: Set[int], now_s: float
    ) -> None:
        """At first of all brokers with wanted partitions, then of those that copy."""
        if not self._sizes_s:
            asked = {
                broker
                for partition, state in shown.items()
                for broker in (*state.replicas, *self._wanted.get(partition, ()))
            }
        elif now_s - self._sizes_s >= _SIZES_S:
            asked = {
                broker
                for state in shown.values()
                if state.is_moving
                for broker in (*state.adding, state.leader)
            }
        else:
            return
        brokers = sorted(asked & alive)
        answers = await asyncio.gather(
            *(self._admin.describe_log_dirs([broker]) for broker in brokers),
            return_exceptions=True,
        )
        self._sizes_s = now_s
        self._sized = set()
        for broker, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, KafkaError):
                    raise answer
                # Its sizes stay those of before.
                self.notes[f"broker {broker} does not tell the sizes of its logs: {answer}"] = None
                continue
            self._sized.add(broker)
            self._room.pop(broker, None)
            if (room := _find_room(answer[broker])) is not None:
                self._room[broker] = room
            for directory in answer[broker]:
                for partition, log in directory.logs.items():
                    if partition in shown and not log.is_future:
                        self._sizes[partition, broker] = log.size

    async def _ask_lag(
        self,
        shown: Mapping[TopicPartition, ShownPartition],
        alive: Set[int],
        given_up: Collection[TopicPartition],
    ) -> dict[Replica, int] | None:
        """Of wanted leaders that do not lead yet: how many records that the leader had at the look
        before they lack; 1 if the leader or they do not tell. None if no follower ever does."""
        asked = [
            (partition, state.leader, self._wanted[partition][0])
            for partition, state in shown.items()
            if partition in self._wanted
            and partition not in given_up
            and not state.is_moving
            and state.leader != self._wanted[partition][0]
            and {*state.replicas} == {*self._wanted[partition]}
            and self._wanted[partition][0] in alive & state.in_sync
        ][:_LEADERS_ASKED]
        if not asked:
            self._ends = {}
            return {}
        brokers: dict[int, list[TopicPartition]] = {}
        for partition, leader, follower in asked:
            for broker in (leader, follower):
                brokers.setdefault(broker, []).append(partition)
        ends = await self._admin.list_replica_ends(
            {broker: each for broker, each in brokers.items() if broker in alive}
        )
        before, self._ends = self._ends, {}
        lag: dict[Replica, int] = {}
        silent = 0
        for partition, leader, follower in asked:
            end = ends.get(leader, {}).get(partition)
            if isinstance(end, int):
                self._ends[partition] = end
            own = ends[follower][partition]
            if isinstance(own, BrokerError):
                lag[partition, follower] = 1
                silent += own.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition in before:
                lag[partition, follower] = max(0, before[partition] - own)
            elif partition not in self._ends:
                lag[partition, follower] = 1
        # Brokers that do not know the debugging replica answer as leaders only.
        return None if silent == len(asked) and self._ends else lag


def _find_room(directories: Iterable[LogDirectory]) -> int | None:
    """The bytes that a broker's volumes have free for new replicas; None if unknown. A broker
    chooses the directory itself, so with several one may be full earlier."""
    open_ones = [each for each in directories if each.error is None and not each.is_cordoned]
    # Directories on one volume tell the same bytes.
    volumes = {(each.total_bytes, each.usable_bytes) for each in open_ones}
    if any(usable < 0 for _, usable in volumes):
        return None
    return sum(usable for _, usable in volumes)


def _find(views: Mapping[str, TopicView], partition: TopicPartition) -> PartitionView | None:
    view = views.get(partition.topic)
    if view is None or not 0 <= partition.partition < view.partition_count:
        return None
    return view.partitions[partition.partition]


def _show(view: PartitionView, move: Reassignment | None) -> ShownPartition:
    """A partition as its brokers and, if it moves, the controller know it."""
    in_sync = frozenset(view.in_sync_replicas)
    if move is None:
        return ShownPartition(view.replicas, view.leader, in_sync)
    return ShownPartition(move.replicas, view.leader, in_sync, move.adding, move.removing)
