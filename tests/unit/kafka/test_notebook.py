"""What notebooks show: escaped, bounded, and with what one looks for."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from random import Random

from tests.unit.balance.level_cases import random_cluster
from trimtab import Cluster, Producer, key_skew
from trimtab.balance.cluster_load import PartitionLoad as Load
from trimtab.balance.level_plan import Change, Goal, Level, LevelPlan, find_level_plan
from trimtab.client.partitioner.partitioning import HotKey, Partitioning, PartitionLoad
from trimtab.kafka.notebook import to_table
from trimtab.kafka.records import TopicPartition

MARKUP = "<script src='http://evil'>alert(1)</script>&"


class Reader(HTMLParser):
    """The cells of each row, the captions and the sentences; refuses all other elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.captions: list[str] = []
        self.notes: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "caption", "tr", "th", "td", "p")
        assert {name for name, _ in attrs} <= {"colspan"}
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        match self.open[-1:]:
            case ["th" | "td"]:
                self.rows[-1][-1] += data
            case ["caption"]:
                self.captions.append(data)
            case ["p"]:
                self.notes.append(data)


def test_texts_are_escaped_wherever_they_are() -> None:
    read = Reader(to_table(MARKUP, [MARKUP], [[MARKUP]], [MARKUP]))
    assert (read.captions, read.rows, read.notes) == ([MARKUP], [[MARKUP], [MARKUP]], [MARKUP])


def test_the_first_rows_are_shown_and_the_others_counted() -> None:
    read = Reader(to_table("t", ["a", "b"], [(n, None) for n in range(1010)]))
    assert read.rows == [["a", "b"], *([str(n), ""] for n in range(20)), ["… and 990 more"]]
    assert len(Reader(to_table("t", ["a"], [[n] for n in range(20)])).rows) == 21
    assert Reader(to_table("t", ["a"], [])).rows == [["a"]]


def test_no_text_and_no_number_of_them_is_without_bound() -> None:
    long = "x" * 10_000
    html = to_table(long, [long], [[long]] * 10_000, [long] * 10_000)
    assert len(html) < 10_000
    assert Reader(html).rows[1] == ["x" * 200 + "…"]


def test_a_cluster_shows_its_brokers() -> None:
    cluster = Cluster(brokers=2, racks=[MARKUP, None])
    assert Reader(cluster._repr_html_()).captions == ["Cluster of 2 brokers, not up"]
    with cluster:
        cluster.stop_broker(1)
        read = Reader(cluster._repr_html_())
        (address,) = cluster.addresses
        assert read.rows == [
            ["broker", "rack", "address", "state"],
            ["0", MARKUP, f"{address[0]}:{address[1]}", "up"],
            ["1", "", "", "down"],
        ]
        assert read.captions == [f"Cluster at {cluster.bootstrap_servers}, down: [1]"]
    assert len(Cluster(brokers=1000)._repr_html_()) < 5000


def test_the_partitioning_of_a_topic_shows_its_partitions_and_hot_keys() -> None:
    with (
        Cluster(brokers=1, config={"num.partitions": 3}) as cluster,
        Producer(cluster.bootstrap_servers, partitioner_keys_shown=True) as producer,
    ):
        for _ in range(500):
            producer.send("t", b"x" * 1000, key=MARKUP.encode())
        producer.flush()
        read = Reader(producer.partitioning("t")._repr_html_())
    assert read.captions == ["t: BuiltInPartitioner", "hot keys"]
    assert read.rows[0][:4] == ["partition", "leader", "rack", "stored bytes"]
    assert [row[3] == "0" for row in read.rows[1:4]] == [False, True, True], "most bytes first"
    assert read.rows[4] == ["key", "share", "partitions"]
    assert read.rows[5] == [repr(MARKUP), "100.0%", read.rows[1][0]]


LOAD = PartitionLoad(0, MARKUP, 1, 10, 1, 200, 0.125, MARKUP, None, None, 5, 1000, 1)
PARTITIONING = Partitioning(MARKUP, "P", 0, 0, None, (), 0, (LOAD,))


def test_a_partitioning_shows_weights_and_why_a_partition_is_left_out() -> None:
    read = Reader(PARTITIONING._repr_html_())
    assert read.captions == [f"{MARKUP}: P"]
    assert read.rows[1] == ["0", "0", MARKUP, "1,000", "210", "12.5%", MARKUP]
    hot = replace(PARTITIONING, hot_keys=(HotKey(7, None, 0.5, 0, (0, 2)),))
    assert Reader(hot._repr_html_()).rows[-1] == ["hash 7", "50.0%", "0, 2"]
    large = replace(PARTITIONING, partitions=(replace(LOAD, weight=None),) * 10_000)
    read = Reader(large._repr_html_())
    assert read.rows[1][5] == ""
    assert read.rows[-1] == ["… and 9,980 more"]


def test_a_skew_shows_what_it_says_and_the_heaviest_keys() -> None:
    skew = key_skew([MARKUP] * 90 + ["b"] * 10, partitions=3)
    read = Reader(skew._repr_html_())
    assert [*read.captions, *read.notes] == str(skew).splitlines()
    assert read.rows[1] == [repr(MARKUP), "90.0%", str(skew.heaviest[0].partition)]


def test_a_plan_shows_levels_reasons_and_changes() -> None:
    plan = find_level_plan(random_cluster(Random(3), 8, 60, 3, 0.7), Goal())
    assert plan.changes
    read = Reader(plan._repr_html_())
    first = plan.changes[0]
    assert read.rows[0] == ["bytes", "busiest broker", "of the mean", "with the plan"]
    assert [row[0] for row in read.rows[1:4]] == list(plan.before)
    name, busiest, before, after = read.rows[1]
    assert int(busiest) == plan.before[name].busiest
    assert before == f"{plan.before[name].level:.2f} x"
    assert after == f"{plan.after[name].level:.2f} x"
    assert set(plan.reasons) <= set(read.notes)
    assert read.captions[1].startswith(f"{len(plan.changes)} changes, ")
    assert read.rows[5] == [
        str(first.before.partition),
        str(first.before.replicas),
        str(first.replicas),
        first.reason,
    ]


def test_a_level_plan_says_that_nothing_is_to_do_and_a_large_one_is_bounded() -> None:
    level = Level({}, 0.0, 1.0, 1.0)
    nothing = LevelPlan([], {"out": level}, {"out": level}, 0, 0, [], [])
    assert Reader(nothing._repr_html_()).notes == ["Level: nothing to do."]
    load = Load(TopicPartition(MARKUP, 0), (0,), 0, frozenset([0]), 1.0, 1.0, 1)
    large = nothing._replace(
        changes=[Change(load, (1,), 10, None, MARKUP)] * 10_000,
        reasons=[MARKUP],
        unmet=["the level"],
    )
    read = Reader(large._repr_html_())
    assert read.notes == [MARKUP, "not reached: the level"]
    assert read.rows[-1] == ["… and 9,980 more"]
    assert read.rows[3][0] == f"{MARKUP}-0"
