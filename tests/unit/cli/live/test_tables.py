"""Tables: what is chosen of them, and what their cells and explanations say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.limits import PartitionLimits
from trimtab.cli.limits import PlannedTopic
from trimtab.cli.live import tables
from trimtab.cli.live.findings import find
from trimtab.cli.live.recording import find_recorded_plan
from trimtab.cli.live.rows import Summary, summarize
from trimtab.cli.live.tables import Column, Table
from trimtab.cli.style import ERROR, WARNING
from trimtab.client.collector import Progress, Stage
from trimtab.client.measure.history import LoadHistory
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.records import TopicPartition

TOPICS = {"flights": spread([90_000.0, 1000.0, 0.0]), "audit": spread([500.0])}
FLIGHTS = TopicPartition("flights", 0)


def make(topics: dict[str, list[Made]] | None = None, **parts: Any) -> Summary:
    return summarize(make_snapshot(TOPICS if topics is None else topics, **parts))


def write(table: Table) -> list[list[str]]:
    return [table.write(row) for row in table.rows]


def cells(table: Table, head: str) -> list[str]:
    at = [column.head for column in table.columns].index(head)
    return [row[at] for row in write(table)]


NUMBERS = Table(
    [Column("name", lambda row: row[0], is_number=False), Column("size", lambda row: row[1])],
    [("b", 2), ("A x", 9), ("c", None), ("a y", 5)],
    lambda row: row[0],
)


@pytest.mark.parametrize(
    ("words", "column", "is_last_first", "most", "names"),
    [
        ("", None, False, 9, ["b", "A x", "c", "a y"]),
        ("", None, False, 2, ["b", "A x"]),
        ("a", None, False, 9, ["A x", "a y"]),
        ("Y a", None, False, 9, ["a y"]),
        ("  ", None, False, 9, ["b", "A x", "c", "a y"]),
        ("nobody", 1, False, 9, []),
        ("", 1, False, 9, ["A x", "a y", "b", "c"]),
        ("", 1, True, 9, ["b", "a y", "A x", "c"]),
        ("", 1, False, 1, ["A x"]),
        ("", 0, False, 9, ["A x", "a y", "b", "c"]),
        ("", 0, True, 9, ["c", "b", "a y", "A x"]),
    ],
)
def test_rows_are_filtered_and_sorted_and_what_is_unknown_is_last(
    words: str, column: int | None, is_last_first: bool, most: int, names: list[str]
) -> None:
    assert [row[0] for row in NUMBERS.choose(words, column, is_last_first, most)] == names


def test_what_a_terminal_would_obey_is_shown_as_text() -> None:
    assert tables.show_text("[bold]flüge 航班[/]") == "[bold]flüge 航班[/]"
    assert tables.show_text("a\x1b[31m\nb\t\u202e") == r"a\x1b[31m\nb\t\u202e"
    assert Table([Column("n", str)], ["\x07"], str).write("\x07") == [r"\x07"]


def test_a_sparkline_goes_from_0_to_the_largest_value() -> None:
    assert tables.draw([0.0, 50.0, 100.0]) == "▁▅█"
    assert tables.draw([7.0, math.nan]) == "█ "
    assert tables.draw([0.0, 0.0]) == "▁▁"
    assert tables.draw([-5.0, 5.0]) == "▁█"
    assert tables.draw([math.nan]) == " "
    assert tables.draw([]) == ""


def test_findings_say_what_to_do_and_open_what_they_are_about() -> None:
    summary = make({"flights": [Made(90_000.0, (0, 1), in_sync=(0,)), Made(10.0, (1, 2))]})
    found = find(summary)
    table = tables.of_findings(found)
    assert cells(table, "severity") == ["it costs"] * 3
    assert {table.opens(row) for row in table.rows} == {("broker", "0"), ("topic", "flights")}
    assert all(each.advice.action in table.explain(each) for each in found)
    assert [table.colour(row) for row in table.rows] == [WARNING] * 3
    lost = tables.of_findings(find(make({"a": [Made(None, leader=-1)]})))
    assert [lost.colour(row) for row in lost.rows] == [ERROR]
    assert "no rule is broken" in tables.of_findings([]).note
    many = find(make({f"t{index}": [Made(1.0, in_sync=(0,))] for index in range(21)}))
    assert tables.of_findings(many).opens(many[-1]) is None


def test_brokers_say_why_and_whether_they_answer() -> None:
    summary = make(
        brokers=[
            BrokerState(0, "a", 5),
            BrokerState(1, None, 1 << 62, is_alive=False),
            BrokerState(2, None, 1 << 62),
        ],
        answers={0: Answers(0.002, None), 2: Answers(0.1, 0.25)},
        slow=SlowBrokers({2: "its probes take 90 ms"}, {}, {}),
        volumes={0: (1000, 250)},
    )
    table = tables.of_brokers(summary)
    assert cells(table, "state") == ["down", "slow", "up"]
    assert cells(table, "disk") == ["-", "-", "75%"]
    assert cells(table, "answers") == ["-", "250 ms", "2.0 ms"]
    marked = [[each.head for each in table.columns if each.alarms(row)] for row in table.rows]
    assert marked == [["state"], ["state", "level", "answers"], ["level"]]
    assert [table.colour(row) for row in table.rows] == [ERROR, WARNING, WARNING]
    texts = [table.explain(row) for row in table.rows]
    assert texts[2].endswith("alone is 99% of it; answers in 2.0 ms; has room for 5 replicas")
    assert texts[0] == "no more load than others"
    assert texts[1] == "its probes take 90 ms; answers in 100 ms, 99 % within 250 ms"
    assert table.opens(table.rows[1]) == ("broker", "2")


def test_topics_say_whether_chance_explains_their_skew() -> None:
    tails = {FLIGHTS: make_tail({"LH400": 0.9})}
    table = tables.of_topics(make(tails=tails))
    assert cells(table, "topic") == ["flights", "audit"]
    assert cells(table, "skew") == ["2.97 x", "-"]
    assert table.explain(table.rows[0]).startswith("partition 0 gets 3.0 x the mean; of the newest")
    assert table.explain(table.rows[1]) == "too little load to judge its skew"
    even = tables.of_topics(make({"flights": spread([1300.0, 1000.0])}))
    assert even.explain(even.rows[0]) == "partition 0 gets 1.1 x the mean, which may be chance"
    topics = {
        "a": [Made(1.0, leader=-1)],
        "b": [Made(0.5, in_sync=(0,))],
        "c": spread([90_000.0, 1000.0, 0.0]),
        "d": [Made(0.1)],
    }
    coloured = tables.of_topics(make(topics))
    assert {row.topic: coloured.colour(row) for row in coloured.rows} == {
        "a": ERROR,
        "b": WARNING,
        "c": WARNING,
        "d": None,
    }


def test_sparklines_come_from_the_history() -> None:
    history = LoadHistory()
    for number in range(30):
        shown = make_snapshot({"flights": spread([float(number), 0.0])}, taken_s=5.0 * number)
        history.add(shown.taken_s, shown.topics, shown.metered.load, shown.levels)
    summary = summarize(shown)
    [topic] = cells(tables.of_topics(summary, history), "lately")
    assert (len(topic), topic[-1]) == (10, "█")
    assert topic[0] < topic[-1]
    assert cells(tables.of_brokers(summary, history), "lately")[2] == "▁" * 10
    partitions = tables.of_partitions(summary, history, topic="flights")
    assert cells(partitions, "lately") == [topic, "▁" * 10]


def lag(group: str, index: int, *rest: Any) -> PartitionLag:
    return PartitionLag(group, TopicPartition("flights", index), 100, *rest)


LAGS = [
    lag("growing", 0, 900, 800, 9.0, 1.0, None),
    lag("growing", 1, 100, 0, 9.0, 9.0, 0.0),
    lag("catching up", 0, 400, 300, 1.0, 4.0, 100.0),
    lag("new", 0, 150, 50, None, None, None),
    lag("gone", 0, None, None, None, 0.0, None),
]


def test_groups_say_when_they_will_have_caught_up() -> None:
    table = tables.of_groups(make(lags=LAGS))
    shown = {row[0]: row[3] for row in write(table)}
    assert shown == {
        "growing": "never at this rate",
        "catching up": "100 s",
        "new": "-",
        "gone": "-",
    }
    assert [table.colour(row) for row in table.rows][:2] == [WARNING, None]
    assert table.opens(table.rows[0]) == ("group", "growing")
    by_time = table.choose("", 3, False, 9)
    assert [row.group for row in by_time][:2] == ["growing", "catching up"]


def test_consumers_of_a_topic_and_partitions_of_a_group() -> None:
    summary = make(lags=LAGS)
    of_topic = tables.of_consumers(summary, topic="flights")
    assert len(of_topic.rows) == 5
    assert of_topic.opens(of_topic.rows[0]) == ("group", "growing")
    of_group = tables.of_consumers(summary, group="growing")
    assert cells(of_group, "cleared in") == ["never at this rate", "no lag"]
    assert of_group.opens(of_group.rows[0]) == ("topic", "flights")
    assert of_group.explain(of_group.rows[1]) == "growing in flights-1: no lag"
    assert tables.of_consumers(summary, topic="audit").rows == []


def test_racks_have_a_price_and_say_what_is_an_estimate() -> None:
    topics = {"a": [Made(1_000_000.0, (0, 1, 2), out=500_000.0)]}
    table = tables.of_racks(make(topics, racks=["a", "b", "b"]), 0.02)
    assert cells(table, "by") == ["all", "replicas", "producers", "consumers"]
    assert cells(table, "cost a day") == ["4.75", "3.46", "0.86", "0.43"]
    assert cells(table, "cost in 30 days")[1] == "103.68"
    texts = [table.explain(row) for row in table.rows]
    assert [text.startswith("an estimate") for text in texts] == [False, False, True, True]
    assert texts[1].startswith("measured")
    assert "broker.rack" in tables.of_racks(make(), 0.02).note
    assert tables.of_racks(make(), 0.02).rows == []


def test_room_tries_out_topics_with_the_usual_number_of_replicas() -> None:
    topics = {
        "a": spread([1.0], factor=2),
        "b": spread([1.0], factor=2),
        "c": spread([1.0], factor=3),
        "__consumer_offsets": spread([1.0], factor=1),
    }
    summary = make(topics, limits=PartitionLimits(200, 10_000))
    table = tables.of_room(summary, [PlannedTopic("a topic", 7, 4)])
    shown = [row[:3] for row in write(table)]
    assert shown[0] == ["7", "4", "no"]
    assert shown[1:6] == [
        ["10", "2", "yes"],
        ["50", "2", "yes"],
        ["100", "2", "yes"],
        ["200", "2", "yes"],
        ["500", "2", "no"],
    ]
    assert "only 3 of the 4 brokers" in write(table)[0][3]
    at_most = table.explain(table.rows[5])
    assert at_most.startswith("at most 29")
    assert "max.broker.partitions=200 leaves" in at_most
    assert table.explain(table.rows[1]).endswith("7 on broker 1, 7 on broker 2")
    assert [table.colour(row) for row in table.rows][:2] == [WARNING, None]


def test_room_without_limits_and_topics_is_for_as_many_replicas_as_brokers() -> None:
    table = tables.of_room(make({}, brokers=2))
    assert {(row[1], row[2]) for row in write(table)} == {("2", "yes")}
    nobody = tables.of_room(make({}, brokers=0))
    assert {row[2] for row in write(nobody)} == {"no"}


def test_the_plan_is_in_lines_and_its_progress_is_first() -> None:
    shown = make_snapshot({"flights": [Made(1000.0, (0, 1)) for _ in range(6)]})
    assert tables.of_plan(shown).rows == []
    assert tables.of_plan(shown).note == "The first plan is being made …"
    planned = find_recorded_plan(shown)
    lines = [row[0] for row in write(tables.of_plan(planned))]
    assert any(line.startswith("Plan: ") for line in lines)
    progress = Progress(Stage.MOVING, 3, 2)
    moving = tables.of_plan(planned._replace(progress=progress))
    assert write(moving)[0] == ["moving: 2 of 3 partitions to go"]
    failed = progress._replace(stage=Stage.FAILED, error="no right")
    assert write(tables.of_plan(shown._replace(progress=failed)))[0] == ["failed: no right"]


def test_partitions_of_a_topic_say_where_they_are() -> None:
    topics = {"flights": [Made(300.0, (0, 1), out=9.0, in_sync=(0,)), Made(100.0, leader=-1)]}
    table = tables.of_partitions(make(topics), LoadHistory(), topic="flights")
    assert cells(table, "share") == ["75%", "25%"]
    assert cells(table, "out of sync") == ["1", ""]
    assert cells(table, "leader") == ["0", "-"]
    assert [table.colour(row) for row in table.rows] == [WARNING, ERROR]
    assert table.explain(table.rows[0]) == ("flights-0: replicas on brokers 0, 1; not in sync: 1")
    assert table.opens(table.rows[0]) is None
    new = tables.of_partitions(make({"new": [Made(None)]}), LoadHistory(), topic="new")
    assert new.note == "new-0: it is new, or its log is: only one sample has it"
    gone = tables.of_partitions(make(topics), LoadHistory(), topic="gone")
    assert gone.note == "No partition is measured yet."


def test_partitions_of_a_broker_are_those_that_it_leads() -> None:
    topics = {"a": [Made(100.0, (1, 0)), Made(300.0, (0, 1)), Made(500.0, (0, 1)), Made(9.0, (2,))]}
    table = tables.of_partitions(make(topics), LoadHistory(), broker=0)
    assert cells(table, "partition") == ["a-2", "a-1"]
    assert cells(table, "sent/s") == ["500 B", "300 B"]
    assert table.opens(table.rows[0]) == ("topic", "a")


def test_keys_and_producers_of_the_newest_records() -> None:
    tails = {
        FLIGHTS: make_tail({"LH400": 0.75, "": 0.25}, {"4711": 0.9, "": 0.1}),
        TopicPartition("audit", 0): make_tail({"x": 1.0}),
    }
    summary = make(tails=tails)
    keys = tables.of_tails(summary, "keys", "flights")
    assert write(keys) == [["flights-0", "75%", "LH400"], ["flights-0", "25%", "(without a key)"]]
    assert keys.explain(keys.rows[0]) == "75.0% of the newest 256 KiB of flights-0"
    producers = tables.of_tails(summary, "producers", "flights")
    assert [row[2] for row in write(producers)] == ["4711", "(without an id)"]
    assert len(tables.of_tails(summary, "keys").rows) == 3
    assert tables.of_tails(summary, "keys", "gone").rows == []
