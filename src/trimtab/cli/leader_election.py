"""Elect leaders of partitions, with the options of kafka-leader-election.

A preferred election makes the first replica of a partition lead it again, if it is in sync. An
unclean election is for partitions without a leader: any live replica becomes leader, and records
that it lacks are lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from trimtab.cli.json_file import read_partition_entries
from trimtab.cli.options import add_client_options, read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.errors import BrokerError, UsageError
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.arguments import Partition

EXAMPLES = """\
  trimtab leader-election --election-type preferred --all-topic-partitions
  trimtab leader-election --election-type preferred --topic flights --partition 0
  trimtab leader-election --election-type unclean --path-to-json-file partitions.json
"""

_FORM: Final = '{"partitions": [{"topic": "t", "partition": 0}, …]}'


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--election-type",
        required=True,
        type=str.lower,
        choices=("preferred", "unclean"),
        help="preferred: the first replica, if it is in sync; unclean: any live replica, for "
        "partitions without a leader",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--all-topic-partitions", action="store_true", help="all partitions that need an election"
    )
    which.add_argument("--topic", help="a partition of this topic: see --partition")
    which.add_argument(
        "--path-to-json-file", metavar="FILE", help=f"partitions in a file, as in {_FORM}"
    )
    parser.add_argument("--partition", type=int, metavar="N", help="with --topic: this partition")
    parser.add_argument(
        "--json", action="store_true", help="print a line with a JSON object for each partition"
    )
    add_client_options(parser, files=["--admin.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.admin import PartlyRefused

    wanted = choose_partitions(arguments)
    refusals: Mapping[TopicPartition, BrokerError] = {}
    with connect_admin(read_client_options(arguments)) as admin:
        asked: list[Partition] | None = None if wanted is None else [*wanted]
        try:
            elected = admin.elect_leaders(asked, unclean=arguments.election_type == "unclean")
        except PartlyRefused as partly:
            refusals, elected = partly.refusals, partly.done
    valid = [each for each in wanted or () if each not in elected and each not in refusals]
    if arguments.json:
        for text, partitions in (("elected", elected), ("valid", valid), ("refused", refusals)):
            for each in partitions:
                print(json.dumps(_show(each, text, refusals.get(each))))
        return 1 if refusals else 0
    kind = arguments.election_type.upper()
    if elected:
        print(f"Successfully completed leader election ({kind}) for partitions {_join(elected)}")
    if valid:
        print(f"Valid replica already elected for partitions {_join(valid)}")
    for partition, error in refusals.items():
        print(
            f"Error completing leader election ({kind}) for partition: {partition}: {error}",
            file=sys.stderr,
        )
    return 1 if refusals else 0


def choose_partitions(arguments: argparse.Namespace) -> list[TopicPartition] | None:
    """The partitions that the options name, sorted; None for all.

    Raises:
        UsageError: of --topic and --partition only one is given, or the file has another form.
    """
    topic, partition = arguments.topic, arguments.partition
    if topic is None and partition is not None:
        raise UsageError(f"--partition {partition} needs a topic: add --topic NAME")
    if topic is not None:
        if partition is None or partition < 0:
            raise UsageError(f"--topic {topic} needs one of its partitions: add --partition 0")
        return [TopicPartition(topic, partition)]
    if arguments.path_to_json_file is not None:
        return sorted(read_partition_entries(arguments.path_to_json_file, _FORM))
    return None


def _join(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def _show(partition: TopicPartition, result: str, error: BrokerError | None) -> dict[str, object]:
    return {
        **partition._asdict(),
        "result": result,
        "error": None if error is None else error.code.name,
    }
