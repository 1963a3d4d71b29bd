"""The demo's sentences and its report, from figures made up to look like KIP-794's."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from lab.demo.report import count_in_words, render_report
from lab.demo.summary import Summary, WaySummary, describe_findings

RACKS = {"0": "a", "1": "b", "2": "c"}
OFFERED = 1_228_800


def make_way(
    title: str, shares: tuple[float, float, float], p99: float, *, keyed: bool = False
) -> WaySummary:
    total, records = 120_000_000, 336_776
    sizes = [round(share * total) for share in shares]
    mean = total / 3
    return {
        "title": title,
        "kip": "KIP-794",
        "keyed": keyed,
        "topic": title.replace(" ", "-"),
        "settings": {"linger.ms": 0, "partitioner.ignore.keys": not keyed},
        "records": records,
        "seconds": 82.0,
        "records_per_second": records / 82,
        "value_bytes_per_second": 1_230_000.0,
        "send_lateness_ms": 1.5,
        "latency_ms": {
            "average": p99 / 3,
            "p50": p99 / 50,
            "p95": p99 / 1.5,
            "p99": p99,
            "p99_9": p99 * 1.4,
            "max": p99 * 2,
        },
        "partitions": [
            {
                "partition": index,
                "leader": index,
                "rack": RACKS[str(index)],
                "TotalBatches": 1000 if size else 0,
                "TotalBytes": size,
                "TotalRecords": round(records * size / total),
                "RawBytes": size,
                "NullKeyRecords": 0,
                "FirstOffset": 0,
                "LastOffset": 9,
                "BytesPerBatch": size / 1000 if size else None,
                "RecordsPerBatch": 12.5 if size else None,
                "ShareOfBytes": size / total,
            }
            for index, size in enumerate(sizes)
        ],
        "bytes_by_broker": {str(index): size for index, size in enumerate(sizes)},
        "share_by_broker": {str(index): size / total for index, size in enumerate(sizes)},
        "share_by_rack": {RACKS[str(index)]: size / total for index, size in enumerate(sizes)},
        "max_over_mean": max(sizes) / mean,
        "coefficient_of_variation": 0.1,
    }


@pytest.fixture
def ways() -> dict[str, WaySummary]:
    third = 1 / 3
    return {
        "round-robin": make_way("round robin", (third, third, third), 160),
        "sticky": make_way("sticky", (0.72, 0.14, 0.14), 5700),
        "uniform": make_way("uniform", (0.34, 0.33, 0.33), 176),
        "adaptive": make_way("adaptive", (0.28, 0.36, 0.36), 146),
        "rack-aware": make_way("rack-aware", (0, 1, 0), 4.2),
        "by-key": make_way("by key", (0.3, 0.5, 0.2), 150, keyed=True),
    }


def make_summary(ways: dict[str, WaySummary]) -> Summary:
    return {
        "trimtab": "0.1.0",
        "records_per_way": 336_776,
        "value_bytes_per_way": 100_854_490,
        "target_bytes_per_second": 1_228_800,
        "slow_broker": 0,
        "slow_produce_ms": 20,
        "client_rack": "b",
        "seconds": {"produce": 82.0},
        "findings": describe_findings(ways, 0, OFFERED),
        "ways": ways,
        "stream": {
            "topic": "flights",
            "limit_bytes": 4_000_000,
            "window": "7 days",
            "batches": [
                {
                    "records": 60_001 + number,
                    "bytes": 3_999_000 + number,
                    "lag_records": 5 - number,
                    "lag_bytes": None if number else 70,
                    "seconds": 1.5,
                }
                for number in range(6)
            ],
            "windows": [
                {"start": f"2013-01-{day:02}T00:00:00", "records": {"0": 5, "2": day}}
                for day in (1, 8, 15)
            ],
        },
        "flights": [
            {
                "carrier": "UA<",
                "origin": origin,
                "flights": 46_087,
                "mean_departure_delay": None if origin == "LGA" else 12.1,
                "p95_departure_delay": None if origin == "LGA" else 70.0,
                "cancelled_share": 0.012,
            }
            for origin in ("EWR", "JFK", "LGA") * 5
        ],
    }


def test_the_sentences_follow_the_figures(ways: dict[str, WaySummary]) -> None:
    assert describe_findings(ways, 0, OFFERED) == [
        "Sticky overloads the slow broker 0: it sends it 72% of its bytes, 2.2 times an even "
        "share, and one record in a hundred waits longer than 5.7 s.",
        "Rack-aware (0%) avoids it altogether, adaptive (28%) sends it less than an even share: "
        "with rack-aware one record in a hundred waits longer than 4.2 ms, against 5.7 s with "
        "sticky.",
        "Round robin and uniform keep every partition within 2.0% of equal bytes, whether its "
        "broker is slow or not; by key, the fullest partition has 1.5 times the mean.",
    ]


def test_other_figures_make_other_sentences(ways: dict[str, WaySummary]) -> None:
    del ways["sticky"], ways["rack-aware"], ways["adaptive"], ways["by-key"]
    assert describe_findings(ways, 0, OFFERED) == [
        "No way of choosing a partition overloads the slow broker 0: the most it gets is 34% of "
        "the bytes by uniform, where 33% is even.",
        "No way avoids broker 0: none sends it clearly less than an even share.",
        "Round robin and uniform keep every partition within 2.0% of equal bytes, whether its "
        "broker is slow or not.",
    ]
    ways["uniform"] = make_way("uniform", (0.6, 0.2, 0.2), 450)
    ways["round-robin"] = make_way("round robin", (0.5, 0.2, 0.3), 450)
    first, _, third = describe_findings(ways, 0, OFFERED)
    assert first.endswith("longer than 450 ms; so does round robin (50%).")
    assert third == "No way keeps every partition within 5% of equal bytes."


def test_what_the_slow_broker_gets_by_key_is_said_too(ways: dict[str, WaySummary]) -> None:
    ways["by-key"] = make_way("by key", (0.57, 0.18, 0.25), 1200, keyed=True)
    assert describe_findings(ways, 0, OFFERED)[0].endswith("than 5.7 s; by key it gets 57%.")
    del ways["sticky"]
    assert describe_findings(ways, 0, OFFERED)[0] == (
        "Without keys no way overloads the slow broker 0: the most it gets is 34% of the bytes by "
        "uniform, where 33% is even; by key it gets 57%."
    )


@pytest.mark.parametrize(
    ("rate", "late", "half", "said"),
    [
        (1.22, 2.0, 17.0, "even in the quickest way half of them waited longer than 17 ms"),
        (0.9, 2.0, 1.0, "1.23 MB/s offered to each way the quickest had 0.90 MB/s acknowledged"),
        (1.22, 800.0, 1.0, "records were sent at least 800 ms late on average"),
    ],
)
def test_a_machine_that_could_not_carry_the_load_is_blamed_and_no_latency_compared(
    ways: dict[str, WaySummary], rate: float, late: float, half: float, said: str
) -> None:
    for way in ways.values():
        way["value_bytes_per_second"] = rate * 1e6
        way["send_lateness_ms"] = late
        way["latency_ms"]["p50"] = half
    first, *others = describe_findings(ways, 0, OFFERED)
    assert first.startswith("This machine could not carry the load: ")
    assert said in first
    assert len(others) == 3
    assert not any("one record in a hundred" in sentence for sentence in others)


def test_a_way_that_is_slow_by_itself_is_not_the_machine(ways: dict[str, WaySummary]) -> None:
    ways["sticky"]["value_bytes_per_second"] = 0.6e6
    ways["sticky"]["send_lateness_ms"] = 9000
    assert describe_findings(ways, 0, OFFERED)[0].startswith("Sticky overloads")


def test_the_report_says_where_the_client_stands(ways: dict[str, WaySummary]) -> None:
    assert "the client is in rack b, so" in " ".join(render_report(make_summary(ways)).split())


def test_every_cell_names_its_column_for_a_phone(ways: dict[str, WaySummary]) -> None:
    text = render_report(make_summary(ways))
    assert text.count("<td") == text.count(' data-head="')
    assert "@media (max-width: 700px)" in text


class Outline(HTMLParser):
    """Collects what the report would load, and whether its elements are closed."""

    VOID = frozenset({"meta", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        names = ("src", "href", "xlink:href")
        self.loads += [value or "" for name, value in attributes if name in names]
        assert tag not in ("script", "link", "img", "iframe")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_report_is_whole_and_loads_nothing(ways: dict[str, WaySummary]) -> None:
    summary = make_summary(ways)
    text = render_report(summary)
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.loads == []
    assert "url(" not in text
    for sentence in summary["findings"]:
        assert sentence in text
    assert text.count("<rect") >= 2 * 3 * len(ways)  # once for a desk, once for a phone
    assert text.count("<circle") == 2 * 4 * len(ways)
    assert {"60,001", "3,999,005", "100.0%", "70 B"} <= set(outline.cells)
    assert "batch 5: 4.0 MB" in text
    assert "2013-01-15, partition 2: 15" in text
    assert "UA<" in outline.cells  # escaped in the text, itself again once parsed
    assert outline.cells.count("336,776") >= len(ways)


def test_small_numbers_are_words() -> None:
    assert [count_in_words(number) for number in (0, 8, 10)] == ["no", "eight", "10"]
