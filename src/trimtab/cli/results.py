"""What a command has found, as text for people, in the form of Kafka's tools, or as JSON.

A command gathers its results as dictionaries, with the names that JSON has. They are printed as
they are with --json; without it `TableColumn` says what a table shows of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from trimtab.cli.style import say_error
from trimtab.cli.table import show_count
from trimtab.kafka.errors import BrokerError, ErrorCode

D = TypeVar("D")


def print_result(arguments: argparse.Namespace, shown: object, text: str) -> None:
    """One result: a line of JSON with --json, otherwise the text."""
    print(json.dumps(shown) if arguments.json else text)


def say(arguments: argparse.Namespace, text: str) -> None:
    """A line for people only: nothing with --json."""
    if not arguments.json:
        print(text)


def print_rows(
    arguments: argparse.Namespace, columns: Iterable[TableColumn], rows: Sequence[Mapping[str, Any]]
) -> None:
    """A line of JSON for each row with --json, otherwise a table."""
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
    else:
        print("\n".join(write_columns(columns, rows)))


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        name: of the field in each row.
        width: in characters; 0 leaves each cell as it is.
        fits: whether the column is wider where one of its cells is.
        show: what to show of a field's value; None is shown as `-`.
    """

    head: str
    name: str
    width: int = 0
    fits: bool = False
    show: Callable[[Any], object] = lambda value: value


def write_columns(columns: Iterable[TableColumn], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The heads, then each row: left-justified with one blank in between, as Kafka's tools do."""
    shown = []
    for column in columns:
        values = [column.show(row[column.name]) for row in rows]
        cells = ["-" if value is None else str(value) for value in values]
        width = max([column.width, *(map(len, cells) if column.fits else ())])
        shown.append([cell.ljust(width) for cell in (column.head, *cells)])
    return [" ".join(line) for line in zip(*shown, strict=True)]


def write_fields(fields: Mapping[str, object], names: Mapping[str, str] | None = None) -> str:
    """`name: value name: value …`, as Kafka's tools print what they dump.

    Args:
        names: what these tools call a field, where it is another name than in JSON.
    """
    known = names or {}
    return " ".join(
        f"{known.get(name, name)}: {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in fields.items()
    )


def take_refusals(request: Callable[[], D]) -> tuple[D, dict[Any, BrokerError]]:
    """Send a request whose parts may be refused; its answer about the others, and the refusals."""
    from trimtab.client.admin import PartlyRefused

    try:
        return request(), {}
    except PartlyRefused as partly:
        return partly.done, partly.refusals


def unless_refused(request: Callable[[], D], otherwise: Callable[[], D], *codes: ErrorCode) -> D:
    """The answer to a request; the other one if a broker refuses it with one of these errors."""
    try:
        return request()
    except BrokerError as error:
        if error.code not in codes:
            raise
    return otherwise()


def name_error(error: BrokerError | None) -> str | None:
    """For JSON: the name of Kafka's error; None if all went well."""
    return None if error is None else error.code.name


class Failures:
    """Counts failed deliveries; keeps only the first error, so memory does not grow with them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BaseException | None = None

    def count_failure(self, error: BaseException) -> None:
        if self.first is None:
            self.first = error
        self.count += 1

    def report(self, sent: int) -> int:
        """Print on standard error how many of the `sent` records failed; the exit code."""
        if not self.count:
            return 0
        say_error(f"{self.count:,} of {show_count(sent, 'record')} failed; the first: {self.first}")
        return 1
