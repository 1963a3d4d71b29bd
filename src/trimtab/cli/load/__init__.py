"""How a cluster's load is distributed, and what to do about it: as it is now, or with its history.

Without a verb: measures for some seconds from outside, on any Kafka, without Spark or Java. Prints
brokers, the topics with most load, hot keys, groups that are behind, bytes between racks, and the
rules that are broken, each with the command or the option that mends it. Changes nothing, and
leaves nothing. Of keys it sees the newest records of the busiest partitions only.

`load report` reads the records themselves with Spark: all hot keys, load by time, growth of disks.
Its options come after the verb.

exit codes: 0 measured, or the report is written; 1 refused or failed, 2 misspelt command line,
130 Ctrl-C, 143 SIGTERM
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.live.options import LIVE_OPTIONS
from trimtab.cli.options import add_client_options, add_options, read_client_options
from trimtab.cli.selection import ADMIN_TIMEOUT_MS, connect_admin, match_names
from trimtab.cli.style import say_note
from trimtab.cli.table import show_bytes, show_count
from trimtab.kafka.errors import BrokerError, KafkaError, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.load import COST_PER_GB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trimtab.cli.load.reading import Stored
    from trimtab.cli.load.survey import Summary, SurveyRequest, Tables
    from trimtab.client.blocking.admin import Admin
    from trimtab.spark.load.snapshots import Snapshot

EXAMPLES = """\
  trimtab load
  trimtab load --bootstrap-server kafka:9092 --probe --json
  trimtab load report --out /srv/load
"""

_REPORT: Final = """\
Tables, plots, and what to do about a cluster's load, from its records.

Takes a snapshot of any Kafka cluster (topics, brokers, disks, limits), and reads the sizes and
times of its records with Spark: no values, and keys only to count the hot ones. Writes report.html,
summary.json and the load tables as Parquet. Prints the rules that are broken, each with the command
or the option that mends it.

Reads all records, up to --max-bytes; if there is more, the newest part of each partition, the same
share of all. Each run adds its snapshot to DIR/history. From the second run on, the report shows
how fast disks fill and which consumer groups fall behind, so run it every hour or every day.

Without more, Spark runs in this process's own local mode. Started by spark-submit, or with
SPARK_REMOTE set, the tables are computed by the cluster that those name.

exit codes: 0 the report is written, 1 refused or failed, 2 misspelt command line, 130 Ctrl-C
"""

_REPORT_EXAMPLES: Final = """\
  trimtab load report
  trimtab load report --bootstrap kafka:9092 --topics 'flights,audit.*' --since 24h
  trimtab load report --groups billing,search --keys hash --out /srv/load
  spark-submit --master spark://HOST:7077 …/trimtab/__main__.py load report --max-bytes 1t
"""

_WINDOW: Final = re.compile(r"[1-9]\d{0,5} ?(second|minute|hour|day|week)s?")


class ReportFailed(KafkaError):
    """Spark could not compute the tables, or they could not be written."""


def configure(parser: argparse.ArgumentParser) -> None:
    live = {
        "--window SECONDS=10": "measure for so long; several times the interval at which consumers "
        "commit",
        **LIVE_OPTIONS,
        "--top N=10": "rows of tables shown",
        "--json": "print one JSON object",
    }
    add_options(parser, live, types=dict.fromkeys(("--window", "--cost-per-gb"), float))
    add_client_options(parser, servers=("--bootstrap",))
    verbs = parser.add_subparsers(dest="verb", metavar="report", action=_Verb)
    command = verbs.add_parser(
        "report",
        help="tables, plots, and what to do, from the records, with Spark",
        description=_REPORT,
        epilog=f"examples:\n{_REPORT_EXAMPLES}",
    )
    options = {
        "--topics NAME,…": "names or regular expressions (default: all topics that are not "
        "internal)",
        "--groups NAME,…": "consumer groups whose lag is shown (default: all; '' for none)",
        "--since TIME": "begin with the first record of the last 15m, 24h or 7d (default: read "
        "all)",
        "--max-bytes SIZE=10g": "read about this much at most, such as 500m or 1t",
        "--window LENGTH": "of the tables, such as '1 hour' (default: as fits)",
        "--keys {text,hash,none}=text": "show hot keys as text, by their hashes, or do not read "
        "keys",
        "--clients FILE": "CSV of who produces and consumes where: topic,kind,rack,share,isNear",
        f"--cost-per-gb N={COST_PER_GB}": "what a GB between racks costs",
        "--top N=20": "rows of tables shown",
        "--out DIR=load-report": "where to write the results",
        "--json": "print what summary.json holds, and nothing else",
        "--cores N": "of Spark's local mode (default: all)",
        "--memory SIZE": "heap of Spark's local mode (default 1g)",
        "--verbose": "show what Spark itself logs of errors",
    }
    add_options(command, options, types={"--cost-per-gb": float, "--out": Path})
    add_client_options(command, servers=("--bootstrap",))


class _Verb(argparse._SubParsersAction):  # type: ignore[type-arg] # no class of its own to index
    """Refuses options before the verb, which argparse would replace by the verb's defaults."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        for action in parser._actions:
            if getattr(namespace, action.dest, action.default) != action.default:
                name = action.option_strings[0]
                parser.error(f"{name} comes before {values[0]}: write its options after it")
        super().__call__(parser, namespace, values, option_string)


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb is None:
        from trimtab.cli.load.live import run_live

        return run_live(arguments)
    from trimtab.spark.session.local import check_local_options, check_packages

    check_packages()
    check_local_options(arguments.cores, arguments.memory)
    request, cluster = _ask(arguments)
    out: Path = arguments.out
    say_note("Starting Spark …")
    with _local_or_given(arguments) as session:
        tables = _compute(session, request)
    summary = _write(request, tables, cluster, out)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        print(describe(summary))
        print(f"\nWritten to {out}: report.html, summary.json, *.parquet")
    return 0


def describe(summary: Summary) -> str:
    """The findings in plain words, each with what to do."""
    from trimtab.balance.advice import SEVERITIES

    read = summary["read"]
    part = "" if read["share"] >= 1 else f", the newest {read['share']:.1%} of what there is"
    lines = [
        f"{show_count(read['topics'], 'topic')} of cluster {summary['cluster']}: "
        f"{show_count(read['records'], 'record')}, {show_bytes(read['bytes'])} in "
        f"{show_count(read['partitions'], 'partition')}{part}"
    ]
    found = summary["findings"]
    if not found:
        lines.append("Nothing to do: no rule is broken.")
    for finding in found:
        lines += [
            "",
            f"{SEVERITIES[finding['severity']]}: {finding['subject']} ({finding['rule']})",
            f"  {finding['evidence']}",
            f"  -> {finding['action']}",
        ]
    return "\n".join(lines)


def read_topics(text: str | None, names: Iterable[str]) -> list[str]:
    """The topics that are asked for, of those that there are.

    Raises:
        UsageError: a part of the list matches none.
    """
    there = list(names)
    if text is None:
        return there
    found = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        matching = match_names(part, there)
        if not matching:
            raise UsageError(f"--topics: no topic matches {part!r}; see trimtab topics --list")
        found.update(matching)
    if not found:
        raise UsageError(f"--topics {text!r} names no topic")
    return sorted(found)


def _ask(arguments: argparse.Namespace) -> tuple[SurveyRequest, str]:
    """Check the options, and ask the cluster: both before Spark starts."""
    from trimtab.cli.load.clients import read_clients
    from trimtab.cli.load.reading import choose_offsets, choose_window
    from trimtab.cli.load.survey import SurveyRequest
    from trimtab.spark.load.snapshots import take_snapshot
    from trimtab.spark.options.values import GivenOptions

    given = {name: getattr(arguments, name) for name in ("since", "max_bytes")}
    options = GivenOptions(
        {f"--{name.replace('_', '-')}": text for name, text in given.items() if text is not None}
    )
    max_bytes, since_s = options.size("--max-bytes"), options.seconds("--since", 0.0)
    cost: float = arguments.cost_per_gb
    if not 0 <= cost < math.inf:
        raise UsageError(f"--cost-per-gb {cost}: write 0 or more")
    window: str | None = arguments.window
    if window is not None and not _WINDOW.fullmatch(window.strip()):
        raise UsageError(f"--window {window!r}: write a length, such as '5 minutes' or '1 day'")
    if arguments.top < 1:
        raise UsageError(f"--top {arguments.top}: write 1 or more")
    clients = [] if arguments.clients is None else read_clients(arguments.clients)
    denied: list[BrokerError] = []
    client = read_client_options(arguments)
    with connect_admin(client) as admin:
        topics = read_topics(arguments.topics, admin.topics())
        cluster = admin.cluster().cluster_id or "without an id"
        _check_history(arguments.out, cluster)
        groups = _read_groups(admin, arguments.groups)
        snapshot = take_snapshot(
            {"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **client},
            None,
            groups,
            denied=denied.append,
        )
        # A topic may have been deleted since they were listed.
        there = {row[1] for row in snapshot.partitions}
        topics = [name for name in topics if name in there]
        stored, seconds = _measure(admin, snapshot, topics, since_s)
    if stored and denied and not snapshot.replicas:
        raise UsageError(
            f"--max-bytes {arguments.max_bytes} cannot be kept, because brokers do not tell the"
            f" sizes of logs ({denied[0]}): allow the operation Describe on the cluster"
        )
    for error in denied:
        say_note(f"Left out, because it is not authorized: {error}")
    known = {f"group {row[1]}" for row in snapshot.group_offsets}
    known.update(error.subject for error in denied)
    for group in groups if arguments.groups else ():
        if f"group {group}" not in known:
            say_note(f"Left out, because it has no committed offsets: group {group}")
    wanted = set(topics)
    partitions = sum(row[1] in wanted for row in snapshot.partitions)
    request = SurveyRequest(
        client=client,
        topics=topics,
        snapshot=snapshot,
        reading=choose_offsets(stored, max_bytes),
        window=window or choose_window(seconds, partitions),
        keys=arguments.keys,
        clients=clients,
        cost_per_gb=cost,
        top=arguments.top,
        history=arguments.out / "history",
        denied=[str(error) for error in denied],
    )
    return request, cluster


def _read_groups(admin: Admin, text: str | None) -> list[str]:
    """The groups that are asked for; all groups of consumers if none are named."""
    if text is not None:
        return [name for part in text.split(",") if (name := part.strip())]
    # "" has committed offsets without members, as Spark and Flink may. Kafka lists only the groups
    # that the client is authorized to describe.
    return [each.group_id for each in admin.list_groups() if each.protocol_type in ("consumer", "")]


def _measure(
    admin: Admin, snapshot: Snapshot, topics: Iterable[str], since_s: float
) -> tuple[dict[TopicPartition, Stored], float]:
    """What there is of each partition, and how long it took to be written, in seconds."""
    from trimtab.cli.load.reading import Stored

    wanted = set(topics)
    leaders = {TopicPartition(row[1], row[2]): row[3] for row in snapshot.partitions}
    logs: dict[TopicPartition, int] = {}
    copies: dict[TopicPartition, int] = {}
    for _, broker, _, topic, number, size, _, is_future in snapshot.replicas:
        if not is_future:
            partition = TopicPartition(topic, number)
            copies[partition] = max(size, copies.get(partition, 0))
            if leaders.get(partition) == broker:
                logs[partition] = size
    bounds = {
        TopicPartition(topic, partition): (earliest, latest)
        for _, topic, partition, earliest, latest in snapshot.offsets
        if topic in wanted and latest > earliest
    }
    if not bounds:
        return {}, 0.0
    since_ms = round((time.time() - since_s) * 1000) if since_s else 0
    first = admin.list_offsets(bounds, at=since_ms)
    last = admin.list_offsets(bounds, at="max_timestamp")
    stored = {}
    for partition, (earliest, latest) in bounds.items():
        since = earliest
        if since_s:
            at = first[partition].offset
            since = latest if at < 0 else min(max(at, earliest), latest)
        # The leader may have changed before the brokers were asked for their logs.
        size = logs.get(partition, copies.get(partition, 0))
        stored[partition] = Stored(earliest, since, latest, size)
    times = [
        offset.timestamp
        for found in (first, last)
        for offset in found.values()
        if offset.offset >= 0
    ]
    return stored, (max(times) - min(times)) / 1000 if times else 0.0


def _check_history(out: Path, cluster: str) -> None:
    """Snapshots of two clusters in one history would make nonsense of growth and lag."""
    try:
        earlier = json.loads((out / "summary.json").read_text(encoding="utf-8"))["cluster"]
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}: name a directory") from error
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{out}/summary.json is not of a load report: choose another --out"
        ) from None
    if earlier != cluster:
        raise UsageError(
            f"{out} has reports of another cluster ({earlier}, this is {cluster}): choose another"
            " --out"
        )


@contextmanager
def _local_or_given(arguments: argparse.Namespace) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from trimtab.spark.session.local import any_session, is_given, local_session

    config = None if arguments.verbose else {"spark.log.level": "OFF"}
    is_there = is_given() or SparkSession.getActiveSession() is not None
    start = any_session if is_there else local_session
    with start("trimtab load report", arguments.cores, arguments.memory or "1g", config) as session:
        yield session


def _compute(session: SparkSession, request: SurveyRequest) -> Tables:
    from trimtab.cli.load.survey import survey
    from trimtab.spark.pipeline.run import describe as describe_error

    try:
        return survey(session, request, say_note)
    except KafkaError:
        raise
    except Exception as error:
        raise ReportFailed(describe_error(error)) from error


def _write(request: SurveyRequest, tables: Tables, cluster: str, out: Path) -> Summary:
    from trimtab.cli.load.history import write_parquet
    from trimtab.cli.load.report import render_report
    from trimtab.cli.load.survey import summarize
    from trimtab.cli.version import read_version

    summary = summarize(request, tables, cluster, read_version())
    try:
        for name, table in tables._asdict().items():
            path = out / f"{name}.parquet"
            if table is None:
                path.unlink(missing_ok=True)  # of an earlier run
            elif name not in ("totals", "skew"):
                write_parquet(table, path)
        (out / "report.html").write_text(render_report(summary), encoding="utf-8")
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportFailed(f"cannot write to {out}: {error}") from error
    return summary
