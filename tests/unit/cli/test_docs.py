"""docs/cli.md has every command and option, as the parsers have them.

After a change of an option:

    python -m tests.unit.cli.test_docs

writes the part of the document that is made from the parsers.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from trimtab.cli import COMMANDS
from trimtab.cli.options import RefusedOption
from trimtab.cli.parser import list_verbs
from trimtab.cli.parser_tree import build_tree, list_commands, walk

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
BEGIN = "<!-- made from the parsers: python -m tests.unit.cli.test_docs -->\n"
CONNECTION = {"--bootstrap-server", "-X", "--command-config"}
WITHOUT_JSON = {"broker", "controller", "cluster up", "completion", "dashboard", "top"}
"""Commands that print no result: nodes that say when they are ready, a script, live views."""


def show(action: argparse.Action) -> str:
    """An argument as it is typed, for a cell of a table."""
    value = str(action.metavar or action.dest.upper())
    if action.choices is not None:
        value = "\\|".join(map(str, action.choices))
    if action.nargs == 0:
        value = ""
    elif action.nargs == "?":
        value = f"[{value}]"
    elif action.nargs == "+":
        value = f"{value} …"
    return f"`{' '.join([', '.join(action.option_strings), value]).strip()}`"


def explain(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("<", "&lt;")


def write_table(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    connects = False
    for action in parser._actions:
        if isinstance(action, RefusedOption | argparse._HelpAction | argparse._SubParsersAction):
            continue
        if CONNECTION & set(action.option_strings):
            connects = True
            others = set(action.option_strings) - CONNECTION - {"--command-property"}
            if not others:
                continue
        yield f"| {show(action)} | {explain(action.help)} |"
    if connects:
        yield "| [connection](#connection) | |"


def write_reference() -> str:
    lines = []
    for parser in list_commands():
        name = parser.prog.removeprefix("trimtab ")
        command = name.split()[0]
        summary = COMMANDS[command][1] if name == command else find_summary(parser.prog)
        lines += [f"### {name}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        lines += [*write_table(parser), ""]
    return "\n".join(lines)


def find_summary(prog: str) -> str:
    """The help of a verb."""
    for parser in walk(build_tree()):
        for verbs in list_verbs(parser):
            for choice in verbs._choices_actions:
                if f"{parser.prog} {choice.dest}" == prog:
                    return str(choice.help)
    raise LookupError(prog)


def test_the_document_is_what_the_parsers_say() -> None:
    _, found, reference = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    assert found
    assert reference.strip() == write_reference().strip(), "run: python -m tests.unit.cli.test_docs"


def test_every_command_has_json_but_those_that_print_no_result() -> None:
    without = {
        parser.prog.removeprefix("trimtab ")
        for parser in list_commands()
        if "--json" not in parser._option_string_actions
    }
    assert without == WITHOUT_JSON
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition("## JSON")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([a-z0-9 -]+)` \|", table, re.M))
    names = {parser.prog.removeprefix("trimtab ") for parser in list_commands()}
    assert rows == names - WITHOUT_JSON


def test_every_command_that_connects_takes_the_same_options() -> None:
    for parser in walk(build_tree()):
        options = set(parser._option_string_actions)
        if options & CONNECTION:
            assert options >= {*CONNECTION, "--command-property"}, parser.prog


def test_every_exit_code_and_shell_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for word in ("`0`", "`1`", "`2`", "`130`", "NO_COLOR", "FORCE_COLOR", "completion fish"):
        assert word in text


if __name__ == "__main__":
    written = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[0]
    DOCUMENT.write_text(f"{written}{BEGIN}\n{write_reference()}", encoding="utf-8")
