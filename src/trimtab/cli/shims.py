"""Write shell scripts with the names of Kafka's tools, such as kafka-topics.sh, that run trimtab.

Put the directory on the path, and scripts written for Kafka's tools run with trimtab, without Java,
against trimtab's cluster or Apache Kafka's. A shim passes all its arguments to one command of this
Python's trimtab, which rejects options that it does not support.

Existing shims are overwritten. If a file of another kind has the name of a shim, nothing is written
unless --force is given.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab.cli.options import add_options
from trimtab.cli.results import print_result
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab shims ./bin && PATH=$PWD/bin:$PATH
  kafka-topics.sh --create --topic t --partitions 1 --bootstrap-server localhost:9092
  kafka-configs.sh --alter --entity-type brokers --entity-default --bootstrap-server b:9092 \\
      --add-config max.broker.partitions=4000
"""

SHIMS: Final[Mapping[str, str]] = {
    "kafka-topics.sh": "topics",
    "kafka-configs.sh": "configs",
    "kafka-config.sh": "configs",  # as KIP-578 prints it
    "kafka-log-dirs.sh": "log-dirs",
    "kafka-dump-log.sh": "dump-log",
    "kafka-cluster.sh": "cluster",
    "kafka-features.sh": "features",
    "kafka-reassign-partitions.sh": "reassign",
    "kafka-get-offsets.sh": "offsets",
    "kafka-consumer-groups.sh": "groups",
    "kafka-transactions.sh": "transactions",
    "kafka-delete-records.sh": "delete-records",
    "kafka-leader-election.sh": "leader-election",
    "kafka-console-producer.sh": "produce",
    "kafka-console-consumer.sh": "consume",
    "kafka-producer-perf-test.sh": "producer-perf",
    "kafka-consumer-perf-test.sh": "consumer-perf",
}
"""Kafka's tools, and the commands that have their options."""

_HEAD: Final = "#!/bin/sh\n# Written by `trimtab shims`"
_MODE: Final = 0o755


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="write to this directory; created if it does not exist"
    )
    options = {
        "--force": "also overwrite files that are not shims",
        "--json": "print a line with a JSON object for each shim",
    }
    add_options(parser, options)


def run(arguments: argparse.Namespace) -> int:
    for path in write_shims(Path(arguments.directory), force=arguments.force):
        command = SHIMS[path.name]
        shown = {"shim": str(path), "command": f"trimtab {command}"}
        print_result(arguments, shown, f"{path}: trimtab {command}")
    return 0


def write_shims(directory: Path, force: bool = False) -> list[Path]:
    """Write all shims, or none if another file has the name of one.

    Raises:
        UsageError: there are such files and `force` is not set, or the directory cannot be written.
    """
    paths = [directory / name for name in SHIMS]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        strangers = [path.name for path in paths if not is_replaceable(path)]
        if strangers and not force:
            raise UsageError(
                f"{directory} has files that trimtab did not write: {', '.join(strangers)}; choose "
                "another directory, or overwrite them with --force"
            )
        for path in paths:
            _write(path, write_shim(SHIMS[path.name]))
    except OSError as error:
        where = error.filename or directory
        raise UsageError(f"cannot write shims to {directory}: {where}: {error.strerror}") from error
    return paths


def is_replaceable(path: Path) -> bool:
    """Whether a shim may be written here: there is no file, or a shim."""
    if path.is_symlink():
        return False
    try:
        return path.read_bytes().startswith(_HEAD.encode())
    except FileNotFoundError:
        return True


def write_shim(command: str) -> str:
    """The script that runs one command."""
    # -P: do not import modules from the caller's working directory.
    call = shlex.join([sys.executable, "-P", "-m", "trimtab", command])
    return f'{_HEAD}, which may replace it.\nexec {call} "$@"\n'


def _write(path: Path, text: str) -> None:
    """Write and rename, so that no one runs a partial script; a link is replaced, not followed."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, _MODE)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
