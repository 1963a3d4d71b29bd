"""The command `trimtab`: one module per subcommand, imported only when it is called.

A command's module has a docstring (its help), `EXAMPLES` (the help's end), `configure(parser)` and
`run(arguments) -> int` (the exit code).

Tests of broker, controller: test_node.py
Tests of recover: tests/conformance/test_recover.py
Tests of parser_tree: test_completion.py
Tests of key_columns: test_skew.py
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from errno import ENOSPC
from io import TextIOWrapper
from types import ModuleType

import trimtab
from trimtab.cli.parser import MISSPELT, Parser, suggest
from trimtab.cli.style import say_error
from trimtab.kafka.errors import KafkaError, UsageError

_SUMMARIES = {
    "cluster": "run a cluster, a process for each node; show the id and the brokers of one",
    "broker": "run one broker in this process",
    "controller": "run a cluster's controller in this process",
    "recover": "rebuild a lost controller directory from the brokers' directories",
    "topics": "list, create, describe, alter and delete topics",
    "configs": "show and change options of topics and brokers",
    "features": "show and change levels of features (KIP-584)",
    "log-dirs": "show the replicas in brokers' log directories",
    "dump-log": "print and check the files of a log: segments, indexes",
    "produce": "send each line of standard input as a record",
    "consume": "print the records of topics, also as a member of a group",
    "copy": "copy the records of a topic to another one, also in another cluster",
    "groups": "list, describe, reset and delete consumer groups, and show their lag",
    "transactions": "list and describe transactions, find and abort those that hang",
    "offsets": "print first and last offsets, or offsets by timestamp",
    "delete-records": "delete the records before an offset of each partition",
    "leader-election": "elect leaders of partitions",
    "reassign": "move partitions to other brokers, copying as few bytes as possible",
    "balance": "measure the load of a cluster, and level it for the fewest bytes",
    "dashboard": "show a cluster's load in a browser, live, and what to do about it",
    "what-if": "forecast what a change would do to the brokers, with its error",
    "top": "show a cluster's load in the terminal, live",
    "skew": "say whether keys spread records evenly over partitions",
    "limits": "show replica counts and partition limits (KIP-578)",
    "shims": "write scripts such as kafka-topics.sh that run trimtab",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "producer-perf": "measure a producer's throughput and latency",
    "consumer-perf": "measure how fast a consumer reads",
    "experiment": "repeat the measurements of KIP-480, KIP-794 and KIP-1123",
    "load": "measure how a cluster's load is distributed, and what to do about it",
    "pipeline": "check and run a pipeline on Spark: a file of SQL steps",
    "demo": "compare ten partitioners on real flight data",
}
_ELSEWHERE = {
    "cluster": "trimtab.cli.cluster_up",
    "experiment": "lab.experiments",
    "demo": "lab.demo",
}

COMMANDS = {
    name: (_ELSEWHERE.get(name, f"trimtab.cli.{name.replace('-', '_')}"), summary)
    for name, summary in _SUMMARIES.items()
}
"""By command, its module and what it does."""

FAILED = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 if the command failed or was rejected, 2 for a misspelt command line
        (raised as SystemExit by argparse), 130 after Ctrl-C.
    """
    if argv is None:
        _keep_output_to_results()
    words = list(sys.argv[1:] if argv is None else argv)
    name = ""
    try:
        name = _choose_command(words)
        module = import_command(name)
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


def import_command(name: str) -> ModuleType:
    """The module of a command.

    Raises:
        UsageError: it is in the lab, which only a checkout has.
    """
    try:
        return importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if error.name != "lab":
            raise
        raise UsageError(
            f"{name} is not part of the installed package, but of trimtab's repository: "
            f"clone that, and run `make demo`, or `make .venv/built` and `.venv/bin/trimtab {name}`"
        ) from None


def make_parser(name: str) -> Parser:
    """The parser of a command."""
    module = import_command(name)
    parser = Parser(
        prog=f"trimtab {name}", description=module.__doc__, epilog=f"examples:\n{module.EXAMPLES}"
    )
    module.configure(parser)
    return parser


def _keep_output_to_results() -> None:
    """Send to stderr what is written to descriptor 1 past `sys.stdout`: libraries in C print there,
    such as HiGHS its name, and a program that reads our results would stumble over it."""
    if sys.stdout is None or sys.stderr is None:
        return
    sys.stdout.flush()
    results = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = TextIOWrapper(
        open(results, "wb", closefd=False),  # noqa: SIM115 the process's end closes it
        encoding=sys.stdout.encoding,
        errors=sys.stdout.errors,
        newline="",
        line_buffering=sys.stdout.isatty(),
    )


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
        description=(trimtab.__doc__ or "").partition("\n")[0],  # none with python -OO
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
