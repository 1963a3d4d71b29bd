"""The load report's page, from figures made up: it stays readable whatever there is."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from trimtab.cli.load import describe
from trimtab.cli.load.report import group_by_rank, render_report
from trimtab.cli.load.survey import Summary


def make_summary(partitions: int) -> Summary:
    """One topic with this many partitions; most of its load is on the first."""
    sizes = [1_000_000] + [1000 + number for number in range(partitions - 1)]
    total = sum(sizes)
    return {
        "trimtab": "1",
        "cluster": "c<1>",
        "taken_at": "2026-11-23T10:00:00+00:00",
        "read": {
            "topics": 3,
            "partitions": partitions + 2,
            "empty_topics": 1,
            "records": 5000,
            "bytes": total,
            "share": 1.0,
            "window": "1 hour",
            "cost_per_gb": 0.02,
            "keys": "text",
            "clients": 0,
            "without_leader": 0,
            "denied": [],
        },
        "findings": [
            {
                "severity": 1,
                "rule": "disk-full-soon",
                "subject": "broker <2>",
                "evidence": "its logs grow",
                "action": "trimtab log-dirs --topic <topic>",
            }
        ],
        "topics": [
            {
                "topic": "t&t",
                "Partitions": partitions,
                "TotalBytes": total,
                "TotalRecords": 5000,
                "MaxOverMean": 1_000_000 * partitions / total,
                "Gini": 0.5,
                "TopShare": 1_000_000 / total,
                "NullKeyShare": None,
            }
        ],
        "partitions": {"t&t": sizes},
        "times": [
            {"start": f"2026-11-23T{hour:02}:00:00+00:00", "bytes": {"t&t": hour * 100, "": 7}}
            for hour in range(10)
        ],
        "hot_keys": [
            {
                "topic": "t&t",
                "key": "<key>",
                "Partition": 0,
                "Records": 9,
                "ShareOfRecords": 0.5,
                "Bytes": 90,
            }
        ],
        "racks": [
            {
                "kind": "replicate",
                "fromRack": "a",
                "toRack": "b",
                "GB": 1.5,
                "Cost": 0.03,
                "SavableCost": 0.0,
            }
        ],
        "brokers": [
            {
                "broker": number,
                "rack": None,
                "Replicas": 4,
                "Leaders": 2,
                "MaxReplicas": None,
                "LedBytes": 100 * number,
                "LogBytes": 10,
                "DiskUsableBytes": None,
                "DiskTotalBytes": 1e12,
                "BytesPerDay": None,
                "DaysToFull": None,
            }
            for number in range(3)
        ],
        "groups": [
            {
                "group": "g",
                "topic": "t&t",
                "partition": 1,
                "Status": "STALL",
                "LagRecords": 1234,
                "LagBytes": None,
                "LagSeconds": 5.0,
            }
        ],
    }


class Page(HTMLParser):
    """Whether elements are closed, what would be loaded, and what stands in cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "xlink:href"} & {name for name, _ in attributes}
        assert tag not in ("script", "link", "img", "iframe")
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells.append(data)


@pytest.mark.parametrize("partitions", [1, 2, 33, 60, 61, 1000, 10_000])
def test_the_page_is_whole_loads_nothing_and_stays_of_one_size(partitions: int) -> None:
    text = render_report(make_summary(partitions))
    page = Page(text)
    assert "url(" not in text
    assert {"t&t", "<key>", "STALL", "1,234"} <= set(page.cells)
    assert "broker &lt;2&gt;" in text
    drawn = 0 if partitions == 1 else min(partitions, 60)
    # Each plot twice, for a desk and for a phone: partitions, two parts of ten windows (the first
    # hour has but one), two of three brokers (one leads nothing), and the legends of the windows.
    assert page.tags.count("rect") == 2 * (drawn + 19 + 2 + 2)
    assert len(text) < 80_000


def test_a_cluster_without_anything_has_a_page_too() -> None:
    nothing = make_summary(1)
    for name in ("findings", "topics", "times", "hot_keys", "racks", "groups"):
        nothing[name] = []
    nothing["partitions"] = {}
    for broker in nothing["brokers"]:
        broker["LedBytes"] = 0
    text = render_report(nothing)
    Page(text)
    assert "There are no records to read" in text
    assert "no rule is broken" in text
    assert "<rect" not in text


def test_the_smaller_ones_stand_in_groups_and_none_is_left_out() -> None:
    sizes = {str(number): float(10_000 - number) for number in range(10_000)}
    columns = group_by_rank(sizes, "partition")
    assert len(columns) == 60
    assert columns[0] == ("partition 0", {"": 10_000.0})
    assert columns[24].title == "places 25 to 301, mean"
    assert columns[-1].title == "places 9,723 to 10,000, mean"
    alone = sum(column.parts[""] for column in columns[:24])
    edges = [24 + 9976 * at // 36 for at in range(37)]
    grouped = sum(
        column.parts[""] * (end - start)
        for column, start, end in zip(columns[24:], edges, edges[1:], strict=False)
    )
    assert alone + grouped == pytest.approx(sum(sizes.values()))
    just_too_many = group_by_rank({str(number): 1.0 for number in range(61)}, "partition")
    assert len(just_too_many) == 60
    assert just_too_many[24].title == "partition 24"


def test_the_findings_in_plain_words() -> None:
    summary = make_summary(33)
    assert describe(summary).splitlines() == [
        "3 topics of cluster c<1>: 5,000 records, 1.0 MB in 35 partitions",
        "",
        "Act now: broker <2> (disk-full-soon)",
        "  its logs grow",
        "  -> trimtab log-dirs --topic <topic>",
    ]
    summary["findings"] = []
    summary["read"]["share"] = 0.125
    summary["read"]["topics"] = 1
    assert describe(summary).splitlines() == [
        "1 topic of cluster c<1>: 5,000 records, 1.0 MB in 35 partitions, the newest 12.5% of what"
        " there is",
        "Nothing to do: no rule is broken.",
    ]
    json.dumps(summary)


def test_what_was_left_out_is_said() -> None:
    summary = make_summary(2)
    summary["read"].update(share=0.1, without_leader=4, keys="none", topics=23)
    summary["read"]["denied"] = ["group <g>: GROUP_AUTHORIZATION_FAILED (30)"]
    text = render_report(summary)
    assert "the newest 10.0% was read" in text
    assert "Without a leader, and left out: 4 partitions." in text
    assert "keys were not read" in text
    assert "left out: group &lt;g&gt;: GROUP_AUTHORIZATION_FAILED (30)." in text
    assert "21 smaller topics more: see topic_skew.parquet" in text
    assert "1 topic has no records" in text
