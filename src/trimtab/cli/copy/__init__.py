"""Copy the records of a topic to another one, in the same cluster or in another.

Keys, values, headers and timestamps are kept. Each record goes to the partition of the same number
if both topics have as many partitions, or with --keep-partitions; else, or with --by-key, to the
one that the producer chooses by its key. Committed records are copied (isolation.level).

It ends at the ends that the partitions had when it began, or with --follow at Ctrl-C. Without
--group it begins anew each time. With --group it goes on where the group has copied to: within a
cluster each record is copied exactly once, as the group's offsets are committed in the transaction
that has the records. Between two clusters offsets are committed after the records are acknowledged:
none is lost, and after an error or a crash those of the last seconds are copied twice.

Tests: tests/unit/cli/test_copy.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.consume.reading import (
    OPTIONS,
    Source,
    Span,
    Wanted,
    choose_records,
    find_span,
    read_bounds,
    read_last,
    refuse_with_group,
)
from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_client_file,
    read_client_options,
    read_pairs,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import print_result
from trimtab.cli.selection import connect_admin
from trimtab.cli.stopping import Stop
from trimtab.cli.style import say_note
from trimtab.cli.table import show_bytes, show_count
from trimtab.client.optional import import_pyarrow
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record
from trimtab.threads.clock import monotonic_clock, wall_clock_ms

if TYPE_CHECKING:
    from trimtab.cli.copy.target import Topics
    from trimtab.client.blocking.admin import Admin

EXAMPLES = """\
  trimtab copy --topic flights --to-topic flights-copy --create
  trimtab copy --topic flights --bootstrap-server prod:9092 --to-bootstrap-server test:9092 \\
      --create --since 1h --where "value.country == 'CH'"
  trimtab copy --topic flights --to-topic flights-12 --by-key --group flights-to-12 --follow
  trimtab copy --topic flights --to-bootstrap-server backup:9092 --group backup --max-rate 10000000
"""

CLIENT_ID: Final = "trimtab-copy"

_CONSUMER: Final = {"client.id": CLIENT_ID, "isolation.level": "read_committed"}
_PRODUCER: Final = {
    "client.id": CLIENT_ID,
    "batch.size": 131_072,
    "linger.ms": 20,
    "buffer.memory": 67_108_864,
    "max.request.size": 33_554_432,  # the target's brokers say which records are too large
}


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--topic TOPIC": "copy this topic",
        "--to-topic TOPIC": "copy it to this topic (default: one of the same name)",
        "--create": "create the topic to copy to, if it does not exist, with the partitions and "
        "options of the other",
        "--group GROUP": "go on where this consumer group has copied to, and commit its offsets "
        "(default: none)",
        "--keep-partitions": "copy each record to the partition of the same number (default if "
        "both topics have as many)",
        "| --by-key": "copy each record to the partition that the producer chooses by its key "
        "(default otherwise)",
        **OPTIONS,
        "--follow": "go on with new records",
        "--where EXPRESSION": "only records for which this is true, as of trimtab consume",
        "--max-rate BYTES>0": "copy at most this many bytes a second (default: no limit)",
        "--json": "at the end print one JSON object: what was copied",
    }
    add_options(parser, options, required=("--topic",))
    add_client_options(parser)
    target = {
        "--to-bootstrap-server HOST:PORT,…": "brokers of the cluster to copy to (default: the "
        "same cluster)",
        "--to-command-property --to-property NAME=VALUE …": "options of the producer, such as "
        "compression.type=zstd (default: none, as the batches are new)",
        "--to-command-config FILE": "a file of the producer's options (default with the same "
        "cluster: that of --command-config)",
    }
    add_options(parser.add_argument_group("the cluster to copy to"), target)


def run(arguments: argparse.Namespace) -> int:
    import_pyarrow("copy")
    from trimtab.cli.copy.copier import Copier, Job
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import merge_split
    from trimtab.client.blocking.producer import Producer

    bounds = read_bounds(arguments, wall_clock_ms())
    is_wanted = choose_records(bounds, arguments.where)
    if arguments.group is not None:
        refuse_with_group(arguments, ("last", "since", "until"))
    of_source, of_target = read_source_options(arguments), read_target_options(arguments)
    topics = find_topics(arguments, of_source, of_target)
    keeps_partitions = is_kept(arguments, topics)
    in_transactions = arguments.group is not None and topics.are_in_one_cluster
    if in_transactions:
        of_target.setdefault("transactional.id", f"{CLIENT_ID}-{arguments.group}")
    began = monotonic_clock()
    with (
        Stop() as stop,
        report_unreachable(of_source),
        report_unreachable(of_target) if arguments.to_bootstrap_server else nullcontext(),
        Producer(of_target) as producer,
        Consumer(of_source) as consumer,
    ):
        say_note(describe(topics, keeps_partitions, arguments.group))
        span = find_span(consumer, topics.partitions, bounds)
        if bounds.last is not None:
            found = read_last(consumer, span, bounds.last, is_wanted, stop)
            span, is_wanted = narrow_to(found, span, is_wanted)
        # What goes by its key goes in the order of its key.
        merged = None if keeps_partitions else merge_split(consumer)
        source = Source(consumer, None if bounds.follows else span, merged)
        job = Job(
            topics,
            keeps_partitions,
            is_wanted,
            arguments.group,
            in_transactions,
            arguments.max_rate,
        )
        copier = Copier(job, source, consumer, producer, merged, stop)
        copier.copy(span)
    seconds = monotonic_clock() - began
    shown = {
        "topic": topics.source,
        "toTopic": topics.target,
        "records": copier.copied,
        "bytes": copier.copied_bytes,
        "leftOut": copier.left_out,
        "seconds": round(seconds, 3),
    }
    left_out = f", left out {copier.left_out:,}" if copier.left_out else ""
    text = (
        f"copied {show_count(copier.copied, 'record')} ({show_bytes(copier.copied_bytes)}) of "
        f"{topics.source} to {topics.target} in {seconds:.1f} s{left_out}"
    )
    print_result(arguments, shown, text)
    return stop.code


def read_source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The consumer's options; with the same cluster those of -X may be the producer's.

    Raises:
        UsageError: an option is unknown, or not as it must be.
    """
    from trimtab.client.network.options import Options
    from trimtab.client.options import CONSUMER, PRODUCER

    options = {**_CONSUMER, **read_client_options(arguments, "consumer")}
    if arguments.to_bootstrap_server is None:
        others = [each for each in options if PRODUCER.knows(each) and not CONSUMER.knows(each)]
        options = {name: value for name, value in options.items() if name not in others}
    if options.get("group.id", arguments.group) != arguments.group:
        raise UsageError(f"group.id={options['group.id']}: name the group with --group")
    if arguments.group is not None:
        options["group.id"] = arguments.group
    # Records that are gone are an error, or said.
    options |= {"enable.auto.commit": "false", "auto.offset.reset": "none"}
    Options(CONSUMER, options)
    return options


def read_target_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The producer's options; with the same cluster those of the source that it knows.

    Raises:
        UsageError: an option is unknown; or records could be lost, or copied twice.
    """
    from trimtab.client.network.options import Options
    from trimtab.client.options import PRODUCER

    options: dict[str, Any] = {**_PRODUCER}
    if arguments.to_bootstrap_server is None:
        given = read_client_options(arguments, "producer")
        options |= {name: value for name, value in given.items() if PRODUCER.knows(name)}
    else:
        options["bootstrap.servers"] = arguments.to_bootstrap_server
    if arguments.to_command_config is not None:
        options |= read_client_file(arguments.to_command_config, "producer")
    options |= read_pairs(arguments.to_command_property)
    for name, value in (("acks", "all"), ("enable.idempotence", "true")):
        if options.setdefault(name, value) not in (value, "-1"):
            raise UsageError(f"{name}={options[name]}: a copy needs {name}={value}; leave it out")
    Options(PRODUCER, options)
    return options


def find_topics(
    arguments: argparse.Namespace, of_source: dict[str, Any], of_target: dict[str, Any]
) -> Topics:
    from trimtab.cli.copy.target import prepare_topics
    from trimtab.client.options import ADMIN

    def admin(options: dict[str, Any]) -> AbstractContextManager[Admin]:
        return connect_admin({name: value for name, value in options.items() if name in ADMIN})

    to_topic = arguments.to_topic or arguments.topic
    with admin(of_source) as source:
        if arguments.to_bootstrap_server is None:
            return prepare_topics(source, source, arguments.topic, to_topic, arguments.create)
        with admin(of_target) as target:
            return prepare_topics(source, target, arguments.topic, to_topic, arguments.create)


def is_kept(arguments: argparse.Namespace, topics: Topics) -> bool:
    """Whether each record keeps the number of its partition.

    Raises:
        UsageError: that is asked for, and the target has too few partitions.
    """
    count, target_count = len(topics.partitions), topics.target_count
    if arguments.keep_partitions and count > target_count:
        raise UsageError(
            f"--keep-partitions: {topics.source} has {show_count(count, 'partition')}, "
            f"{topics.target} {target_count}: add partitions, or use --by-key"
        )
    return bool(arguments.keep_partitions) or (not arguments.by_key and count == target_count)


def describe(topics: Topics, keeps_partitions: bool, group: str | None) -> str:
    """What will be done, and what it promises."""
    way = "each record keeps its partition" if keeps_partitions else "by key"
    promise = "it begins anew each time"
    if group is not None and topics.are_in_one_cluster:
        promise = f"exactly once, as group {group}"
    elif group is not None:
        promise = f"at least once, as group {group}: after an error some records are copied twice"
    return f"copying {topics.source} to {topics.target}: {way}; {promise}"


def narrow_to(found: Sequence[Record], span: Span, is_wanted: Wanted | None) -> tuple[Span, Wanted]:
    """The part of a span with these records, and whether a record is one of them, or a later one
    that is wanted."""
    places = {(record.partition, record.offset) for record in found}
    first: dict[int, int] = {}
    for partition, offset in places:
        first[partition] = min(offset, first.get(partition, offset))
    ends = {each.partition: end for each, (_, end) in span.items()}

    def is_one(record: Record) -> bool:
        if record.offset < ends[record.partition]:
            return (record.partition, record.offset) in places
        return is_wanted is None or is_wanted(record)

    narrow = {each: (first.get(each.partition, end), end) for each, (_, end) in span.items()}
    return narrow, is_one
