"""What the driver of a stream asks the cluster: which partitions there are, and where they end.

One client, kept for the life of the query. Errors that may pass are its own business for a few
seconds; then they are the caller's, which has to decide whether the query may wait.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.blocking.admin import Admin
from trimtab.client.options import ADMIN
from trimtab.client.topic_view import TopicView
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.spark.options.source import SourceOptions
from trimtab.spark.stream.offsets import show_id

KNOWN_SECONDS: Final = 1.0
"""For so long it is not asked again which topics and partitions there are."""

_TIMEOUT_MS: Final = "10000"
"""For one question, unless the user says otherwise: until then nothing else can be said."""


class Known(NamedTuple):
    """The partitions that a stream reads.

    Attributes:
        ids: of their topics, as far as they have any.
        leaders: of each topic, by number of the partition; -1 where there is none now.
    """

    partitions: tuple[TopicPartition, ...]
    ids: Mapping[str, str]
    leaders: Mapping[str, tuple[int, ...]]


class StreamTopics:
    """Answers of the cluster to one stream's driver. For one thread at a time.

    Args:
        options: which topics, and how to reach the cluster.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        given = {name: value for name, value in options.client.items() if name in ADMIN}
        given = {"client.id": "trimtab-spark", "default.api.timeout.ms": _TIMEOUT_MS, **given}
        self._admin = Admin(**given)
        self._committed = options.client.get("isolation.level", "read_uncommitted")
        self._known: Known | None = None
        self._known_at = 0.0

    def known(self, refresh: bool = False) -> Known:
        """What there is to read; at most `KNOWN_SECONDS` old unless `refresh`.

        A topic that is named in the options and is not there has no partitions.

        Raises:
            KafkaError: the cluster cannot be asked, or refuses.
        """
        now = time.monotonic()
        if self._known is None or refresh or now - self._known_at > KNOWN_SECONDS:
            self._known = self._look()
            self._known_at = now
        return self._known

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is there, of each."""
        return self._find(partitions, "earliest")

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read, of each."""
        return self._find(partitions, "latest")

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time (ms since the epoch); None where there is none."""
        found: dict[TopicPartition, int | None] = {}
        for time_ms in sorted(set(times.values())):
            asked = [each for each, at in times.items() if at == time_ms]
            offsets = self._find(asked, time_ms)
            found |= {each: offset if offset >= 0 else None for each, offset in offsets.items()}
        return found

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a consumer group, for tools that show lag.

        Raises:
            KafkaError: the cluster has no groups, or does not take them.
        """
        self._admin.alter_group_offsets(group, {each: offset for each, offset in offsets.items()})

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
