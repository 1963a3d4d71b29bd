"""The errors that clients raise: `from trimtab.errors import Unavailable`."""

from trimtab.kafka.errors import (
    AuthenticationFailed,
    BatchRefused,
    BrokerError,
    CorruptData,
    DataLoss,
    ErrorCode,
    KafkaError,
    LogTruncation,
    NotDeserialized,
    NotSerialized,
    TopicRecreated,
    TransactionError,
    Unavailable,
    UsageError,
)

__all__ = [
    "AuthenticationFailed",
    "BatchRefused",
    "BrokerError",
    "CorruptData",
    "DataLoss",
    "ErrorCode",
    "KafkaError",
    "LogTruncation",
    "NotDeserialized",
    "NotSerialized",
    "TopicRecreated",
    "TransactionError",
    "Unavailable",
    "UsageError",
]
