"""What a decision of the coordinator leads to: records to append, and responses to send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.group_records import Key, Value, encode_key, encode_value
from trimtab.kafka.wire.messages.transaction_records import TransactionLogValue, encode_transaction

BATCH_OVERHEAD: Final = 61
"""Bytes of a batch without records."""
_RECORD_OVERHEAD: Final = 32
"""Bytes of a record beside its key and its value, at most."""


class Now(NamedTuple):
    """The time of a decision: monotonic in seconds, for deadlines, and wall clock in ms, for
    records."""

    s: float
    ms: int


class Caller(NamedTuple):
    """Who sent a request.

    Attributes:
        request: what the response is for; handed back with it.
        version: of the API.
        client_id: the client's name.
        host: its address.
    """

    request: Any
    version: int
    client_id: str
    host: str


class RequestRefused(Exception):
    """A request is answered with an error code; nothing of its decision remains."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RecordTooLarge(RequestRefused):
    """A decision needs a larger batch than the log takes. The code is that of Kafka."""

    def __init__(self, what: str, size: int, most: int, advice: str) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{what} needs a batch of {size} bytes, and max.message.bytes of the coordinator's "
            f"topic is {most}. {advice}, or a larger value of that option.",
        )


class CoordinatorRecord(NamedTuple):
    """A record of the log, also as the bytes of its key and its value.

    Attributes:
        key: of a group's record, or a transactional id.
    """

    key: Key | str
    value: Value | TransactionLogValue | None
    encoded_key: bytes
    encoded_value: bytes | None

    @property
    def size(self) -> int:
        """Its bytes in a batch, at most."""
        return _RECORD_OVERHEAD + len(self.encoded_key) + len(self.encoded_value or b"")


class Ending(NamedTuple):
    """A transaction whose outcome is certain: markers are to be written.

    Attributes:
        producer_epoch: of the markers.
        version: of transactions.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[TopicPartition]
    version: int


class Effects:
    """What decisions lead to, until it is taken.

    A response may be sent once the records that were appended up to its decision are committed,
    also those of earlier decisions: it may have been made on their ground.

    Args:
        max_batch: bytes of the largest batch that the log takes now.

    Attributes:
        records: in the order in which they are to be appended.
        responses: each with the `request` of its caller.
        endings: transactions to end once the records are committed.
        cuts: positions in `records` where another batch may begin. Records between two of them
            belong into one batch, unless they are too many for one.
        whole: bytes of the batch that must hold all records of this decision, so far; None: each
            record may be in a batch of its own.
        producer: whose transaction the records are part of; None: of none.
        warnings: for the operator.
    """

    __slots__ = (
        "cuts",
        "endings",
        "max_batch",
        "producer",
        "records",
        "responses",
        "warnings",
        "whole",
    )

    def __init__(self, max_batch: Callable[[], int]) -> None:
        self.max_batch = max_batch
        self.records: list[CoordinatorRecord] = []
        self.responses: list[tuple[Any, Any]] = []
        self.endings: list[Ending] = []
        self.cuts: list[int] = []
        self.whole: int | None = None
        self.producer: ProducerIdAndEpoch | None = None
        self.warnings: list[str] = []

    def append_group_record(self, key: Key, value: Value | None) -> None:
        """Add a record of a group.

        Raises:
            RecordTooLarge: no batch takes it.
        """
        self._add(
            CoordinatorRecord(key, value, encode_key(key), encode_value(value)),
            f"The group is too large: {type(key).__name__[:-3]}",
            "Use fewer members, topics or partitions in the group",
        )

    def append_transaction(
        self, transactional_id: str, value: TransactionLogValue | None, reserved: int = 0
    ) -> None:
        """Add a record of a transactional id.

        Args:
            reserved: bytes that a later record of it may have in addition.

        Raises:
            RecordTooLarge: no batch takes it, or the later one.
        """
        self._add(
            CoordinatorRecord(
                transactional_id, value, *encode_transaction(transactional_id, value)
            ),
            f"The transaction of {transactional_id!r} is too large: it",
            "Use fewer partitions in the transaction",
            reserved,
        )

    def _add(self, record: CoordinatorRecord, what: str, advice: str, reserved: int = 0) -> None:
        size = record.size + (BATCH_OVERHEAD if self.whole is None else self.whole)
        most = self.max_batch()
        if size + reserved > most:
            raise RecordTooLarge(what, size + reserved, most, advice)
        if self.whole is not None:
            self.whole = size
        self.records.append(record)

    def respond(self, caller: Caller, response: object) -> None:
        """Add the response to a request."""
        self.responses.append((caller.request, response))

    def cut(self) -> None:
        """Let another batch begin here, if need be."""
        self.cuts.append(len(self.records))

    def take(self) -> Effects:
        """Hand over what there is, and begin again."""
        taken = Effects(self.max_batch)
        taken.records, self.records = self.records, []
        taken.responses, self.responses = self.responses, []
        taken.endings, self.endings = self.endings, []
        taken.cuts, self.cuts = self.cuts, []
        taken.producer, self.producer = self.producer, None
        taken.warnings, self.warnings = self.warnings, []
        return taken
