"""Options that several commands share: the bootstrap servers and the client options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from trimtab.errors import UsageError

TYPE_CHECKING = False  # the same as typing's, which `trimtab cluster` does not import
if TYPE_CHECKING:
    from typing import Any

    from trimtab.config.properties import Property

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"


class RefusedOption(argparse.Action):
    """An option of Kafka's tools that trimtab lacks; the error gives the reason. Not in the help.

    Args:
        why: the reason, and what to do instead.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, why: str) -> None:
        super().__init__(option_strings, dest, nargs="?", help=argparse.SUPPRESS)
        self.why = why

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        raise argparse.ArgumentError(self, self.why)


def positive(text: str) -> int:
    """The type of an option that is a whole number greater than zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number greater than zero")
    return int(text)


def add_list_option(
    parser: argparse._ActionsContainer,
    *names: str,
    metavar: str,
    help: str,
    dest: str | None = None,
) -> None:
    """Add an option that several words may follow, and that may be repeated."""
    parser.add_argument(
        *names, dest=dest, nargs="+", action="extend", default=[], metavar=metavar, help=help
    )


def add_choices(
    parser: argparse.ArgumentParser, name: str, choices: Iterable[str], help: str
) -> None:
    """Add an option that selects some of these; without it, all are."""
    each = list(choices)
    parser.add_argument(name, nargs="+", choices=each, default=each, help=f"{help} (default: all)")


def add_client_options(
    parser: argparse.ArgumentParser,
    properties: Sequence[str] = (),
    files: Sequence[str] = (),
    servers: Sequence[str] = (),
) -> None:
    """Add --bootstrap-server, -X, --command-property and --command-config (KIP-1147).

    Args:
        properties: older names of --command-property that the tool also had.
        files: older names of --command-config.
        servers: other names of --bootstrap-server.
    """
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--bootstrap-server",
        *servers,
        metavar="HOST:PORT,…",
        help=f"brokers to connect to first (default: {DEFAULT_BOOTSTRAP_SERVERS})",
    )
    add_list_option(
        group,
        "-X",
        "--command-property",
        *properties,
        dest="properties",
        metavar="NAME=VALUE",
        help="client options, such as linger.ms=10; they override those of the file",
    )
    group.add_argument(
        "--command-config",
        *files,
        dest="file",
        metavar="FILE",
        help="a file of client options, one NAME=VALUE a line; those of other kinds of clients are "
        "left out",
    )
    parser.add_argument(
        "--zookeeper",
        action=RefusedOption,
        why="Kafka 4 removed ZooKeeper and this option: name brokers with --bootstrap-server",
    )


def read_client_options(arguments: argparse.Namespace, client: str = "admin") -> dict[str, Any]:
    """The client's options by dotted name. --bootstrap-server overrides the properties, which
    override the file.

    Args:
        client: the kind whose options are read from the file: admin, producer or consumer.

    Raises:
        UsageError: a word without `=`; or as `read_client_file`.
    """
    options: dict[str, Any] = {"bootstrap.servers": DEFAULT_BOOTSTRAP_SERVERS}
    if arguments.file is not None:
        options.update(read_client_file(arguments.file, client))
    options.update(read_pairs(arguments.properties))
    if arguments.bootstrap_server is not None:
        options["bootstrap.servers"] = arguments.bootstrap_server
    return options


def read_client_file(path: str, client: str) -> dict[str, str]:
    """The options of one kind of client in a file, by name. Options of other kinds only are left
    out, so that one file serves every command.

    Raises:
        UsageError: as `read_properties_file`; or no client has an option of that name.
    """
    from trimtab.client.options import ADMIN, CONSUMER, PRODUCER

    kinds = {"admin": ADMIN, "producer": PRODUCER, "consumer": CONSUMER}
    options = {}
    for name, (value, line) in read_properties(path).items():
        if kinds[client].knows(name):
            options[name] = value.strip()
        elif not any(kind.knows(name) for kind in kinds.values()):
            near = next(filter(None, (kind.nearest(name) for kind in kinds.values())), None)
            hint = f"did you mean {near}?" if near else "remove it"
            raise UsageError(f"{path}, line {line}: clients have no option {name!r}: {hint}")
    return options


def read_pairs(words: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b=2"]` as a mapping; a value may hold further `=`.

    Raises:
        UsageError: a word without `=`, or without a name before it.
    """
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is not NAME=VALUE: write for instance linger.ms=10")
        pairs[name.strip()] = value
    return pairs


def read_properties_file(path: str) -> dict[str, str]:
    """The options in a Java properties file, by name; blanks around values are removed.

    Raises:
        UsageError: the file cannot be read, or a line is not NAME=VALUE.
    """
    return {name: each.value.strip() for name, each in read_properties(path).items()}


def read_properties(path: str) -> dict[str, Property]:
    """Like `read_properties_file`, with each option's line number."""
    from trimtab.config.properties import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the options file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the options file {path} is not UTF-8 text: {error}") from error
    return parse_properties(text, path)


def read_partition_ids(text: str) -> list[int]:
    """`0,2,5` as numbers.

    Raises:
        UsageError: the text has another form.
    """
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(
            f"partitions {text!r}: write numbers separated by commas, such as 0,2,5"
        ) from None
