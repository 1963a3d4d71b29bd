"""The topic options that apply to logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trimtab.cluster.config import BROKER, TOPIC
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_indexes import INDEX_ENTRY_BYTES
from trimtab.kafka.options import LONG_MAX, Config, Value
from trimtab.kafka.wire.batch_cy import OPENED_LIMIT
from trimtab.kafka.wire.checksum import crc32c

_INT32_MAX = 2**31 - 1
_DEFAULTS = Config(BROKER.defaults() | TOPIC.defaults())


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's options that concern its logs, by Kafka's names. Sizes in bytes, times in ms."""

    segment_bytes: int = _DEFAULTS.integer("segment.bytes")
    segment_ms: int = _DEFAULTS.integer("segment.ms")
    segment_jitter_ms: int = _DEFAULTS.integer("segment.jitter.ms")
    segment_index_bytes: int = _DEFAULTS.integer("segment.index.bytes")
    index_interval_bytes: int = _DEFAULTS.integer("index.interval.bytes")
    retention_ms: int = _DEFAULTS.integer("retention.ms")
    """-1 for no limit."""
    retention_bytes: int = _DEFAULTS.integer("retention.bytes")
    """-1 for no limit."""
    deletes: bool = "delete" in _DEFAULTS.words("cleanup.policy")
    """Whether `cleanup.policy` includes "delete"; otherwise retention deletes nothing."""
    compacts: bool = "compact" in _DEFAULTS.words("cleanup.policy")
    """Whether `cleanup.policy` includes "compact"."""
    min_cleanable_dirty_ratio: float = _DEFAULTS.number("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _DEFAULTS.integer("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _DEFAULTS.integer("max.compaction.lag.ms")
    delete_retention_ms: int = _DEFAULTS.integer("delete.retention.ms")
    flush_messages: int = _DEFAULTS.integer("flush.messages")
    flush_ms: int = _DEFAULTS.integer("flush.ms")
    max_message_bytes: int = _DEFAULTS.integer("max.message.bytes")
    producer_id_expiration_ms: int = _DEFAULTS.integer("producer.id.expiration.ms")
    producer_ids_max: int = _DEFAULTS.integer("producer.ids.max")

    roll_ms: int = field(init=False, repr=False)
    """Age at which a segment is sealed, without jitter."""
    earliest_roll_ms: int = field(init=False, repr=False)
    """The same with the largest possible jitter."""
    index_entries: int = field(init=False, repr=False)
    """Entries that fit into an offset index."""
    index_full_bytes: int = field(init=False, repr=False)
    """Segment size below which its index cannot be full."""
    unpacked_limit: int = field(init=False, repr=False)
    """Decompressed size limit of a compacted topic's batch; at least `max_message_bytes`."""
    flushes_early: bool = field(init=False, repr=False)
    """Whether `flush.messages` or `flush.ms` is set."""

    @classmethod
    def read(
        cls,
        topic: Mapping[str, Value],
        producer_id_expiration_ms: int = _DEFAULTS.integer("producer.id.expiration.ms"),
        producer_ids_max: int = _DEFAULTS.integer("producer.ids.max"),
    ) -> LogConfig:
        """Read a topic's options, given completely, by their dotted names."""
        options = Config(topic)
        policy = options.words("cleanup.policy")
        return cls(
            segment_bytes=options.integer("segment.bytes"),
            segment_ms=options.integer("segment.ms"),
            segment_jitter_ms=options.integer("segment.jitter.ms"),
            segment_index_bytes=options.integer("segment.index.bytes"),
            index_interval_bytes=options.integer("index.interval.bytes"),
            retention_ms=options.integer("retention.ms"),
            retention_bytes=options.integer("retention.bytes"),
            deletes="delete" in policy,
            compacts="compact" in policy,
            min_cleanable_dirty_ratio=options.number("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=options.integer("min.compaction.lag.ms"),
            max_compaction_lag_ms=options.integer("max.compaction.lag.ms"),
            delete_retention_ms=options.integer("delete.retention.ms"),
            flush_messages=options.integer("flush.messages"),
            flush_ms=options.integer("flush.ms"),
            max_message_bytes=options.integer("max.message.bytes"),
            producer_id_expiration_ms=producer_id_expiration_ms,
            producer_ids_max=producer_ids_max,
        )

    def __post_init__(self) -> None:
        roll_ms = self.segment_ms
        if self.compacts:
            roll_ms = min(roll_ms, self.max_compaction_lag_ms)
        entries = max(self.segment_index_bytes // INDEX_ENTRY_BYTES, 1)
        # The class is frozen; these fields are derived from the others.
        object.__setattr__(self, "roll_ms", roll_ms)
        object.__setattr__(self, "earliest_roll_ms", roll_ms - min(self.segment_jitter_ms, roll_ms))
        object.__setattr__(self, "index_entries", entries)
        object.__setattr__(self, "index_full_bytes", entries * self.index_interval_bytes)
        object.__setattr__(self, "unpacked_limit", max(OPENED_LIMIT, self.max_message_bytes))
        is_set = self.flush_messages != LONG_MAX or self.flush_ms != LONG_MAX
        object.__setattr__(self, "flushes_early", is_set)

    def must_roll(
        self,
        active: Segment,
        size: int,
        next_offset: int,
        max_timestamp: int,
        now_ms: Callable[[], int],
    ) -> bool:
        """Whether the active segment must be sealed before batches are appended.

        Args:
            size: bytes of the batches to append.
            next_offset: the offset after their last record.
            max_timestamp: their largest timestamp, ms; -1 if none has one.
            now_ms: the wall clock.
        """
        if next_offset - 1 - active.base_offset > _INT32_MAX:
            return True
        if not active.size:
            return size > self.segment_bytes
        if active.size + size > self.segment_bytes:
            return True
        if active.size >= self.index_full_bytes and active.index_entries >= self.index_entries:
            return True
        first = active.first_timestamp
        if first >= 0 and max_timestamp >= 0:
            age = max_timestamp - first
        else:
            age = now_ms() - active.created_ms
        if age <= self.earliest_roll_ms:
            return False
        jitter = self.roll_ms - self.earliest_roll_ms
        if not jitter:
            return True
        # A hash as jitter, so that it is the same at every check of this segment.
        return age > self.roll_ms - crc32c(active.path("").encode("utf-8")) % jitter
