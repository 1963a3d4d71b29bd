"""Forecast what a change of a cluster or its load would do to the brokers; nothing is changed.

Begins with measured load: of a cluster that it watches for a while, of a recording (`trimtab
dashboard --record`), or of a load table of Spark's. Prints for each broker what is written, what
its leaders send, what is stored, and how long its slowest answers take, before and after.

First it forecasts the second half of what was measured from the first half, and prints how far off
that was. The interval of a forecast is at least as wide. What it cannot forecast it refuses, with
the reason. --check compares a forecast with what came.

exit codes: 0 done; 1 refused, or with --check less than nine in ten outcomes are inside; 2 misspelt
command line
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import (
    add_client_options,
    add_options,
    read_client_options,
    refuse_both,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import print_result
from trimtab.cli.selection import ADMIN_TIMEOUT_MS
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.cli.what_if.measured import Measured

EXAMPLES = """\
  trimtab what-if --growth 2 --bootstrap-server kafka:9092
  trimtab what-if --recording hour.jsonl.gz --partitions flights:48 --plan level
  trimtab what-if --recording hour.jsonl.gz --topic trips:24:3:like=flights --page trips.html
  trimtab what-if --recording hour.jsonl.gz --key flights:user --sample flights.parquet
  trimtab what-if --recording hour.jsonl.gz --from /data/partition_load --without-rack b
  trimtab what-if --recording hour.jsonl.gz --growth 2 --json > forecast.json
  trimtab what-if --check forecast.json --recording later.jsonl.gz
"""

_INSIDE: Final = 0.9
_CHANGES: Final = (
    "growth",
    "key",
    "producer",
    "partitions",
    "topic",
    "without_broker",
    "without_rack",
    "drain",
    "plan",
    "page",
)


def configure(parser: argparse.ArgumentParser) -> None:
    measured = {
        "--recording FILE": "begin with this recording, or the one in a directory (default: watch "
        "the cluster)",
        "--from TABLE": "take what is written from a load table of Spark's (Parquet files of "
        "partition_load with a window), all else from what is measured",
        "--for SECONDS=300": "watch the cluster for so long, with small records to a topic of its "
        "own, __trimtab_probe, which is removed at the end",
        "--window SECONDS=60": "load is a mean over so long; intervals have the least and the most "
        "of all windows",
    }
    changes = {
        "--growth [TOPIC:]FACTOR *": "so many times the bytes",
        "--key TOPIC:COLUMN,… *": "another key: a field of the topic's values that are JSON, or "
        "columns of --sample",
        "--producer TOPIC:NAME=VALUE,… *": "other options of producers whose records have no key, "
        "tried with real ones in virtual time",
        "--partitions TOPIC:N *": "another number of partitions",
        "--topic NAME:PARTITIONS:FACTOR:LOAD *": "a topic more; LOAD is like=TOPIC, or "
        "bytes=5e6,readers=2,kept=86400: bytes/s, how often each is read, and for how many seconds "
        "it is kept",
        "--without-broker ID,… *": "these brokers fail; nothing is moved",
        "--without-rack NAME *": "all brokers of this rack fail",
        "--drain ID,…": "all replicas are moved away from these brokers, and the others levelled",
        "--plan level|FILE": "carry out what trimtab balance would do (level), or a plan that it "
        "or trimtab reassign has written",
    }
    details = {
        "--sample FILE": "with --key: records, as Parquet, CSV or JSON lines (default: the newest "
        "of the topic)",
        "--key-format {text,int,long}=text": "with --key: how a number becomes a key, as in "
        "trimtab skew",
        "--partitioner NAME=murmur2": "with --key: murmur2, consistent, or module:function, as in "
        "trimtab skew",
        "--producer-now TOPIC:NAME=VALUE,… *": "with --producer: the options that producers have "
        "now (default: the client's defaults)",
    }
    results = {
        "--check FORECAST": "compare this forecast, as --json printed it, with what is measured",
        "--page FILE": "write an HTML page, too: before and after",
        "--json": "print one JSON object",
    }
    for title, options in (
        ("what was measured", measured),
        ("changes; several make one forecast", changes),
        ("how to try them", details),
        ("results", results),
    ):
        numbers = {"--for": float, "--window": float}
        add_options(parser.add_argument_group(title), options, types=numbers)
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    for name in ("for", "window"):
        if not 2 <= getattr(arguments, name) <= 7 * 86_400:
            raise UsageError(f"--{name} {getattr(arguments, name):g}: write 2 seconds or more")
    if arguments.check is not None:
        for name in _CHANGES:
            refuse_both(arguments, "check", name)
        return _check(arguments)
    from trimtab.cli.what_if.changes import read_changes
    from trimtab.cli.what_if.forecast import make_forecast
    from trimtab.cli.what_if.keys import read_keys
    from trimtab.cli.what_if.producers import ProducerShares, read_producer_options
    from trimtab.cli.what_if.report import write_text

    now, then = (
        read_producer_options(words) for words in (arguments.producer_now, arguments.producer)
    )
    for topic in now.keys() - then.keys():
        raise UsageError(f"--producer-now {topic}: goes with --producer {topic}:…")
    measured = _measure(arguments)
    producers = {
        topic: ProducerShares(measured, topic, now.get(topic, {}), options)
        for topic, options in then.items()
    }
    changes = read_changes(arguments, measured, read_keys(arguments), producers)
    has_plan = arguments.plan == "level" or arguments.drain is not None
    forecast = make_forecast(measured, changes, has_plan)
    for topic, shares in producers.items():
        forecast["back_test"][f"producers of {topic}"] = shares.error
    if arguments.page is not None:
        from trimtab.cli.what_if.page import write_page

        try:
            Path(arguments.page).write_text(write_page(forecast), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--page {arguments.page}: {error.strerror}") from error
    print_result(arguments, forecast, "\n".join(write_text(forecast)))
    return 0


def _measure(arguments: argparse.Namespace) -> Measured:
    from trimtab.cli.what_if.measured import read_file, use_table, watch_cluster

    if arguments.recording is not None:
        measured = read_file(arguments.recording, arguments.window)
    else:
        options = {"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **read_client_options(arguments)}
        seconds = getattr(arguments, "for")
        say_note(f"Watching the cluster for {seconds:g} s …")
        with report_unreachable(options):
            measured = watch_cluster(options, seconds, arguments.window)
    table = getattr(arguments, "from")
    return measured if table is None else use_table(measured, table)


def _check(arguments: argparse.Namespace) -> int:
    from trimtab.cli.what_if.forecast import VERSION, compare
    from trimtab.cli.what_if.report import write_check

    try:
        forecast = json.loads(Path(arguments.check).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--check {arguments.check}: {error}") from None
    if not isinstance(forecast, dict) or forecast.get("what_if") != VERSION:
        raise UsageError(
            f"--check {arguments.check}: it is no forecast of this version: write one with "
            "trimtab what-if --json"
        )
    measured = _measure(arguments)
    rows = compare(forecast, measured)
    inside = sum(row["is_inside"] for row in rows)
    shown = {"inside": inside, "of": len(rows), "outcomes": rows}
    print_result(arguments, shown, "\n".join(write_check(rows, inside)))
    return 0 if inside >= _INSIDE * len(rows) else 1
