"""A stream driver's requests to the cluster, for partitions and their offsets.

One client serves the query until it ends. It retries temporary errors for a few seconds and then
raises them; the caller decides whether the query waits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.client.blocking.admin import Admin
from trimtab.client.options import ADMIN
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.source import SourceOptions
from trimtab.spark.stream.offsets import show_id

KNOWN_SECONDS: Final = 1.0
"""Topics and partitions are requested again after this time."""

_TIMEOUT_MS: Final = "10000"
"""Default time limit of one request: the query reports nothing while it waits."""


class Known(NamedTuple):
    """The partitions that a stream reads.

    Attributes:
        ids: by topic, its id; topics without an id are missing.
        leaders: by topic, the leader's broker id of each partition; -1 if it has none now.
    """

    partitions: tuple[TopicPartition, ...]
    ids: Mapping[str, str]
    leaders: Mapping[str, tuple[int, ...]]


class StreamTopics:
    """Requests of one stream's driver. For one thread at a time.

    Args:
        options: the topics, and the options of the client.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        given = {name: value for name, value in options.client.items() if name in ADMIN}
        given = {"client.id": "trimtab-spark", "default.api.timeout.ms": _TIMEOUT_MS, **given}
        self._admin = Admin(given)
        self._committed = options.client.get("isolation.level", "read_uncommitted")
        self._known: Known | None = None
        self._known_at = 0.0

    def known(self, refresh: bool = False) -> Known:
        """The partitions to read; at most `KNOWN_SECONDS` old, or requested now if `refresh`.

        A topic of the options that does not exist has no partitions.

        Raises:
            KafkaError: the cluster cannot be reached, or refuses.
        """
        now = time.monotonic()
        if self._known is None or refresh or now - self._known_at > KNOWN_SECONDS:
            self._known = self._look()
            self._known_at = now
        return self._known

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first available offset of each."""
        return self._find(partitions, "earliest")

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each."""
        return self._find(partitions, "latest")

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time (ms since the epoch); None if there is none."""
        found: dict[TopicPartition, int | None] = {}
        for time_ms in sorted(set(times.values())):
            asked = [each for each, at in times.items() if at == time_ms]
            offsets = self._find(asked, time_ms)
            found |= {each: offset if offset >= 0 else None for each, offset in offsets.items()}
        return found

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a consumer group, for tools that show lag.

        Raises:
            KafkaError: the cluster does not support groups, or refuses the offsets.
        """
        self._admin.alter_group_offsets(group, {each: offset for each, offset in offsets.items()})

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a consumer group.

        Raises:
            KafkaError: as `commit`.
        """
        found = self._admin.list_group_offsets(group)
        return {each: committed.offset for each, committed in found.items()}

    def close(self) -> None:
        self._admin.close()

    def _find(
        self, partitions: Iterable[TopicPartition], at: str | int
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        if not wanted:
            return {}
        found = self._admin.list_offsets(wanted, at, self._committed)  # type: ignore[arg-type]
        return {partition: each.offset for partition, each in found.items()}

    def _look(self) -> Known:
        options = self._options
        assigned = {each.topic for each in options.partitions}
        names = sorted(assigned or options.topics)
        if options.pattern:
            names = [name for name in self._admin.topics() if re.search(options.pattern, name)]
        described = self._describe(names)
        there = [
            TopicPartition(name, number)
            for name, topic in sorted(described.items())
            for number in range(topic.partition_count)
        ]
        if assigned:
            there = sorted(set(there).intersection(options.partitions))
        ids = {name: show_id(topic.topic_id) for name, topic in described.items()}
        leaders = {name: topic.leaders for name, topic in described.items()}
        return Known(tuple(there), {name: each for name, each in ids.items() if each}, leaders)

    def _describe(self, names: list[str]) -> dict[str, TopicView]:
        left = list(names)
        while left:
            try:
                return self._admin.describe_topics(left)
            except BrokerError as error:
                gone = [name for name in left if error.subject == f"topic {name}"]
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not gone:
                    raise
                left.remove(gone[0])
        return {}
