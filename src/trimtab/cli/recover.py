"""Rebuild a lost controller directory from the brokers' directories.

Use it if the controller's directory is lost, or if you have only an old copy of it. Stop all nodes
first; the directories of all brokers are needed, and are not changed. If there is an old copy in
the place of the controller's directory, options, limits and empty topics are taken from it; the
copy is kept beside the new directory.

Without an old copy the options of topics and brokers are lost, and so are topics without records
and the last partitions of a topic if they have no records (see --partitions).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from random import SystemRandom
from shutil import copy2, copytree
from tempfile import TemporaryDirectory
from typing import NamedTuple

from trimtab.cli.options import add_options, read_pairs
from trimtab.cli.results import print_result, say
from trimtab.cli.table import show_count
from trimtab.cluster.config.node import CONTROLLER_ID
from trimtab.cluster.controller.journal import DIRECTORY, Journal
from trimtab.cluster.controller.recovery import (
    Recovered,
    RecoveredPartition,
    recover,
    write_journal,
)
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.metadata.replayed import read_replayed
from trimtab.cluster.server.secret_file import SECRET_FILE
from trimtab.cluster.storage.identity import find_cluster_id, name_cluster
from trimtab.cluster.storage.survey import survey
from trimtab.kafka.errors import CorruptData, Unavailable, UsageError
from trimtab.threads.clock import wall_clock_ms

EXAMPLES = """\
  trimtab recover --data ./kafka-data --dry-run
                                 show what would be rebuilt for a `trimtab cluster up`
  trimtab recover --data ./kafka-data --partitions flights=12
  trimtab recover --controller ./controller --broker ./broker-0 ./broker-1 ./broker-2
                                 for nodes that were started one by one
"""

_BEYOND = 1_000_000
"""Added to the highest known offset and epoch: newer ones may exist that no directory shows."""

_SHOWN = 20


class OldJournal(NamedTuple):
    """The contents of an old journal; `image` is None if there is none, or it cannot be read."""

    image: ClusterImage | None = None
    end_offset: int = 0
    epoch: int = 0
    note: str | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--data DIR": "the data directory of `trimtab cluster up`",
        "--controller DIR": "the controller's directory: missing, or an old copy of it",
        "--broker DIR …": "the data directories of all brokers",
        "--partitions TOPIC=N …": "the number of partitions of a topic whose last partitions had "
        "no records",
        "--dry-run": "show what would be done, and change nothing",
        "--json": "print one JSON object",
    }
    add_options(parser, options)


def run(arguments: argparse.Namespace) -> int:
    controller, brokers = choose_directories(arguments)
    counts = read_counts(arguments.partitions)
    random = SystemRandom()
    with ExitStack() as locks:
        storages = [locks.enter_context(_locked(each)) for each in brokers]
        old = OldJournal()
        cluster_id = None
        if os.path.isdir(controller):
            cluster_id = find_cluster_id(locks.enter_context(_locked(controller)))
            old = read_old(controller)
        surveys = [survey(each) for each in storages]
        found = recover(surveys, old.image, counts, lambda: random.randbytes(16))
        if cluster_id not in (None, surveys[0].cluster_id):
            raise UsageError(
                f"{controller} belongs to cluster {cluster_id}, but the brokers belong to "
                f"{surveys[0].cluster_id}; if it was created by mistake, move it away and try again"
            )
        for line in describe(found, old):
            say(arguments, line)
        if arguments.dry_run:
            text = f"nothing was changed; run without --dry-run to write {controller}"
            print_result(arguments, show(found, old, controller, None), text)
            return 0
        replayed = max(read_replayed(each).base_offset for each in storages)
        end_offset = max(old.end_offset, replayed + 1) + _BEYOND
        kept = _write(controller, surveys[0].cluster_id, found.image, end_offset, old.epoch)
    text = f"{controller} is written; start the cluster"
    if kept is not None:
        text = f"the old directory is now {kept}\n{text}"
    print_result(arguments, {**show(found, old, controller, kept), "written": True}, text)
    return 0


def choose_directories(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """The controller's directory, and the brokers' directories.

    Raises:
        UsageError: not all of them are named, or a broker's directory does not exist.
    """
    data, controller, brokers = arguments.data, arguments.controller, list(arguments.broker)
    if (data is None) == (controller is None or not brokers) or (data and (controller or brokers)):
        raise UsageError("name --data, or --controller and --broker with all brokers' directories")
    if data is not None:
        controller = os.path.join(data, "controller")
        names = sorted(os.listdir(data)) if os.path.isdir(data) else []
        brokers = [os.path.join(data, name) for name in names if name.startswith("broker-")]
        if not brokers:
            raise UsageError(f"--data {data}: it has no directory of a broker, such as broker-0")
    for directory in brokers:
        if not os.path.isfile(os.path.join(directory, "meta.properties")):
            raise UsageError(
                f"{directory} is not the data directory of a broker: it has no meta.properties"
            )
    return controller, brokers


def read_counts(words: Iterable[str]) -> dict[str, int]:
    """The number of partitions by topic, from words such as `flights=12`.

    Raises:
        UsageError: a word has another form.
    """
    counts = {}
    for topic, text in read_pairs(words).items():
        if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
            raise UsageError(f"--partitions {topic}={text}: write a number of partitions")
        counts[topic] = int(text)
    return counts


def read_old(controller: str) -> OldJournal:
    """Read the journal in this directory. A copy is opened, so the original is not changed."""
    if not os.path.isdir(os.path.join(controller, DIRECTORY)):
        return OldJournal()
    with TemporaryDirectory(prefix="trimtab-") as copy:
        try:
            copytree(os.path.join(controller, DIRECTORY), os.path.join(copy, DIRECTORY))
        except OSError as error:
            raise Unavailable(f"{controller} cannot be read: {error}") from error
        storage = DirectoryStorage(copy, durable=False)
        try:
            journal = Journal(storage, CONTROLLER_ID, wall_clock_ms, 2**62)
        except CorruptData as error:
            return OldJournal(note=f"the old copy is not used, as it is damaged: {error}")
        finally:
            storage.close()
        if not journal.end_offset:
            return OldJournal()
        return OldJournal(journal.image, journal.end_offset, journal.epoch)


def describe(found: Recovered, old: OldJournal) -> Iterator[str]:
    """Lines for people: each topic, partitions whose replicas differ, and what is lost."""
    for name, topic in found.image.topics.items():
        yield f"topic {name}: {show_count(len(topic.partitions), 'partition')}"
    behind = [line for each in found.partitions if (line := _describe_lag(each))]
    yield from behind[:_SHOWN]
    if len(behind) > _SHOWN:
        yield f"… and {len(behind) - _SHOWN} more partitions like these"
    if old.note is not None:
        yield old.note
    elif old.image is None:
        yield (
            "there is no old copy: options of topics and brokers are lost, and so are topics "
            "without records and last partitions without records"
        )
    else:
        yield "options, limits and empty topics are taken from the old copy"
    yield from found.notes


def show(found: Recovered, old: OldJournal, controller: str, kept: str | None) -> dict[str, object]:
    """What was found, for JSON.

    Args:
        kept: the new path of the old directory; None if there is none.
    """
    return {
        "controller": controller,
        "written": False,
        "oldDirectory": kept,
        "hasOldCopy": old.image is not None,
        "topics": [
            {"topic": name, "partitions": len(topic.partitions)}
            for name, topic in found.image.topics.items()
        ],
        "outOfSync": [
            {
                "topic": partition.topic,
                "partition": partition.registration.id,
                "isr": list(partition.registration.isr),
                "replicas": [
                    {"broker": broker, "leaderEpoch": epoch, "endOffset": end}
                    for broker, (epoch, end) in partition.ends.items()
                ],
            }
            for partition in found.partitions
            if _describe_lag(partition) is not None
        ],
        "notes": [*([] if old.note is None else [old.note]), *found.notes],
    }


def _describe_lag(each: RecoveredPartition) -> str | None:
    isr = each.registration.isr
    if not each.ends or set(isr) == set(each.registration.replicas):
        return None
    epoch, end = each.ends[isr[0]]
    others = ", ".join(
        f"broker {broker} at {each.ends[broker][1]}" if broker in each.ends else f"broker {broker}"
        for broker in each.registration.replicas
        if broker not in isr
    )
    return (
        f"{each.topic}-{each.registration.id}: in sync: {', '.join(map(str, isr))}, up to offset "
        f"{end} (leader epoch {epoch}); out of sync: {others}"
    )


def _write(
    controller: str, cluster_id: str, image: ClusterImage, end_offset: int, epoch: int
) -> str | None:
    """Write the controller's directory; returns the new path of the old one, None if there was
    none."""
    new = f"{controller}.new"
    storage = DirectoryStorage(new)
    try:
        write_journal(storage, image, end_offset, epoch + _BEYOND, wall_clock_ms())
        name_cluster(storage, cluster_id)
    finally:
        storage.close()
    kept = None
    try:
        if os.path.exists(secret := f"{controller}/{SECRET_FILE}"):
            copy2(secret, f"{new}/{SECRET_FILE}")  # with its mode; other machines have copies
        if os.path.isdir(controller):
            numbered = (f"{controller}.old-{number}" for number in count(1))
            kept = next(name for name in numbered if not os.path.exists(name))
            os.rename(controller, kept)
        os.rename(new, controller)
    except OSError as error:
        raise Unavailable(
            f"{new} is written, but cannot be renamed to {controller}: {error}; rename it yourself"
        ) from error
    return kept


@contextmanager
def _locked(directory: str) -> Iterator[DirectoryStorage]:
    """Open and lock a node's directory.

    Raises:
        UsageError: a running node has locked it.
    """
    storage = DirectoryStorage(directory)
    try:
        storage.lock()
    except UsageError as error:
        raise UsageError(f"{directory} is in use: stop all nodes first") from error
    try:
        yield storage
    finally:
        storage.close()
