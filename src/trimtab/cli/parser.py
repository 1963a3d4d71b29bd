"""A command line parser that suggests the right spelling of unknown options and commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

from trimtab.cli.style import say_error

TYPE_CHECKING = False  # the same as typing's, which `trimtab cluster` does not import
if TYPE_CHECKING:
    from typing import Any, NoReturn

MISSPELT = 2
"""The exit code, the same as argparse's."""


class Parser(argparse.ArgumentParser):
    """Argparse's parser, but an error is one line without the usage.

    An unknown option is reported before any other error, with the most similar option. Options
    cannot be abbreviated, and descriptions keep their lines; so do the parsers of verbs.
    """

    _words: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        known = set(self._list_options())
        for word in self._words:
            if word == "--":
                break
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                hint = suggest(option, known)
                self.exit(
                    MISSPELT,
                    f"{self.prog}: unknown option {option}{hint}; see {self.prog} --help\n",
                )
        first = self._words[0].partition("=")[0] if self._words else ""
        verbs = [
            verb for verb, parser in self._list_verbs() if first in parser._option_string_actions
        ]
        if first.startswith("--") and first not in self._option_string_actions and verbs:
            self.exit(
                MISSPELT,
                f"{self.prog}: {first} comes after {' or '.join(verbs)}: write "
                f"{self.prog} {verbs[0]} {first} …\n",
            )
        self.exit(MISSPELT, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            say_error(message.removesuffix("\n"))
        raise SystemExit(status)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            hint = suggest(str(value), known)
            raise argparse.ArgumentError(
                action, f"{value!r} is not one of {', '.join(known)}{hint}"
            )

    def _list_options(self) -> Iterable[str]:
        yield from self._option_string_actions
        for _, parser in self._list_verbs():
            yield from parser._option_string_actions

    def _list_verbs(self) -> Iterable[tuple[str, argparse.ArgumentParser]]:
        for action in list_verbs(self):
            yield from action.choices.items()


def list_verbs(
    parser: argparse.ArgumentParser,
) -> Iterator[argparse._SubParsersAction[argparse.ArgumentParser]]:
    """The argument that selects a verb, if the parser has one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action


def suggest(word: str, known: Iterable[str]) -> str:
    """`: did you mean …?` with the known word most similar to this one; "" if none is similar."""
    from difflib import get_close_matches

    close = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ""
