"""What a source of sizes is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trimtab.errors import BrokerError
from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece

CLIENT_ID: Final = "trimtab-spark-sizes"

FIXED: Final = {
    "auto.offset.reset": "none",
    # What was aborted costs as much to read; CRCs are the tasks' business.
    "isolation.level": "read_uncommitted",
    "check.crcs": "false",
}
"""Options that each source's consumer has, whatever the user says."""

POLL_MS: Final = 250
"""How long one look waits for an answer."""


class Found(NamedTuple):
    """Pieces of one partition, from where they were asked for on.

    Attributes:
        rest: bytes behind these, up to the end that was asked for; None where nobody knows.
    """

    partition: TopicPartition
    start: int
    pieces: Sequence[Piece]
    rest: int | None = None


class Wanted(NamedTuple):
    """What to look for in one partition: from `start` on, about `size` bytes, up to `end`."""

    start: int
    end: int
    size: int


class Source(Protocol):
    """Where sizes come from. For one thread.

    Attributes:
        name: what the progress of a query calls it.
        tails: whether `look` waits for what is written while it waits.
        bytes_read: bytes that it has cost so far.
    """

    @property
    def name(self) -> str: ...

    @property
    def tails(self) -> bool: ...

    @property
    def bytes_read(self) -> int: ...

    def look(
        self, wanted: Mapping[TopicPartition, Wanted], changed: Collection[TopicPartition]
    ) -> list[Found]:
        """Some of what is wanted, perhaps nothing; waits for a fraction of a second at most.

        Args:
            wanted: by partition, at least one.
            changed: those of which something else is wanted than at the last look, or nothing
                more. A new source has seen none.

        Raises:
            KafkaError: nothing can be learned now.
        """

    def close(self) -> None: ...


def pass_over(
    partition: TopicPartition, start: int, earliest: int, error: BrokerError
) -> list[Found]:
    """Of what has been deleted nothing lies ahead; tasks find out, and say so.

    Raises:
        BrokerError: `start` lies beyond the end; who asks where the partition ends finds out.
    """
    if earliest <= start:
        raise error
    return [Found(partition, start, [Piece(earliest, 0)])]
