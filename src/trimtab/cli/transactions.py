"""Look at transactions and end those that nobody ends, with the options of kafka-transactions
(KIP-664).

A transaction hangs if it is open in a partition and its coordinator does not know it: consumers of
committed records wait behind it. `find-hanging` looks for such ones, and `abort` ends one in one
partition. `forceTerminateTransaction` aborts the transaction of a transactional id and fences its
producer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.options import add_client_options, add_options, refuse_misplaced, spell
from trimtab.cli.selection import connect
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.threads.clock import wall_clock_ms

if TYPE_CHECKING:
    from trimtab.client.admin import ProducerDescription, TransactionDescription
    from trimtab.client.blocking.admin import Admin

EXAMPLES = """\
  trimtab transactions list
  trimtab transactions describe --transactional-id orders
  trimtab transactions find-hanging --topic flights
  trimtab transactions abort --topic flights --partition 0 --start-offset 1234 \\
      --command-config kafka-data/controller/cluster.secret
  trimtab transactions forceTerminateTransaction --transactionalId orders
"""

_AT_ONCE: Final = 500
"""Partitions in one request."""
_ENDING: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")

_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "duration_filter": ("list",),
    "transactional_id_pattern": ("list",),
    "transactional_id": ("describe",),
    "transactionalId": ("forceTerminateTransaction",),
    "broker_id": ("describe-producers", "find-hanging"),
    "topic": ("describe-producers", "find-hanging", "abort"),
    "partition": ("describe-producers", "find-hanging", "abort"),
    "max_transaction_timeout": ("find-hanging",),
    "start_offset": ("abort",),
    "producer_id": ("abort",),
    "producer_epoch": ("abort",),
    "coordinator_epoch": ("abort",),
}
"""The verbs with which each option may be used."""

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "describe": ("transactional_id",),
    "describe-producers": ("topic", "partition"),
    "abort": ("topic", "partition"),
    "forceTerminateTransaction": ("transactionalId",),
}


class _Open(NamedTuple):
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer: ProducerDescription


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "verb",
        choices=tuple(_RUN),
        help="list: the transactional ids; describe: one of them; describe-producers: what a "
        "partition remembers; find-hanging: transactions that nobody will end; abort: end one in "
        "one partition; forceTerminateTransaction: abort one, and fence its producer",
    )
    options = {
        "--duration-filter MS": "with list: only transactions open for longer than this",
        "--transactional-id-pattern REGEX": "with list: only ids that match",
        "--transactional-id ID": "with describe: this one",
        "--transactionalId ID": "with forceTerminateTransaction: this one",
        "--topic TOPIC": "the topic of the partition, or with find-hanging of all",
        "--partition N": "the partition",
        "--broker-id N": "ask this broker's replicas; with find-hanging: only partitions that it "
        "has",
        "--max-transaction-timeout MINUTES": "with find-hanging: transactions whose last record "
        "is older (default: 15)",
        "--start-offset N": "with abort: the transaction's first offset",
        "--producer-id N": "with abort, instead of --start-offset: the producer's id",
        "--producer-epoch N": "with abort, instead of --start-offset: its epoch",
        "--coordinator-epoch N": "with abort, instead of --start-offset: the coordinator's epoch",
        "--json": "print a line with a JSON object for each row",
    }
    add_options(parser, options)
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    with connect(arguments) as admin:
        _RUN[arguments.verb](admin, arguments)
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: an option does not go with the verb, or is missing.
    """
    verb = arguments.verb
    refuse_misplaced(arguments, _VERBS, verb)
    for name in _NEEDED.get(verb, ()):
        if getattr(arguments, name) is None:
            raise UsageError(f"{verb} needs {spell(name)}")
    if verb == "find-hanging":
        if arguments.topic is None and arguments.broker_id is None:
            raise UsageError("find-hanging needs --topic or --broker-id")
        if arguments.partition is not None and arguments.topic is None:
            raise UsageError("--partition needs --topic")
    if verb == "abort" and arguments.start_offset is None:
        for name in ("producer_id", "producer_epoch", "coordinator_epoch"):
            if getattr(arguments, name) is None:
                raise UsageError(
                    "abort needs --start-offset; or --producer-id, --producer-epoch and "
                    "--coordinator-epoch"
                )


def list_transactions(admin: Admin, arguments: argparse.Namespace) -> None:
    duration = arguments.duration_filter
    found = admin.list_transactions(
        pattern=arguments.transactional_id_pattern or None,
        longer_than_ms=None if duration is None or duration < 0 else duration,
    )
    print_rows(
        arguments,
        "TransactionalId Coordinator ProducerId TransactionState",
        [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found],
    )


def describe(admin: Admin, arguments: argparse.Namespace) -> None:
    name = arguments.transactional_id
    found = admin.describe_transactions([name]).get(name)
    if found is None:
        raise UsageError(f"--transactional-id {name}: no coordinator knows it")
    is_open = found.started_at >= 0
    print_rows(
        arguments,
        "CoordinatorId TransactionalId ProducerId ProducerEpoch TransactionState "
        "TransactionTimeoutMs CurrentTransactionStartTimeMs TransactionDurationMs TopicPartitions",
        [
            (
                found.coordinator,
                name,
                found.producer_id,
                found.epoch,
                found.state,
                found.timeout_ms,
                found.started_at if is_open else None,
                wall_clock_ms() - found.started_at if is_open else None,
                ",".join(map(str, found.partitions)),
            )
        ],
    )


def describe_producers(admin: Admin, arguments: argparse.Namespace) -> None:
    partition = TopicPartition(arguments.topic, arguments.partition)
    found = admin.describe_producers([partition], arguments.broker_id)
    print_rows(
        arguments,
        "ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp "
        "CurrentTransactionStartOffset",
        [
            (
                producer.producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.open_since_offset if producer.open_since_offset >= 0 else None,
            )
            for producer in found[partition]
        ],
    )


def abort(admin: Admin, arguments: argparse.Namespace) -> None:
    partition = TopicPartition(arguments.topic, arguments.partition)
    start = arguments.start_offset
    producer = arguments.producer_id, arguments.producer_epoch, arguments.coordinator_epoch
    if start is not None:
        remembered = admin.describe_producers([partition])[partition]
        there = [each for each in remembered if each.open_since_offset == start]
        if not there:
            raise UsageError(
                f"--start-offset {start}: no transaction in {partition} is open since there"
            )
        producer = there[0].producer_id, there[0].epoch, there[0].coordinator_epoch
    producer_id, epoch, coordinator_epoch = producer
    admin.abort_transaction(partition, producer_id, epoch, max(0, coordinator_epoch))
    say_done(arguments, {**partition._asdict(), "result": "aborted"})


def force_terminate(admin: Admin, arguments: argparse.Namespace) -> None:
    admin.fence_producers([arguments.transactionalId])
    say_done(arguments, {"transactionalId": arguments.transactionalId, "result": "terminated"})


def say_done(arguments: argparse.Namespace, shown: Mapping[str, object]) -> None:
    """Only for JSON: Kafka's tool says nothing."""
    if arguments.json:
        print(json.dumps(shown))


def find_hanging(admin: Admin, arguments: argparse.Namespace) -> None:
    minutes = arguments.max_transaction_timeout
    before_ms = wall_clock_ms() - (15 if minutes is None else minutes) * 60_000
    found = find_open(admin, arguments, before_ms)
    ids = {each.producer.producer_id for each in found}
    listed = admin.list_transactions(producer_ids=ids) if ids else []
    names = {each.producer_id: each.transactional_id for each in listed}
    known = admin.describe_transactions(names.values())
    hanging = [
        transaction
        for transaction in found
        if hangs(transaction, known.get(names.get(transaction.producer.producer_id, "")))
    ]
    print_rows(
        arguments,
        "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp "
        "Duration(min)",
        [
            (
                *partition,
                producer.producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                producer.open_since_offset,
                producer.last_timestamp,
                (wall_clock_ms() - producer.last_timestamp) // 60_000,
            )
            for partition, producer in hanging
        ],
    )


def find_open(admin: Admin, arguments: argparse.Namespace, before_ms: int) -> list[_Open]:
    """The transactions whose last record is older than `before_ms`."""
    partitions = choose_partitions(admin, arguments)
    found = []
    for begin in range(0, len(partitions), _AT_ONCE):
        asked = partitions[begin : begin + _AT_ONCE]
        described = admin.describe_producers(asked, arguments.broker_id)
        found += [
            _Open(partition, producer)
            for partition in asked
            for producer in described[partition]
            if producer.open_since_offset >= 0 and producer.last_timestamp < before_ms
        ]
    return found


def choose_partitions(admin: Admin, arguments: argparse.Namespace) -> list[TopicPartition]:
    broker = arguments.broker_id
    if arguments.partition is not None:
        return [TopicPartition(arguments.topic, arguments.partition)]
    topics = admin.describe_topics(None if arguments.topic is None else [arguments.topic])
    return [
        TopicPartition(name, index)
        for name, topic in sorted(topics.items())
        for index, each in enumerate(topic.partitions)
        if broker is None or broker in each.replicas
    ]


def hangs(each: _Open, known: TransactionDescription | None) -> bool:
    """Whether the coordinator will not end the transaction in this partition."""
    if known is None or known.state not in _ENDING:
        return True
    return each.partition not in known.partitions


_RUN: Final = {
    "list": list_transactions,
    "describe": describe,
    "describe-producers": describe_producers,
    "abort": abort,
    "find-hanging": find_hanging,
    "forceTerminateTransaction": force_terminate,
}


def print_rows(arguments: argparse.Namespace, heads: str, rows: Sequence[Sequence[object]]) -> None:
    """As Kafka's tool prints tables, or a JSON object for each row."""
    names = heads.split()
    if arguments.json:
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True))))
        return
    texts = [names, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for line in texts:
        print("".join(f"{cell:<{width}}\t" for cell, width in zip(line, widths, strict=True)))
