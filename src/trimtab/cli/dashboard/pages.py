"""The pages of the dashboard, as HTML, from the last snapshot alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from trimtab.balance.cluster_load import IN, OUT
from trimtab.cli.dashboard.moving import show_plan
from trimtab.cli.dashboard.parts import (
    DAY_S,
    HOUR,
    ROWS,
    Site,
    cost_of_racks,
    draw_plot,
    link_to,
    plot_brokers,
    plot_partitions,
    read_whole,
    show_clock,
    show_disk,
    show_findings,
    show_measuring,
    show_tiles,
    show_unknown,
    show_used,
    show_writers,
    tabulate,
    to_link,
)
from trimtab.cli.groups.watching import show_time
from trimtab.cli.limits import PlannedTopic, describe, try_out
from trimtab.cli.live.rows import Summary, TopicRow
from trimtab.cli.live.source import Source
from trimtab.cli.live.tables import (
    of_brokers,
    of_consumers,
    of_groups,
    of_partitions,
    of_racks,
    of_topics,
    show_level,
    show_milliseconds,
)
from trimtab.cli.page import Html, to_table
from trimtab.cli.plot import Line
from trimtab.cli.table import show_bytes, show_count
from trimtab.kafka.options import LONG_MAX

Query = Mapping[str, str]

_OLD_S: Final = 30.0
_SOON_DAYS: Final = 7
"""Until a disk is full: worth a warning to who adds a topic."""


class Page(NamedTuple):
    """A page's title and content."""

    title: str
    main: str


class NoSuchPage(Exception):
    """There is nothing at this address."""


def render(site: Site, path: str, query: Query) -> Page:
    """The page at an address.

    Args:
        path: percent-encoded, as names may have slashes.

    Raises:
        NoSuchPage: there is none.
    """
    kind, *names = [unquote(part) for part in path.split("/") if part] or [""]
    draw = _PAGES.get((kind, len(names)))
    if draw is None:
        raise NoSuchPage(path)
    summary = site.source.summary
    if summary is None:
        return Page("Measuring", show_measuring(site.source))
    return draw(site, summary, query, "".join(names))


def show_state(source: Source) -> str:
    """The line on top: which cluster, how old the snapshot is, and what is the matter."""
    summary = source.summary
    if summary is None:
        return f'<span class="old">{escape(source.trouble or "measuring …")}</span>'
    snapshot, totals = summary.snapshot, summary.totals
    age = max(0.0, time.time() - snapshot.taken_s) if source.is_live else 0.0
    old = ' class="old"' if age > _OLD_S else ""
    clock = show_clock(snapshot.taken_s)
    when = f"measured {show_time(age)} ago" if source.is_live else f"recorded at {clock}"
    trouble = f' <span class="old">{escape(source.trouble)}</span>' if source.trouble else ""
    return (
        f"cluster {escape(snapshot.cluster_id or 'without an id')} · "
        f"{show_count(len(summary.brokers), 'broker')} · "
        f"in {show_bytes(totals.bytes_in)}/s · out {show_bytes(totals.bytes_out)}/s · "
        f"<span{old}>{when}</span>{trouble}"
    )


# Pages


def _overview(site: Site, summary: Summary, query: Query, name: str) -> Page:
    snapshot, totals = summary.snapshot, summary.totals
    level = snapshot.levels[OUT if snapshot.levels[OUT].mean else IN]
    rate, cost = cost_of_racks(site, summary)
    limits = snapshot.limits
    free = (
        None  # not counted: it takes longer than all else here
        if limits is None or {*limits} == {LONG_MAX}
        else describe(summary.usage)["cluster"]["free"]
    )
    by_broker = [row.free for row in summary.brokers if row.free is not None]
    room = min(
        [*([] if free is None else [free]), *([sum(by_broker)] if by_broker else [])], default=None
    )
    best = f"best {level.reachable:.2f}" if level.reachable > 1.005 else "best 1"
    a_day = f"{cost:,.2f} a day" if rate else "0"
    left = "no limit" if room is None else f"{max(0, room):,}"
    tiles = [
        ("busiest broker", f"{level.level:.2f} x mean", best),
        ("in", f"{show_bytes(totals.bytes_in)}/s", f"{totals.records_in:,.0f} records/s"),
        ("out", f"{show_bytes(totals.bytes_out)}/s", show_count(len(summary.groups), "group")),
        ("stored", show_bytes(totals.stored), show_count(totals.partitions, "partition")),
        ("cost between racks", Html(f'<a href="/racks">{a_day}</a>'), "replication alone"),
        ("room for replicas", Html(f'<a href="/room">{left}</a>'), "KIP-578"),
    ]
    uneven = sorted(
        (row for row in summary.topics if row.is_uneven), key=lambda row: -(row.skew or 0.0)
    )[:5]
    body = [
        "<h1>Cluster</h1>",
        show_tiles(tiles),
        show_findings(site, summary, 5),
        "<h2>Brokers</h2>",
        tabulate(of_brokers(summary, site.source.history, HOUR), "brokers", rest="have less load"),
        plot_brokers(site, summary),
        "<h2>Topics with most bytes</h2>",
        _tabulate_topics(site, summary, summary.topics[:5]),
        "<h2>Topics whose partitions are uneven</h2>" + _tabulate_topics(site, summary, uneven)
        if uneven
        else "",
        f'<p><a href="/topics">All {totals.topics:,} topics</a></p>',
        show_unknown(summary),
    ]
    return Page("Cluster", "\n".join(body))


def _tabulate_topics(site: Site, summary: Summary, rows: Sequence[TopicRow]) -> str:
    return tabulate(of_topics(summary, site.source.history, HOUR)._replace(rows=rows), "topics")


_SORTS: Final[Mapping[str, tuple[str, Callable[[TopicRow], Any]]]] = {
    "load": ("bytes in", lambda row: -row.bytes_in),
    "out": ("bytes out", lambda row: -row.bytes_out),
    "skew": ("skew", lambda row: (not row.is_uneven, -(row.skew or 0.0))),
    "size": ("size", lambda row: -row.size),
    "partitions": ("partitions", lambda row: -row.partitions),
    "name": ("name", lambda row: row.topic),
}


def _topics(site: Site, summary: Summary, query: Query, name: str) -> Page:
    sort = query.get("sort", "load")
    if sort not in _SORTS:
        sort = "load"
    wanted = query.get("q", "").strip().lower()
    rows = [row for row in summary.topics if wanted in row.topic.lower()]
    rows.sort(key=_SORTS[sort][1])
    pages = max(1, -(-len(rows) // ROWS))
    page = min(max(1, read_whole(query.get("page", ""), 1)), pages)
    shown = rows[(page - 1) * ROWS : page * ROWS]
    sorts = " · ".join(
        f"<b>{label}</b>"
        if key == sort
        else f'<a href="{to_link("/topics", sort=key, q=wanted)}">{label}</a>'
        for key, (label, _) in _SORTS.items()
    )
    steps = [
        f'<a id="{word}" href="{to_link("/topics", sort=sort, q=wanted, page=str(at))}">{word}</a>'
        for word, at in (("before", page - 1), ("next", page + 1))
        if 1 <= at <= pages
    ]
    body = f"""<h1>Topics</h1>
<form action="/topics" role="search"><div><label for="q">Name contains</label>
<input id="q" name="q" value="{escape(query.get("q", ""))}" type="search"></div>
<input type="hidden" name="sort" value="{escape(sort)}"><button>Filter</button></form>
<p>{show_count(len(rows), "topic")}, by {sorts}</p>
{_tabulate_topics(site, summary, shown) if shown else "<p>No topic has such a name.</p>"}
<p>Page {page:,} of {pages:,} {" ".join(steps)}</p>"""
    return Page("Topics", body)


def _topic(site: Site, summary: Summary, query: Query, name: str) -> Page:
    view = summary.snapshot.topics.get(name)
    if view is None:
        raise NoSuchPage(name)
    row = next(each for each in summary.topics if each.topic == name)
    table = of_partitions(summary, site.source.history, topic=name, frames=HOUR)
    curve = site.source.history.of_topic(name)
    tiles = [
        ("in", f"{show_bytes(row.bytes_in)}/s", f"{row.records_in:,.0f} records/s"),
        ("out", f"{show_bytes(row.bytes_out)}/s", "committed by groups"),
        (
            "max/mean of partitions",
            "-" if row.skew is None else show_level(row.skew),
            "uneven" if row.is_uneven else "",
        ),
        (
            "stored",
            show_bytes(row.size),
            f"{show_count(row.partitions, 'partition')}, factor {row.factor}",
        ),
    ]
    body = [
        f"<h1>Topic {escape(name)}</h1>",
        show_tiles(tiles),
        show_findings(site, summary, 3, lambda each: each.kind == "topic" and each.name == name),
        show_writers(summary, row),
        draw_plot([Line(name, *curve, 1)], f"Bytes per second that producers send to {name}"),
        "<h2>Partitions</h2>",
        plot_partitions(site, name, [each.partition.partition for each in table.rows]),
        tabulate(table, "partitions", rest="partitions have less"),
        "<h2>Who reads it</h2>",
        tabulate(of_consumers(summary, topic=name), rest="are less behind"),
    ]
    return Page(f"Topic {name}", "\n".join(body))


def _brokers(site: Site, summary: Summary, query: Query, name: str) -> Page:
    row = next((each for each in summary.brokers if str(each.broker) == name), None)
    if row is None:
        raise NoSuchPage(name)
    written, sent = site.source.history.of_broker(row.broker)
    table = of_partitions(summary, site.source.history, broker=row.broker, frames=HOUR)
    tiles = [
        (
            "sent by its leaders",
            f"{show_bytes(row.sent)}/s",
            "" if row.level is None else f"{show_level(row.level)} the mean",
        ),
        ("written to it", f"{show_bytes(row.written)}/s", show_count(row.replicas, "replica")),
        (
            "answers in",
            "-" if row.answer_s is None else show_milliseconds(row.answer_s),
            "" if row.p99_s is None else f"p99 {show_milliseconds(row.p99_s)}",
        ),
        ("stored", show_bytes(row.stored), show_disk(row.disk, row.disk_free)),
    ]
    lines = [Line("sent by its leaders", *sent, 1), Line("written to it", *written, 2)]
    body = [
        f"<h1>Broker {row.broker}</h1>",
        show_tiles(tiles),
        show_findings(site, summary, 3, lambda each: each.kind == "broker" and each.name == name),
        draw_plot(lines, f"Bytes per second of broker {row.broker}"),
        f"<h2>Partitions that it leads: {len(table.rows):,}</h2>",
        tabulate(table, "partitions", rest="send less"),
    ]
    return Page(f"Broker {row.broker}", "\n".join(body))


def _groups(site: Site, summary: Summary, query: Query, name: str) -> Page:
    table = tabulate(of_groups(summary), rest="are less behind")
    return Page("Groups", f"<h1>Consumer groups</h1>{table}")


def _group(site: Site, summary: Summary, query: Query, name: str) -> Page:
    table = of_consumers(summary, group=name)
    if not table.rows:
        raise NoSuchPage(name)
    shown = tabulate(table, without=["group"], rest="are less behind")
    return Page(f"Group {name}", f"<h1>Group {escape(name)}</h1>{shown}")


def _racks(site: Site, summary: Summary, query: Query, name: str) -> Page:
    if not summary.racks:
        return Page(
            "Racks", "<h1>Between racks</h1><p>Fewer than two racks are known: set broker.rack.</p>"
        )
    _, cost = cost_of_racks(site, summary)
    body = f"""<h1>Between racks</h1>
<p>Replication between racks costs <b>{cost:,.2f} a day</b> at the rates of now, at
{site.cost_per_gb:g} for a GB (10^9 bytes) that leaves its rack. No broker tells where clients are;
<code>client.rack</code> with <code>partitioner.rack.aware</code> (KIP-1123) keeps what producers
send in their rack, and followers serve consumers there (KIP-392). So what producers and consumers
send between racks is an estimate: as if they were spread evenly.</p>
{tabulate(of_racks(summary, site.cost_per_gb))}"""
    return Page("Racks", body)


def _room(site: Site, summary: Summary, query: Query, name: str) -> Page:
    usage = summary.usage
    alive = len(usage.racks)
    partitions = min(100_000, max(1, read_whole(query.get("partitions", ""), 200)))
    factor = min(max(1, alive), max(1, read_whole(query.get("factor", ""), min(3, max(1, alive)))))
    outcome = try_out(usage, [PlannedTopic("the topic", partitions, factor)])[0] if alive else None
    if outcome is None:
        answer = '<p class="bad">No broker is alive.</p>'
    elif outcome["fits"]:
        added = ", ".join(f"broker {id} +{count:,}" for id, count in outcome["added"].items())
        what = f"{show_count(partitions, 'partition')} of {show_count(factor, 'replica')}"
        answer = f"<p><b>Yes: {what} fit.</b> {escape(added)}</p>"
    else:
        answer = (
            f'<p class="bad">No: at most {outcome["most_partitions"]:,} can be placed: '
            f"{escape(str(outcome['why']))}.</p>"
        )
    shown = describe(usage)
    heads = ["Where", "Rack", "Replicas", "Used", "Free", "Disk free", "Full in"]
    rows: list[list[str]] = [
        ["cluster", "", f"{shown['cluster']['replicas']:,}", *show_used(shown["cluster"]), "", ""]
    ]
    by_id = {row.broker: row for row in summary.brokers}
    full: list[tuple[float, int]] = []
    for each in shown["brokers"]:
        row = by_id.get(each["broker"])
        days = (
            None
            if row is None or not row.written or row.disk_free is None
            else row.disk_free / row.written / DAY_S
        )
        if days is not None:
            full.append((days, each["broker"]))
        rows.append(
            [
                link_to("brokers", str(each["broker"]), f"broker {each['broker']}"),
                each["rack"] or "",
                f"{each['replicas']:,}",
                *show_used(each),
                "" if row is None else show_disk(row.disk, row.disk_free),
                "" if days is None else f"{days:,.1f} days",
            ]
        )
    note = (
        "<p>The cluster has no limit on replicas, as Apache Kafka has none; trimtab's brokers take "
        "max.broker.partitions and max.partitions (KIP-578).</p>"
        if shown["cluster"]["free"] is None
        and all(each["free"] is None for each in shown["brokers"])
        else ""
    )
    if full and min(full)[0] < _SOON_DAYS:
        days, broker = min(full)
        answer += (
            f'<p class="bad">But the disk of broker {broker} is full in {days:,.1f} days without '
            "the topic, if what is written now goes on and nothing is deleted.</p>"
        )
    body = f"""<h1>Room</h1>
<form action="/room"><div><label for="partitions">May I add a topic of … partitions</label>
<input id="partitions" name="partitions" type="number" min="1" max="100000"
value="{partitions}"></div>
<div><label for="factor">replicas of each</label>
<input id="factor" name="factor" type="number" min="1" max="{max(1, alive)}"
value="{factor}"></div>
<button>Ask</button></form>
{answer}{note}
<h2>Replicas and disks</h2>
<p class="faint">Full in: if what is written now goes on, and nothing is deleted.</p>
{to_table(heads, rows, text_columns=range(2))}"""
    return Page("Room", body)


def _plan(site: Site, summary: Summary, query: Query, name: str) -> Page:
    said = query.get("said", "") if site.allows_changes else ""
    return Page("Plan", show_plan(summary.snapshot, site.allows_changes, said))


_PAGES: Final[Mapping[tuple[str, int], Callable[[Site, Summary, Query, str], Page]]] = {
    ("", 0): _overview,
    ("topics", 0): _topics,
    ("topics", 1): _topic,
    ("brokers", 1): _brokers,
    ("groups", 0): _groups,
    ("groups", 1): _group,
    ("racks", 0): _racks,
    ("room", 0): _room,
    ("plan", 0): _plan,
}
"""By the first part of the address, and the number of further ones."""
