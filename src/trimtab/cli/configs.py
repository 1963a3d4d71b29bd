"""Show and change options of topics and brokers, with the options of kafka-configs.

--describe shows the options that were set for this topic or broker, or as the default of all
brokers; with --all also options that were not set, each with the source of its value. Options of
users, clients, ips, groups, client metrics and brokers' loggers are not supported yet: they are an
error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_properties_file,
    refuse_both,
    refuse_options,
)
from trimtab.cli.parser import suggest
from trimtab.cli.results import print_result
from trimtab.cli.selection import connect, describe_brokers
from trimtab.cli.style import say_warning
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.admin import ConfigEntry
    from trimtab.client.admin.answers import ConfigKind
    from trimtab.client.blocking.admin import Admin

EXAMPLES = """\
  trimtab configs --describe --topic flights
  trimtab configs --alter --topic flights --add-config retention.ms=60000
  trimtab configs --alter --topic flights --add-config 'cleanup.policy=[compact,delete]'
  trimtab configs --alter --entity-type brokers --entity-default \\
      --add-config max.broker.partitions=4000
  trimtab configs --alter --broker 1 --delete-config max.connections
  trimtab configs --describe --broker 0 --all --json
"""

KINDS: Final[Mapping[str, ConfigKind]] = {"topics": "topic", "brokers": "broker"}

_MISSING: Final = {
    "users": "quotas of users or SCRAM credentials",
    "clients": "quotas of clients",
    "ips": "quotas of addresses",
    "client-metrics": "subscriptions to client metrics (KIP-714)",
    "groups": "consumer groups",
    "broker-loggers": "log levels of a running broker (KIP-412)",
}
"""Entity types that kafka-configs supports besides topics and brokers, and what they configure."""

_SHORTHANDS: Final = {
    "user": "users",
    "user-defaults": "users",
    "client": "clients",
    "client-defaults": "clients",
    "ip": "ips",
    "ip-defaults": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
    "broker-logger": "broker-loggers",
}

# Commas and equals signs inside square brackets are part of the value.
_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_COMMA: Final = re.compile("," + _OUTSIDE_BRACKETS)
_EQUALS: Final = re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class Entity(NamedTuple):
    """The topic or broker whose options the command shows or changes.

    Attributes:
        type: "topics" or "brokers".
        name: the topic, or the broker's number; "" is the default of all brokers, None every topic
            or every broker.
    """

    type: str
    name: str | None

    @property
    def kind(self) -> ConfigKind:
        return KINDS[self.type]


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--describe": "show options",
        "| --alter": "change options",
    }
    add_options(parser, options, required=("--describe",))
    which = parser.add_argument_group(
        "whose options", "either with --entity-type and --entity-name, or with a short option"
    )
    options = {
        "--entity-type TYPE *": "topics or brokers: what --entity-name names",
        "--entity-name NAME *": "the topic, or the broker's number (default with --describe: all "
        "of the type)",
        "--entity-default": "with --entity-type brokers: the default options of all brokers",
        "--topic NAME": "short for --entity-type topics --entity-name NAME",
        "--broker ID": "short for --entity-type brokers --entity-name ID",
        "--broker-defaults": "short for --entity-type brokers --entity-default",
    }
    add_options(which, options)
    refuse_options(which, {f"--{flag}": _say_missing(of) for flag, of in _SHORTHANDS.items()})
    options = {
        "--all": "with --describe: show all options, not only those set for this topic or broker",
        "--add-config NAME=VALUE,… *": "with --alter: options to set; put values with commas in "
        "square brackets: a=[x,y]",
        "--add-config-file FILE": "with --alter: a file of options to set, one NAME=VALUE a line",
        "--delete-config NAME,… *": "with --alter: remove these options, so that their defaults "
        "apply again",
        "--json": "print a line with a JSON object for each entity",
    }
    add_options(parser, options)
    why = "the controller does not serve configs here: name brokers with --bootstrap-server"
    refuse_options(parser, {"--bootstrap-controller": why})
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    entity = choose_entity(arguments)
    changes = read_changes(arguments)
    with connect(arguments) as admin:
        if arguments.alter:
            alter(admin, arguments, entity, changes)
        else:
            describe(admin, arguments, entity)
    return 0


def choose_entity(arguments: argparse.Namespace) -> Entity:
    """The topic or broker that the options name.

    Raises:
        UsageError: they name none or several, they do not go together, or the type is unsupported.
    """
    short = {
        "topics": [] if arguments.topic is None else [arguments.topic],
        "brokers": ([] if arguments.broker is None else [arguments.broker])
        + [""] * arguments.broker_defaults,
    }
    types = [*arguments.entity_type, *(each for each, names in short.items() if names)]
    names = [*arguments.entity_name, *[""] * arguments.entity_default]
    if any(short.values()) and (arguments.entity_type or names):
        raise UsageError(
            "--entity-type, --entity-name and --entity-default do not go with --topic, --broker "
            "and --broker-defaults: use the long options or the short ones, not both"
        )
    names += [each for listed in short.values() for each in listed]
    for kind in types:
        if kind in _MISSING:
            raise UsageError(f"--entity-type {kind}: {_say_missing(kind)}")
        if kind not in KINDS:
            raise UsageError(
                f"--entity-type {kind!r}: write topics or brokers{suggest(kind, KINDS)}"
            )
    if not types:
        raise UsageError(
            "whose options? add --topic NAME, --broker ID or --broker-defaults, or --entity-type"
        )
    if len(types) > 1 or len(names) > 1:
        raise UsageError(
            f"{', '.join(types)} {', '.join(name or 'default' for name in names)}: name one topic, "
            "one broker or the default of all brokers"
        )
    entity = Entity(types[0], names[0] if names else None)
    if entity.type == "topics" and entity.name == "":
        raise UsageError("topics have no default: name a topic, or set the brokers' default")
    if entity.type == "brokers" and entity.name and not entity.name.isdecimal():
        raise UsageError(f"broker {entity.name!r}: a broker is named by its number, such as 0")
    if arguments.alter and entity.name is None:
        raise UsageError(f"--alter changes one of the {entity.type}: add --entity-name NAME")
    return entity


def _say_missing(entity_type: str) -> str:
    return f"trimtab does not support {_MISSING[entity_type]} yet; use topics or brokers"


def read_changes(arguments: argparse.Namespace) -> dict[str, str | None]:
    """The changes that --alter asks for: the new value of each option, or None to delete it.

    Raises:
        UsageError: there is no change, options do not go together, or a word is not NAME=VALUE.
    """
    is_changed = bool(
        arguments.add_config or arguments.add_config_file is not None or arguments.delete_config
    )
    if not arguments.alter:
        if is_changed:
            raise UsageError(
                "--add-config, --add-config-file and --delete-config go with --alter, not with "
                "--describe: leave them out"
            )
        return {}
    if arguments.all:
        raise UsageError("--all goes with --describe, not with --alter: leave it out")
    if not is_changed:
        raise UsageError(
            "--alter changes nothing: add --add-config NAME=VALUE, --add-config-file FILE or "
            "--delete-config NAME"
        )
    refuse_both(arguments, "add_config", "add_config_file")
    changes: dict[str, str | None] = {}
    if arguments.add_config_file is not None:
        changes.update(read_properties_file(arguments.add_config_file))
    for text in arguments.add_config:
        changes.update(read_added(text))
    for name in (each.strip() for text in arguments.delete_config for each in text.split(",")):
        if changes.get(name) is not None:
            raise UsageError(f"option {name} is set and deleted at once: do one of them")
        if name:
            changes[name] = None
    for name in changes:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"option {name!r}: names have letters, digits, dots, hyphens and underscores"
            )
    return changes


def read_added(text: str) -> dict[str, str]:
    """`a=b,c=[x,y]` as a mapping.

    Raises:
        UsageError: the text has another form.
    """
    added = {}
    for part in _COMMA.split(text.rstrip(",")):
        words = _EQUALS.split(part)
        if len(words) != 2:
            raise UsageError(
                f"--add-config {part!r}: write NAME=VALUE, or NAME=[VALUE] where the value has "
                "commas or equals signs"
            )
        added[words[0].strip()] = words[1].replace("[", "").replace("]", "").strip()
    return added


def alter(
    admin: Admin, arguments: argparse.Namespace, entity: Entity, changes: Mapping[str, str | None]
) -> None:
    name = entity.name or ""
    admin.alter_configs(entity.kind, name, changes)
    # Names only: a value may be a password.
    shown = {
        **_show_entity(entity, name),
        "set": [option for option, value in changes.items() if value is not None],
        "deleted": [option for option, value in changes.items() if value is None],
    }
    what = (
        f"config for {entity.kind} {name}"
        if name
        else f"default config for {entity.type} in the cluster"
    )
    print_result(arguments, shown, f"Completed updating {what}.")


def describe(admin: Admin, arguments: argparse.Namespace, entity: Entity) -> None:
    everything = arguments.all
    known, stopped = _list_names(admin, entity.type)
    all_topics = entity.kind == "topic" and entity.name is None
    of_topics = admin.describe_topic_configs(known) if all_topics else {}
    for name in known if entity.name is None else [entity.name]:
        # Kafka's tool does not fail here. With --all it asks the cluster, which returns an error.
        if name not in known and not everything:
            text = f"The {entity.kind} '{name}' doesn't exist and doesn't have dynamic config."
            print_result(arguments, {**_show_entity(entity, name), "configs": None}, text)
            continue
        try:
            found = of_topics.get(name) or admin.describe_configs(entity.kind, name)
        except UsageError as error:
            if entity.name is not None:
                raise
            say_warning(str(error))
            continue
        entries = [
            entry
            for entry in found
            if everything or entry.source.name == _own_source(entity.kind, name)
        ]
        if entity.name is None and name in stopped and not entries:
            continue  # Kafka's tool lists no stopped broker; what was left on one is worth a line
        heading = f"{'All' if everything else 'Dynamic'} configs for {entity.kind} {name} are:"
        if not name:
            heading = f"Default configs for {entity.type} in the cluster are:"
        configs = [_show_entry(each) for each in entries]
        text = "\n".join([heading, *map(write_entry, entries)])
        print_result(arguments, {**_show_entity(entity, name), "configs": configs}, text)


def _list_names(admin: Admin, entity_type: str) -> tuple[list[str], set[str]]:
    """All names, and which of them are brokers that are stopped."""
    if entity_type == "topics":
        return admin.topics(include_internal=True), set()
    cluster = describe_brokers(admin)
    return [*(str(node.id) for node in cluster.nodes), ""], set(map(str, cluster.fenced))


def _own_source(kind: ConfigKind, name: str) -> str:
    """The source of options that were set for this topic or broker itself."""
    if kind == "topic":
        return "DYNAMIC_TOPIC_CONFIG"
    return "DYNAMIC_BROKER_CONFIG" if name else "DYNAMIC_DEFAULT_BROKER_CONFIG"


def write_entry(entry: ConfigEntry) -> str:
    """An option as kafka-configs shows it."""
    synonyms = ", ".join(
        f"{synonym.source.name}:{synonym.name}={_write_value(synonym.value)}"
        for synonym in entry.synonyms
    )
    return (
        f"  {entry.name}={_write_value(entry.value)} "
        f"sensitive={str(entry.is_sensitive).lower()} synonyms={{{synonyms}}}"
    )


def _write_value(value: str | None) -> str:
    return "null" if value is None else value


def _show_entity(entity: Entity, name: str) -> dict[str, object]:
    return {"entityType": entity.type, "entityName": name or None}


def _show_entry(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "sensitive": entry.is_sensitive,
        "readOnly": entry.is_read_only,
        "synonyms": [
            {"source": synonym.source.name, "name": synonym.name, "value": synonym.value}
            for synonym in entry.synonyms
        ],
    }
