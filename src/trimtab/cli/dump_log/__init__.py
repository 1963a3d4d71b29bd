"""Print and check the files of a log, with the options of kafka-dump-log.

Reads segments (.log), their indexes (.index, .timeindex), aborted transactions (.txnindex),
producers (.snapshot) and snapshots of the cluster's metadata (.checkpoint), of trimtab's brokers
and of Apache Kafka's. The files are not changed; a broker may run meanwhile.

Everything that is damaged gets a line on standard error, with file, position and what is wrong
there; the exit code is then 1. (Kafka's tool ends with 0.)
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from trimtab.cli.options import add_options, refuse_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trimtab.cli.dump_log.findings import Findings

EXAMPLES = """\
  trimtab dump-log --files kafka-data/broker-0/flights-0/*.log
  trimtab dump-log --print-data-log --files 00000000000000000000.log
  trimtab dump-log --files 00000000000000000000.log,00000000000000000000.index
  trimtab dump-log --offsets-decoder --json --files __consumer_offsets-0/*.log
  trimtab dump-log --verify-index-only --files flights-0/*.index flights-0/*.timeindex
"""

DECODERS = {
    "offsets": "records of the topic __consumer_offsets",
    "transaction_log": "records of the topic __transaction_state",
    "cluster_metadata": "records of the cluster's metadata",
}
_JAVA_CLASS = "trimtab cannot run Java classes; --print-data-log shows keys and values as text"


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--files FILE,… …": "the files to print; an index is compared with the .log file beside it",
        "--deep-iteration": "print a line for each record of a batch",
        "--print-data-log": "print the keys and values of the records, too, as text",
    }
    add_options(parser, options)
    decoders = parser.add_mutually_exclusive_group()
    for name, text in DECODERS.items():
        decoders.add_argument(
            f"--{name.replace('_', '-')}-decoder",
            dest="decoder",
            action="store_const",
            const=name,
            help=f"print {text} as JSON",
        )
    options = {
        "--skip-record-metadata": "of records print only keys and values; leave out control "
        "records",
        "--index-sanity-check": "of indexes check only what a broker checks when it starts: "
        "sizes, first and last entries",
        "| --verify-index-only": "compare indexes with their .log files without printing their "
        "entries",
        "--max-bytes BYTES>0": "read only this much of each .log file (default: the whole file)",
        "--json": "print a line with a JSON object for each batch, entry and problem",
    }
    add_options(parser, options)
    refused = {
        "--value-decoder-class": _JAVA_CLASS,
        "--key-decoder-class": _JAVA_CLASS,
        "--share-group-state-decoder": "trimtab has no share groups",
        "--remote-log-metadata-decoder": "trimtab has no tiered storage",
        "--max-message-size": "batches of every size are read: leave it out",
    }
    refuse_options(parser, refused)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.cli.dump_log.findings import Findings
    from trimtab.kafka.errors import UsageError

    paths = split_paths(arguments.files)
    if not paths:
        raise UsageError("no file is named: add --files FILE,…")
    findings = Findings(arguments.json)
    for path in paths:
        dump(path, arguments, findings)
    return 1 if findings.problems else 0


def split_paths(words: Iterable[str]) -> list[str]:
    """The paths in words that separate paths by commas; a file may have commas in its name."""
    paths = []
    for word in words:
        paths += [word] if os.path.exists(word) else [each for each in word.split(",") if each]
    return paths


def dump(path: str, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print one file, and what is wrong with it."""
    from trimtab.cli.dump_log.batches import dump_batches
    from trimtab.cli.dump_log.indexes import dump_index, dump_time_index
    from trimtab.cli.dump_log.log_file import LogFile
    from trimtab.cli.dump_log.producers import dump_aborted, dump_producers
    from trimtab.kafka.errors import CorruptData

    kinds = {
        ".log": dump_batches,
        ".checkpoint": dump_batches,
        ".index": dump_index,
        ".timeindex": dump_time_index,
        ".txnindex": dump_aborted,
        ".snapshot": dump_producers,
    }
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix not in kinds:
        findings.report(path, 0, f"the name of a log's file ends with {', '.join(kinds)}")
        return
    if not stem.partition("-")[0].isdecimal():
        findings.report(path, 0, f"the file's name must begin with an offset, not {stem!r}")
        return
    try:
        with LogFile(path) as file:
            findings.begin_file(path)
            kinds[suffix](file, arguments, findings)
    except CorruptData as error:
        findings.report(path, 0, str(error))
