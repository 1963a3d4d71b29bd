"""Every error trimtab raises, and the one table of Kafka's error codes.

    KafkaError
    ├── UsageError     the caller broke a rule; never retried
    ├── CorruptData    malformed bytes: a frame, a message, a batch
    ├── NotSerialized    a producer's serializer refused an object
    ├── NotDeserialized    a consumer's deserializer refused a record
    ├── Unavailable    no answer in time, or the connection was lost; the request may be carried out
    ├── DataLoss    records that should have been read are gone
    ├── AuthenticationFailed    client or broker refused the other's identity; never retried
    ├── BrokerError    a broker refused the request, with one of Kafka's codes
    └── TransactionError   a transaction cannot be committed: abort it, or close the producer

Handlers return codes as values inside responses; only the public API raises.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than the rest of this module
    from typing import Any


class ErrorCode(IntEnum):
    """Kafka's error codes, by their names in `org.apache.kafka.common.protocol.Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def retriable(self) -> bool:
        """Whether sending the same request again can succeed."""
        return self in _RETRIABLE

    @property
    def refreshes_metadata(self) -> bool:
        """Whether it shows that the client's metadata are out of date."""
        return self in _REFRESHES_METADATA


def error_code(number: int) -> ErrorCode:
    """The code for a number from the wire; UNKNOWN_SERVER_ERROR for an unknown number."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


_REFRESHES_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

_RETRIABLE = _REFRESHES_METADATA | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}


class KafkaError(Exception):
    """The base class of all errors that trimtab raises on purpose."""


class UsageError(KafkaError, ValueError):
    """The caller broke a rule. Names the thing, the value and the fix; never retried."""


class CorruptData(KafkaError):
    """Malformed bytes. They close one connection or fail one batch, never the broker."""


class NotSerialized(KafkaError):
    """A serializer raised an error, which is the cause of this one. Nothing was sent.

    Attributes:
        topic: the topic that the record was for.
        part: which part of it the serializer refused, `key` or `value`.
    """

    def __init__(self, topic: str, part: str, error: BaseException) -> None:
        self.topic = topic
        self.part = part
        self._error = error
        super().__init__(
            f"topic {topic}: the serializer of the {part} raised {type(error).__name__}: {error};"
            " the record was not sent"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return NotSerialized, (self.topic, self.part, self._error)


class NotDeserialized(KafkaError):
    """A deserializer raised an error, which is the cause of this one (KIP-334, KIP-1036).

    The consumer's position stays at the record: seek to `record.offset + 1` to go on behind it.

    Attributes:
        record: the record, with key and value as bytes.
        part: which of them it is about, `key` or `value`.
    """

    def __init__(self, record: Any, part: str, error: BaseException) -> None:
        self.record = record
        self.part = part
        self._error = error
        super().__init__(
            f"{record.topic}-{record.partition} at offset {record.offset}: the deserializer of its"
            f" {part} raised {type(error).__name__}: {error}; seek past it to go on"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return NotDeserialized, (self.record, self.part, self._error)


class Unavailable(KafkaError):
    """No answer in time, or the connection was lost. The request may have been carried out."""


class DataLoss(KafkaError):
    """Records that should have been read are gone from the topic."""


class AuthenticationFailed(KafkaError):
    """The broker refused the client's credentials or certificate, or the client the broker's.
    Trying again with the same ones does not help."""


class BrokerError(KafkaError):
    """A broker refused, with one of Kafka's codes.

    Attributes:
        code: the error code.
        subject: the object it is about, such as `flights-2`; empty for the whole request.
    """

    def __init__(self, code: ErrorCode, detail: str = "", subject: str = "") -> None:
        self.code = code
        self.detail = detail
        self.subject = subject
        text = f"{code.name} ({int(code)})"
        if subject:
            text = f"{subject}: {text}"
        if detail:
            text = f"{text}: {detail}"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return BrokerError, (self.code, self.detail, self.subject)

    @property
    def retriable(self) -> bool:
        return self.code.retriable


class Refusal(Exception):
    """One part of a request is refused. Becomes an error code in the response, and is not raised to
    users."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchRefused(BrokerError):
    """A broker refused a batch because of some of its records, which it named (KIP-467).

    Attributes:
        at_fault: why each of those records is refused, by its index in the batch.
    """

    def __init__(
        self, code: ErrorCode, detail: str, subject: str, at_fault: Mapping[int, str]
    ) -> None:
        super().__init__(code, detail, subject)
        self.at_fault = at_fault

    def __reduce__(self) -> tuple[object, ...]:
        return BatchRefused, (self.code, self.detail, self.subject, self.at_fault)

    def of(self, place: int) -> KafkaError:
        """The error of the record with this index; for a record not at fault it says so."""
        if place in self.at_fault:
            return BrokerError(self.code, self.at_fault[place], self.subject)
        return KafkaError(
            f"{self.subject}: the record was not stored because it was part of a batch with records"
            f" that were refused ({self.code.name}); nothing is wrong with it: send it again"
        )


class LogTruncation(BrokerError):
    """Records that a consumer has read are no longer in the log: an unclean leader election, or a
    disk that was lost, has removed them (KIP-320).

    Attributes:
        position: the offset that the consumer would have read next.
        divergence: the offset from which on the log differs from what was read; seek to it to go
            on. -1 if the broker cannot tell.
    """

    def __init__(self, subject: str, position: int, divergence: int) -> None:
        where = f"from offset {divergence} on" if divergence >= 0 else "before the position"
        fix = f"seek to {divergence}" if divergence >= 0 else "seek to another offset"
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the position is {position}, but the log has lost records that were read: it differs"
            f" {where}; {fix} or set auto.offset.reset=earliest or latest",
            subject,
        )
        self.position = position
        self.divergence = divergence

    def __reduce__(self) -> tuple[object, ...]:
        return LogTruncation, (self.subject, self.position, self.divergence)


class TopicRecreated(LogTruncation):
    """The topic was deleted and created again, so the log has no record that was read (KIP-516).

    Attributes:
        was, now: the topic's ids, as Kafka's tools print them.
    """

    def __init__(self, subject: str, position: int, was: bytes, now: bytes) -> None:
        self.was, self.now = (
            urlsafe_b64encode(each).decode("ascii").rstrip("=") for each in (was, now)
        )
        BrokerError.__init__(
            self,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the topic was deleted and created again: its id was {self.was} and is {self.now} now,"
            f" and the position {position} is of the old one; seek to another offset or set"
            " auto.offset.reset=earliest or latest",
            subject,
        )
        self.position = position
        self.divergence = -1
        self._ids = was, now

    def __reduce__(self) -> tuple[object, ...]:
        return TopicRecreated, (self.subject, self.position, *self._ids)


class TransactionError(KafkaError):
    """A transaction cannot be committed. Says what to do next; the reason is its `__cause__`.

    Attributes:
        code: the broker's code, if a broker's error was the cause.
        is_fatal: whether only a new producer helps; otherwise abort the transaction and repeat it.
    """

    def __init__(self, text: str, code: ErrorCode | None = None, is_fatal: bool = False) -> None:
        self.code = code
        self.is_fatal = is_fatal
        super().__init__(text)

    def __reduce__(self) -> tuple[type[TransactionError], tuple[str, ErrorCode | None, bool]]:
        return TransactionError, (str(self), self.code, self.is_fatal)
