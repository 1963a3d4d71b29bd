"""What all sources of sizes have: requests, answers, and a consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from trimtab.client.blocking.consumer import Consumer
from trimtab.kafka.errors import BrokerError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import Piece

CLIENT_ID: Final = "trimtab-spark-sizes"

_FIXED: Final = {
    "auto.offset.reset": "none",
    # Tasks also read aborted transactions, so their bytes count. Tasks check CRCs.
    "isolation.level": "read_uncommitted",
    "check.crcs": "false",
}
"""Options of each source's consumer, which override the user's."""

POLL_MS: Final = 250
"""How long one `find` waits for an answer."""


class FoundSizes(NamedTuple):
    """Pieces of one partition, from the requested offset on."""

    partition: TopicPartition
    start: int
    pieces: Sequence[Piece]


class SizeRequest(NamedTuple):
    """The sizes to find in one partition: from `start`, of about `size` bytes, up to `end`."""

    start: int
    end: int
    size: int


class SizeSource(ABC):
    """A source of sizes. For one thread.

    Args:
        client: the consumer's options.
        limits: options of the source's consumer, which override the user's.

    Attributes:
        name: its name in the progress of a query.
        tails: whether `find` also waits for records that are written meanwhile.
        bytes_read: bytes read so far.

    Raises:
        UsageError: an invalid option of the client.
    """

    name: str
    tails = False
    bytes_read = 0

    def __init__(
        self, client: Mapping[str, str], limits: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._consumer = Consumer({"client.id": CLIENT_ID, **client, **limits, **_FIXED})

    @abstractmethod
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

    def close(self) -> None:
        self._consumer.close()


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
