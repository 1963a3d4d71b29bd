"""All parsers in one tree, for what is made from them: completion and the list of options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from trimtab.cli import COMMANDS, make_parser
from trimtab.cli.parser import Parser, list_verbs
from trimtab.kafka.errors import UsageError


def build_tree() -> Parser:
    """A parser with each command as a verb. Imports every command that is installed."""
    tree = Parser(prog="trimtab")
    tree.add_argument("--version", action="store_true", help="print the version and exit")
    commands = tree.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        try:
            made = make_parser(name)
        except UsageError:
            continue
        added = commands.add_parser(name, help=summary, description=summary)
        added.__dict__.update({**made.__dict__, "description": summary})
    return tree


def list_commands() -> list[argparse.ArgumentParser]:
    """The parsers of all command lines: those without verbs, and those whose verb may be left
    out."""
    tree = build_tree()
    return [
        parser
        for parser in walk(tree)
        if parser is not tree and not any(verbs.required for verbs in list_verbs(parser))
    ]


def walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, then those of its verbs and their verbs."""
    yield parser
    for verbs in list_verbs(parser):
        for each in dict.fromkeys(verbs.choices.values()):
            yield from walk(each)
