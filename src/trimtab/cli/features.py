"""Show and change a cluster's levels of features, with the options of kafka-features (KIP-584).

A level stands for a form of the cluster's metadata or records, such as `metadata.version`. That
feature's levels are shown as Apache Kafka's releases.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import (
    add_client_options,
    add_options,
    refuse_both,
    refuse_misplaced,
    refuse_options,
)
from trimtab.cli.results import name_error, print_result, take_refusals
from trimtab.cli.selection import connect
from trimtab.cli.style import say_error, say_note
from trimtab.cli.table import show_count
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.admin.features import Change
    from trimtab.client.blocking.admin import Admin

EXAMPLES = """\
  trimtab features describe
  trimtab features upgrade --feature transaction.version=2 --dry-run
  trimtab features upgrade --release-version 4.3
  trimtab features downgrade --feature transaction.version=1
  trimtab features version-mapping --release-version 4.0-IV3
"""

METADATA: Final = "metadata.version"
_FIRST_LEVEL: Final = 7
RELEASES: Final = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1"),
    *("4.2-IV0", "4.2-IV1", "4.3-IV0"),
)
"""The releases that the levels of `metadata.version` are named after, from level 7 on."""

_DEFAULTS: Final[Mapping[str, tuple[str, int]]] = {
    "kraft.version": ("3.9-IV0", 1),
    "transaction.version": ("4.0-IV2", 2),
    "group.version": ("4.0-IV0", 1),
    "eligible.leader.replicas.version": ("4.1-IV0", 1),
    "share.version": ("4.2-IV0", 1),
    "streams.version": ("4.2-IV1", 1),
}
"""By feature, the release from which it is on by default, and its level then."""

_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "node_id": ("describe",),
    "feature": ("upgrade", "downgrade", "disable"),
    "release_version": ("upgrade", "downgrade", "version-mapping"),
    "unsafe": ("downgrade", "disable"),
    "dry_run": ("upgrade", "downgrade", "disable"),
}
"""The verbs with which each option may be used."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "verb",
        choices=("describe", "upgrade", "downgrade", "disable", "version-mapping"),
        help="describe: show the levels; upgrade, downgrade, disable: change them; "
        "version-mapping: show the levels of a release",
    )
    options = {
        "--feature NAME=LEVEL …": "with upgrade and downgrade: the new level; with disable: only "
        "the name",
        "--release-version RELEASE": "the levels of this release of Apache Kafka, such as 4.3 or "
        f"4.0-IV3 (default of version-mapping: {RELEASES[-1]})",
        "--unsafe": "with downgrade and disable: also if metadata may be lost",
        "--dry-run": "check the change, but do not carry it out",
        "--node-id N": "with describe: ask this broker (default: any)",
        "--json": "print a line with a JSON object for each feature",
    }
    add_options(parser, options)
    why = "it is deprecated in Kafka: write --release-version, or --feature metadata.version=25"
    refuse_options(parser, {"--metadata": why})
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    verb = arguments.verb
    if verb == "version-mapping":
        return print_mapping(arguments)
    levels = {} if verb == "describe" else choose_levels(arguments)
    with connect(arguments) as admin:
        if verb == "describe":
            return describe(admin, arguments)
        return update(admin, arguments, levels)


def check_arguments(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: an option does not go with the verb, or a level with another option.
    """
    refuse_misplaced(arguments, _VERBS, arguments.verb)
    refuse_both(arguments, "feature", "release_version")


def describe(admin: Admin, arguments: argparse.Namespace) -> int:
    found = admin.describe_features(arguments.node_id)
    for name, (least, most) in found.supported.items():
        level = found.finalized.get(name, 0)
        keys = ("feature", "supported_min", "supported_max", "finalized", "epoch")
        shown = dict(zip(keys, (name, least, most, level, found.epoch), strict=True))
        lowest, highest, finalized = (show_level(name, each) for each in (least, most, level))
        print_result(
            arguments,
            shown,
            f"Feature: {name:<40}  SupportedMinVersion: {lowest:<15}  "
            f"SupportedMaxVersion: {highest:<15}  FinalizedVersionLevel: {finalized:<15}  "
            f"Epoch: {'-' if found.epoch is None else found.epoch}",
        )
    if not found.supported:
        say_note("The cluster has no levels of features.")
    return 0


def update(admin: Admin, arguments: argparse.Namespace, levels: Mapping[str, int]) -> int:
    verb, is_dry = arguments.verb, arguments.dry_run
    change: Change = "unsafe_downgrade" if arguments.unsafe else "safe_downgrade"
    if verb == "upgrade":
        change = "upgrade"
    _, refusals = take_refusals(lambda: admin.update_features(levels, change, is_dry))
    for name, level in sorted(levels.items()):
        error = refusals.get(name)
        target = "" if verb == "disable" else f" to {level}"
        text = f"{name} {'can be' if is_dry else 'was'} {verb}d{target}."
        if error is not None:
            why = error.detail or error.code.name
            text = f"{'Can' if is_dry else 'Could'} not {verb} {name}{target}. {why}"
        shown = {"feature": name, "level": level, "error": name_error(error)}
        print_result(arguments, shown, text)
    if refusals:
        say_error(f"{len(refusals)} of {show_count(len(levels), 'change')} failed.")
    return 1 if refusals else 0


def print_mapping(arguments: argparse.Namespace) -> int:
    release = arguments.release_version or RELEASES[-1]
    for name, level in levels_of(release).items():
        text = f"{name}={level}{f' ({release})' if name == METADATA else ''}"
        print_result(arguments, {"feature": name, "level": level}, text)
    return 0


def choose_levels(arguments: argparse.Namespace) -> dict[str, int]:
    """The levels that the options ask for.

    Raises:
        UsageError: there is none, one has another form, or a feature is named twice.
    """
    verb = arguments.verb
    if arguments.release_version is not None:
        levels = levels_of(arguments.release_version)
        # An upgrade to level 0 would be none.
        return {name: level for name, level in levels.items() if level or verb != "upgrade"}
    if not arguments.feature:
        raise UsageError(f"{verb} needs a feature: add --feature")
    pairs = [(word, 0) if verb == "disable" else _read_level(word) for word in arguments.feature]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--feature {name} is given more than once: give one level")
    return dict(pairs)


def _read_level(word: str) -> tuple[str, int]:
    name, _, level = word.partition("=")
    if not name or not level.isdecimal():
        raise UsageError(f"--feature {word}: write NAME=LEVEL, such as metadata.version=25")
    return name, int(level)


def levels_of(release: str) -> dict[str, int]:
    """The levels of a new cluster of this release: `4.0-IV3`, or `4.0` for the last one of those.

    Raises:
        UsageError: there is no such release.
    """
    at = max(
        (at for at, name in enumerate(RELEASES) if release in (name, name.partition("-")[0])),
        default=None,
    )
    if at is None:
        raise UsageError(f"--release-version {release}: there are {', '.join(RELEASES)}")
    return {
        METADATA: at + _FIRST_LEVEL,
        **{
            feature: level if at >= RELEASES.index(first) else 0
            for feature, (first, level) in _DEFAULTS.items()
        },
    }


def show_level(name: str, level: int) -> str:
    """As Kafka's tool: a level of `metadata.version` is shown as the release."""
    if name != METADATA:
        return str(level)
    at = level - _FIRST_LEVEL
    return RELEASES[at] if 0 <= at < len(RELEASES) else f"UNKNOWN {level}"
