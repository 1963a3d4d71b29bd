"""Kafka for Python without Java or Docker: test clusters, clients, a Spark source, load reports.

The public names are here, and are imported at their first use, so that importing trimtab is fast:

    from trimtab import Cluster, Producer

    with Cluster(brokers=3) as cluster, Producer(bootstrap_servers=cluster.bootstrap_servers) as p:
        p.send("flights", b"...").result()
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # like typing's, which a process that only supervises does not import
if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.accumulator.table import TableDelivery, TableError
    from trimtab.client.admin import AsyncAdmin
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.blocking.balance import plan_balance
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import merge_split
    from trimtab.client.blocking.producer import Producer
    from trimtab.client.blocking.scan import TopicScan, read
    from trimtab.client.consumer import AsyncConsumer
    from trimtab.client.group.subscription import SubscriptionPattern
    from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
    from trimtab.client.partitioner.key_spread import KeySkew, key_skew
    from trimtab.client.partitioner.partitioning import Partitioning
    from trimtab.client.producer import AsyncProducer
    from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
    from trimtab.cluster.embedded import Cluster
    from trimtab.kafka.errors import (
        AuthenticationFailed,
        BrokerError,
        CorruptData,
        DataLoss,
        ErrorCode,
        KafkaError,
        LogTruncation,
        NotDeserialized,
        NotSerialized,
        TransactionError,
        Unavailable,
        UsageError,
    )
    from trimtab.kafka.records import Record, RecordMetadata, TopicPartition

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AuthenticationFailed",
    "BrokerError",
    "Cluster",
    "Consumer",
    "ConsumerGroup",
    "CorruptData",
    "DataLoss",
    "Delivery",
    "ErrorCode",
    "KafkaError",
    "KeySkew",
    "LogTruncation",
    "NotDeserialized",
    "NotSerialized",
    "OffsetAndMetadata",
    "Partitioning",
    "PreparedTransaction",
    "Producer",
    "ProducerIdentity",
    "Record",
    "RecordMetadata",
    "SubscriptionPattern",
    "TableDelivery",
    "TableError",
    "TopicPartition",
    "TopicScan",
    "TransactionError",
    "Unavailable",
    "UsageError",
    "key_skew",
    "merge_split",
    "plan_balance",
    "read",
]

_HOMES = {
    "trimtab.client.blocking.admin": ("Admin",),
    "trimtab.client.blocking.consumer": ("Consumer",),
    "trimtab.client.blocking.merged_records": ("merge_split",),
    "trimtab.client.blocking.producer": ("Producer",),
    "trimtab.client.blocking.scan": ("TopicScan", "read"),
    "trimtab.client.admin": ("AsyncAdmin",),
    "trimtab.client.blocking.balance": ("plan_balance",),
    "trimtab.client.consumer": ("AsyncConsumer",),
    "trimtab.client.partitioner.key_spread": ("KeySkew", "key_skew"),
    "trimtab.client.partitioner.partitioning": ("Partitioning",),
    "trimtab.client.producer": ("AsyncProducer",),
    "trimtab.client.accumulator.queues_cy": ("Delivery",),
    "trimtab.client.accumulator.table": ("TableDelivery", "TableError"),
    "trimtab.client.group.subscription": ("SubscriptionPattern",),
    "trimtab.client.group_offsets": ("ConsumerGroup", "OffsetAndMetadata"),
    "trimtab.client.sender.prepared": ("PreparedTransaction", "ProducerIdentity"),
    "trimtab.cluster.embedded": ("Cluster",),
    "trimtab.kafka.errors": (
        "AuthenticationFailed",
        "BrokerError",
        "CorruptData",
        "DataLoss",
        "ErrorCode",
        "KafkaError",
        "LogTruncation",
        "NotDeserialized",
        "NotSerialized",
        "TransactionError",
        "Unavailable",
        "UsageError",
    ),
    "trimtab.kafka.records": ("Record", "RecordMetadata", "TopicPartition"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if os.environ.get("TRIMTAB_PURE") == "1":
    from trimtab import _pure

    _pure.install()


def __getattr__(name: str) -> object:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
