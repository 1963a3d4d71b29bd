"""Print the offsets of partitions as topic:partition:offset, with the options of kafka-get-offsets.

The latest offset is the offset of the next record, so the sum over a topic's partitions is the
number of records ever sent to it. For a time, the offset is that of the first record with this
timestamp or a later one; if there is no such record, nothing follows the last colon.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_partition_ids,
    refuse_both,
    refuse_broker_list,
)
from trimtab.cli.selection import connect, list_partitions, match_names, select_topics
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import Moment

EXAMPLES = """\
  trimtab offsets --topic flights
  trimtab offsets --topic flights --time earliest --json
  trimtab offsets --topic-partitions flights:0,flights:2-4 --time 1767225600000
"""

_MOMENTS: dict[str, Literal["earliest", "latest", "max_timestamp"]] = {
    "latest": "latest",
    "-1": "latest",
    "earliest": "earliest",
    "-2": "earliest",
    "max-timestamp": "max_timestamp",
    "-3": "max_timestamp",
}
_PATTERN = re.compile(r"(?P<topic>[^:,]*)(?::(?P<low>\d*)(?P<range>-(?P<high>\d*))?)?")


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--topic TOPIC": "topics, as a regular expression (default: all topics)",
        "| --topic-partitions TOPIC:PARTITION,…": "partitions of topics: t:1 is partition 1, "
        "t:0-3 partitions 0 to 2, t:5- those from 5 on, t:-3 those up to 2, t all; topics are "
        "regular expressions",
        "--partitions N,…": "only these partitions of each topic (default: all)",
        "--time TIME=latest": "which offset: latest or -1, earliest or -2, max-timestamp or -3, "
        "or the one at a time in milliseconds since 1970",
        "--json": "print one JSON array of topic, partition, offset and timestamp; null means none",
        "--exclude-internal-topics": "leave out internal topics",
    }
    add_options(parser, options)
    add_client_options(parser)
    refuse_broker_list(parser)


def run(arguments: argparse.Namespace) -> int:
    moment = read_moment(arguments.time)
    refuse_both(arguments, "partitions", "topic_partitions")
    include_internal = not arguments.exclude_internal_topics
    with connect(arguments) as admin:
        names = select_topics(admin, arguments.topic, include_internal)
        views = admin.describe_topics(names) if names else {}
        partitions = [each for name in names for each in list_partitions(views[name])]
        if arguments.topic_partitions is not None:
            is_wanted = read_topic_partitions(arguments.topic_partitions)
            partitions = [each for each in partitions if is_wanted(each)]
        if arguments.partitions is not None:
            ids = set(read_partition_ids(arguments.partitions))
            partitions = [each for each in partitions if each.partition in ids]
        if not partitions:
            raise UsageError("no partition matches; see `trimtab topics --list` for the topics")
        found = admin.list_offsets(partitions, moment)
    if arguments.json:
        shown = [
            {
                **partition._asdict(),
                "offset": at.offset if at.offset >= 0 else None,
                "timestamp": at.timestamp if at.timestamp >= 0 else None,
            }
            for partition, at in sorted(found.items())
        ]
        print(json.dumps(shown, indent=2))
        return 0
    for partition in sorted(found):
        offset = found[partition].offset
        print(f"{partition.topic}:{partition.partition}:{offset if offset >= 0 else ''}")
    return 0


def read_moment(text: str) -> Moment:
    """A word such as `latest`, Kafka's number for it, or a time in milliseconds since 1970.

    Raises:
        UsageError: the text has another form.
    """
    if text in _MOMENTS:
        return _MOMENTS[text]
    if text.isdecimal():
        return int(text)
    raise UsageError(
        f"--time {text!r}: write latest, earliest, max-timestamp, or milliseconds since 1970"
    )


def read_topic_partitions(text: str) -> Callable[[TopicPartition], bool]:
    """A function that says whether a partition is in a list such as
    `topic:1,topic:0-3,topic:5-,topic:-3,topic`.

    Topics are regular expressions; an empty one matches every topic. The end of a range is
    exclusive, as in Kafka.

    Raises:
        UsageError: the text has another form.
    """
    rules = [_read_rule(part) for part in text.split(",")]
    return lambda partition: any(rule(partition) for rule in rules)


def _read_rule(part: str) -> Callable[[TopicPartition], bool]:
    found = _PATTERN.fullmatch(part)
    if found is None:
        raise UsageError(
            f"--topic-partitions {part!r}: write topic:1, topic:0-3, topic:5- or topic"
        )
    topic, low, high = found["topic"], found["low"], found["high"]
    if found["range"] is not None:
        first = int(low) if low else 0
        last = int(high) if high else None
    elif low:
        first, last = int(low), int(low) + 1
    else:
        first, last = 0, None

    def rule(partition: TopicPartition) -> bool:
        is_in = first <= partition.partition and (last is None or partition.partition < last)
        return is_in and (not topic or bool(match_names(topic, [partition.topic])))

    return rule
