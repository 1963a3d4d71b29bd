"""The command `trimtab`: one module per subcommand, imported only when it is called.

A command's module has a docstring (its help), `EXAMPLES` (the help's end), `configure(parser)` and
`run(arguments) -> int` (the exit code).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from trimtab.cli.parser import MISSPELT, Parser, suggest
from trimtab.errors import KafkaError

COMMANDS = {
    "cluster": ("trimtab.cli.cluster", "run a cluster: brokers and a controller, a process each"),
    "broker": ("trimtab.cli.broker", "run one broker by hand"),
    "controller": ("trimtab.cli.controller", "run a cluster's controller by hand"),
    "recover": (
        "trimtab.cli.recover",
        "rebuild the controller's lost directory from the brokers'",
    ),
    "topics": ("trimtab.cli.topics", "list, create, describe, alter and delete topics"),
    "configs": ("trimtab.cli.configs", "show and change options of topics and brokers"),
    "log-dirs": ("trimtab.cli.log_dirs", "show what lies in brokers' log directories"),
    "produce": ("trimtab.cli.produce", "send each line of standard input as a record"),
    "consume": ("trimtab.cli.consume", "print the records of a topic"),
    "offsets": ("trimtab.cli.offsets", "print the offsets of partitions, also by time"),
    "reassign": (
        "trimtab.cli.reassign",
        "move partitions to other brokers, copying the least",
    ),
    "limits": ("trimtab.cli.limits", "show partition replicas, limits and room (KIP-578)"),
    "shims": ("trimtab.cli.shims", "write kafka-topics.sh and others that run these commands"),
    "producer-perf": (
        "trimtab.cli.producer_perf",
        "measure a producer as Apache Kafka's tool does",
    ),
    "experiment": (
        "trimtab.cli.experiment",
        "repeat the measurements of KIP-480, KIP-794 and KIP-1123",
    ),
    "load": ("trimtab.cli.load", "report how load lies on a cluster, and what to do about it"),
    "pipeline": ("trimtab.cli.pipeline", "check and run a pipeline on Spark: a file of SQL steps"),
    "demo": ("trimtab.cli.demo", "eight ways of choosing a partition, on real flights"),
}

FAILED = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 where something was refused or failed, 2 for a misspelt command line
        (raised as SystemExit by argparse), 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = _choose_command(words)
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(
        prog=f"trimtab {name}",
        description=module.__doc__,
        epilog=f"examples:\n{module.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    arguments = parser.parse_args(words[1:])
    try:
        code = module.run(arguments)
        sys.stdout.flush()
    except KafkaError as error:
        print(f"trimtab {name}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Python flushes stdout once more at
        # exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return int(code)


def _describe_version() -> str:
    from trimtab._pure import is_compiled
    from trimtab.cli.version import read_version

    number = read_version("from source")
    if is_compiled():
        return f"trimtab {number}, compiled"
    why = (
        "TRIMTAB_PURE=1 is set"
        if os.environ.get("TRIMTAB_PURE") == "1"
        else "no compiled modules are here; in a checkout: make .venv/built"
    )
    return f"trimtab {number}, interpreted (about ten times slower: {why})"


def _choose_command(words: Sequence[str]) -> str:
    """The command that the first word names; help and version are answered here."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    parser = Parser(
        prog="trimtab",
        usage="trimtab COMMAND [OPTION …]",
        description="trimtab keeps partitions level: a Kafka-protocol cluster, its clients and a "
        "Spark pipeline in one Python package.",
        epilog=f"commands:\n{listing}\n\n"
        "Each says more by itself: trimtab topics --help\n"
        "Without --bootstrap-server a command talks to 127.0.0.1:9092, where `trimtab cluster up` "
        "listens.\nAny other Kafka cluster will do as well.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words[:1])
    if arguments.version:
        print(_describe_version())
        raise SystemExit(0)
    if arguments.command is None:
        parser.print_help()
        raise SystemExit(0)
    if arguments.command not in COMMANDS:
        said = suggest(arguments.command, COMMANDS) or f": there are {', '.join(COMMANDS)}"
        parser.exit(MISSPELT, f"trimtab: no command {arguments.command!r}{said}\n")
    return str(arguments.command)
