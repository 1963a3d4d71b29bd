"""Elect leaders of partitions, with the options of kafka-leader-election.

A preferred election makes the first replica of a partition lead it again, if it is in sync. An
unclean election is for partitions without a leader: any live replica becomes leader, and records
that it lacks are lost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Final

from trimtab.cli.json_file import read_partition_entries
from trimtab.cli.options import add_client_options, add_options
from trimtab.cli.results import name_error, take_refusals
from trimtab.cli.selection import connect
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

EXAMPLES = """\
  trimtab leader-election --election-type preferred --all-topic-partitions
  trimtab leader-election --election-type preferred --topic flights --partition 0
  trimtab leader-election --election-type unclean --path-to-json-file partitions.json
"""

_FORM: Final = '{"partitions": [{"topic": "t", "partition": 0}, …]}'


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--election-type {preferred,unclean}": "preferred: the first replica, if it is in sync; "
        "unclean: any live replica, for partitions without a leader",
        "--all-topic-partitions": "all partitions that need an election",
        "| --topic TOPIC": "a partition of this topic: see --partition",
        "| --path-to-json-file FILE": f"partitions in a file, as in {_FORM}",
        "--partition N": "with --topic: this partition",
        "--json": "print a line with a JSON object for each partition",
    }
    add_options(
        parser,
        options,
        required=("--election-type", "--all-topic-partitions"),
        types={"--election-type": str.lower},
    )
    add_client_options(parser, files=["--admin.config"])


def run(arguments: argparse.Namespace) -> int:
    wanted = choose_partitions(arguments)
    is_unclean = arguments.election_type == "unclean"
    with connect(arguments) as admin:
        elected, refusals = take_refusals(lambda: admin.elect_leaders(wanted, unclean=is_unclean))
    valid = [each for each in wanted or () if each not in elected and each not in refusals]
    if arguments.json:
        for text, partitions in (("elected", elected), ("valid", valid), ("refused", refusals)):
            for partition in partitions:
                shown = {"result": text, "error": name_error(refusals.get(partition))}
                print(json.dumps({**partition._asdict(), **shown}))
        return 1 if refusals else 0
    kind = arguments.election_type.upper()
    if elected:
        print(f"Successfully completed leader election ({kind}) for partitions {_join(elected)}")
    if valid:
        print(f"Valid replica already elected for partitions {_join(valid)}")
    for partition, error in refusals.items():
        say_note(f"Error completing leader election ({kind}) for partition: {partition}: {error}")
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
