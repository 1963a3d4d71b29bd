"""Write shell scripts with the names of Kafka's tools, such as kafka-topics.sh, that run trimtab.

Put the directory on the path, and scripts that were written for Kafka's tools run with trimtab and
without Java, on this cluster or on Apache Kafka's. A shim hands over all its words to one command
of this Python's trimtab; what that command does not have, it refuses.

Files that are there already are written again if they are shims. Others stay as they are, and
nothing is written then, unless --force is given.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab.errors import UsageError

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
    "kafka-reassign-partitions.sh": "reassign",
    "kafka-get-offsets.sh": "offsets",
    "kafka-console-producer.sh": "produce",
    "kafka-console-consumer.sh": "consume",
    "kafka-producer-perf-test.sh": "producer-perf",
}
"""Kafka's tools, and the commands that have their options."""

_HEAD: Final = "#!/bin/sh\n# Written by `trimtab shims`"
_MODE: Final = 0o755


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where to; it is made if it is missing")
    parser.add_argument(
        "--force", action="store_true", help="also replace files that are not shims"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each shim")


def run(arguments: argparse.Namespace) -> int:
    for path in write_shims(Path(arguments.directory), force=arguments.force):
        command = SHIMS[path.name]
        print(
            json.dumps({"shim": str(path), "command": f"trimtab {command}"})
            if arguments.json
            else f"{path}: trimtab {command}"
        )
    return 0


def write_shims(directory: Path, force: bool = False) -> list[Path]:
    """Write all shims, or none if a file is in the way.

    Raises:
        UsageError: files that are not shims are there, or the directory cannot be written to.
    """
    paths = [directory / name for name in SHIMS]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        strangers = [path.name for path in paths if not is_replaceable(path)]
        if strangers and not force:
            raise UsageError(
                f"{directory} has files that are not trimtab's: {', '.join(strangers)}; choose "
                "another directory, or replace them with --force"
            )
        for path in paths:
            _write(path, write_shim(SHIMS[path.name]))
    except OSError as error:
        where = error.filename or directory
        raise UsageError(f"cannot write shims to {directory}: {where}: {error.strerror}") from error
    return paths


def is_replaceable(path: Path) -> bool:
    """Whether nothing is lost if a shim takes this place."""
    if path.is_symlink():
        return False
    try:
        return path.read_bytes().startswith(_HEAD.encode())
    except FileNotFoundError:
        return True


def write_shim(command: str) -> str:
    """The script that runs one command."""
    # -P: the directory it is called in is no place to import from.
    call = shlex.join([sys.executable, "-P", "-m", "trimtab", command])
    return f'{_HEAD}, which may replace it.\nexec {call} "$@"\n'


def _write(path: Path, text: str) -> None:
    """In one step, so that nobody runs half a script; a link is replaced, not followed."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, _MODE)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
