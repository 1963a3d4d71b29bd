"""Options that several commands share: the bootstrap servers and the client options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from trimtab.kafka.errors import UsageError

TYPE_CHECKING = False  # the same as typing's, which `trimtab cluster` does not import
if TYPE_CHECKING:
    from typing import Any

    from trimtab.cluster.config.properties import Property

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


_WHOLE_NUMBERS = ("N", "MS", "BYTES", "PORT", "PARTITION", "MINUTES")


def add_options(
    container: argparse._ActionsContainer,
    options: Mapping[str, str],
    required: Sequence[str] = (),
    types: Mapping[str, Callable[[str], object]] | None = None,
) -> None:
    """Add options. Each is written as in a usage line, and has its help.

    - `--json` takes no value, `--topic NAME` one, `--keys {text,hash}` one of these words.
    - N, MS, BYTES, PORT, PARTITION and MINUTES are whole numbers; `N>0` is greater than zero.
    - `--timeout MS=5000` has a default. The help ends with it, unless it has the word "default".
    - `--codec [CODEC=gzip]` may come without a value, and then means gzip; `[STATE]` is then empty.
    - `--config NAME=VALUE …` takes one or more words, and may be repeated; `--what-if TOPIC *`
      takes one word, and may be repeated.
    - `--id -i N` has two names. `| --execute` excludes the option before it.

    Args:
        required: options that must be given; the first of those that exclude each other.
        types: how to read options that are neither text nor whole numbers.
    """
    spellings = [*options]
    among = container
    for spelling, following in zip(spellings, [*spellings[1:], ""], strict=True):
        words = spelling.removeprefix("| ").split(" ")
        names = [*takewhile(lambda word: word.startswith("-"), words)]
        is_required = names[0] in required
        if not spelling.startswith("| "):
            among = container
            if following.startswith("| "):
                among = container.add_mutually_exclusive_group(required=is_required)
                is_required = False
        settings = _read_value(" ".join(words[len(names) :]), options[spelling])
        if types is not None and names[0] in types:
            settings["type"] = types[names[0]]
        if is_required:
            settings["required"] = True
        among.add_argument(*names, **settings)


def _read_value(value: str, help: str) -> dict[str, Any]:
    """The settings of an option with this value in its usage line."""
    if not value:
        return {"action": "store_true", "help": help}
    settings: dict[str, Any] = {"help": help, "metavar": value}
    if value.endswith((" …", " *")):
        settings = {"help": help, "metavar": value[:-2], "default": [], "action": "append"}
        if value.endswith("…"):
            settings |= {"nargs": "+", "action": "extend"}
        return settings
    name, has_default, default = value.strip("[]").partition("=")
    if value.startswith("["):
        return settings | {"nargs": "?", "metavar": name, "const": default}
    if has_default:
        settings["default"] = default
        if default and "default" not in help:
            settings["help"] = f"{help} (default: {default})"
    settings["metavar"] = name.removesuffix(">0")
    if name.startswith("{"):
        settings |= {"metavar": None, "choices": name.strip("{}").split(",")}
    elif settings["metavar"] in _WHOLE_NUMBERS:
        settings["type"] = positive if name.endswith(">0") else int
    return settings


def refuse_options(container: argparse._ActionsContainer, why: Mapping[str, str]) -> None:
    """Refuse options of Kafka's tools that trimtab lacks: the reason by option, or by its names."""
    for names, text in why.items():
        container.add_argument(*names.split(), action=RefusedOption, why=text)


def add_verbs(
    parser: argparse.ArgumentParser, summaries: Mapping[str, str], required: bool = True
) -> argparse._MutuallyExclusiveGroup:
    """Add options of which exactly one is given, or at most one, and says what the command does."""
    verbs = parser.add_mutually_exclusive_group(required=required)
    for name, text in summaries.items():
        const = name.replace("-", "_")
        verbs.add_argument(f"--{name}", dest="verb", action="store_const", const=const, help=text)
    return verbs


def spell(name: str) -> str:
    """An option as it is written, from its attribute of the parsed arguments."""
    return f"--{name.replace('_', '-')}"


def is_given(value: object) -> bool:
    """Whether a parsed option was given; its default is None, False or an empty list."""
    return value is not None and value is not False and value != []


def refuse_misplaced(
    arguments: argparse.Namespace, verbs_of: Mapping[str, Sequence[str]], verb: str
) -> None:
    """Refuse an option that does not go with the verb.

    Args:
        verbs_of: by option, the verbs that it goes with, as they are written.

    Raises:
        UsageError: there is such an option.
    """
    for name, verbs in verbs_of.items():
        if is_given(getattr(arguments, name)) and verb not in verbs:
            raise UsageError(f"{spell(name)} goes with {' and '.join(verbs)}, not with {verb}")


def refuse_both(arguments: argparse.Namespace, one: str, other: str) -> None:
    """Refuse two options that exclude each other.

    Raises:
        UsageError: both are given.
    """
    if is_given(getattr(arguments, one)) and is_given(getattr(arguments, other)):
        raise UsageError(f"{spell(one)} and {spell(other)} are both given: give one")


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
    options = {
        " ".join(["--bootstrap-server", *servers, "HOST:PORT,…"]): "brokers to connect to first "
        f"(default: {DEFAULT_BOOTSTRAP_SERVERS})",
        " ".join(["-X", "--command-property", *properties, "NAME=VALUE …"]): "client options, "
        "such as linger.ms=10; they override those of the file",
        " ".join(["--command-config", *files, "FILE"]): "a file of client options, one NAME=VALUE "
        "a line; those of other kinds of clients are left out",
    }
    add_options(group, options)
    why = "Kafka 4 removed ZooKeeper and this option: name brokers with --bootstrap-server"
    refuse_options(parser, {"--zookeeper": why})


def refuse_broker_list(parser: argparse.ArgumentParser) -> None:
    """For the tools that had it for --bootstrap-server before Kafka 4."""
    why = "Kafka 4 removed this option (KIP-499): name brokers with --bootstrap-server"
    refuse_options(parser, {"--broker-list": why})


def read_client_options(arguments: argparse.Namespace, client: str = "admin") -> dict[str, Any]:
    """The client's options by dotted name. --bootstrap-server overrides the properties, which
    override the file.

    Args:
        client: the kind whose options are read from the file: admin, producer or consumer.

    Raises:
        UsageError: a word without `=`; or as `read_client_file`.
    """
    options: dict[str, Any] = {"bootstrap.servers": DEFAULT_BOOTSTRAP_SERVERS}
    if arguments.command_config is not None:
        options.update(read_client_file(arguments.command_config, client))
    options.update(read_pairs(arguments.command_property))
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
    from trimtab.cluster.config.properties import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the options file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the options file {path} is not UTF-8 text: {error}") from error
    return parse_properties(text, path)


def read_tool_properties(path: str | None, words: Iterable[str]) -> dict[str, str]:
    """How a console tool reads or writes records: the words override the file.

    Raises:
        UsageError: as `read_properties_file` and `read_pairs`.
    """
    return {**({} if path is None else read_properties_file(path)), **read_pairs(words)}


def complete_properties(
    given: Mapping[str, str], defaults: Mapping[str, str], kind: str
) -> dict[str, str]:
    """The defaults, overridden by what is given.

    Args:
        kind: what the properties are of, for the error.

    Raises:
        UsageError: a property has no default, and so is unknown.
    """
    for name in given:
        if name not in defaults:
            raise UsageError(f"unknown {kind} property {name!r}: known are {', '.join(defaults)}")
    return {**defaults, **given}


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
