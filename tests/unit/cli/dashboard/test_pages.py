"""The dashboard's pages, from snapshots as a test makes them: what they say, and that nothing that
others have named becomes markup."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.unit.cli.dashboard.made_source import MadeSource
from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.level_plan import find_level_plan
from trimtab.cli.dashboard.pages import NoSuchPage, render, show_state
from trimtab.cli.dashboard.parts import ROWS, Site, read_whole
from trimtab.cli.live.recording import Recorder
from trimtab.cli.live.source import Recorded
from trimtab.client.collector import PlanView, Progress, Snapshot, Stage
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.records import TopicPartition

ALL = ["/", "/topics", "/groups", "/racks", "/room", "/plan"]
NASTY = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "'\"&amp;%2F%00",
    "../../etc/passwd",
    "a/b?c#d",
    "line\nbreak\r\ttab\x00\x1b[31m",
    "\u202eevil\u2028",
    "x" * 249,
    "</main></body><svg onload=alert(1)>",
    "{title}%s{0}",
]
VOID = {"input", "br", "wbr", "img", "meta", "link"}


class Markup(HTMLParser):
    """What a browser makes of a page; fails if it is not well formed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.names.add(name)
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def site_of(snapshot: Snapshot | None, changes: bool = False) -> Site:
    return Site(MadeSource(snapshot), 0.01, changes)


def draw(site: Site, path: str, **query: str) -> str:
    return render(site, path, query).main


def lag(
    group: str, topic: str, behind: int | None = 5, written: float = 2.0, read: float = 1.0
) -> PartitionLag:
    end = None if behind is None else 10 + behind
    clear = None if read <= written or not behind else behind / (read - written)
    return PartitionLag(group, TopicPartition(topic, 0), 10, end, behind, written, read, clear)


def nasty_snapshot(name: str) -> Snapshot:
    """Everything has this name."""
    brokers = [BrokerState(id, name + str(id % 2), 1 << 62) for id in range(3)]
    made = make_snapshot(
        {name: [*spread([900_000.0, 100.0, 100.0]), Made(None)], "plain": spread([10.0])},
        brokers=brokers,
        lags=[lag(name, name), lag("g", name, None)],
        tails={TopicPartition(name, 0): make_tail({name: 0.9, "": 0.1}, {name: 1.0})},
        slow=SlowBrokers({1: name}, {}, {}),
        progress=Progress(Stage.FAILED, 3, 1, None, name),
    )
    return with_plan(made._replace(metered=made.metered._replace(unknown=[name])))


def with_plan(snapshot: Snapshot) -> Snapshot:
    load = snapshot.metered.load
    return snapshot._replace(plan=PlanView(1, 0.0, find_level_plan(load)))


def pages_of(snapshot: Snapshot) -> list[str]:
    """Addresses of all pages; "plain" and "g" before others."""
    topics = sorted(snapshot.topics, key=lambda name: name != "plain")
    groups = sorted({each.group for each in snapshot.lags}, key=lambda name: name != "g")
    return [
        *ALL,
        *(f"/topics/{quote(name, safe='')}" for name in topics),
        *(f"/groups/{quote(group, safe='')}" for group in groups),
        *(f"/brokers/{broker}" for broker in snapshot.metered.load.brokers),
    ]


@pytest.mark.parametrize("name", NASTY)
def test_what_others_have_named_is_text(name: str) -> None:
    plain = nasty_snapshot("plainname")
    nasty = nasty_snapshot(name)
    site, nasty_site = site_of(plain, True), site_of(nasty, True)
    site.source.trouble, nasty_site.source.trouble = "plainname", name
    for path, nasty_path in zip(pages_of(plain), pages_of(nasty), strict=True):
        expected = Markup(draw(site, path, said="plainname", q="p") + show_state(site.source))
        got = Markup(
            draw(nasty_site, nasty_path, said=name, q=name) + show_state(nasty_site.source)
        )
        assert got.tags <= expected.tags | {"p"}
        assert got.names <= expected.names
        assert all(each.startswith("/") and not each.startswith("//") for each in got.links)


@pytest.mark.parametrize("name", NASTY)
def test_a_link_leads_to_what_it_names(name: str) -> None:
    site = site_of(nasty_snapshot(name))
    for path in ("/", "/topics", "/groups"):
        for link in Markup(draw(site, path)).links:
            if link.startswith(("/topics/", "/groups/")):
                page = render(site, link, {})
                assert name in page.title or "plain" in page.title or page.title == "Group g"
    assert name in unescape(draw(site, f"/topics/{quote(name, safe='')}"))


@pytest.mark.parametrize("name", [".", ".."])
def test_a_group_that_no_address_can_name_has_no_link(name: str) -> None:
    site = site_of(make_snapshot({"flights": spread([1.0])}, lags=[lag(name, "flights", 90_000)]))
    for path in ("/", "/groups", "/topics/flights"):
        assert not [each for each in Markup(draw(site, path)).links if "/groups/" in each]
    assert f">{name}<" in draw(site, "/groups")


def test_ids_are_unique() -> None:
    snapshot = nasty_snapshot("flights")
    site = site_of(snapshot, True)
    for path in pages_of(snapshot):
        html = draw(site, path)
        ids = Markup(html).ids
        assert len(ids) == len({*ids})


@pytest.mark.parametrize(
    "path",
    [
        "/gone",
        "/topics/gone",
        "/brokers/9",
        "/brokers/x",
        "/groups/g/x",
        "/brokers",
        "/racks/a",
        "/topics/flights/0",
        "/%ff",
        "/brokers/%D9%A0",
    ],
)
def test_what_there_is_not(path: str) -> None:
    with pytest.raises(NoSuchPage):
        render(site_of(make_snapshot({"flights": spread([1.0])})), path, {})


@pytest.mark.parametrize("path", [*ALL, "/topics/flights", "/brokers/0"])
def test_before_the_first_snapshot(path: str) -> None:
    site = site_of(None)
    assert "Measuring" in draw(site, path)
    site.source.trouble = "<b>no broker answers"
    assert "&lt;b&gt;no broker answers" in draw(site, path)
    assert "&lt;b&gt;no broker" in show_state(site.source)


# Sizes


@pytest.mark.parametrize("count", [0, 1, 33, 1000, 9000])
def test_any_number_of_topics(count: int) -> None:
    rates = {f"topic-{at:05}": spread([float(at), 1.0, 1.0, 1.0]) for at in range(count)}
    site = site_of(
        make_snapshot(rates, racks=("a", "b", "c"), lags=[lag("g", each) for each in rates])
    )
    for path in [*ALL, *(["/topics/topic-00000", "/brokers/0", "/groups/g"] if count else [])]:
        html = draw(site, path)
        Markup(html)
        assert len(html) < 200_000
    topics = draw(site, "/topics")
    assert topics.count("<tr>") == min(count, ROWS) + (count > 0)
    assert f"{count:,} topic" in topics
    if count > ROWS:
        last = draw(site, "/topics", page=str(-(-count // ROWS)))
        assert "topic-00000" in last
        assert 'id="next"' not in last
        assert 'id="before"' in last


def test_many_partitions_brokers_groups_and_racks() -> None:
    brokers = [BrokerState(id, f"rack-{id % 30}", 1 << 62) for id in range(100)]
    wide = spread([float(at) for at in range(3000)], 100, 3)
    lags = [lag(f"group-{at}", "wide", at) for at in range(1000)]
    site = site_of(make_snapshot({"wide": wide}, brokers=brokers, lags=lags))
    for path in [*ALL, "/topics/wide", "/brokers/7"]:
        html = draw(site, path)
        Markup(html)
        assert len(html) < 400_000
    assert "2,950 more partitions have less." in draw(site, "/topics/wide")
    assert "950 more are less behind." in draw(site, "/groups")
    assert "50 more have less load." in draw(site, "/")


# States


def test_without_racks_disks_or_load() -> None:
    site = site_of(make_snapshot({"idle": spread([0.0, 0.0])}))
    for path in [*ALL, "/topics/idle", "/brokers/0"]:
        Markup(draw(site, path))
    assert "Fewer than two racks are known" in draw(site, "/racks")
    assert "No rule is broken." in draw(site, "/")


def test_dead_brokers_and_partitions_without_a_leader() -> None:
    brokers = [
        BrokerState(0, "a", 1 << 62),
        BrokerState(1, None, 1 << 62, is_alive=False),
    ]
    topics = {"half": [Made(0.0, (0, 1), in_sync=(0,)), Made(None, (1,), leader=-1, in_sync=())]}
    site = site_of(make_snapshot(topics, brokers=brokers))
    for path in [*ALL, "/topics/half", "/brokers/0", "/brokers/1"]:
        Markup(draw(site, path))
    assert '<span class="bad">down</span>' in draw(site, "/")
    topic = draw(site, "/topics/half")
    assert 'data-head="Out of sync"><span class="bad">1</span>' in topic
    assert "1 partition without a leader" in topic


def test_no_broker_lives() -> None:
    brokers = [BrokerState(0, "a", 1 << 62, is_alive=False)]
    site = site_of(make_snapshot({"t": [Made(0.0, (0,), leader=-1)]}, brokers=brokers))
    for path in [*ALL, "/topics/t", "/brokers/0"]:
        Markup(draw(site, path))
    assert "No broker is alive." in draw(site, "/room", partitions="5", factor="3")


def test_a_broker_that_may_be_slow_is_named_and_its_answers_are_marked() -> None:
    answers = {0: Answers(0.005, 0.006), 1: Answers(0.761, 1.588), 2: Answers(0.006, 0.007)}
    suspected = SlowBrokers({}, {}, {1: "probes take <long>"})
    topics = {"flights": spread([5000.0] * 3)}
    html = draw(site_of(make_snapshot(topics, slow=suspected, answers=answers)), "/")
    assert "<p>Broker 1 may be slow: probes take &lt;long&gt;." in html
    assert '<span class="bad">1,588 ms</span>' in html
    assert html.count('class="bad"') == 1


def test_nothing_is_drawn_of_no_load() -> None:
    source = MadeSource(make_snapshot({"idle": spread([0.0])}, number=1))
    source.show(make_snapshot({"idle": spread([0.0])}, number=2, taken_s=1_780_000_005.0))
    html = draw(Site(source, 0.01, False), "/")
    assert "<figure>" not in html
    assert "none, or not measured twice yet" in html


@pytest.mark.parametrize(("days", "is_said"), [(3, True), (300, False)])
def test_a_disk_that_is_soon_full_is_said_to_who_asks_for_room(days: int, is_said: bool) -> None:
    volumes = {0: (10**12, days * 86_400 * 5000)}
    site = site_of(make_snapshot({"flights": [Made(5000.0, (0,))]}, volumes=volumes))
    html = draw(site, "/room")
    assert f"{days}.0 days" in html
    assert ("But the disk of broker 0 is full in 3.0 days" in html) is is_said


def test_gaps_in_the_history_are_drawn_as_gaps() -> None:
    source = MadeSource(make_snapshot({"old": spread([5.0, 9.0])}, number=1))
    for number in range(2, 6):
        topics = {"old": spread([5.0, 9.0])} if number == 4 else {"new": spread([7.0, 1.0])}
        source.show(make_snapshot(topics, number=number, taken_s=1_780_000_000.0 + 5 * number))
    source.show(make_snapshot({"old": spread([5.0]), "new": spread([7.0, None])}, number=7,
                              taken_s=1_780_000_100.0))  # fmt: skip
    for path in ("/", "/topics", "/topics/old", "/topics/new", "/brokers/0"):
        html = draw(Site(source, 0.01, False), path)
        Markup(html)
        assert not re.search(r"\b(nan|inf|None)\b", html)


def test_no_page_says_none_nan_or_inf() -> None:
    snapshot = nasty_snapshot("flights")
    for path in pages_of(snapshot):
        text = Markup(draw(site_of(snapshot), path)).text
        assert not re.search(r"\b(nan|inf|None|True|False)\b", text), path


# Queries


TOPICS = {
    "audit": spread([100.0, 100.0]),
    "Flights.EU": spread([9_000_000.0, 1.0, 1.0]),
    "orders": [Made(5000.0, (0, 1), size=10**9), Made(5000.0, (1, 0), out=9.0, size=10**9)],
}


def names(html: str) -> list[str]:
    return re.findall(r'href="/topics/[^"?]+">([^<]+)', html)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("load", ["Flights.EU", "orders", "audit"]),
        ("skew", ["Flights.EU", "orders", "audit"]),
        ("size", ["orders", "Flights.EU", "audit"]),
        ("out", ["orders", "Flights.EU", "audit"]),
        ("partitions", ["Flights.EU", "orders", "audit"]),
        ("name", ["Flights.EU", "audit", "orders"]),
        ("<script>", ["Flights.EU", "orders", "audit"]),
        ("__class__", ["Flights.EU", "orders", "audit"]),
    ],
)
def test_topics_are_sorted(sort: str, order: list[str]) -> None:
    assert names(draw(site_of(make_snapshot(TOPICS)), "/topics", sort=sort)) == order


@pytest.mark.parametrize(
    ("q", "shown"),
    [("", 3), ("flights.eu", 1), (" AUDIT ", 1), ("[", 0), ("%", 0), (".*", 0), ("\x00", 0)],
)
def test_topics_are_filtered(q: str, shown: int) -> None:
    html = draw(site_of(make_snapshot(TOPICS)), "/topics", q=q)
    assert len(names(html)) == shown
    assert ("No topic has such a name." in html) is (shown == 0)


@pytest.mark.parametrize("page", ["", "0", "-1", "9999999", "1e3", "²", "NaN", "9" * 1000, "1;2"])
def test_odd_pages_are_the_first_or_the_last(page: str) -> None:
    site = site_of(make_snapshot({f"t{at}": spread([1.0]) for at in range(120)}))
    shown = re.findall(r"Page (\d) of 3", draw(site, "/topics", page=page))
    assert shown == (["3"] if page == "9999999" else ["1"])


def test_a_step_keeps_sort_and_filter() -> None:
    site = site_of(make_snapshot({f"t&{at}": spread([1.0]) for at in range(120)}))
    html = draw(site, "/topics", sort="name", q="T&", page="2")
    assert Markup(html).links.count("/topics?sort=name&q=t%26&page=3") == 1


@pytest.mark.parametrize(
    ("partitions", "factor", "said"),
    [
        ("200", "2", "Yes: 200 partitions of 2 replicas fit."),
        ("", "", "Yes: 200 partitions of 3 replicas fit."),
        ("1", "9", "Yes: 1 partition of 3 replicas fit"),
        ("0", "0", "Yes: 1 partition of 1 replica fit"),
        ("x", "-1", "Yes: 200 partitions of 3 replicas fit."),
    ],
)
def test_room_is_asked_for(partitions: str, factor: str, said: str) -> None:
    site = site_of(make_snapshot(TOPICS))
    assert said in draw(site, "/room", partitions=partitions, factor=factor)


# The plan


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("changes", [False, True])
def test_buttons_are_there_when_they_can_be_pressed(stage: Stage, changes: bool) -> None:
    skewed = {"hot": [Made(9e6, (0, 1)), Made(8e6, (0, 2)), Made(7e6, (0, 1)), Made(1.0, (1, 2))]}
    snapshot = with_plan(make_snapshot(skewed))
    assert snapshot.plan is not None
    assert snapshot.plan.plan.changes
    site = site_of(snapshot._replace(progress=Progress(stage, 4, 1)), changes)
    buttons = re.findall(r'name="action" value="(\w+)"', draw(site, "/plan"))
    expected = ["pause", "cancel"] if stage.is_moving else ["run"]
    assert buttons == (expected if changes else [])
    assert ("<form" in draw(site, "/plan")) is changes


def test_what_became_of_a_change_is_said_only_where_changes_are_allowed() -> None:
    snapshot = make_snapshot(TOPICS)
    assert "oh &lt;no&gt;" in draw(site_of(snapshot, True), "/plan", said="oh <no>")
    assert "oh" not in draw(site_of(snapshot), "/plan", said="oh <no>")


# Recordings and values


def test_a_recording_is_shown_with_its_time(tmp_path: Path) -> None:
    file = tmp_path / "hour.jsonl.gz"
    recorder = Recorder(file)
    for number in range(3):
        recorder.write(make_snapshot(TOPICS, number=number, taken_s=1_780_000_000.0 + 5 * number))
    recorder.close()
    site = Site(Recorded(file), 0.01, False)
    for path in [*ALL, "/topics/orders", "/brokers/0"]:
        Markup(draw(site, path))
    state = show_state(site.source)
    assert "recorded at " in state
    assert "This is a recording" in state


def test_an_old_snapshot_is_marked() -> None:
    assert 'class="old"' in show_state(MadeSource(make_snapshot(TOPICS, taken_s=1.0)))


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("", 7), ("²", 7), ("1" * 8, 7)])
def test_whole_numbers(text: str, number: int) -> None:
    assert read_whole(text, 7) == number
