"""The interface of sources of sizes: requests and answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trimtab.errors import BrokerError
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece

CLIENT_ID: Final = "trimtab-spark-sizes"

FIXED: Final = {
    "auto.offset.reset": "none",
    # Tasks also read aborted transactions, so their bytes count. Tasks check CRCs.
    "isolation.level": "read_uncommitted",
    "check.crcs": "false",
}
"""Options of each source's consumer, which override the user's."""

POLL_MS: Final = 250
"""How long one `find` waits for an answer."""


class FoundSizes(NamedTuple):
    """Pieces of one partition, from the requested offset on.

    Attributes:
        rest: bytes after these pieces, up to the requested end; None if unknown.
    """

    partition: TopicPartition
    start: int
    pieces: Sequence[Piece]
    rest: int | None = None


class SizeRequest(NamedTuple):
    """The sizes to find in one partition: from `start`, of about `size` bytes, up to `end`."""

    start: int
    end: int
    size: int


class Source(Protocol):
    """A source of sizes. For one thread.

    Attributes:
        name: its name in the progress of a query.
        tails: whether `find` also waits for records that are written meanwhile.
        bytes_read: bytes read so far.
    """

    @property
    def name(self) -> str: ...

    @property
    def tails(self) -> bool: ...

    @property
    def bytes_read(self) -> int: ...

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        """Some of the wanted sizes, perhaps none; waits for a fraction of a second at most.

        Args:
            wanted: by partition, at least one.
            changed: partitions whose entry in `wanted` is new, changed, or gone since the last
                call; for a new source, all of them.

        Raises:
            KafkaError: no sizes can be found now.
        """

    def close(self) -> None: ...


def skip_deleted(
    partition: TopicPartition, start: int, earliest: int, error: BrokerError
) -> list[FoundSizes]:
    """An empty piece for deleted records; the tasks that read there report the loss.

    Raises:
        BrokerError: `start` is after the partition's end; `ClusterObserver` reports that loss.
    """
    if earliest <= start:
        raise error
    return [FoundSizes(partition, start, [Piece(earliest, 0)])]
