"""Delete the records before an offset of each partition, with the options of kafka-delete-records.

The file names the first offset to keep of each partition; -1 deletes all its records. What is
printed for a partition is its low watermark: the first offset that every live replica still has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trimtab.cli.json_file import read_partition_entries
from trimtab.cli.options import add_client_options, read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from trimtab.records import TopicPartition

EXAMPLES = """\
  echo '{"partitions": [{"topic": "flights", "partition": 0, "offset": 1000}]}' > offsets.json
  trimtab delete-records --offset-json-file offsets.json
"""

_FORM: Final = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 42}, …]}'
_ALL: Final = -1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offset-json-file",
        metavar="FILE",
        required=True,
        help=f"the partitions and offsets, as in {_FORM}",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a line with a JSON object for each partition"
    )
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.admin import PartlyRefused

    offsets = read_offsets(arguments.offset_json_file)
    refusals: Mapping[TopicPartition, BrokerError] = {}
    with connect_admin(read_client_options(arguments)) as admin:
        if not arguments.json:
            print("Executing records delete operation")
        try:
            done = admin.delete_records(dict(offsets.items()))
        except PartlyRefused as partly:
            refusals, done = partly.refusals, partly.done
    if not arguments.json:
        print("Records delete operation completed:")
    for partition in sorted(offsets):
        if arguments.json:
            print(json.dumps(_show(partition, done.get(partition), refusals.get(partition))))
        elif partition in done:
            print(f"partition: {partition}\tlow_watermark: {done[partition]}")
        else:
            print(f"partition: {partition}\terror: {refusals[partition]}", file=sys.stderr)
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


def _show(
    partition: TopicPartition, low_watermark: int | None, error: BrokerError | None
) -> dict[str, object]:
    return {
        **partition._asdict(),
        "lowWatermark": low_watermark,
        "error": None if error is None else error.code.name,
    }
