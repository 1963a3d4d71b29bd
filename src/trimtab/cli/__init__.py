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
from errno import ENOSPC

from trimtab.cli.parser import MISSPELT, Parser, suggest
from trimtab.cli.style import say_error
from trimtab.errors import KafkaError

COMMANDS = {
    "cluster": (
        "trimtab.cli.cluster",
        "run a cluster, a process for each node; show the id and the brokers of one",
    ),
    "broker": ("trimtab.cli.broker", "run one broker in this process"),
    "controller": ("trimtab.cli.controller", "run a cluster's controller in this process"),
    "recover": (
        "trimtab.cli.recover",
        "rebuild a lost controller directory from the brokers' directories",
    ),
    "topics": ("trimtab.cli.topics", "list, create, describe, alter and delete topics"),
    "configs": ("trimtab.cli.configs", "show and change options of topics and brokers"),
    "features": ("trimtab.cli.features", "show and change levels of features (KIP-584)"),
    "log-dirs": ("trimtab.cli.log_dirs", "show the replicas in brokers' log directories"),
    "dump-log": ("trimtab.cli.dump_log", "print and check the files of a log: segments, indexes"),
    "produce": ("trimtab.cli.produce", "send each line of standard input as a record"),
    "consume": ("trimtab.cli.consume", "print the records of topics, also as a member of a group"),
    "groups": (
        "trimtab.cli.groups",
        "list, describe, reset and delete consumer groups, and show their lag",
    ),
    "transactions": (
        "trimtab.cli.transactions",
        "list and describe transactions, find and abort those that hang",
    ),
    "offsets": ("trimtab.cli.offsets", "print first and last offsets, or offsets by timestamp"),
    "delete-records": (
        "trimtab.cli.delete_records",
        "delete the records before an offset of each partition",
    ),
    "leader-election": ("trimtab.cli.leader_election", "elect leaders of partitions"),
    "reassign": (
        "trimtab.cli.reassign",
        "move partitions to other brokers, copying as few bytes as possible",
    ),
    "limits": ("trimtab.cli.limits", "show replica counts and partition limits (KIP-578)"),
    "shims": ("trimtab.cli.shims", "write scripts such as kafka-topics.sh that run trimtab"),
    "completion": (
        "trimtab.cli.completion",
        "print a script that completes commands in bash, zsh or fish",
    ),
    "producer-perf": (
        "trimtab.cli.producer_perf",
        "measure a producer's throughput and latency",
    ),
    "consumer-perf": ("trimtab.cli.consumer_perf", "measure how fast a consumer reads"),
    "experiment": (
        "trimtab.cli.experiment",
        "repeat the measurements of KIP-480, KIP-794 and KIP-1123",
    ),
    "load": (
        "trimtab.cli.load",
        "report how a cluster's load is distributed, and what to do about it",
    ),
    "pipeline": ("trimtab.cli.pipeline", "check and run a pipeline on Spark: a file of SQL steps"),
    "demo": ("trimtab.cli.demo", "compare eight partitioners on real flight data"),
}

FAILED = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 if the command failed or was rejected, 2 for a misspelt command line
        (raised as SystemExit by argparse), 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = ""
    try:
        name = _choose_command(words)
        module = importlib.import_module(COMMANDS[name][0])
        arguments = make_parser(name).parse_args(words[1:])
        code = module.run(arguments)
        sys.stdout.flush()
    except KafkaError as error:
        say_error(f"trimtab {name}: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The process that reads our output has ended, as `head` does.
        _drop_output()
        return FAILED
    except OSError as error:
        if error.errno != ENOSPC or error.filename is not None:
            raise
        _drop_output()
        say_error(f"trimtab {name}: cannot write the output: {error.strerror}")
        return FAILED
    return int(code)


def make_parser(name: str) -> Parser:
    """The parser of a command."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(
        prog=f"trimtab {name}",
        description=module.__doc__,
        epilog=f"examples:\n{module.EXAMPLES}",
    )
    module.configure(parser)
    return parser


def _drop_output() -> None:
    """Python flushes stdout again at exit; that must not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe_version() -> str:
    from trimtab._pure import is_compiled
    from trimtab.cli.version import read_version

    number = read_version("from source")
    if is_compiled():
        return f"trimtab {number}, compiled"
    why = (
        "TRIMTAB_PURE=1 is set"
        if os.environ.get("TRIMTAB_PURE") == "1"
        else "compiled modules are missing; in a checkout, build them with `make .venv/built`"
    )
    return f"trimtab {number}, interpreted (about ten times slower: {why})"


def _choose_command(words: Sequence[str]) -> str:
    """The command that the first word names; prints the help or the version if asked to."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    parser = Parser(
        prog="trimtab",
        usage="trimtab COMMAND [OPTION …]",
        description="trimtab balances load over partitions: a Kafka-protocol cluster, its clients "
        "and a Spark pipeline in one Python package.",
        epilog=f"commands:\n{listing}\n\n"
        "For the options of a command: trimtab topics --help\n"
        "Without --bootstrap-server a command connects to 127.0.0.1:9092, where "
        "`trimtab cluster up` listens.\nThe commands work with any other Kafka cluster, too.",
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
        hint = suggest(arguments.command, COMMANDS) or f": commands are {', '.join(COMMANDS)}"
        parser.exit(MISSPELT, f"trimtab: no command {arguments.command!r}{hint}\n")
    return str(arguments.command)
