"""Delete the records before an offset of each partition, with the options of kafka-delete-records.

The file names the first offset to keep of each partition; -1 deletes all its records. What is
printed for a partition is its low watermark: the first offset that every live replica still has.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from trimtab.cli.json_file import read_partition_entries
from trimtab.cli.options import add_client_options, add_options
from trimtab.cli.results import name_error, say, take_refusals
from trimtab.cli.selection import connect
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.kafka.records import TopicPartition

EXAMPLES = """\
  echo '{"partitions": [{"topic": "flights", "partition": 0, "offset": 1000}]}' > offsets.json
  trimtab delete-records --offset-json-file offsets.json
"""

_FORM: Final = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 42}, …]}'
_ALL: Final = -1


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--offset-json-file FILE": f"the partitions and offsets, as in {_FORM}",
        "--json": "print a line with a JSON object for each partition",
    }
    add_options(parser, options, required=("--offset-json-file",))
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    offsets = read_offsets(arguments.offset_json_file)
    with connect(arguments) as admin:
        say(arguments, "Executing records delete operation")
        done, refusals = take_refusals(lambda: admin.delete_records(dict(offsets.items())))
    say(arguments, "Records delete operation completed:")
    for partition in sorted(offsets):
        if arguments.json:
            error = name_error(refusals.get(partition))
            shown = {"lowWatermark": done.get(partition), "error": error}
            print(json.dumps({**partition._asdict(), **shown}))
        elif partition in done:
            print(f"partition: {partition}\tlow_watermark: {done[partition]}")
        else:
            say_note(f"partition: {partition}\terror: {refusals[partition]}")
    return 1 if refusals else 0


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """The contents of an --offset-json-file.

    Raises:
        UsageError: the file cannot be read, has another form, or names no partition or one twice.
    """
    offsets = {}
    for partition, entry in read_partition_entries(path, _FORM).items():
        offset = entry.get("offset")
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < _ALL:
            raise UsageError(
                f"{path}: the offset of {partition} is {offset!r}: write the first offset to keep, "
                "or -1 to delete all records"
            )
        offsets[partition] = offset
    return offsets
